"""What the MuJoCo adapters share: B simulations of one task in a Python loop, as a `ddrl.types.VectorEnv`.

- Time: one agent step is one time-step, and what the papers count; the simulator's own sub-steps (gymnasium's
  `frame_skip`, dm_control's `n_sub_steps`) are part of the environment. So a spec's `frame_skip` is 1.
- Actions are float32 [B, A] in the agent's units: each dimension is clipped to [-1, 1] and mapped affinely to its
  actuator's bounds. An actuator without bounds takes the clipped action as it is.
- Seeds: every episode starts from a seed of its own, which depends on (seed, environment, episode) only. What follows
  is a function of that seed and the actions, so a checkpoint is the list of actions of the running episodes. It is
  right for every task, whatever a task keeps to itself.
- Threads: none. Two were no faster than one here, since Python's lock changes hands several times within 0.1 ms;
  several actors, each in a process of its own, are.
- Limits: an episode is truncated after `max_steps` steps, unless it terminates in the last of them.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import mujoco
import numpy as np
import torch

from ddrl.environments.actions import continuous_actions
from ddrl.environments.registry import Option
from ddrl.errors import UserError
from ddrl.seeding import seed_for
from ddrl.types import Array, EnvSpec, EnvStep

MAX_STEPS = Option(1000, 1, 100_000)
"""Steps after which an episode is truncated."""
ACTION_PROTOCOL = "actions-clipped-to-1,actions-scaled-to-bounds"
STEP_PROTOCOL = "autoreset-next-step;raw-rewards"
_LOGGER = logging.getLogger(__name__)
_OF_THE_MODEL_FILES = "compiler attribute 'settotalmass' is deprecated"


class Simulation(Protocol):
    """One environment, without limit of steps."""

    seconds_per_step: float
    """Simulated time."""

    def reset(self, seed: int) -> Array:
        """Starts the episode that `seed` alone determines; its first observation [N]."""

    def step(self, action: Array) -> tuple[Array, float, bool]:
        """Observation [N], reward, terminated; `action` [A] is in the environment's units."""

    def scene(self) -> tuple[Any, Any]:
        """The simulator's model and data, for pictures."""

    def close(self) -> None:
        """Frees native resources."""


@dataclass(frozen=True)
class Bounds:
    """The affine map from [-1, 1] to each actuator's bounds: [A], of the type that the environment takes."""

    centre: Array
    half: Array

    @classmethod
    def between(cls, low: Array, high: Array) -> Bounds:
        """Maps -1 to `low` and 1 to `high` [A]; a range of 1e9 or more stands for none: actions stay as they are."""
        dtype, unbounded = low.dtype, ~(high.astype(np.float64) - low.astype(np.float64) < 1e9)
        low, high = np.where(unbounded, -1.0, low), np.where(unbounded, 1.0, high)
        return cls(((low + high) / 2).astype(dtype), ((high - low) / 2).astype(dtype))

    def scale(self, actions: Array) -> Array:
        """Actions [..., A] in [-1, 1] in the environment's units."""
        scaled: Array = self.centre + self.half * actions
        return scaled


def flat_spec(name: str, protocol: str, size: int, bounds: Bounds) -> EnvSpec:
    """The spec of a task with `size` float32 numbers as observation and an action for each actuator."""
    return EnvSpec(
        name=name,
        observation_shape=(size,),
        observation_dtype="float32",
        num_actions=0,
        frame_skip=1,
        protocol=protocol,
        action_size=len(bounds.centre),
    )


