"""Navigation to a point, `pointnav/<size>`, `pointnav/miniworld_<size>`: a proxy for Habitat's (Wijmans et al. 2020).

What is as in the paper (arXiv 1911.00357): the agent knows the vector to the goal in its own frame (GPS and compass)
and sees what is before it; it must say that it has arrived (stop), which ends the episode wherever it is; rewards
and the metric SPL (`point_goal`). What is not: the scenes. Here a maze is drawn for each episode, which follows from
(seed, environment, episode).

`pointnav/<size>` has mazes on a grid, cells and moves by one cell.

- A checkpoint holds the agent's place alone. Mazes are drawn some episodes ahead, many at once. There is no loop over
  environments.
- An observation is flat: `egocentric_view.depth`, 49 numbers; the goal's Euclidean distance in units of
  `DISTANCE_UNIT` cells; cosine and sine of its direction (0 ahead, positive to the left).
- Distances are in moves. A stop is a success on the goal's cell.
- A step costs the same in all mazes. `step_ms` and `step_spread` add time alone (`scene_pace`), and change no result.

`pointnav/miniworld_<size>` has the same mazes of rooms, images and motion of MiniWorld, distances in metres
(`point_rooms`), and episodes that are played again where a checkpoint is continued (`replayed`). An observation is an
image and the same three numbers of the compass (`packed_vector`). Only these tasks need MiniWorld.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.contract import accepted_actions, first_step, loaded_arrays, saved_state
from ddrl.environments.base.replayed import ReplayedEnvs
from ddrl.environments.tools.camera import CELLS_PER_SECOND, Camera, twin_camera
from ddrl.environments.worlds import egocentric_view, grid_mazes, point_goal, point_rooms
from ddrl.environments.worlds.grid_mazes import MARGIN, WALL, Mazes
from ddrl.environments.worlds.point_goal import ACTIONS, FORWARD, STOP
from ddrl.environments.worlds.point_rooms import PointRooms
from ddrl.environments.worlds.scene_pace import ScenePace
from ddrl.errors import UserError
from ddrl.system.packed_vector import packed_shape
from ddrl.system.seeding import mixed, seed_for
from ddrl.types import Array, EnvSpec, EnvStep

VERSION, ROOMS_VERSION = 1, 1
"""Parts of the protocol ids. Raise one when mazes, observations, rewards or ends change."""
SIDES = {"small": (7, 11), "medium": (11, 17), "large": (17, 25), "mixed": (7, 25)}
"""Task -> sides of the smallest and of the largest maze, in cells, rim included."""
ROOMS = {"miniworld_small": (2, 3), "miniworld_medium": (3, 5), "miniworld_large": (5, 7)}
"""Task in MiniWorld -> fewest and most rooms each way."""
TASKS = (*SIDES, *ROOMS)
DISTANCE_UNIT = 10.0
OBSERVATION_SIZE = egocentric_view.SIZE**2 + 3
_OPTIONS = {
    "max_steps": Option(500, 1, 100_000),
    "sensors": Option("depth", choices=("depth", "blind")),
    "reward": Option("spl", choices=point_goal.REWARDS),
    "step_ms": Option(0.0, 0.0, 1000.0),
    "step_spread": Option(0.0, 0.0, 2.0, unread_with=("step_ms", 0.0)),
}
_ROOM_OPTIONS = {
    "max_steps": Option(500, 1, 100_000),
    "sensors": Option("depth", choices=("depth", "rgb", "blind")),
    "reward": Option("spl", choices=point_goal.REWARDS),
    "image_size": Option(84, 42, 84),  # pixels each way
}
OPTIONS = {**dict.fromkeys(SIDES, _OPTIONS), **dict.fromkeys(ROOMS, _ROOM_OPTIONS)}
PACKAGES = ("miniworld", "pyglet")
"""What the tasks in MiniWorld need."""
EXTRAS = {"pointnav/miniworld_...": (("miniworld",), ("EGL", "GL", "GLU"))}
_HAS_MINIWORLD = all(importlib.util.find_spec(package) is not None for package in PACKAGES)
EXAMPLES: dict[str, dict[str, Any]] = {task: {"max_steps": 20} for task in (*SIDES, *(ROOMS if _HAS_MINIWORLD else ()))}
_TURN = np.array([0, 0, -1, 1])
"""Action -> what it adds to the heading."""
_MOST_AHEAD, _MOST_MAZES = 16, 1024
"""Episodes that are drawn ahead: so many of each environment, and of all together."""
_CELL_PIXELS = 16
_ROOM_STEPS_PER_SECOND = 10.0
"""Pictures per second of films of MiniWorld: 2.5 m a second."""


def spec(task: str, **options: Any) -> EnvSpec:
    """Return the spec of one task: flat float32 observations on a grid, an image with a compass in MiniWorld.

    Raise UserError for a task of MiniWorld where a package is not installed.
    """
    return _room_spec(task, **options) if task in ROOMS else _grid_spec(task, **options)


def make(
    task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any
) -> PointNavEnvs | ReplayedEnvs[PointRooms]:
    """Make `num_envs` environments; `num_threads` is ignored. Raise UserError as `spec`, or without a graphics library.

    Environments on a grid are stepped all at once, those in MiniWorld one after the other.
    """
    if task in SIDES:
        return PointNavEnvs(task, num_envs, seed, **options)
    found, kept = spec(task, **options), ("sensors", "reward", "image_size")
    build = partial(PointRooms, ROOMS[task], **{key: options[key] for key in kept})
    return ReplayedEnvs(found, build, num_envs, seed, max_steps=options["max_steps"])


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)`: the whole maze from above.

    In MiniWorld what is before the agent, in colour, stands beside it.
    """
    twin = make(task, 1, seed, **options)
    if isinstance(twin, PointNavEnvs):
        shows = "the whole maze; the goal is green, the agent red, what it sees is lighter"
        return twin_camera(twin, twin.picture, shows, CELLS_PER_SECOND, ACTIONS)
    shows = "what is before the agent in colour, and the map; the goal is green, the agent red"
    return twin_camera(twin, twin.simulations[0].picture, shows, _ROOM_STEPS_PER_SECOND, ACTIONS)


