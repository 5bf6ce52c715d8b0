"""Navigation to a point in MiniWorld's rooms: continuous places, and depth or colour as seen by the agent.

The floor plan of an episode is a maze of `grid_mazes`: its cells become rooms of 3 x 3 m with walls of 0.25 m between
them, as in MiniWorld's own mazes, and a way between two cells becomes an opening as wide as a room. MiniWorld builds
the rooms, tests where the agent bumps into a wall, and draws.

- Forward moves by 0.25 m, a turn is 10 degrees, and a stop within 0.2 m of the goal is a success: Habitat's values
  (Wijmans et al. 2020). The agent is MiniWorld's, a disc of radius 0.4 m with its eyes at 1.5 m. A move that would end
  in a wall is none: the agent does not slide along it.
- Distances are those of `room_geodesics`, in metres. Nothing shows where the goal is but the compass.
- Start and goal are at least `CLEARANCE` from all walls, and as far apart as `grid_mazes` says.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ddrl.environments.worlds import grid_mazes, miniworld_drawing, miniworld_world, point_goal
from ddrl.environments.worlds.grid_mazes import MARGIN, WALL
from ddrl.environments.worlds.room_geodesics import Geodesics, Walls
from ddrl.system import packed_vector
from ddrl.system.seeding import numpy_generator
from ddrl.types import Array

ROOM, THICKNESS = 3.0, 0.25
"""Metres: a room's sides, and the walls between rooms."""
PITCH = ROOM + THICKNESS
STEP, TURN_DEGREES, ARRIVED = 0.25, 10.0, 0.2
RADIUS, CLEARANCE = 0.4, 0.5
FIELD_OF_VIEW, FARTHEST = 90.0, 10.0
"""Degrees both ways, and the depth in metres from which on all is equally far: both as Habitat's camera."""
DISTANCE_UNIT = 10.0
"""Metres."""
COMPASS_SIZE = 3
PROTOCOL = (
    f"forward{STEP:g}m,turn{TURN_DEGREES:g}deg,arrived{ARRIVED:g}m,radius{RADIUS:g}m,"
    f"view{FIELD_OF_VIEW:g}deg,far{FARTHEST:g}m,{miniworld_world.PICTURE_PROTOCOL}"
)
_MAP_PIXELS = 336
_FLOOR, _WALL, _GOAL, _AGENT, _NOSE = (190,) * 3, (60,) * 3, (40, 170, 60), (200, 40, 40), (255,) * 3


class Plan(NamedTuple):
    """Which of N x N rooms are connected; rooms are counted from the north-west, row by row."""

    east: Array
    """[N, N - 1] bool: an opening leads to the room to the east."""
    south: Array
    """[N - 1, N] bool: an opening leads to the room to the south."""
    start: tuple[int, int]
    goal: tuple[int, int]
    """Row and column of their rooms."""


def drawn_plan(key: int, fewest: int, most: int) -> Plan:
    """Return the plan that `key` determines, with `fewest` to `most` rooms each way."""
    smallest, largest = 2 * fewest + 1, 2 * most + 1
    maze = grid_mazes.draw(np.array([key], dtype=np.uint64), smallest, largest)
    cells, rooms = grid_mazes.width(largest), (int(maze.side[0]) - 1) // 2
    first, after = MARGIN + 1, MARGIN + 2 * rooms
    free = maze.distance[0].reshape(cells, cells)[first:after, first:after] != WALL
    start, goal = (divmod(int(place[0]), cells) for place in (maze.start, maze.goal))
    return Plan(free[::2, 1::2], free[1::2, ::2], _room_of(*start), _room_of(*goal))


def walls(plan: Plan) -> Walls:
    """Return the walls between rooms, each as long as it is straight, and the pillars that stand alone.

    A wall that reaches the rim of all rooms ends in it; the rim itself is `rim`.
    """
    boxes = [_box(line, run) for line, opened in enumerate(plan.east.T, start=1) for run in _closed(opened)]
    boxes += [_box(line, run)[:, ::-1] for line, opened in enumerate(plan.south, start=1) for run in _closed(opened)]
    alone = plan.east[:-1] & plan.east[1:] & plan.south[:, :-1] & plan.south[:, 1:]
    boxes += [_box(column + 1, (row + 1, row + 1)) for row, column in np.argwhere(alone).tolist()]
    low, high = np.stack(boxes, axis=1) if boxes else np.zeros((2, 0, 2))
    return Walls((high + low) / 2, (high - low) / 2)