class PhysicsEnvs:
    """B simulations of one task."""

    def __init__(
        self,
        spec: EnvSpec,
        make: Callable[[], Simulation],
        bounds: Bounds,
        num_envs: int,
        seed: int,
        *,
        max_steps: int,
    ) -> None:
        """`make` builds one simulation, always the same; an episode is cut after `max_steps` steps."""
        self.spec = spec
        self.num_envs = num_envs
        self.simulations = [make() for _ in range(num_envs)]
        self._bounds = bounds
        self._seed = seed
        self._max_steps = max_steps
        self._episode = np.full(num_envs, -1, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._last = self._empty()
        """The newest observations [B, N]."""
        self._steps = np.zeros(num_envs, dtype=np.int64)
        """Of the running episodes."""
        self._actions = np.zeros((num_envs, min(max_steps, 1024), spec.action_size), dtype=np.float32)
        """Of the running episodes: row i holds `_steps[i]` of them."""

    def reset(self) -> EnvStep:
        """Starts every environment's next episode."""
        everywhere, nowhere = np.ones(self.num_envs, dtype=np.bool_), np.zeros(self.num_envs, dtype=np.bool_)
        observation = self._empty()
        for row in range(self.num_envs):
            observation[row] = self._start(row)
        self._last, self._ended = observation, nowhere
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        return EnvStep(observation, rewards, nowhere, nowhere, nowhere, everywhere, everywhere)

    def step(self, actions: Array) -> EnvStep:
        """Applies `actions` [B, A] float32.

        Raises: ValueError for actions of another shape or type, or NaN; RuntimeError before `reset`; whatever a
        simulation raises, with a note that names the environment, its episode and its seed.
        """
        actions = continuous_actions(actions, self.num_envs, self.spec.action_size)
        if self._episode[0] < 0:
            raise RuntimeError("step was called before reset")
        dead = self._ended
        scaled = self._bounds.scale(actions)
        observation = self._empty()
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)

        for row in range(self.num_envs):
            if dead[row]:
                observation[row] = self._start(row)
            else:
                observation[row], reward[row], terminated[row] = self._advance(row, scaled[row])
        self._record(actions, ~dead)
        truncated = (self._steps >= self._max_steps) & ~terminated
        self._last, self._ended = observation, terminated | truncated
        return EnvStep(observation, reward, terminated, truncated, self._ended, dead, ~dead)

    def state_dict(self) -> dict[str, Any]:
        """Per environment: its episode and the actions since its start, and a checksum of what was seen last."""
        parts = [self._actions[row, :steps] for row, steps in enumerate(self._steps)]
        return {
            "protocol": self.spec.protocol,
            "seed": self._seed,
            "episode": torch.from_numpy(self._episode.copy()),
            "ended": torch.from_numpy(self._ended.copy()),
            "steps": torch.from_numpy(self._steps.copy()),
            "actions": torch.from_numpy(np.concatenate(parts)),
            "checksums": self._seen(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Plays the running episodes again.

        Raises: UserError for a state of another protocol, seed or number of environments, or if the episodes played
        again differ from the recorded ones.
        """
        if missing := sorted({"episode", "ended", "steps", "actions", "checksums"} - set(state)):
            raise UserError(f"environment state: {', '.join(missing)} missing: written by another version of ddrl")
        for key, own in (("protocol", self.spec.protocol), ("seed", self._seed)):
            if state[key] != own:
                raise UserError(f"environment state: {key} is '{state[key]}', but this run has '{own}'")
        if len(state["episode"]) != self.num_envs:
            raise UserError(f"environment state: {len(state['episode'])} environments; allowed: {self.num_envs}")
        self._episode = state["episode"].numpy().copy()
        self._ended = state["ended"].numpy().copy()
        steps = state["steps"].numpy()
        self._steps = np.zeros_like(steps)
        self._last = self._empty()
        if self._episode[0] < 0:
            return
        for row, actions in enumerate(np.split(state["actions"].numpy(), np.cumsum(steps)[:-1])):
            self._episode[row] -= 1  # the start counts it again
            self._last[row] = self._start(row)
            only = np.arange(self.num_envs) == row
            for action, scaled in zip(actions, self._bounds.scale(actions), strict=True):
                self._last[row] = self._advance(row, scaled)[0]
                self._record(action, only)
        if self._seen() != state["checksums"]:
            raise UserError(
                "environment state: the episodes played again differ from the recorded ones: another processor or "
                "another version of a library"
            )

    def close(self) -> None:
        """Frees the simulations; nothing else may follow."""
        for simulation in self.simulations:
            simulation.close()

    def _empty(self) -> Array:
        return np.empty((self.num_envs, *self.spec.observation_shape), dtype=np.float32)

    def _start(self, row: int) -> Array:
        """Starts the next episode of one environment; its first observation [N]."""
        self._episode[row] += 1
        self._steps[row] = 0
        try:
            return self.simulations[row].reset(self._seed_of(row))
        except Exception as error:
            error.add_note(self._place(row))
            raise

    def _advance(self, row: int, action: Array) -> tuple[Array, float, bool]:
        try:
            return self.simulations[row].step(action)
        except Exception as error:
            error.add_note(self._place(row))
            raise

    def _seed_of(self, row: int) -> int:
        return seed_for(self._seed, f"{self.spec.name}/{row}", int(self._episode[row]))

    def _place(self, row: int) -> str:
        episode = f"episode {self._episode[row]} (seed {self._seed_of(row)})"
        return f"{self.spec.name}, environment {row} of seed {self._seed}, {episode}, after {self._steps[row]} steps"

    def _record(self, actions: Array, mask: Array) -> None:
        """Appends `actions` [B, A] or [A] in the environments in `mask` [B]."""
        if int(self._steps.max()) == self._actions.shape[1]:
            self._actions = np.concatenate([self._actions, np.zeros_like(self._actions)], axis=1)
        self._actions[mask, self._steps[mask]] = actions[mask] if actions.ndim == 2 else actions
        self._steps += mask

    def _seen(self) -> list[int]:
        flags = zip(self._last, self._ended.tolist(), strict=True)
        return [zlib.crc32(seen.tobytes() + f"{ended}".encode()) for seen, ended in flags]


def route_warnings() -> None:
    """Sends the simulator's warnings to `logging`; by itself it writes a file into the current folder."""
    mujoco.set_mju_user_warning(_warn)


def _warn(message: str | bytes) -> None:
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    if _OF_THE_MODEL_FILES not in text:
        _LOGGER.warning("mujoco: %s", " ".join(text.split()))
