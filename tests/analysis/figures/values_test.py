"""The values that a figure holds for its page lie where they are drawn, and say what they are."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from ddrl.analysis.figures import plots


def saved(folder: Path, draw: Any) -> list[dict[str, Any]]:
    with plots.style():
        canvas = plots.new_figure("column", 2.0)
        draw(canvas)
        vector, _ = plots.save(canvas, folder, "figure")
    found = re.search(r'<metadata id="values">(.*?)</metadata>', vector.read_text(), re.DOTALL)
    assert found
    series: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return series


def line(axes: Axes) -> None:
    axes.plot([0, 500_000, 1_000_000], [0.0, 0.25, 1.0], color=plots.BLUE)
    axes.axhline(0.5, color=plots.GREY)
    axes.set_title("Pong")
    axes.set_xlabel("environment frames")
    axes.set_ylabel("return")


def test_a_point_says_its_panel_its_line_and_both_numbers(tmp_path: Path) -> None:
    def draw(canvas: Any) -> None:
        line(canvas.subplots())
        plots.legend_above(canvas, [plots.handle("IMPALA <&>", plots.BLUE, dashes="-")])

    (series,) = saved(tmp_path, draw)
    assert series["label"] == "Pong, IMPALA <&>"
    assert [text for _, _, text in series["points"]] == [
        "environment frames: 0\nreturn: 0",
        "environment frames: 500,000\nreturn: 0.25",
        "environment frames: 1,000,000\nreturn: 1",
    ]


def test_a_point_lies_where_the_svg_draws_it(tmp_path: Path) -> None:
    (series,) = saved(tmp_path, lambda canvas: line(canvas.subplots()))
    drawn = re.search(r'<path d="(M[^"]*)"[^>]*stroke: #0072b2', (tmp_path / "figure.svg").read_text())
    assert drawn
    places = [[float(number) for number in pair] for pair in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", drawn[1])]
    assert np.allclose([point[:2] for point in series["points"]], places, atol=0.06)


def test_a_row_is_called_by_its_name_and_a_bar_has_its_end(tmp_path: Path) -> None:
    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        axes.barh([0, 1], [2.0, 3.5])
        axes.set_yticks([0, 1], ["A3C", "IMPALA"])

    (series,) = saved(tmp_path, draw)
    assert [text for _, _, text in series["points"]] == ["2\nA3C", "3.5\nIMPALA"]


@pytest.mark.parametrize("count", [59, 1000])
def test_of_a_long_line_some_points_are_kept(tmp_path: Path, count: int) -> None:
    (series,) = saved(tmp_path, lambda canvas: canvas.subplots().plot(range(count), range(count)))
    assert min(count, 50) <= len(series["points"]) <= 60
