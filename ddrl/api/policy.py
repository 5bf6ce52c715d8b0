"""A trained policy that acts in the user's own loop (`ddrl.load_policy`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ddrl.actors.policy import Policy
from ddrl.api import arguments
from ddrl.api.trained import Trained
from ddrl.errors import UserError
from ddrl.system.seeding import torch_generator
from ddrl.training.config.run_config import RunConfig
from ddrl.types import Array, EnvSpec, EnvStep, RecurrentState, VectorEnv


@dataclass(frozen=True)
class PolicyState:
    """What a policy remembers between two steps of B environments. It is passed back to `act` unchanged."""

    recurrent: RecurrentState
    """The state of the LSTM, tensors [B, ...]; empty without one."""
    last_action: torch.Tensor
    """[B] int64 or [B, A] float32."""

    @property
    def batch_size(self) -> int:
        """The number of environments."""
        return len(self.last_action)


class TrainedPolicy:
    """A trained agent. It chooses actions for one observation or for a batch of them.

    It keeps no state of episodes: `act` takes the state before a step and returns the state after it. So one policy
    may play many episodes at once.
    """

    def __init__(self, trained: Trained, *, seed: int = 0) -> None:
        """Make a policy that draws from the random stream of `seed`; `ddrl.load_policy` makes one of a run."""
        self._trained = trained
        self._inference = trained.inference()
        self._generator = torch_generator(seed, "policy")
        self._spec = trained.spec
        self._own_terms = trained.own_terms

    @property
    def config(self) -> RunConfig:
        """The configuration of the run that trained it."""
        return self._trained.config

    @property
    def env_frames(self) -> int:
        """The frames that it was trained for."""
        return self._trained.env_frames

    @property
    def spec(self) -> EnvSpec:
        """The shape and type of an observation, and the kind of actions."""
        return self._spec

    def environment(self, num_envs: int = 1, *, seed: int = 0) -> VectorEnv:
        """Make environments of the run's task, with the wrappers that the agent was trained with.

        Args:
            num_envs: number of environments, which step together.
            seed: determines all their episodes, together with the actions.

        Raises:
            UserError: the simulator is not installed.
        """
        num_envs, seed = arguments.integer("num_envs", num_envs, least=1), arguments.integer("seed", seed)
        return self._trained.environment(num_envs, seed, what="environment of a policy")

    def act(
        self,
        observation: ArrayLike,
        state: PolicyState | None = None,
        *,
        greedy: bool = False,
        reward: ArrayLike | None = None,
        start: ArrayLike | None = None,
    ) -> tuple[Any, PolicyState]:
        """Return an action, and the state to pass to the next call.

        Args:
            observation: one observation of the shape `spec.observation_shape`, or a batch of B of them. Of a
                `gymnasium/<id>` task also one observation of `gymnasium.make(id)` as it is, such as an integer or a
                dictionary.
            state: what the last call returned. None begins an episode in every environment.
            greedy: take the best action each time. Otherwise actions are drawn as in the run's evaluations.
            reward: the raw reward since the last action, a number or [B]. Only policies that were trained with
                `feed_last_action_and_reward` read it, and they need it after the first step.
            start: True where the observation begins an episode, a bool or [B]. Left out, episodes begin where `state`
                is None.

        Returns:
            The action and the new state. A discrete action is an int, or int64 [B] for a batch. A continuous action is
            float32 [A], or [B, A] for a batch, within [-1, 1] as environments here take it. Of a `gymnasium/<id>` task
            the action for one observation is one that `gymnasium.make(id)` takes: of its space and within its bounds.

        Raises:
            UserError: the observation has another shape or type than the policy was trained with, the number of
                environments has changed, or the reward is missing.
        """
        greedy = arguments.flag("greedy", greedy)
        if not isinstance(state, PolicyState | None):
            raise arguments.refused("state", "what the last call returned, or None", state)
        array, is_single = self._checked(observation)
        batch_size = len(array)
        if state is not None and state.batch_size != batch_size:
            raise UserError(
                f"state is of {state.batch_size} environments, and there are {batch_size} observations; allowed: the "
                "state that the last call for the same environments returned, or None"
            )
        begins = np.full(batch_size, state is None) if start is None else _filled("start", start, batch_size, np.bool_)
        if reward is None and self._needs_reward and not begins.all():
            raise UserError(
                "this policy was trained with feed_last_action_and_reward; pass reward=, since the last action"
            )
        rewards = _filled("reward", 0.0 if reward is None else reward, batch_size, np.float32)
        sample = self._trained.sampler(batch_size, greedy=greedy)
        policy = Policy(self._inference, batch_size, self._generator, sample)
        if state is not None:
            policy.state, policy.last_action = state.recurrent, state.last_action
        no, yes = np.zeros(batch_size, dtype=np.bool_), np.ones(batch_size, dtype=np.bool_)
        chosen = policy.act(EnvStep(array, rewards, no, no, no, begins, yes)).action
        if self._spec.action_size:
            chosen = chosen.clamp(-1.0, 1.0)
        action = chosen.numpy()
        return self._alone(action[0]) if is_single else action, PolicyState(policy.state, policy.last_action)

    def _alone(self, action: Array) -> Any:
        """Return the action for one observation, as the simulator's own environment takes it where that is known."""
        single = action if self._spec.action_size else int(action)
        return self._own_terms.decode(single) if self._own_terms else single

    @property
    def _needs_reward(self) -> bool:
        return vars(self.config.hyperparameters).get("feed_last_action_and_reward") is True

    def _checked(self, observation: ArrayLike) -> tuple[Array, bool]:
        """Return observations [B, ...] of the policy's type, and whether one alone was given. Raise UserError."""
        shape, dtype = self._spec.observation_shape, np.dtype(self._spec.observation_dtype)
        array = _array(observation)
        fits = array is not None and shape in (array.shape, array.shape[1:]) and array.dtype.kind == dtype.kind
        if self._own_terms and not fits and (encoded := self._own_terms.encode(observation)) is not None:
            array = encoded
        if array is None:
            raise arguments.refused("observation", "numbers or what env.step() returns first", observation)
        if (array.shape != shape and array.shape[1:] != shape) or not array.size:
            raise UserError(
                f"observation has shape {list(array.shape)}; allowed for '{self._spec.name}': {list(shape)}, or "
                f"[B, {', '.join(map(str, shape))}] for a batch"
            )
        if array.dtype != dtype and (dtype == np.uint8 or array.dtype.kind not in "fiub"):
            raise UserError(f"observation is of {array.dtype}; allowed for '{self._spec.name}': {dtype}")
        array = np.ascontiguousarray(array, dtype=dtype)
        if not np.isfinite(array).all():
            raise UserError("observation holds numbers that are not finite")
        is_single = array.shape == shape
        return (array[None] if is_single else array), is_single

    def __repr__(self) -> str:
        return (
            f"TrainedPolicy({self.config.algorithm} on {self._spec.name}, {self.env_frames:,} frames, observations "
            f"{self._spec.observation_dtype} {list(self._spec.observation_shape)})"
        )


def _array(values: Any) -> Array | None:
    """Return an array, None of what makes none, such as a pair of an observation and a dictionary."""
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    return None if array.dtype == object else array


def _filled(name: str, values: ArrayLike, batch_size: int, dtype: Any) -> Array:
    """Return one number for all environments, or one each, as an array [B]. Raise UserError for anything else."""
    array = _array(values)
    kinds, allowed = ("biu", "True or False, for each environment") if dtype == np.bool_ else ("fiub", "numbers")
    if array is None or array.dtype.kind not in kinds:
        raise arguments.refused(name, allowed, values)
    if array.shape not in ((), (batch_size,)):
        raise UserError(f"{name} has shape {list(array.shape)}; allowed: one value, or [{batch_size}]")
    return np.broadcast_to(array.astype(dtype), (batch_size,)).copy()