def _grid_spec(task: str, max_steps: int, sensors: str, reward: str, **pace: float) -> EnvSpec:
    """Return the spec of a task on a grid. `pace`, the options of time, is no part of a protocol."""
    smallest, largest = SIDES[task]
    return EnvSpec(
        name=f"pointnav/{task}",
        observation_shape=(OBSERVATION_SIZE,),
        observation_dtype="float32",
        num_actions=len(ACTIONS),
        frame_skip=1,
        protocol=f"pointnav-{VERSION}/{task};mazes{smallest}-{largest},{sensors},{reward};cap{max_steps};"
        "autoreset-next-step;raw-rewards",
    )


def _room_spec(task: str, max_steps: int, sensors: str, reward: str, image_size: int) -> EnvSpec:
    """Return the spec of a task in MiniWorld. Raise UserError where a package is not installed."""
    try:
        versions = "+".join(f"{package}-{version(package)}" for package in PACKAGES)
    except PackageNotFoundError as error:
        raise UserError(f"environment 'pointnav/{task}': the package '{error.name}' is not installed") from error
    fewest, most = ROOMS[task]
    image_shape = (3 if sensors == "rgb" else 1, image_size, image_size)
    return EnvSpec(
        name=f"pointnav/{task}",
        observation_shape=packed_shape(image_shape, point_rooms.COMPASS_SIZE),
        observation_dtype="uint8",
        num_actions=len(ACTIONS),
        frame_skip=1,
        protocol=f"pointnav-rooms-{ROOMS_VERSION}+{versions}/{task};rooms{fewest}-{most};"
        f"{sensors}{image_size}x{image_size},compass{point_rooms.COMPASS_SIZE},{point_rooms.PROTOCOL};{reward};"
        f"cap{max_steps};autoreset-next-step;raw-rewards",
        image_shape=image_shape,
        vector_size=point_rooms.COMPASS_SIZE,
    )


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    extras=EXTRAS,
    camera=camera,
)


