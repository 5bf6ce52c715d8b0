"""The heat map of a paper: a row for each variant, a column for each task, and one for all tasks that are alike."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ddrl.analysis.figures.plots import style
from ddrl.report.figures import STATUSES, heat_map


def place(variant: str, task: str, status: str, **counts: int) -> dict[str, Any]:
    numbers = {"planned": 0, "done": 0, "left_out": 0, "reference": 0} | counts
    names = {"experiment": "games", "variant": variant, "variant_label": variant.title()}
    return names | {"environment": f"atari/{task}", "env_label": task.title(), "status": status} | numbers


def drawn(rows: list[dict[str, Any]]) -> Any:
    with style():
        return heat_map(pd.DataFrame(rows)).axes[0]


def test_a_place_has_the_colour_of_its_status_and_the_number_of_its_seeds() -> None:
    axes = drawn(
        [
            place("deep", "pong", "partly", planned=5, done=3),
            place("deep", "qbert", "reference", reference=2),
            place("shallow", "pong", "not_planned"),
        ]
    )
    assert [text.get_text() for text in axes.get_yticklabels()] == ["games: Deep", "games: Shallow"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["Pong", "Qbert"]
    assert sorted(text.get_text() for text in axes.texts) == ["", "2", "3/5"]
    assert len(axes.patches) == 3


def test_tasks_that_are_alike_in_every_row_share_a_column() -> None:
    tasks = ["alien", "amidar", "assault", "asterix"]
    axes = drawn([place("deep", "pong", "reference", reference=1), *(place("deep", t, "not_planned") for t in tasks)])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["Pong", "Alien and 3 others (atari)"]


def test_every_status_has_a_colour_of_its_own() -> None:
    assert len({colour for _, colour, _ in STATUSES.values()}) == len(STATUSES)
