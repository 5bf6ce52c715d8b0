"""Environments whose episodes are scripted, and an inference that writes down what it is fed.

Rewards come in mid-episode and with lost lives, which begin an episode without a dead step: there alone a reward of the
old episode could reach the new one. Episodes have unequal lengths, and every kind of end comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddrl.actors.policy import LocalInference
from ddrl.environments.base.contract import accepted_actions, first_step
from ddrl.types import Array, EnvSpec, EnvStep, PolicyInput, PolicyOutput

Script = Sequence[tuple[int, str]]
"""(steps, end) of the lives of an environment, again and again; ends: terminated, truncated, life, rolling."""

SCRIPTS: tuple[Script, ...] = (
    ((3, "truncated"), (1, "terminated")),
    ((2, "life"), (5, "terminated"), (4, "life"), (2, "truncated")),
    ((7, "terminated"), (3, "rolling"), (2, "truncated")),
    ((11, "truncated"), (1, "life"), (1, "life"), (6, "terminated")),
)


@dataclass(frozen=True)
class Played:
    """One call of `step` or, without actions, of `reset`."""

    actions: Array | None
    """As they were given: not clipped."""
    step: EnvStep


class Scripted:
    """A `VectorEnv` with a script for each environment; `played` is all that it was asked and answered."""

    def __init__(self, spec: EnvSpec, scripts: Sequence[Script] = SCRIPTS) -> None:
        self.spec = spec
        self.num_envs = len(scripts)
        self.played: list[Played] = []
        self._scripts = scripts
        self._clock = 0
        self._life = np.zeros(self.num_envs, dtype=np.int64)
        self._age = np.zeros(self.num_envs, dtype=np.int64)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(self) -> EnvStep:
        step = first_step(self._observe())
        self.played.append(Played(None, step))
        return step

    def step(self, actions: Array) -> EnvStep:
        accepted = accepted_actions(actions, self.spec, self.num_envs)
        dead, self._clock = self._ended.copy(), self._clock + 1
        kinds = [self._advance(column, bool(dead[column])) for column in range(self.num_envs)]
        terminated, truncated, life = (
            np.array([kind in names for kind in kinds])
            for names in (("terminated", "life", "rolling"), ("truncated",), ("life",))
        )
        self._ended = np.array([kind in ("terminated", "truncated") for kind in kinds])
        acted = accepted if accepted.ndim == 1 else accepted.sum(axis=-1)
        # A different one every time, now and then beyond what is clipped.
        reward = np.sin(1.7 * self._clock + np.arange(self.num_envs)) * 1.3 + 0.4 * acted
        reward = np.where(dead, 0.0, reward).astype(np.float32)
        step = EnvStep(self._observe(), reward, terminated, truncated, self._ended, dead | life, ~dead)
        self.played.append(Played(actions.copy(), step))
        return step

    def _advance(self, column: int, dead: bool) -> str:
        """The end, if any, of the step that this environment makes now."""
        if dead:
            return "dead"
        script = self._scripts[column]
        steps, end = script[self._life[column] % len(script)]
        self._age[column] += 1
        if self._age[column] < steps:
            return "none"
        self._life[column], self._age[column] = self._life[column] + 1, 0
        return end

    def _observe(self) -> Array:
        """No two alike: they name environment and time."""
        size = int(np.prod(self.spec.observation_shape))
        phases = self._clock + 0.37 * np.arange(self.num_envs)[:, None] + np.arange(size)
        return np.cos(0.61 * phases).astype(np.float32).reshape(self.num_envs, *self.spec.observation_shape)

    def state_dict(self) -> dict[str, Any]:
        arrays = (self._life, self._age, self._ended)
        return {"clock": self._clock, "arrays": [torch.from_numpy(array.copy()) for array in arrays]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._clock = state["clock"]
        self._life, self._age, self._ended = (array.numpy().copy() for array in state["arrays"])

    def close(self) -> None:
        """Nothing to free."""


class Watched:
    """An `Inference` that writes down what its network is fed and puts out."""

    def __init__(self, own: LocalInference) -> None:
        self.own = own
        self.fed: list[PolicyInput] = []
        self.put_out: list[PolicyOutput] = []

    def infer(self, inputs: PolicyInput) -> PolicyOutput:
        self.fed.append(PolicyInput(*(part.clone() for part in inputs[:4]), tuple(part.clone() for part in inputs[4])))
        self.put_out.append(self.own.infer(inputs))
        return self.put_out[-1]

    def __getattr__(self, name: str) -> Any:
        """Everything else is its own."""
        return getattr(self.own, name)
