"""Courses of obstacles on a line: boxes, drawn anew for each episode, and the height of the ground in closed form.

After Heess et al. 2017 (arXiv 1707.02286): hurdles, gaps and steps, whose difficulty rises along the course (a
curriculum) or is drawn anew for each obstacle from the same range (stationary). The paper's sizes are in a supplement
that could not be read; those here are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ddrl.types import Array

LENGTH = 150.0
"""Metres with obstacles; behind them the ground is flat."""
FULL_DIFFICULTY_AT = 50.0
"""Metres after which obstacles of a curriculum are the hardest."""
START = 3.0
"""Metres before the first obstacle."""
PIT = -3.0
"""Height of the floor where the walker is to stay on boxes."""
_BEHIND = 10.0
"""Metres of ground behind the start."""


class Course(NamedTuple):
    """N boxes in the order of x, which do not overlap; metres."""

    left: Array
    right: Array
    top: Array
    base: float
    """Height of the floor where there is no box."""

    def height(self, x: Array) -> Array:
        """Return the height of the ground at `x` [...]."""
        if not len(self.left):
            return np.full(np.shape(x), self.base)
        box = np.searchsorted(self.left, x, side="right") - 1
        inside = (box >= 0) & (x < self.right[box])
        return np.where(inside, self.top[box], self.base)

    def highest(self, left: float, right: float) -> float:
        """Return the height of the highest ground between two places."""
        some = (self.left < right) & (self.right > left)
        tops: list[float] = self.top[some].tolist()
        return max(float(self.height(np.array(left))), float(self.height(np.array(right))), *tops)


def flat(generator: np.random.Generator, hardness: Callable[[float], float]) -> Course:
    """Return a course without an obstacle."""
    return Course(np.zeros(0), np.zeros(0), np.zeros(0), 0.0)


def hurdles(generator: np.random.Generator, hardness: Callable[[float], float]) -> Course:
    """Return boxes of 0.05 to 0.6 m on a floor, every 3 to 5 m."""
    found, x = [], START
    while x < LENGTH:
        found.append((x, x + 0.2, 0.05 + 0.55 * hardness(x)))
        x += generator.uniform(3.0, 5.0)
    return _course(found, 0.0)


def gaps(generator: np.random.Generator, hardness: Callable[[float], float]) -> Course:
    """Return platforms of 2.5 to 4.5 m, and 0.1 to 0.9 m between them."""
    found, left, right = [], -_BEHIND, START
    while right < LENGTH:
        found.append((left, right, 0.0))
        left = right + 0.1 + 0.8 * hardness(right)
        right = left + generator.uniform(2.5, 4.5)
    return _course([*found, (left, left + LENGTH, 0.0)], PIT)


def steps(generator: np.random.Generator, hardness: Callable[[float], float]) -> Course:
    """Return platforms of 1 to 2.5 m, each 0.02 to 0.25 m higher or lower than the one before; none below the first."""
    found, left, right, top = [], -_BEHIND, START, 0.0
    while right < LENGTH:
        found.append((left, right, top))
        rise = (0.02 + 0.23 * hardness(right)) * (1.0 if generator.random() < 0.5 else -1.0)
        top += rise if top + rise >= 0.0 else -rise
        left, right = right, right + generator.uniform(1.0, 2.5)
    return _course([*found, (left, left + LENGTH, top)], PIT)


COURSES = {"flat": flat, "hurdles": hurdles, "gaps": gaps, "steps": steps}


def draw(kind: str, generator: np.random.Generator, *, curriculum: bool, difficulty: float) -> Course:
    """Draw a course of a kind of `COURSES`.

    `difficulty` scales how hard the hardest obstacles are: 1 as the functions above say. With `curriculum` it is
    reached after `FULL_DIFFICULTY_AT`; otherwise each obstacle has some part of it, wherever it is.
    """

    def hardness(x: float) -> float:
        share = min(1.0, x / FULL_DIFFICULTY_AT) if curriculum else generator.random()
        return difficulty * share

    return COURSES[kind](generator, hardness)


def _course(boxes: list[tuple[float, float, float]], base: float) -> Course:
    left, right, top = np.array(boxes).T
    return Course(left, right, top, base)
