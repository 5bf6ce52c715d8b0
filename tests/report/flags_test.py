"""Flags of scores and claims in a report."""

from __future__ import annotations

from typing import Any

from ddrl.report.sections.claims import evidence
from ddrl.report.sections.runs import side_by_side

GAP = "env_version_gap(Hopper-v5 for v2)"
CLAIM = dict.fromkeys(("effect", "effect_unit", "ci95_low", "env_frames"), "") | {"seeds": "3"}
SCORE = {
    "experiment": "continuous",
    "variant": "impact",
    "variant_label": "IMPACT",
    "env_label": "Hopper-v5",
    "origin": "run",
    "random": "18",
    "final_return": "2000",
    "env_frames": "1000000",
    "human_normalised_score": "",
}


def note(*rows: dict[str, str]) -> str:
    return side_by_side({"scores": list(rows)}, {"continuous": {"title": "Continuous control"}}, "run").note


def test_what_a_claim_rests_on_names_its_flags() -> None:
    assert evidence(CLAIM | {"flags": GAP}) == "3 seeds; env version gap (Hopper-v5 for v2)"
    assert evidence(CLAIM | {"flags": ""}) == evidence(CLAIM) == "3 seeds"


def test_below_the_scores_stands_each_flag_once() -> None:
    plain: dict[str, Any] = SCORE | {"flags": ""}
    assert "Flags" not in note(plain) + note(SCORE)
    assert note(SCORE | {"flags": GAP}, SCORE | {"flags": GAP}, plain).count("env version gap (Hopper-v5 for v2)") == 1
