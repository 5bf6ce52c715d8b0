"""Mazes: geodesic distances, loops, starts and goals; all of it a function of the key."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.environments.worlds import grid_mazes
from ddrl.environments.worlds.grid_mazes import MARGIN, WALL, Mazes

SIDES = [(7, 7), (7, 11), (11, 17), (17, 25), (7, 25)]
every_range = pytest.mark.parametrize(("smallest", "largest"), SIDES)


def drawn(count: int, smallest: int, largest: int, first: int = 0) -> Mazes:
    return grid_mazes.draw(np.arange(first, first + count, dtype=np.uint64), smallest, largest)


def searched(free: np.ndarray, goal: tuple[int, int]) -> np.ndarray:
    """Breadth-first search of one grid [H, W], cell by cell."""
    found = np.full(free.shape, WALL)
    found[goal] = 0
    queue = deque([goal])
    while queue:
        row, column = queue.popleft()
        for place in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if free[place] and found[place] == WALL:
                found[place] = found[row, column] + 1
                queue.append(place)
    return found


def graph(distance: np.ndarray, cells: int, side: int) -> tuple[int, int]:
    """How many rooms a maze has, and how many walls between them are open."""
    inner = distance.reshape(cells, cells)[MARGIN : MARGIN + side, MARGIN : MARGIN + side] != WALL
    assert inner[1::2, 1::2].all(), "rooms are free"
    assert not inner[::2, ::2].any(), "pillars are not"
    assert inner.sum() == (distance != WALL).sum(), "all around is wall"
    return int(inner[1::2, 1::2].sum()), int(inner[1::2, 2:-1:2].sum() + inner[2:-1:2, 1::2].sum())


@every_range
def test_distances_are_those_of_a_search_cell_by_cell(smallest: int, largest: int) -> None:
    mazes, cells = drawn(20, smallest, largest), grid_mazes.width(largest)
    for distance, goal in zip(mazes.distance, mazes.goal, strict=True):
        expected = searched((distance != WALL).reshape(cells, cells), divmod(int(goal), cells))
        assert np.array_equal(distance.reshape(cells, cells), expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(3, 9), st.floats(0.1, 1.0))
def test_distances_are_right_on_any_grid_and_unreached_cells_are_refused(
    seed: int, count: int, size: int, share: float
) -> None:
    """Rooms and open fields too, where a cell is reached from several sides at once."""
    generator, cells = np.random.default_rng(seed), size + 2
    free = np.zeros((count, cells, cells), dtype=np.bool_)
    free[:, 1:-1, 1:-1] = generator.random((count, size, size)) < share
    places = generator.integers(1, size + 1, (count, 2))
    free[np.arange(count), places[:, 0], places[:, 1]] = True
    expected = [searched(one, (int(row), int(column))) for one, (row, column) in zip(free, places, strict=True)]
    goal = places[:, 0] * cells + places[:, 1]
    if any(((one == WALL) & grid).any() for one, grid in zip(expected, free, strict=True)):
        with pytest.raises(ValueError, match="not connected"):
            grid_mazes.geodesics(free.reshape(count, -1), goal, cells)
        reached = np.array([one != WALL for one in expected])
        free = free & reached
    found = grid_mazes.geodesics(free.reshape(count, -1), goal, cells)
    assert np.array_equal(found.reshape(free.shape), np.array(expected))


@every_range
def test_every_room_is_reached_and_a_quarter_of_the_other_walls_is_open(smallest: int, largest: int) -> None:
    mazes, cells = drawn(300, smallest, largest), grid_mazes.width(largest)
    loops = possible = 0
    for distance, side in zip(mazes.distance, mazes.side, strict=True):
        rooms, opened = graph(distance, cells, int(side))
        assert rooms == ((side - 1) // 2) ** 2
        loops += opened - (rooms - 1)  # all cells are connected, so a spanning tree is open
        possible += (side - 1) * ((side - 1) // 2 - 1) - (rooms - 1)
    assert loops / possible == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / possible) ** 0.5)


@every_range
def test_starts_are_far_from_goals_and_both_are_rooms(smallest: int, largest: int) -> None:
    mazes, cells = drawn(300, smallest, largest), grid_mazes.width(largest)
    away = mazes.distance[np.arange(300), mazes.start]
    assert (away - (mazes.side - 3)).min() == 0
    assert (away > mazes.side - 3).any()
    for place in (mazes.goal, mazes.start):
        row, column = np.array(divmod(place, cells)) - MARGIN
        assert (row % 2 == 1).all() and (column % 2 == 1).all()
        assert (np.maximum(row, column) < mazes.side).all()
    rows, columns = np.array(divmod(mazes.start, cells)) - np.array(divmod(mazes.goal, cells))
    assert (away > 1.1 * np.hypot(rows, columns)).mean() > 0.8, "the way is seldom straight"


def test_sides_headings_and_goals_are_uniform_and_independent() -> None:
    mazes = drawn(8000, 7, 11)
    smallest = mazes.side == 7
    goals = np.unique(mazes.goal, return_inverse=True)[1]
    pairs = {
        "sides and headings": (mazes.side * 4 + mazes.heading, 12),
        "goals and headings": ((goals * 4 + mazes.heading)[smallest], 36),
    }
    for name, (values, kinds) in pairs.items():
        counts = np.unique(values, return_counts=True)[1]
        assert len(counts) == kinds, name
        assert counts == pytest.approx(len(values) / kinds, abs=5 * (len(values) / kinds) ** 0.5), name
    assert set(mazes.side.tolist()) == {7, 9, 11}


def test_a_maze_is_a_function_of_its_key_alone() -> None:
    together = drawn(40, 7, 25)
    for key in range(40):
        alone = drawn(1, 7, 25, first=key)
        assert all(np.array_equal(one[0], all_[key]) for one, all_ in zip(alone, together, strict=True))
    assert len({distance.tobytes() for distance in together.distance}) == 40


def test_no_key_draws_no_maze() -> None:
    assert len(drawn(0, 7, 25).goal) == 0
