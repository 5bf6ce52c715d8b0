"""MiniGrid's grid worlds (Chevalier-Boisvert et al. 2023), named as there without `MiniGrid-`: `minigrid/MemoryS7-v0`.

An agent sees the cells before it, `view_size` each way (7 as MiniGrid has it), nothing behind walls. So most tasks need
memory; the `Memory` tasks do where the object to remember cannot be seen from the corridor's end: not so in S7 and S9
with a view of 7, which agents without memory solve.
Only tasks whose instruction never varies are here, since one-hot observations leave it out. What is particular:

- Observations are flat float32. With `encoding: one_hot` they are the cells, row by row, each as three one-hot vectors
  (object, colour, state of a door; as MiniGrid's `OneHotPartialObsWrapper`): 980 for a view of 7. With `encoding: flat`
  they are the same three as integers, and the letters of the instruction as one-hot vectors (`FlatObsWrapper`): 147 and
  2,688. The agent's direction is not among them.
- A success pays 1 - 0.9 steps / `max_steps`. The limit of steps is the task's own, or `max_steps` where that is not 0.
- Seeds, limits and states: see `replayed`. One agent step is one time-step, and a spec's `frame_skip` is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers them
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.wrappers import FlatObsWrapper

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.replayed import ReplayedEnvs
from ddrl.environments.tools.camera import CELLS_PER_SECOND, Camera, twin_camera
from ddrl.errors import UserError
from ddrl.types import Array, EnvSpec

_FIXED_INSTRUCTION = (
    "DoorKey-",
    "Dynamic-Obstacles-",
    "Empty-",
    "FourRooms-",
    "LavaCrossing",
    "LavaGap",
    "Memory",
    "MultiRoom-",
    "RedBlueDoors-",
    "SimpleCrossing",
    "Unlock-",
)
_PREFIX = "MiniGrid-"
_OBJECTS, _COLOURS, _DOORS = (max(table.values()) + 1 for table in (OBJECT_TO_IDX, COLOR_TO_IDX, STATE_TO_IDX))
_ENCODINGS = {"one_hot": (_OBJECTS + _COLOURS + _DOORS, 0), "flat": (3, 96 * 28)}
"""Encoding -> numbers for each cell, numbers for the instruction."""
_CELL_PIXELS = 32
_ACTIONS = ("left", "right", "forward", "pick up", "drop", "toggle", "done")

_REGISTERED = (name.removeprefix(_PREFIX) for name in gymnasium.registry if name.startswith(_PREFIX))
TASKS = tuple(sorted(name for name in _REGISTERED if name.startswith(_FIXED_INSTRUCTION)))
EXAMPLES: dict[str, dict[str, Any]] = {"MemoryS7-v0": {"max_steps": 40}, "DoorKey-5x5-v0": {"max_steps": 40}}
_OPTIONS = {
    "max_steps": Option(0, 0, 100_000),
    "view_size": Option(7, 3, 31),
    "encoding": Option("one_hot", choices=tuple(_ENCODINGS)),
}
OPTIONS = dict.fromkeys(TASKS, _OPTIONS)


def spec(task: str, max_steps: int, view_size: int, encoding: str) -> EnvSpec:
    """Return the spec of one task: flat float32 observations. Raise UserError for an even `view_size`."""
    if view_size % 2 == 0:
        raise UserError(f"environment.view_size: {view_size} is not allowed for minigrid/{task}; allowed: odd numbers")
    num_actions, own_limit = _facts(task)
    of_cell, of_instruction = _ENCODINGS[encoding]
    return EnvSpec(
        name=f"minigrid/{task}",
        observation_shape=(view_size**2 * of_cell + of_instruction,),
        observation_dtype="float32",
        num_actions=num_actions,
        frame_skip=1,
        protocol=f"minigrid-{version('minigrid')}/{task};view{view_size}x{view_size},{encoding.replace('_', '-')};"
        f"cap{max_steps or own_limit};autoreset-next-step;raw-rewards",
    )


def make(
    task: str, num_envs: int, seed: int, *, num_threads: int = 1, max_steps: int, view_size: int, encoding: str
) -> ReplayedEnvs[GridWorld]:
    """Make `num_envs` environments; `num_threads` is ignored, since nothing is native."""
    limit = max_steps or _facts(task)[1]
    world = partial(GridWorld, task, limit, view_size, encoding)
    return ReplayedEnvs(spec(task, max_steps, view_size, encoding), world, num_envs, seed, max_steps=limit)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)`: the whole grid."""
    twin = make(task, 1, seed, **options)

    def draw() -> Array:
        frame: Array = twin.simulations[0].env.get_frame(tile_size=_CELL_PIXELS)
        return frame[None]

    return twin_camera(twin, draw, "the whole grid; what the agent sees is lighter", CELLS_PER_SECOND, _ACTIONS)


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    camera=camera,
)


@cache
def _facts(task: str) -> tuple[int, int]:
    """Return the number of actions and the task's own limit of steps."""
    env = _environment(task)
    facts = int(env.action_space.n), int(env.max_steps)
    env.close()
    return facts


def _environment(task: str) -> Any:
    return gymnasium.make(f"{_PREFIX}{task}", disable_env_checker=True).unwrapped


def one_hot(cells: Array) -> Array:
    """Return cells [..., 3] uint8 (object, colour, door) as one-hot vectors, flattened: float32."""
    parts = zip(np.moveaxis(cells, -1, 0), (_OBJECTS, _COLOURS, _DOORS), strict=True)
    encoded = np.concatenate([np.eye(size, dtype=np.float32)[index] for index, size in parts], axis=-1)
    return encoded.ravel()


class GridWorld:
    """One of MiniGrid's environments, as a `replayed.Replayable`."""

    def __init__(self, task: str, max_steps: int, view_size: int, encoding: str = "one_hot") -> None:
        self.env = _environment(task)
        self.env.max_steps = max_steps  # what a success pays depends on it
        self.env.agent_view_size = view_size
        self._flat: Any = FlatObsWrapper(self.env) if encoding == "flat" else None

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation."""
        return self._encoded(self.env.reset(seed=seed)[0])

    def step(self, action: Any) -> tuple[Array, float, bool, bool]:
        """Return observation, reward, terminated and truncated (never: the limit is not the simulation's)."""
        observation, reward, terminated, _, _ = self.env.step(int(action))
        return self._encoded(observation), float(reward), bool(terminated), False

    def _encoded(self, observation: Mapping[str, Any]) -> Array:
        if self._flat is None:
            return one_hot(observation["image"])
        numbers: Array = self._flat.observation(observation).astype(np.float32)
        return numbers

    def close(self) -> None:
        self.env.close()
