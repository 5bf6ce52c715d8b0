"""Views and the compass turn with the agent, and walls hide what is behind them."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.environments.worlds.egocentric_view import AHEAD, SIZE, compass, depth, offsets

MIDDLE = SIZE // 2


def seen(picture: str) -> list[str]:
    """The view of a drawing's walls (#): `?` marks what is not seen."""
    rows = picture.split()
    walls = np.array([[letter == "#" for letter in row] for row in rows]).reshape(1, -1)
    letters = {1.0: "#", -1.0: ".", 0.0: "?"}
    view = depth(walls).reshape(SIZE, SIZE)
    return ["".join(letters[float(number)] for number in row) for row in view]


def test_an_open_field_is_all_seen() -> None:
    assert seen("....... " * SIZE) == ["......."] * SIZE


def test_a_corridor_is_seen_to_its_end_with_its_openings_and_not_what_is_behind_its_walls() -> None:
    found = seen("....... ....... ..###.. ..#.... ..#.#.. ..#.#.. ..#.#..")
    assert found == [
        "???????",
        "???????",
        "???#???",
        "??#..??",
        "??#.#??",
        "??#.#??",
        "??#.#??",
    ]


def test_beside_the_agent_it_sees_up_to_the_next_wall() -> None:
    assert seen("####### " * 5 + "####### .#...#.")[-2:] == ["??###??", "?#...#?"]


def test_a_wall_before_the_agent_hides_everything_behind_it() -> None:
    view = seen("....... " * 5 + "####### .......")
    assert view[-2:] == ["#######", "......."]
    assert view[:-2] == ["???????"] * 5


def test_between_two_walls_that_touch_at_a_corner_nothing_is_seen() -> None:
    assert seen("....... " * 5 + "...#... ....#..")[-2][MIDDLE + 1] == "?"


def test_views_are_symmetric() -> None:
    walls = np.random.default_rng(0).random((200, SIZE, SIZE)) < 0.3
    mirrored = depth(walls[:, :, ::-1].reshape(200, -1)).reshape(walls.shape)
    assert np.array_equal(depth(walls.reshape(200, -1)).reshape(walls.shape), mirrored[:, :, ::-1])


def test_what_is_seen_is_what_is_there() -> None:
    walls = np.random.default_rng(1).random((200, SIZE * SIZE)) < 0.3
    view = depth(walls)
    assert walls[view == 1].all() and not walls[view == -1].any()
    assert view.dtype == np.float32


@pytest.mark.parametrize("heading", range(4))
def test_a_view_is_the_grid_turned_so_that_the_agent_looks_up(heading: int) -> None:
    cells, row, column = 20, 9, 10
    grid = np.arange(cells * cells).reshape(cells, cells)
    turned, centre = np.rot90(grid, heading), row * cells + column
    (up,), (across,) = (part.tolist() for part in np.nonzero(turned == centre))
    expected = turned[up - SIZE + 1 : up + 1, across - MIDDLE : across + MIDDLE + 1]
    assert np.array_equal(centre + offsets(cells)[heading], expected.ravel())
    assert offsets(cells)[heading].reshape(SIZE, SIZE)[-2, MIDDLE] == AHEAD[heading][0] * cells + AHEAD[heading][1]


# A goal 3 cells north and 4 east: for each heading, what is ahead and what is left.
FRAMES = [(3, -4), (4, 3), (-3, 4), (-4, -3)]


@pytest.mark.parametrize(("heading", "frame"), list(enumerate(FRAMES)))
def test_the_compass_points_to_the_goal_in_the_agents_frame(heading: int, frame: tuple[int, int]) -> None:
    found = compass(np.array([-3]), np.array([4]), np.array([heading]))
    assert found[0] == pytest.approx([5.0, frame[0] / 5, frame[1] / 5])


def test_at_the_goal_the_compass_points_ahead() -> None:
    assert compass(np.zeros(1), np.zeros(1), np.array([2])).tolist() == [[0.0, 1.0, 0.0]]
