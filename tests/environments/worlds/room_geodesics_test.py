"""Shortest ways of a disc: against lengths by hand, and against a search on a fine grid that knows no geometry."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from ddrl.environments.worlds.point_rooms import PITCH, RADIUS, drawn_plan, rim, walls
from ddrl.environments.worlds.room_geodesics import Geodesics, Walls

CELL = 0.05
NO_RIM = np.array([[-np.inf], [np.inf]]).repeat(2, axis=1)
JUMPS = [(a, b) for a, b in itertools.product(range(-4, 5), repeat=2) if math.gcd(a, b) == 1]
"""Moves on the grid in 48 directions, so that a straight way is at most 0.8 % too long."""


def one_wall() -> Walls:
    """From (-2, 0) to (2, 0), without thickness."""
    return Walls(np.array([[0.0, 0.0]]), np.array([[2.0, 0.0]]))


def around_its_end(start: tuple[float, float], goal: tuple[float, float], radius: float) -> float:
    """The exact length around (2, 0), from above to below: two tangents and the arc between them."""
    (x, y), (u, v) = start, goal
    length, angle = 0.0, math.atan2(y, x - 2) - math.atan2(v, u - 2)
    for away in (math.hypot(x - 2, y), math.hypot(u - 2, v)):
        length += math.sqrt(away**2 - radius**2)
        angle -= math.acos(radius / away)
    return length + radius * angle


def on_a_grid(found: Walls, goal: np.ndarray, side: float) -> np.ndarray:
    """Distances [n, n] to the goal from all points of a grid; a point is free if it is `RADIUS` away from all walls."""
    axis = np.arange(round(side / CELL) + 1) * CELL
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    free = ((points >= RADIUS) & (points <= side - RADIUS)).all(axis=-1)
    for middle, half in zip(found.middle, found.half, strict=True):
        outside = np.maximum(np.abs(points - middle) - half, 0)
        free &= np.hypot(outside[..., 0], outside[..., 1]) >= RADIUS
    number = np.arange(free.size).reshape(free.shape)
    edges = []
    for a, b in JUMPS:
        here = (slice(max(0, -a), len(axis) - max(0, a)), slice(max(0, -b), len(axis) - max(0, b)))
        there = (slice(max(0, a), len(axis) + min(0, a)), slice(max(0, b), len(axis) + min(0, b)))
        both = free[here] & free[there]
        edges.append(np.stack([number[here][both], number[there][both], np.full(both.sum(), CELL * math.hypot(a, b))]))
    one, other, length = np.concatenate(edges, axis=1)
    graph = coo_array((length, (one.astype(int), other.astype(int))), shape=(free.size, free.size)).tocsr()
    from_goal = dijkstra(graph, indices=number[tuple(np.rint(goal / CELL).astype(int))])
    return from_goal.reshape(free.shape)


@pytest.mark.parametrize(
    ("start", "goal"), [((0.0, 1.0), (0.0, -1.0)), ((1.5, 0.7), (1.9, -2.0)), ((2.0, 0.5), (3.0, -3.0))]
)
def test_a_way_around_a_wall_is_two_tangents_and_an_arc(start: tuple[float, float], goal: tuple[float, float]) -> None:
    """Or a bit shorter, since the polygon lies within: a centimetre for each right angle."""
    found = Geodesics(one_wall(), NO_RIM, np.array(goal), 0.4).distance(np.array(start))
    exact = around_its_end(start, goal, 0.4)
    assert exact - 0.02 <= found <= exact


def test_where_nothing_is_between_the_way_is_straight() -> None:
    geodesics = Geodesics(one_wall(), NO_RIM, np.array([0.0, 3.0]), 0.4)
    assert geodesics.distance(np.array([4.0, 0.0])) == pytest.approx(5.0)
    assert geodesics.next_point(np.array([4.0, 0.0])).tolist() == [0.0, 3.0]
    assert geodesics.distance(np.array([0.0, 3.0])) == 0.0


def test_a_way_may_follow_a_wall() -> None:
    geodesics = Geodesics(one_wall(), NO_RIM, np.array([1.9, 0.4]), 0.4)
    assert geodesics.distance(np.array([-1.9, 0.4])) == pytest.approx(3.8)


def test_without_walls_all_ways_are_straight() -> None:
    geodesics = Geodesics(Walls(np.zeros((0, 2)), np.zeros((0, 2))), NO_RIM, np.array([1.0, 1.0]), 0.4)
    assert geodesics.distance(np.array([4.0, 5.0])) == pytest.approx(5.0)


def test_a_place_that_is_walled_in_is_an_error() -> None:
    sides = [(-1, 0, 0, 1), (1, 0, 0, 1), (0, -1, 1, 0), (0, 1, 1, 0)]
    cell = Walls(
        np.array([side[:2] for side in sides], dtype=float), np.array([side[2:] for side in sides], dtype=float)
    )
    geodesics = Geodesics(cell, NO_RIM, np.array([3.0, 0.0]), 0.4)
    with pytest.raises(ValueError, match=r"no way leads from \[0.0, 0.0\]"):
        geodesics.distance(np.zeros(2))


def test_a_disc_does_not_pass_a_gap_that_is_too_narrow() -> None:
    def gap(width: float) -> float:
        middle = (2 + width / 2, 0.0)
        barrier = Walls(np.array([middle, (-middle[0], 0.0)]), np.array([[2.0, 0.1]] * 2))
        return Geodesics(barrier, NO_RIM, np.array([0.0, 2.0]), 0.4).distance(np.array([0.0, -2.0]))

    assert gap(0.9) == pytest.approx(4.0)
    assert gap(0.7) > 8.0


@pytest.mark.parametrize(("rooms", "keys"), [((2, 3), range(12)), ((3, 5), range(3)), ((5, 5), range(1))])
def test_distances_in_mazes_are_those_of_a_fine_grid(rooms: tuple[int, int], keys: range) -> None:
    """The grid's are too long by up to 0.8 %, but may cut a corner by its jumps of 0.2 m; ours are short at corners."""
    generator, turned = np.random.default_rng(0), 0
    for key in keys:
        plan = drawn_plan(key, *rooms)
        found, around = walls(plan), rim(plan)
        goal = np.round((np.array(plan.goal[::-1]) * PITCH + generator.uniform(0.5, 2.5, 2)) / CELL) * CELL
        expected, geodesics = on_a_grid(found, goal, around[1, 0]), Geodesics(found, around, goal, RADIUS)
        places = np.argwhere(np.isfinite(expected))
        for place in generator.choice(places, 200):
            length = geodesics.distance(place * CELL)
            assert 0.985 * expected[tuple(place)] - 0.02 <= length <= expected[tuple(place)] + 0.02
            turned += length > np.linalg.norm(place * CELL - goal) + 0.1
    assert turned > 50 * len(keys), "most ways lead around walls"
