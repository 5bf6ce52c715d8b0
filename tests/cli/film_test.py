"""A film whose name ends with .gif is a GIF: small, at most twenty pictures a second, and the same at each try."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddrl.cli import film
from ddrl.cli.film import Shot, check_output, write_film
from ddrl.environments.tools.camera import Camera
from ddrl.errors import UserError
from ddrl.types import Array


def shots(number: int, height: int, width: int, rate: float) -> list[Shot]:
    """Shots of one picture each, in which a white block moves."""
    camera = Camera(
        reset=lambda step: np.zeros((1, height, width, 3), np.uint8),
        step=lambda action, step: np.zeros((1, height, width, 3), np.uint8),
        shows="a block",
        frames_per_second=rate,
        actions=(),
        close=lambda: None,
    )
    found = []
    for index in range(number):
        picture: Array = np.zeros((1, height, width, 3), dtype=np.uint8)
        picture[:, : height // 2, index : index + width // 4] = 255
        found.append(Shot(picture, (f"step {index}",), camera))
    return found


def written(path: Path, made: list[Shot]) -> film.Written:
    """Write a film of these shots."""
    return write_film(path, made[0], iter(made[1:]))


@pytest.mark.parametrize(("rate", "every"), [(60.0, 3), (20.0, 1), (5.0, 1), (50.0, 3)])
def test_a_gif_shows_at_most_twenty_pictures_a_second_at_the_speed_of_the_game(
    rate: float, every: int, tmp_path: Path
) -> None:
    found = written(tmp_path / "film.gif", shots(31, 40, 80, rate))
    assert found.frames == math.ceil(31 / every)
    with Image.open(tmp_path / "film.gif") as image:
        assert image.n_frames == found.frames  # type: ignore[attr-defined]
        assert image.size == found.size
        assert image.info["duration"] == pytest.approx(1000 * every / rate, abs=10)
        assert image.info["loop"] == 0


@pytest.mark.parametrize(
    ("height", "width", "size"), [(40, 80, (400, 228)), (480, 480, (320, 268)), (400, 600, (320, 228))]
)
def test_pictures_of_a_gif_are_scaled_to_fit(height: int, width: int, size: tuple[int, int], tmp_path: Path) -> None:
    assert written(tmp_path / "film.gif", shots(3, height, width, 10.0)).size == size


def test_the_same_pictures_give_the_same_gif_and_each_picture_is_there(tmp_path: Path) -> None:
    for name in ("a.gif", "b.gif"):
        written(tmp_path / name, shots(12, 40, 80, 20.0))
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    with Image.open(tmp_path / "a.gif") as image:
        starts = []
        for index in range(12):
            image.seek(index)
            starts.append(int(np.asarray(image.convert("L"))[0].argmax()))
    assert starts == [5 * index for index in range(12)]  # the block moves by one pixel, five times as large


def test_another_ending_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"film.avi: a film's name ends with .mp4 or .gif"):
        check_output(tmp_path / "film.avi")


def test_the_ending_may_be_written_in_capital_letters(tmp_path: Path) -> None:
    check_output(tmp_path / "film.GIF")
    written(tmp_path / "film.GIF", shots(3, 40, 80, 20.0))
    assert (tmp_path / "film.GIF").read_bytes().startswith(b"GIF")