class PointNavEnvs:
    """B agents, each in a maze of its own, as a `ddrl.types.VectorEnv`."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        seed: int,
        *,
        max_steps: int,
        sensors: str,
        reward: str,
        step_ms: float,
        step_spread: float,
    ) -> None:
        self.spec = _grid_spec(task, max_steps, sensors, reward)
        self._pace = ScenePace(seed, step_ms, step_spread)
        self.num_envs = num_envs
        self._seed, self._sides = seed, SIDES[task]
        self._max_steps, self._sees, self._reward = max_steps, sensors == "depth", reward
        self._streams = np.array([seed_for(seed, f"pointnav/{task}", row) for row in range(num_envs)], dtype=np.uint64)
        self._cells = grid_mazes.width(self._sides[1])
        self._views = egocentric_view.offsets(self._cells)
        self._ahead = np.array([row * self._cells + column for row, column in egocentric_view.AHEAD])
        self._slots = min(_MOST_AHEAD, max(1, _MOST_MAZES // num_envs))
        self._rows = np.arange(num_envs)
        self._stock = _empty_stock(num_envs * self._slots, self._cells)
        self._distance = self._stock.distance.reshape(-1)
        self._episode = np.full(num_envs, -1)
        self._drawn = np.zeros(num_envs, dtype=np.int64)  # the first episode of each that is not in stock
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._place, self._heading, self._steps, self._moved = np.zeros((4, num_envs), dtype=np.int64)

    def reset(self) -> EnvStep:
        """Start every environment's next episode."""
        self._begin(np.ones(self.num_envs, dtype=np.bool_))
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        return first_step(self._observe())

    def step(self, actions: Array) -> EnvStep:
        """Apply `actions` [B]: indices of `ACTIONS`. A move against a wall leaves the agent where it is.

        Raise ValueError for actions of another shape or outside the action set, and RuntimeError before `reset`.
        """
        actions = accepted_actions(actions, self.spec, self.num_envs)
        if self._episode[0] < 0:
            raise RuntimeError("step was called before reset")
        self._pace.wait()
        dead, before = self._ended, self._moves_left(self._place)
        following = self._place + self._ahead[self._heading]
        moves = (actions == FORWARD) & (self._moves_left(following) != WALL)
        self._place = np.where(moves, following, self._place)
        self._heading = (self._heading + _TURN[actions]) & 3
        self._steps, self._moved = self._steps + 1, self._moved + moves
        terminated = (actions == STOP) & ~dead
        truncated = (self._steps >= self._max_steps) & ~terminated & ~dead
        reward = np.where(dead, 0.0, self._paid(before, terminated)).astype(np.float32)
        if dead.any():
            self._begin(dead)
        self._ended = terminated | truncated
        return EnvStep(self._observe(), reward, terminated, truncated, self._ended, dead, ~dead)

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes, the agents' places, and which environments' next step is dead."""
        return saved_state(self.spec, self._seed, self._state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; the running episodes' mazes are drawn again.

        Raise UserError for a state of another protocol, seed or number of environments.
        """
        loaded = loaded_arrays(state, self._state(), self.spec, self._seed, self.num_envs)
        self._episode, self._ended = loaded["episode"], loaded["ended"]
        self._place, self._heading = loaded["place"], loaded["heading"]
        self._steps, self._moved = loaded["steps"], loaded["moved"]
        self._drawn = np.maximum(self._episode, 0)
        if self._episode[0] >= 0:
            self._restock()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def running(self) -> Mazes:
        """Return copies of the mazes of the running episodes, with B entries each."""
        current = self._slot()
        return Mazes(*(part[current] for part in self._stock))

    def poses(self) -> tuple[Array, Array]:
        """Return copies of the agents' cells and headings, both [B] int64 (`grid_mazes.Mazes`)."""
        return self._place.copy(), self._heading.copy()

    def picture(self) -> Array:
        """Return a picture [1, height, width, 3] uint8 of the first environment, from above."""
        maze, place, heading = self.running(), int(self._place[0]), int(self._heading[0])
        colours = np.where(maze.distance[0, :, None] == WALL, 60, 190) * np.ones(3)
        view = self._views[heading] + place
        colours[view[self._observe()[0, : len(view)] != 0]] *= 1.3
        colours[maze.goal[0]] = (40, 170, 60)
        colours[place] = (200, 40, 40)
        grid = colours.astype(np.uint8).reshape(self._cells, self._cells, 3)
        large = grid.repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)
        middle, reach = np.array(divmod(place, self._cells)) * _CELL_PIXELS + _CELL_PIXELS // 2, _CELL_PIXELS // 4
        top, left = middle + np.array(egocentric_view.AHEAD[heading]) * reach - 2
        large[top : top + 4, left : left + 4] = 255  # the agent's nose
        rim = (MARGIN - 1) * _CELL_PIXELS
        return large[None, rim:-rim, rim:-rim]

    def _state(self) -> dict[str, Array]:
        places = {"place": self._place, "heading": self._heading, "steps": self._steps, "moved": self._moved}
        return {"episode": self._episode, "ended": self._ended, **places}

    def _begin(self, which: Array) -> None:
        """Start the next episode of some environments [B] bool."""
        self._episode = self._episode + which
        if (self._episode >= self._drawn).any():
            self._restock()
        current = self._slot()
        self._place = np.where(which, self._stock.start[current], self._place)
        self._heading = np.where(which, self._stock.heading[current], self._heading)
        self._steps, self._moved = np.where(which, 0, self._steps), np.where(which, 0, self._moved)

    def _restock(self) -> None:
        """Draw the mazes that are missing for each environment's running episode and those that follow."""
        missing = self._episode + self._slots - self._drawn
        row = np.repeat(self._rows, missing)
        first = np.cumsum(missing) - missing
        episode = self._drawn[row] + np.arange(len(row)) - first[row]
        drawn = grid_mazes.draw(mixed(mixed(self._streams[row]) ^ episode.astype(np.uint64)), *self._sides)
        for part, new in zip(self._stock, drawn, strict=True):
            part[row * self._slots + episode % self._slots] = new
        self._drawn = self._episode + self._slots

    def _slot(self) -> Array:
        """Return where in the stock the running episodes' mazes are [B]."""
        slot: Array = self._rows * self._slots + self._episode % self._slots
        return slot

    def _moves_left(self, place: Array) -> Array:
        """Return the geodesic distances to the goals from `place` [B] or [B, n]; `WALL` on walls."""
        first = self._slot() * self._cells**2
        left: Array = self._distance.take(place + (first if place.ndim == 1 else first[:, None]))
        return left

    def _paid(self, before: Array, stopped: Array) -> Array:
        """Return the rewards of a step [B], given the distances before it."""
        left = self._moves_left(self._place)
        shortest = self._distance.take(self._slot() * self._cells**2 + self._stock.start[self._slot()])
        return point_goal.paid(self._reward, before - left, stopped & (left == 0), shortest, self._moved)

    def _observe(self) -> Array:
        """Return the observations [B, OBSERVATION_SIZE]."""
        observation = np.zeros((self.num_envs, OBSERVATION_SIZE), dtype=np.float32)
        if self._sees:
            around = self._moves_left(self._place[:, None] + self._views[self._heading])
            observation[:, :-3] = egocentric_view.depth(around == WALL)
        goal = self._stock.goal[self._slot()]
        rows, columns = np.array(divmod(goal, self._cells)) - np.array(divmod(self._place, self._cells))
        observation[:, -3:] = egocentric_view.compass(rows, columns, self._heading)
        observation[:, -3] /= DISTANCE_UNIT
        return observation


def _empty_stock(size: int, cells: int) -> Mazes:
    """Return room for `size` mazes."""
    return Mazes(np.zeros((size, cells * cells), dtype=np.int16), *np.zeros((4, size), dtype=np.int64))
