"""The seeds that would decide an open claim, against simulation of the verdict's own test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddrl.analysis.statistics.claim_tests import Contrast, difference
from ddrl.analysis.statistics.significance import seeds_for_difference
from ddrl.analysis.verdicts.claim_seeds import Outlook
from ddrl.papers.claim_verdicts import seeds_said
from tests.analysis.verdicts.claims_test import claim

DRAWS = 1000


def contrast(deviations: tuple[float, float], **changes: object) -> Contrast:
    return replace(Contrast("a - b", 0.1, 0.1, 8.0, 0.0, deviations), **changes)  # type: ignore[arg-type]


def share(seeds: int, effect: float, p: str, level: float = 0.05) -> float:
    """Return how often groups of deviation 0.3 and 0.5 decide, with 0.3 the smallest effect that counts."""
    generator = np.random.Generator(np.random.PCG64(17))
    found = 0
    for _ in range(DRAWS):
        drawn = difference("a - b", [(generator.normal(effect, 0.3, seeds), generator.normal(0.0, 0.5, seeds))])
        found += getattr(drawn, p)(0.3) <= level
    return found / DRAWS


@pytest.mark.parametrize("family", [1, 8])
def test_so_many_seeds_decide_as_often_as_they_promise_and_a_third_of_them_hardly_ever(family: int) -> None:
    own = contrast((0.3, 0.5))
    seeds, level = Outlook(claim(), (own,), own, 0.3, 0.3).units(family), 0.05 / family
    assert seeds is not None
    assert 0.77 < share(seeds, 0.0, "p_no_difference", level) < 0.88
    assert share(seeds, 0.6, "p_supported", level) > 0.8, "an effect of twice the smallest"
    assert share(seeds // 3, 0.0, "p_no_difference", level) < 0.2


def test_claims_without_a_smallest_effect_count_seeds_for_one_a_margin_beyond_the_line() -> None:
    own = contrast((0.3, 0.5))
    reach = Outlook(claim(kind="at_least"), (own,), own, 0.0, 0.3)
    assert reach.units() == seeds_for_difference(0.3, 0.5, 0.3)
    assert "would show an effect that lies a margin beyond the line" in reach.note()
    alike = Outlook(claim(kind="alike"), (own, own), own, 0.0, 0.3)
    assert alike.units() == Outlook(claim(), (own,), own, 0.3, 0.3).units()
    assert "would show that they are alike if they are equal" in alike.note()


def test_of_two_comparisons_one_shows_no_difference_at_half_the_level() -> None:
    own = contrast((0.3, 0.5))
    two = Outlook(claim(), (own, own), own, 0.3, 0.3)
    assert two.units() == Outlook(claim(), (own,), own, 0.3, 0.3).units(family=2)


def test_what_was_cut_or_says_nothing_has_no_number_of_seeds() -> None:
    own, cut = contrast((0.3, 0.5)), contrast((0.3, 0.5), null=0.2, cut=True)
    assert Outlook(claim(), (own, None), own, 0.3, 0.3).units() is None
    assert Outlook(claim(), (cut,), cut, 0.3, 0.3).units() is None
    assert Outlook(claim(), (own,), own, 0.3, 0.0).units() is None
    assert "is not known, or more than 1000" in Outlook(claim(), (own,), own, 0.3, 0.001).note()


@pytest.mark.parametrize(
    ("facts", "null", "cut", "smallest", "unit"),
    [
        ({"kind": "ordering"}, 0.0, False, 0.1, ""),
        ({"kind": "alike"}, 0.0, False, 0.0, ""),
        ({"kind": "at_least"}, 0.0, False, 0.0, ""),
        ({"kind": "interaction"}, 0.7, False, 0.0, "times"),
        ({"kind": "interaction"}, 0.0, False, 0.1, "times"),
        ({"kind": "time_to_reach"}, 0.0, False, 0.1, "% of the other's time saved"),
        ({"kind": "time_to_reach", "factor": 2.0}, 0.7, False, 0.0, "times as early"),
        ({"kind": "time_to_reach", "factor": 2.0}, 0.7, True, 0.0, "times as early"),
    ],
)
def test_an_output_says_the_same_goal_as_the_detail(
    facts: dict[str, Any], null: float, cut: bool, smallest: float, unit: str
) -> None:
    own = contrast((0.3, 0.5), effect=0.9, null=null, cut=cut)
    below, above = own.lines(smallest)
    lines = {} if facts["kind"] == "alike" else {"contradicted_below": str(below), "supported_above": str(above)}
    row = {"seeds_needed": "9", "kind": facts["kind"], "effect_unit": unit, **lines}
    assert seeds_said(row) == f"9 seeds a group would {Outlook(claim(**facts), (own,), own, smallest, 0.3).goal}"


def test_an_output_says_what_the_number_of_seeds_would_show() -> None:
    row = {"seeds_needed": "26", "kind": "ordering", "contradicted_below": "-0.1", "supported_above": "0.1"}
    assert seeds_said(row) == "26 seeds a group would show no difference if there is none"
    assert seeds_said(row | {"kind": "stability"}).startswith("26 settings would show no difference")
    assert seeds_said(row | {"kind": "alike"}).endswith("would show that they are alike if they are equal")
    assert seeds_said(row | {"kind": "at_least"}).endswith("would show an effect that lies a margin beyond the line")
    assert seeds_said(row | {"seeds_needed": "3", "obstacle": "seeds"}) == "a test needs 3 seeds a group"
    assert seeds_said(row | {"seeds_needed": ""}) == ""
