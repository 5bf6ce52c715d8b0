"""Our returns beside those of peers: planted differences get the verdicts that two one-sided tests give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.peer_learning import COLUMNS, peer_learning
from ddrl.papers.experiments import Experiment, Scale
from ddrl.papers.paper import Paper, load_paper
from ddrl.papers.published import load_references
from tests.papers.peer_pairs_test import ONE

ROOT = Path(__file__).parents[3]
TASK = "gymnasium/CartPole-v1"
RANDOM, BEST = 22.35, 500.0
SCALE = Scale((), (TASK,), {}, (1, 2, 3, 4, 5), "", (), {})
BESIDE = replace(ONE, scales={"workstation": SCALE})
OFFSETS = (-1.0, -0.5, 0.0, 0.5, 1.0)


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load_paper(ROOT / "replications/controls_2026")


def run(variant: str, seed: int, value: float, *, frames: int = 1000, at_end: float | None = None) -> RunData:
    rows = [(frame, "episode_return", value) for frame in (frames // 2, frames)]
    rows += [(frames, "evaluation_return", value if at_end is None else at_end)] * 10
    curves = pd.DataFrame(rows, columns=["env_frames", "metric", "value"]).assign(agent_steps=1, updates=1, seconds=1.0)
    peer = {
        "versions": {"python": "3.11.7", "ray": "2.60.0"},
        "unmapped": [{"key": "bootstrap", "ours": 1, "theirs": 0, "why": "so"}],
    }
    manifest: dict[str, Any] = {"env_frames": frames, "config": {}, "hardware": {"cores": 2}}
    manifest |= {"peer": peer} if variant != "ours" else {}
    return RunData("run", "controls_2026", "beside", variant, TASK, seed, manifest, curves)


def side(variant: str, mean: float, spread: float = 2.0, seeds: int = 5, **options: Any) -> list[RunData]:
    """Runs whose returns lie around `mean`."""
    return [run(variant, 400 + i, mean + spread * OFFSETS[i], **options) for i in range(seeds)]


def table(paper: Paper, runs: Sequence[RunData], experiment: Experiment = BESIDE) -> pd.DataFrame:
    found = peer_learning(paper, {"beside": experiment}, scores(runs, load_references(paper)), runs)
    assert list(found.columns) == COLUMNS
    return found[found["peer_variant"] == "rllib"].set_index("metric")


def test_equal_means_are_equivalent_and_a_planted_gap_is_above_or_below(paper: Paper) -> None:
    same = table(paper, [*side("ours", 300.0), *side("rllib", 301.0)])
    assert list(same["verdict"]) == ["equivalent", "equivalent"]
    more = table(paper, [*side("ours", 380.0), *side("rllib", 300.0)]).loc["mean_return"]
    less = table(paper, [*side("ours", 300.0), *side("rllib", 380.0)]).loc["mean_return"]
    assert (more["verdict"], less["verdict"]) == ("above", "below")
    assert more["ratio"] == pytest.approx((380 - RANDOM) / (300 - RANDOM))
    assert more["ci90_low"] < more["ratio"] < more["ci90_high"]
    assert more["ratio"] * less["ratio"] == pytest.approx(1.0)
    assert (more["seeds"], more["peer_seeds"], more["env_frames"]) == (5, 5, 1000)
    assert (more["library"], more["unmapped"]) == ("RLlib 2.60.0", "bootstrap")


def test_the_interval_decides_and_not_the_mean(paper: Paper) -> None:
    wide = table(paper, [*side("ours", 300.0, 90.0), *side("rllib", 300.0, 90.0)]).loc["mean_return"]
    assert wide["verdict"] == "inconclusive"
    assert "wider than the margins" in wide["detail"]
    edge = table(paper, [*side("ours", 275.0, 12.0), *side("rllib", 300.0, 12.0)]).loc["mean_return"]
    assert (edge["verdict"], edge["detail"]) == (
        "inconclusive",
        "the 90 % interval of the ratio reaches over the edge of the margin",
    )


def test_the_margin_is_that_of_the_papers_file(paper: Paper) -> None:
    runs = [*side("ours", 330.0), *side("rllib", 300.0)]
    assert table(paper, runs).loc["mean_return", "verdict"] == "inconclusive"
    wider = replace(paper, evidence=replace(paper.evidence, margin_of_range=0.2))
    row = table(wider, runs).loc["mean_return"]
    assert (row["verdict"], row["margin"]) == ("equivalent", 0.2)


def test_whole_curves_and_ends_are_compared_apart(paper: Paper) -> None:
    found = table(paper, [*side("ours", 300.0), *side("rllib", 200.0, at_end=300.0)])
    assert found.loc["mean_return", "verdict"] == "above"
    assert found.loc["final_return", "theirs"] == 300.0


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ({"mean": RANDOM + 0.1}, {"mean": RANDOM + 0.1}, "no variant is shown to be above random play"),
        ({"mean": BEST - 2}, {"mean": BEST - 3}, "every variant is at the best return there is"),
        ({"mean": 300.0, "seeds": 2}, {"mean": 300.0, "seeds": 2}, "2 seeds a group; a test needs at least 3"),
        ({"mean": 300.0}, {"mean": 300.0, "frames": 2000}, "budgets differ on"),
        ({"mean": 300.0}, {"mean": 5.0, "spread": 0.1}, "a ratio needs positive means"),
    ],
)
def test_what_nothing_can_decide_is_inconclusive(
    paper: Paper, ours: dict[str, Any], theirs: dict[str, Any], reason: str
) -> None:
    row = table(paper, [*side("ours", **ours), *side("rllib", **theirs)]).loc["mean_return"]
    assert row["verdict"] == "inconclusive"
    assert reason in row["detail"]


def test_a_side_without_a_run_is_named(paper: Paper) -> None:
    row = table(paper, side("ours", 300.0)).loc["mean_return"]
    assert (row["verdict"], row["detail"], row["seeds"], row["peer_seeds"]) == ("not_run", "no run of RLlib", 5, 0)
    assert row["ours"] == pytest.approx(300.0)
    nothing = peer_learning(paper, {"beside": BESIDE}, scores(side("ours", 1.0)[:0], load_references(paper)), [])
    assert set(nothing["verdict"]) == {"not_run"}
    assert len(nothing) == 4  # two peers, two returns


def test_committed_runs_have_rows_of_their_own(paper: Paper) -> None:
    runs = [replace(one, origin="reference") for one in [*side("ours", 300.0), *side("rllib", 301.0)]]
    found = table(paper, runs)
    assert sorted(zip(found["origin"], found["verdict"], strict=True))[:3] == [
        ("reference", "equivalent"),
        ("reference", "equivalent"),
        ("run", "not_run"),
    ]