def rim(plan: Plan) -> Array:
    """Return the least and the largest corner [2, 2] of the square that all rooms lie in."""
    return np.array([[0.0], [(len(plan.south) + 1) * PITCH - THICKNESS]]).repeat(2, axis=1)


class PointRooms:
    """An agent in rooms with a point to go to, as a `replayed.Replayable`."""

    def __init__(self, rooms: tuple[int, int], sensors: str, reward: str, image_size: int) -> None:
        """`rooms`: fewest and most each way. `sensors`: depth, rgb or blind. `reward`: one of `point_goal.REWARDS`.

        Raise UserError where a graphics library is missing, ModuleNotFoundError without MiniWorld.
        """
        self._rooms, self._sensors, self._reward, self._size = rooms, sensors, reward, image_size
        self._lists = {"shape": 0, "colour": 0}
        self._recorded: set[str] = set()
        self._begin(0)
        self.env = miniworld_world.environment("OneRoom", self._build)

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation."""
        self._begin(seed)
        with miniworld_drawing.current():  # textures are loaded
            self.env.reset(seed=seed)
        self.env.agent.cam_fov_y = FIELD_OF_VIEW
        self._recorded = set()
        self._left = self.shortest
        return self._observation()

    def step(self, action: Any) -> tuple[Array, float, bool, bool]:
        """Return observation, reward, terminated and truncated (never). `action`: an index of `point_goal.ACTIONS`."""
        before = self._left
        if action == point_goal.FORWARD and self.env.move_agent(STEP, 0.0):
            self.moved += STEP
            self._left = self.geodesics.distance(self.place)
        elif action in (point_goal.LEFT, point_goal.RIGHT):
            self.env.turn_agent(TURN_DEGREES if action == point_goal.LEFT else -TURN_DEGREES)
        stopped = bool(action == point_goal.STOP)
        arrived = stopped and self._left <= ARRIVED
        reward = point_goal.paid(self._reward, before - self._left, arrived, self.shortest, self.moved)
        return self._observation(), float(reward), stopped, False

    def close(self) -> None:
        """Free what was recorded of the rooms."""
        with miniworld_drawing.current() as canvas:
            for recorded in self._lists.values():
                canvas.gl.glDeleteLists(recorded, 1)
        self._lists = dict.fromkeys(self._lists, 0)

    @property
    def place(self) -> Array:
        """Where the agent is [2]: metres to the east and to the south of the north-western room's corner."""
        place: Array = self.env.agent.pos[[0, 2]]
        return place

    @property
    def left(self) -> float:
        """The geodesic distance to the goal, in metres."""
        return self._left

    def compass(self) -> Array:
        """Return the goal's Euclidean distance in `DISTANCE_UNIT`, and cosine and sine of its direction [3] float32.

        The direction is 0 ahead and positive to the left; at distance 0 it is 0.
        """
        east, south = self.goal - self.place
        cosine, sine = math.cos(self.env.agent.dir), math.sin(self.env.agent.dir)
        ahead, left = east * cosine - south * sine, -east * sine - south * cosine
        distance = math.hypot(ahead, left)
        direction = (ahead / distance, left / distance) if distance else (1.0, 0.0)
        return np.array([distance / DISTANCE_UNIT, *direction], dtype=np.float32)

    def picture(self) -> Array:
        """Return a picture [1, height, width, 3] uint8: what is before the agent in colour, and the map beside it."""
        return np.concatenate([self._colour(_MAP_PIXELS), self._map()], axis=1)[None]

    def _begin(self, seed: int) -> None:
        """Draw an episode: plan, start, direction and goal."""
        self.plan = drawn_plan(seed, *self._rooms)
        generator = numpy_generator(seed, "pointnav/places")
        low, high = CLEARANCE, ROOM - CLEARANCE
        ends = (np.array(room[::-1]) * PITCH for room in (self.plan.start, self.plan.goal))
        self.start, self.goal = (corner + generator.uniform(low, high, 2) for corner in ends)
        self._direction = float(generator.uniform(-math.pi, math.pi))
        self.geodesics = Geodesics(walls(self.plan), rim(self.plan), self.goal, RADIUS)
        self.shortest = self.geodesics.distance(self.start)
        self.moved = 0.0

    def _build(self, env: Any) -> None:
        """Put up the rooms of the episode, and the agent in them."""
        count = len(self.plan.south) + 1
        rooms = {
            (row, column): env.add_rect_room(
                column * PITCH, column * PITCH + ROOM, row * PITCH, row * PITCH + ROOM, wall_tex="brick_wall"
            )
            for row in range(count)
            for column in range(count)
        }
        for row, column in np.argwhere(self.plan.east).tolist():
            room = rooms[row, column]
            env.connect_rooms(room, rooms[row, column + 1], min_z=room.min_z, max_z=room.max_z)
        for row, column in np.argwhere(self.plan.south).tolist():
            room = rooms[row, column]
            env.connect_rooms(room, rooms[row + 1, column], min_x=room.min_x, max_x=room.max_x)
        env.place_agent(pos=np.array([self.start[0], 0.0, self.start[1]]), dir=self._direction)

    def _observation(self) -> Array:
        return packed_vector.pack(self._image(), self.compass())

    def _image(self) -> Array:
        """Return what the agent's sensors show [C, height, width] uint8: metres of depth to 255, or colours."""
        if self._sensors == "rgb":
            return np.ascontiguousarray(self._colour(self._size).transpose(2, 0, 1))
        if self._sensors == "blind":
            return np.zeros((1, self._size, self._size), dtype=np.uint8)
        with miniworld_drawing.current() as canvas:
            self._record("shape", canvas.compile_shape)
            metres = canvas.depth(self.env, self._lists["shape"], self._size, self._size)
        depth: Array = np.rint(metres.clip(max=FARTHEST) * (255.0 / FARTHEST)).astype(np.uint8)[None]
        return depth

    def _colour(self, size: int) -> Array:
        """Return what is before the agent [size, size, 3] uint8."""
        with miniworld_drawing.current() as canvas:
            self._record("colour", canvas.compile)
            return canvas.draw(self.env, self._lists["colour"], size, size)

    def _record(self, kind: str, compiled: Any) -> None:
        """Record the episode's rooms, unless that was done."""
        if kind not in self._recorded:
            self._lists[kind] = compiled(self.env, self._lists[kind])
            self._recorded.add(kind)

    def _map(self) -> Array:
        """Return the rooms from above [height, width, 3] uint8, north up; the agent's nose points ahead."""
        side = float(rim(self.plan)[1, 0])
        metres = (np.arange(_MAP_PIXELS) + 0.5) * ((side + 2 * THICKNESS) / _MAP_PIXELS) - THICKNESS
        points = np.stack(np.meshgrid(metres, metres), axis=-1)  # [height, width, 2]: to the east, to the south
        colours = np.broadcast_to(np.array(_FLOOR), (*points.shape[:2], 3)).copy()
        found = walls(self.plan)
        colours[((points < 0) | (points > side)).any(axis=-1)] = _WALL
        for middle, half in zip(found.middle, found.half, strict=True):
            colours[(np.abs(points - middle) <= half).all(axis=-1)] = _WALL
        direction = self.env.agent.dir
        nose = self.place + RADIUS * np.array([math.cos(direction), -math.sin(direction)])
        for middle, radius, colour in (
            (self.goal, ARRIVED, _GOAL),
            (self.place, RADIUS, _AGENT),
            (nose, RADIUS / 3, _NOSE),
        ):
            colours[np.linalg.norm(points - middle, axis=-1) <= radius] = colour
        return colours.astype(np.uint8)


def _room_of(row: int, column: int) -> tuple[int, int]:
    """Return row and column of the room at a cell of a maze."""
    return (row - MARGIN - 1) // 2, (column - MARGIN - 1) // 2


def _closed(opened: Array) -> list[tuple[int, int]]:
    """Return the longest rows of places [n] that are not open: where each begins, and where it ends (exclusive)."""
    edges: Array = np.flatnonzero(np.diff(np.concatenate([[True], opened, [True]])))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def _box(line: int, run: tuple[int, int]) -> Array:
    """Return the least and the largest corner [2, 2] of a wall to the west of column `line`, from row to row."""
    first, last = run
    return np.array([[line, first], [line, last]]) * PITCH - [[THICKNESS], [0.0]]
