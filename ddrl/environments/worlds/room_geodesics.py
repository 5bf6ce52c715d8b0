"""Shortest ways of a round agent between walls in the plane, by a visibility graph (Lozano-Perez and Wesley 1979).

A disc of radius r keeps clear of walls where its middle keeps clear of the walls grown by r, whose corners are then
round. Here each rounded corner is `CORNER_POINTS` points on the arc, and a polygon stands for each wall. It lies within
the grown wall, so a way is never longer than the exact one. It is shorter by less than a centimetre for each right
angle that it turns around, with a radius of 0.4 m.

A shortest way is straight between points at which it turns around a wall. So only lines that touch the wall at both
their ends, and do not enter it, are looked at: a sixth of all directions at each point.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ddrl.types import Array

CORNER_POINTS = 3
_BEND = math.pi / 2 / CORNER_POINTS
"""The angle between a polygon's neighbouring sides at a corner."""
_TOUCH = 1e-6
"""Metres by which a way may cut into a wall: ways along walls touch them."""
_STILL = 1e-12
_SIDES = np.stack([[math.cos(side * _BEND), math.sin(side * _BEND)] for side in range(2 * CORNER_POINTS)])
"""Normals [K, 2] of a polygon's sides; each stands for two opposite ones."""


class Walls(NamedTuple):
    """W rectangles with sides along the axes."""

    middle: Array
    """[W, 2] float64."""
    half: Array
    """[W, 2] float64: half of their sides."""


class Geodesics:
    """Distances to one goal from anywhere between walls and within a rim."""

    def __init__(self, walls: Walls, rim: Array, goal: Array, radius: float) -> None:
        """`goal` [2] is a point that an agent of this radius can stand on.

        `rim` [2, 2] has the least and the largest corner of a rectangle around everything, which no way leaves.
        """
        inner = radius * math.cos(_BEND / 2)
        self._middle = walls.middle @ _SIDES.T  # [W, K]
        self._reach = walls.half @ np.abs(_SIDES).T + inner - _TOUCH  # [W, K]: of a polygon, along each normal
        corners, sides = _corners(walls, radius)
        free = ~self._covered(corners) & ((corners > rim[0]) & (corners < rim[1])).all(axis=1)
        self._points: Array = np.concatenate([goal[None], corners[free]])
        self._sides: Array = np.concatenate([np.zeros((1, 2, 2)), sides[free]])  # the goal is no corner
        self._lengths = self._to_the_goal()

    def distance(self, place: Array) -> float:
        """Return the length of the shortest way from `place` [2]. Raise ValueError where there is none."""
        return self._shortest(place)[0]

    def next_point(self, place: Array) -> Array:
        """Return where a shortest way from `place` [2] turns first [2], or the goal. Raise ValueError as `distance`."""
        turn: Array = self._points[self._shortest(place)[1]].copy()
        return turn

    def _shortest(self, place: Array) -> tuple[float, int]:
        """Return the length of the shortest way from `place` [2], and the number of the point that it leads to first.

        Raise ValueError where there is none.
        """
        towards = self._points - place
        (touched,) = np.nonzero(_touches(towards, self._sides) & np.isfinite(self._lengths))
        ways = np.linalg.norm(towards[touched], axis=1) + self._lengths[touched]
        ways[~self._visible(place[None], self._points[touched])] = np.inf
        best = int(np.argmin(ways))
        if not math.isfinite(ways[best]):
            raise ValueError(f"no way leads from {place.tolist()} to the goal")
        return float(ways[best]), int(touched[best])

    def _to_the_goal(self) -> Array:
        """Return each point's distance to the goal [P], infinite where no way leads there (Bellman 1958)."""
        points, count = self._points, len(self._points)
        towards = points[None] - points[:, None]
        touching = _touches(towards, self._sides[None]) & _touches(towards, self._sides[:, None])
        one, other = np.nonzero(np.triu(touching, 1))
        seen = self._visible(points[one], points[other])
        steps = np.full((count, count), np.inf)
        steps[one[seen], other[seen]] = np.linalg.norm(towards[one[seen], other[seen]], axis=1)
        steps = np.minimum(steps, steps.T)
        lengths = np.where(np.arange(count) == 0, 0.0, np.inf)
        while True:
            shorter = np.minimum((steps + lengths).min(axis=1), lengths)
            if (shorter == lengths).all():
                return lengths
            lengths = shorter

    def _covered(self, points: Array) -> Array:
        """Return which points [P] lie within a grown wall."""
        within = np.abs((points @ _SIDES.T)[:, None] - self._middle) < self._reach
        covered: Array = within.all(axis=2).any(axis=1)
        return covered

    def _visible(self, starts: Array, ends: Array) -> Array:
        """Return which straight ways [P] from `starts` to `ends`, [P, 2] or [1, 2], cross no grown wall.

        A way is inside a polygon while it is between all pairs of opposite sides (Liang and Barsky 1984).
        """
        start = (starts @ _SIDES.T)[:, None] - self._middle  # [P, W, K]
        along = ((ends - starts) @ _SIDES.T)[:, None]  # [P, 1, K]
        still = np.abs(along) < _STILL
        speed = np.where(still, 1.0, along)
        low, high = (-self._reach - start) / speed, (self._reach - start) / speed
        never = still & (np.abs(start) >= self._reach)
        enters = np.where(never, np.inf, np.where(still, -np.inf, np.minimum(low, high))).max(axis=2)
        leaves = np.where(still, np.inf, np.maximum(low, high)).min(axis=2)
        seen: Array = ~(np.maximum(enters, 0.0) < np.minimum(leaves, 1.0)).any(axis=1)
        return seen


def _touches(direction: Array, sides: Array) -> Array:
    """Return whether lines along `direction` [..., 2] through corners have both `sides` [..., 2, 2] on one hand."""
    hands = direction[..., None, 0] * sides[..., 1] - direction[..., None, 1] * sides[..., 0]
    touches: Array = hands[..., 0] * hands[..., 1] >= -_TOUCH
    return touches


def _corners(walls: Walls, radius: float) -> tuple[Array, Array]:
    """Return the corners of all polygons [P, 2], each once, and the directions of both sides from there [P, 2, 2]."""
    numbers = np.arange(4 * CORNER_POINTS)
    signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])[numbers // CORNER_POINTS]
    outwards = radius * _unit((numbers + 0.5) * _BEND)
    every = (walls.middle[:, None] + signs * walls.half[:, None] + outwards).reshape(-1, 2)
    sides = np.stack([_unit(numbers * _BEND - math.pi / 2), _unit((numbers + 1) * _BEND + math.pi / 2)], axis=1)
    _, first = np.unique(every.round(6), axis=0, return_index=True)
    return every[first], np.tile(sides, (len(walls.middle), 1, 1))[first]


def _unit(angle: Array) -> Array:
    """Return unit vectors [..., 2] at these angles [...]."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)
