"""Collects unrolls, aligned as `ddrl.types` says; and the actor of IMPALA and other algorithms, which sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ddrl.actors.policy import Policy
from ddrl.interfaces import Parameters, Queue
from ddrl.types import Array, EnvStep, Episode, PolicyInput, PolicyStep, RecurrentState, Unroll, VectorEnv

EpisodeSink = Callable[[Episode], None]
"""Called with each finished episode."""


class UnrollCollector:
    """Steps B environments with a policy; consecutive unrolls overlap by one observation."""

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        *,
        actor: int,
        on_episode: EpisodeSink,
        tasks: Sequence[str] | None = None,
        first_index: int = 0,
        generator: np.random.Generator | None = None,
    ) -> None:
        """`tasks` [B] names each environment's task (None: one for all); `generator` draws what is not an action."""
        self.env = env
        self.generator = generator
        self.policy = policy
        self.next_index = first_index
        """Number of unrolls collected so far."""
        self._actor = actor
        self._on_episode = on_episode
        self._tasks = tasks or [env.spec.name] * env.num_envs
        self._last_step: EnvStep | None = None
        self._acted: PolicyStep | None = None
        self.agent_steps = 0
        """Steps made in this process, without dead ones."""
        self.abandoned = 0
        """Number of episodes whose environment was lost before their end (see `ddrl.types`)."""
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)

    @property
    def _step(self) -> EnvStep:
        """Last step of the environments; resets them on first use, because remote ones may connect late."""
        if self._last_step is None:
            self._last_step = self.env.reset()
        return self._last_step

    def collect(
        self,
        length: int,
        states: list[RecurrentState] | None = None,
        values: list[torch.Tensor] | None = None,
        *,
        last_value: bool = True,
    ) -> Unroll:
        """Return the next unroll of `length` transitions.

        Appends the recurrent state before each transition to `states`, if given, and the values [B] that the policy
        predicted at each of the `length` + 1 observations to `values`, if given. For the last value the policy already
        acts, and the next unroll starts with that action; so the policy must have no recurrent state. Without
        `last_value` there are `length` values.
        """
        env, policy = self.env, self.policy
        initial_state = tuple(part.cpu().clone() for part in policy.state)
        buffers: dict[str, Any] = _buffers(env, length)
        arrays: dict[str, Array] = {name: buffer.numpy() for name, buffer in buffers.items()}
        inputs = self._observe(arrays, 0)
        for t in range(length):
            before = self._step
            if states is not None:
                states.append(policy.state)
            acted, self._acted = self._acted or policy.answer(inputs), None
            if values is not None:
                values.append(acted.value)
            action = acted.action.numpy()
            self._last_step = step = env.step(action)
            arrays["action"][t] = action
            arrays["distribution"][t] = acted.distribution.numpy()
            arrays["version"][t] = acted.version.numpy()
            arrays["reward"][t] = step.reward
            arrays["terminated"][t] = step.terminated
            arrays["truncated"][t] = step.truncated
            arrays["valid"][t] = step.valid
            inputs = self._observe(arrays, t + 1)
            if np.count_nonzero(step.start):
                self._abandon(step.start & ~step.valid & ~before.ended, arrays, t)
            self._count_episodes(step)
        if values is not None and last_value:
            self._acted = policy.answer(inputs)
            values.append(self._acted.value)
        actor, index = (torch.full((env.num_envs,), value) for value in (self._actor, self.next_index))
        self.next_index += 1
        rest = {"actor": actor, "env": torch.arange(env.num_envs), "index": index, "initial_state": initial_state}
        return Unroll(**buffers | rest)

    def _observe(self, arrays: dict[str, Array], t: int) -> PolicyInput:
        """Write what is seen at step t; return what the policy is given there."""
        inputs = self.policy.inputs(self._step)
        arrays["observation"][t] = self._step.observation
        arrays["start"][t] = self._step.start
        arrays["last_action"][t] = inputs.last_action.numpy()
        arrays["last_reward"][t] = inputs.last_reward.numpy()
        return inputs

    def _abandon(self, columns: Array, arrays: dict[str, Array], t: int) -> None:
        """Mark the episodes of these columns, [B] bool, as abandoned at transition t (see `ddrl.types`)."""
        if not columns.any():
            return
        if t:
            arrays["truncated"][t - 1] |= columns & arrays["valid"][t - 1] & ~arrays["terminated"][t - 1]
        self.abandoned += int(columns.sum())
        for column in np.flatnonzero(columns):
            self._end_episode(int(column), abandoned=True)

    def _count_episodes(self, step: EnvStep) -> None:
        self._returns += step.reward
        self._lengths += step.valid
        self.agent_steps += int(np.count_nonzero(step.valid))
        if np.count_nonzero(step.ended):
            for column in step.ended.nonzero()[0]:
                self._end_episode(int(column))

    def _end_episode(self, column: int, *, abandoned: bool = False) -> None:
        self._on_episode(
            Episode(self._tasks[column], float(self._returns[column]), int(self._lengths[column]), abandoned)
        )
        self._returns[column] = 0.0
        self._lengths[column] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environments, policy, last step and unfinished episodes, without changing them.

        If nothing was collected yet, `env` and `step` are None, and the restored collector resets its environments.
        """
        step = self._last_step
        return {
            "env": None if step is None else self.env.state_dict(),
            "policy": self.policy.state_dict(),
            "step": None if step is None else [torch.from_numpy(np.array(part)) for part in step],
            "acted": [part.clone() for part in self._acted or ()],
            "next_index": self.next_index,
            "returns": torch.from_numpy(self._returns.copy()),
            "lengths": torch.from_numpy(self._lengths.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; the environments must not have been reset before."""
        if state["step"] is not None:
            self.env.load_state_dict(state["env"])
            arrays: list[Array] = [part.numpy() for part in state["step"]]
            self._last_step = EnvStep(*arrays)
        self.policy.load_state_dict(state["policy"])
        self._acted = PolicyStep(*state["acted"]) if state["acted"] else None
        self.next_index = state["next_index"]
        self._returns = state["returns"].numpy().copy()
        self._lengths = state["lengths"].numpy().copy()


