"""Mazes on a grid with a way to a goal, drawn for many environments at once, and their geodesic distances.

A maze of side n (odd) has (n - 1) / 2 rooms each way, on the cells with odd coordinates; its rim and all other cells
are walls, until a cell between two rooms is opened. Randomised Kruskal opens a spanning tree, so every room is
reached; then each wall between two rooms is opened with probability `OPENED`, which makes loops.

A maze is a pure function of a 64-bit key. Around it lies a margin of walls, so that a view needs no bounds.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ddrl.system.seeding import mixed
from ddrl.types import Array

OPENED = 0.25
"""Share of the tree's remaining walls that are opened."""
MARGIN = 5
"""Cells of wall around the largest maze, for views of 6 cells ahead: an agent is 1 cell inside the rim."""
WALL = -1
"""What stands for a wall where free cells have a distance."""
_UNREACHED = -2
_EDGE_BITS = 9
"""Low bits of an edge's weight that hold its number, so that no two are equal."""
_OPENING_BITS = 16
"""The bits above them, which decide whether a wall is opened."""


class Mazes(NamedTuple):
    """M mazes on grids of W x W cells, W as `width`; cells are numbered row by row, from the margin's corner."""

    distance: Array
    """[M, W * W] int16: fewest moves to the goal, `WALL` on walls."""
    start: Array
    """[M] int64: the cell where the agent begins."""
    heading: Array
    """[M] int64: where it looks at first; 0 north (towards row 0), 1 east, 2 south, 3 west."""
    goal: Array
    """[M] int64: the goal's cell."""
    side: Array
    """[M] int64: cells each way, the rim included."""


class _Lattice(NamedTuple):
    """The rooms of the largest maze, and the E walls between neighbours."""

    rooms: Array  # [N] the room's cell
    row: Array  # [N]
    column: Array  # [N]
    first: Array  # [E] the room north or west of a wall
    second: Array  # [E] the one south or east of it
    walls: Array  # [E] the wall's cell


def width(largest: int) -> int:
    """Return W: cells each way of a grid that holds a maze of side `largest` and its margin."""
    return largest + 2 * MARGIN


def draw(keys: Array, smallest: int, largest: int) -> Mazes:
    """Draw one maze for each of `keys` [M] uint64, its side an odd number from `smallest` to `largest`, uniformly.

    The goal is any room, the start any room that is at least side - 3 moves away: some room always is, since the
    corners of the grid are.
    """
    lattice, cells = _lattice(largest), width(largest)
    lowest, highest = (smallest - 1) // 2, (largest - 1) // 2
    num_rooms = lowest + _uniform(keys, 0, np.full(len(keys), highest - lowest + 1))
    inside = np.maximum(lattice.row, lattice.column) < num_rooms[:, None]
    free = np.zeros((len(keys), cells * cells), dtype=np.bool_)
    free[:, lattice.rooms] = inside
    free[:, lattice.walls] = _opened(keys, lattice, inside)
    goal = lattice.rooms[_chosen(inside, keys, 1)]
    distance = geodesics(free, goal, cells)
    far = inside & (distance[:, lattice.rooms] >= 2 * (num_rooms[:, None] - 1))
    start = lattice.rooms[_chosen(far, keys, 2)]
    heading = _uniform(keys, 3, np.full(len(keys), 4))
    return Mazes(distance, start, heading, goal, 2 * num_rooms + 1)


def geodesics(free: Array, goal: Array, cells: int) -> Array:
    """Return the fewest moves to the goal from each cell: breadth-first searches in M grids at once.

    `free` [M, cells * cells] bool, whose rim is not free; `goal` [M], free cells. Returns int16, `WALL` where a cell
    is not free. Raise ValueError if a free cell is not reached.
    """
    distance = np.where(free, np.int16(_UNREACHED), np.int16(WALL)).ravel()
    steps = np.array([-cells, 1, cells, -1])
    owner = np.empty(len(distance), dtype=np.int64)
    frontier = np.arange(len(goal)) * (cells * cells) + goal
    length = 0
    while len(frontier):
        distance[frontier] = length
        around = (frontier + steps[:, None]).ravel()
        around = around[distance[around] == _UNREACHED]
        order = np.arange(len(around))
        owner[around] = order  # of a cell that is reached from two sides, one remains
        frontier = around[owner[around] == order]
        length += 1
    if (distance == _UNREACHED).any():
        raise ValueError("a free cell is not connected with the goal")
    return distance.reshape(free.shape)


def _opened(keys: Array, lattice: _Lattice, inside: Array) -> Array:
    """Return which walls [M, E] are open: a spanning tree of the rooms inside, by Kruskal, and some of the rest."""
    num_edges = len(lattice.walls)
    within = inside[:, lattice.second]  # the other room is nearer to the corner, so it is inside too
    numbers: Array = np.arange(num_edges, dtype=np.uint64)
    draws = mixed(mixed(keys)[:, None] + (numbers + np.uint64(4)))
    weights = (draws >> np.uint64(_EDGE_BITS) << np.uint64(_EDGE_BITS)) | numbers
    order = np.argsort(np.where(within, weights, np.iinfo(np.uint64).max), axis=1)
    order = order[:, : int(within.sum(axis=1).max(initial=0))]
    tree = np.zeros((len(keys), num_edges), dtype=np.bool_)
    np.put_along_axis(tree, order, _joining(lattice.first[order], lattice.second[order], len(lattice.rooms)), axis=1)
    share = (draws >> np.uint64(_EDGE_BITS)) & np.uint64(2**_OPENING_BITS - 1)
    return within & (tree | (share < np.uint64(OPENED * 2**_OPENING_BITS)))


def _joining(first: Array, second: Array, num_rooms: int) -> Array:
    """Return which edges [M, E], taken in order, join two components of M graphs: each time, one takes the other."""
    offset = np.arange(len(first))[:, None] * num_rooms
    component = np.tile(np.arange(num_rooms, dtype=np.int16), (len(first), 1))
    joins = np.zeros(first.T.shape, dtype=np.bool_)
    for number, (one, other) in enumerate(zip((offset + first).T, (offset + second).T, strict=True)):
        kept, taken = component.take(one), component.take(other)
        joins[number] = kept != taken
        np.copyto(component, kept[:, None], where=component == taken[:, None])
    return joins.T


def _chosen(allowed: Array, keys: Array, number: int) -> Array:
    """Return the index [M] of one of the entries of `allowed` [M, N] that are True, uniformly."""
    counted = np.cumsum(allowed, axis=1)
    wanted = _uniform(keys, number, counted[:, -1]) + 1
    index: Array = np.argmax(counted == wanted[:, None], axis=1)
    return index


def _uniform(keys: Array, number: int, size: Array) -> Array:
    """Return a uniform integer below `size` [M] for each key; another for each `number`."""
    draws = mixed(mixed(keys) + np.uint64(number))
    drawn: Array = (draws % size.astype(np.uint64)).astype(np.int64)
    return drawn


@cache
def _lattice(largest: int) -> _Lattice:
    """Return the rooms and walls of a maze of side `largest`."""
    count, cells = (largest - 1) // 2, width(largest)
    row, column = (part.ravel() for part in np.indices((count, count)))
    room = np.arange(count * count).reshape(count, count)
    first = np.concatenate([room[:, :-1].ravel(), room[:-1].ravel()])
    second = np.concatenate([room[:, 1:].ravel(), room[1:].ravel()])
    rooms = (MARGIN + 1 + 2 * row) * cells + MARGIN + 1 + 2 * column
    return _Lattice(rooms, row, column, first, second, (rooms[first] + rooms[second]) // 2)
