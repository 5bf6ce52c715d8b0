"""How a report names seeds, and how many each variant has."""

from __future__ import annotations

import pytest

from ddrl.report.sections.document import Row
from ddrl.report.sections.runs import drawings
from ddrl.report.sections.text import seeds_listed


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([1], "1"),
        ([2, 1], "1 and 2"),
        ([3, 1, 2], "1 to 3"),
        ([301, 302, 303, 401, 402, 411, 411], "301 to 303, 401, 402 and 411"),
    ],
)
def test_seeds_in_a_row_are_named_by_their_ends(seeds: list[int], words: str) -> None:
    assert seeds_listed(seeds) == words


def runs(variant: str, seeds: range) -> list[Row]:
    """Reference runs of a variant."""
    keys = {"origin": "reference", "experiment": "peers", "environment": "toy/catch", "env_frames": "1000"}
    return [keys | {"variant": variant, "seed": str(seed)} for seed in seeds]


@pytest.mark.parametrize(("other", "words"), [(range(21, 26), "5 seeds each"), (range(21, 37), "5 to 16 seeds each")])
def test_a_figure_says_how_many_seeds_a_variant_has_though_variants_have_other_seeds(other: range, words: str) -> None:
    figure = {"name": "a", "caption": "A. B.", "alt": "c", "tables": ["curves"]}
    summary = {"paper": {"key": "controls_2026"}, "figures": [figure]}
    (drawing,) = drawings(summary, [*runs("one", range(1, 6)), *runs("other", other)])
    assert drawing.note.endswith(words + ".")