def _buffers(env: VectorEnv, length: int) -> dict[str, torch.Tensor]:
    spec = env.spec
    action = ((spec.action_size,), torch.float32) if spec.action_size else ((), torch.int64)
    kinds = {  # name -> (shape and type of one environment's, steps)
        "observation": ((spec.observation_shape, getattr(torch, spec.observation_dtype)), length + 1),
        "last_action": (action, length + 1),
        "last_reward": (((), torch.float32), length + 1),
        "start": (((), torch.bool), length + 1),
        "action": (action, length),
        "reward": (((), torch.float32), length),
        "terminated": (((), torch.bool), length),
        "truncated": (((), torch.bool), length),
        "valid": (((), torch.bool), length),
        "distribution": (((spec.distribution_size,), torch.float32), length),
        "version": (((), torch.int64), length),
    }
    return {
        name: torch.empty((steps, env.num_envs, *shape), dtype=dtype) for name, ((shape, dtype), steps) in kinds.items()
    }


class HasUnrollLength(Protocol):
    """The hyperparameter that `UnrollActor` reads."""

    @property
    def unroll_length(self) -> int:
        """T, agent steps."""


class UnrollActor:
    """An actor of which one call of `step` makes one unroll (Espeholt et al. 2018, section 3)."""

    def __init__(
        self,
        config: HasUnrollLength,
        collector: UnrollCollector,
        params: Parameters,
        queue: Queue,
        process: Callable[[Unroll, list[Tensor]], Unroll] | None = None,
        *,
        last_value: bool = True,
    ) -> None:
        """`process` changes an unroll before it is sent, given the T + 1 values [B] predicted while acting.

        Without `last_value` it gets T values.
        """
        self._last_value = last_value
        self._length = config.unroll_length
        self._collector = collector
        self._params = params
        self._queue = queue
        self._process = process
        if process is None:
            collector.policy.inference.leave_out_values()

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""
        return self._params.can_pull(self._collector.next_index) and self._queue.can_insert()

    def step(self) -> None:
        """Act for `unroll_length` steps with one version of the parameters (central inference: the newest) and send."""
        self._collector.policy.pull(self._params, self._collector.next_index)  # 1  mu <- pi
        values: list[Tensor] = []
        # 2  x, a, r, mu(a|x), and the initial recurrent state
        unroll = self._collector.collect(
            self._length, values=values if self._process else None, last_value=self._last_value
        )
        self._queue.insert(self._process(unroll, values) if self._process else unroll)  # 3  send the trajectory

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the whole state belongs to the collector."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
