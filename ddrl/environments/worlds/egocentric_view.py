"""The square of cells before an agent on a grid, turned with it, and which of them it sees.

The agent stands in the middle of the nearest row and looks ahead: rows of a view go from the farthest to its own,
columns from its left to its right. Headings are 0 north (towards row 0), 1 east, 2 south, 3 west.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ddrl.types import Array

SIZE = 7
"""Cells of a view each way."""
AHEAD = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Heading -> row and column that one step ahead adds."""
_SEEN_WALL, _SEEN_FREE = np.float32(1.0), np.float32(-1.0)
_EDGE = 0.49
"""A side of a cell, from its middle: just inside."""
_POINTS = 1000
"""Points of a line of sight at which it is asked which cell it crosses; enough for views of any size near `SIZE`."""


def depth(walls: Array) -> Array:
    """Return views [B, SIZE * SIZE] float32 of `walls` [B, SIZE * SIZE] bool: 1 a wall, -1 a free cell, 0 not seen.

    A cell is seen where the line from the middle of the agent's cell to the middle of one of the cell's sides that
    face the agent crosses no wall.
    """
    between = _between()
    crossed = walls.astype(np.float32) @ between
    seen = (crossed.reshape(len(walls), 2, -1) == 0).any(axis=1)
    return np.where(seen, np.where(walls, _SEEN_WALL, _SEEN_FREE), np.float32(0.0))


@cache
def offsets(cells: int) -> Array:
    """Return what leads from the agent's cell to those of its view [4 headings, SIZE * SIZE], in rows of `cells`."""
    views = []
    for ahead, right in zip(AHEAD, AHEAD[1:] + AHEAD[:1], strict=True):
        places = [
            (forward * ahead[0] + aside * right[0]) * cells + forward * ahead[1] + aside * right[1]
            for forward, aside in _places()
        ]
        views.append(places)
    return np.array(views)


def compass(rows: Array, columns: Array, heading: Array) -> Array:
    """Return Euclidean distance, cosine and sine [B, 3] float64 of a vector in the frame of an agent.

    `rows` and `columns` [B] lead to the aim. The angle is 0 ahead and positive to the left; at distance 0 it is 0.
    """
    ahead = np.array(AHEAD)[heading]
    forward = rows * ahead[:, 0] + columns * ahead[:, 1]
    left = columns * ahead[:, 0] - rows * ahead[:, 1]
    distance = np.sqrt(forward * forward + left * left)
    here = distance == 0
    length = distance + here
    return np.stack([distance, forward / length + here, left / length], axis=1)


def _places() -> list[tuple[int, int]]:
    """Return steps ahead and to the right of each cell of a view, in its order."""
    aside = range(-(SIZE // 2), SIZE // 2 + 1)
    return [(forward, right) for forward in range(SIZE - 1, -1, -1) for right in aside]


@cache
def _between() -> Array:
    """Return which cells lie before each cell [SIZE * SIZE, 2 * SIZE * SIZE] float32: on two lines of sight to it."""
    number = {place: index for index, place in enumerate(_places())}
    crossing = np.zeros((SIZE * SIZE, 2, SIZE * SIZE), dtype=np.float32)
    share = np.linspace(0.0, 1.0, _POINTS, endpoint=False)
    for (forward, right), index in number.items():
        sides = (forward - np.sign(forward) * _EDGE, right), (forward, right - np.sign(right) * _EDGE)
        for line, aim in enumerate(sides):
            points = np.rint(share[:, None] * np.array(aim)).astype(int)
            crossed = {tuple(point) for point in points.tolist()} - {(forward, right), (0, 0)}
            crossing[[number[place] for place in crossed], line, index] = 1.0
    return crossing.reshape(SIZE * SIZE, -1)
