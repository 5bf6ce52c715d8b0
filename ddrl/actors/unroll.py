"""Collects unrolls: the one place where environment and policy meet, in the alignment of `ddrl.types`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ddrl.actors.policy import Policy, masked_action
from ddrl.types import Array, EnvStep, Episode, PolicyStep, RecurrentState, Unroll, VectorEnv

EpisodeSink = Callable[[Episode], None]
"""Called with each episode that is over."""


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
        """`tasks` [B]: of each environment (None: one for all). `generator`: for what an actor draws beside actions."""
        self.env = env
        self.generator = generator
        self._policy = policy
        self._actor = actor
        self._on_episode = on_episode
        self._tasks = tasks or [env.spec.name] * env.num_envs
        self._last_step: EnvStep | None = None
        self._next_index = first_index
        self._acted: PolicyStep | None = None
        self.agent_steps = 0
        """Steps made in this process, dead ones left out."""
        self.abandoned = 0
        """Episodes that a lost environment did not end (see `ddrl.types`)."""
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)

    @property
    def _step(self) -> EnvStep:
        """What the environments returned last; resets them before the first step, for which remote ones may be late."""
        if self._last_step is None:
            self._last_step = self.env.reset()
        return self._last_step

    @property
    def next_index(self) -> int:
        """How many unrolls were collected so far."""
        return self._next_index

    @property
    def policy(self) -> Policy:
        """What acts."""
        return self._policy

    def collect(
        self, length: int, states: list[RecurrentState] | None = None, values: list[torch.Tensor] | None = None
    ) -> Unroll:
        """The next unroll of `length` transitions.

        Adds the recurrent state before each of them to `states`, if any; to `values`, if any, V [B] of each of the
        `length` + 1 observations as the policy acted there. For the last one it acts already, and the next unroll
        begins with that action: only with a policy that has no recurrent state.
        """
        env, policy = self.env, self._policy
        initial_state = tuple(part.cpu().clone() for part in policy.state)
        buffers: dict[str, Any] = _buffers(env, length)
        self._write_observation(buffers, 0)
        for t in range(length):
            before = self._step
            if states is not None:
                states.append(policy.state)
            acted, self._acted = self._acted or policy.act(before), None
            if values is not None:
                values.append(acted.value)
            self._last_step = step = env.step(acted.action.numpy())
            buffers["action"][t] = acted.action
            buffers["distribution"][t] = acted.distribution
            buffers["version"][t] = acted.version
            for name in ("reward", "terminated", "truncated", "valid"):
                buffers[name][t] = torch.from_numpy(getattr(step, name))
            self._write_observation(buffers, t + 1)
            abandoned = step.start & ~step.valid & ~before.ended
            if abandoned.any():
                self._abandon(abandoned, buffers, t)
            self._count_episodes(step)
        if values is not None:
            self._acted = policy.act(self._step)
            values.append(self._acted.value)
        actor, index = (torch.full((env.num_envs,), value) for value in (self._actor, self._next_index))
        self._next_index += 1
        rest = {"actor": actor, "env": torch.arange(env.num_envs), "index": index, "initial_state": initial_state}
        return Unroll(**buffers | rest)

    def _write_observation(self, buffers: dict[str, torch.Tensor], t: int) -> None:
        start = torch.from_numpy(self._step.start)
        buffers["observation"][t] = torch.from_numpy(self._step.observation)
        buffers["start"][t] = start
        buffers["last_action"][t] = masked_action(self._policy.last_action, start)
        buffers["last_reward"][t] = torch.from_numpy(self._step.reward).masked_fill(start, 0.0)

    def _abandon(self, columns: Array, buffers: dict[str, torch.Tensor], t: int) -> None:
        """Transition t of these columns, [B] bool, was lost with its environment (see `ddrl.types`)."""
        if t:
            cut = buffers["valid"][t - 1] & ~buffers["terminated"][t - 1]
            buffers["truncated"][t - 1] |= torch.from_numpy(columns) & cut
        self.abandoned += int(columns.sum())
        for column in np.flatnonzero(columns):
            self._end_episode(int(column), abandoned=True)

    def _count_episodes(self, step: EnvStep) -> None:
        self._returns += step.reward
        self._lengths += step.valid
        self.agent_steps += int(step.valid.sum())
        for column in np.flatnonzero(step.ended):
            self._end_episode(int(column))

    def _end_episode(self, column: int, *, abandoned: bool = False) -> None:
        self._on_episode(
            Episode(self._tasks[column], float(self._returns[column]), int(self._lengths[column]), abandoned)
        )
        self._returns[column] = 0.0
        self._lengths[column] = 0

    def state_dict(self) -> dict[str, Any]:
        """Environments, policy, the step they stand at, and the episodes under way; it changes none of them.

        Where nothing was collected yet, `env` and `step` are None: whoever continues resets the environments as here.
        """
        step = self._last_step
        return {
            "env": None if step is None else self.env.state_dict(),
            "policy": self._policy.state_dict(),
            "step": None if step is None else [torch.from_numpy(np.array(part)) for part in step],
            "acted": [part.clone() for part in self._acted or ()],
            "next_index": self._next_index,
            "returns": torch.from_numpy(self._returns.copy()),
            "lengths": torch.from_numpy(self._lengths.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken; its environments must not have been reset."""
        if state["step"] is not None:
            self.env.load_state_dict(state["env"])
            arrays: list[Array] = [part.numpy() for part in state["step"]]
            self._last_step = EnvStep(*arrays)
        self._policy.load_state_dict(state["policy"])
        self._acted = PolicyStep(*state["acted"]) if state["acted"] else None
        self._next_index = state["next_index"]
        self._returns = state["returns"].numpy().copy()
        self._lengths = state["lengths"].numpy().copy()


def _buffers(env: VectorEnv, length: int) -> dict[str, torch.Tensor]:
    spec, columns = env.spec, env.num_envs
    action = ((spec.action_size,), torch.float32) if spec.action_size else ((), torch.int64)
    points = {
        "observation": (spec.observation_shape, getattr(torch, spec.observation_dtype)),
        "last_action": action,
        "last_reward": ((), torch.float32),
        "start": ((), torch.bool),
    }
    transitions = {
        "action": action,
        "reward": ((), torch.float32),
        "terminated": ((), torch.bool),
        "truncated": ((), torch.bool),
        "valid": ((), torch.bool),
        "distribution": ((spec.distribution_size,), torch.float32),
        "version": ((), torch.int64),
    }
    return {
        **{name: torch.empty((length + 1, columns, *shape), dtype=dtype) for name, (shape, dtype) in points.items()},
        **{name: torch.empty((length, columns, *shape), dtype=dtype) for name, (shape, dtype) in transitions.items()},
    }
