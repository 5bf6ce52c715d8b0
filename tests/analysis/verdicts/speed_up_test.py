"""Cells about how many times as early: against planted times, and what forbids a verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.verdicts import cell_values
from ddrl.analysis.verdicts.cells import Given, _compare
from ddrl.papers.claim_kinds import TO_MILESTONE
from ddrl.papers.paper import CellRule
from tests.analysis.verdicts.claims_test import PAPER, reaching

MANY, ONE = "threads_16", "threads_1"
MILESTONES = {"toy/catch": 0.9, "toy/delayed": 0.5}
RULE = CellRule(
    published={"cell": "c"},
    experiment="threads",
    variant=MANY,
    environment=None,
    metric=TO_MILESTONE,
    environments=None,
    paper_envs=None,
    than=ONE,
    compared_as="ratio",
)


def runs_of(
    variant: str, seconds: float, at: int | None, *, actors: int, cores: int = 16, environment: str = "toy/catch"
) -> list[RunData]:
    """Five runs of so many seconds (each a little longer), that get there at a tenth of them."""
    runs = []
    for seed in range(5):
        run = replace(reaching(variant, seed, at, seconds=seconds * (1 + seed / 100)), environment=environment)
        topology = {"num_actors": actors, "envs_per_actor": 1, "runtime": "threads"}
        manifest = {**run.manifest, "config": {**run.config, "topology": topology}}
        manifest["hardware"] = run.manifest["hardware"] | {"cores": cores}
        episodes = run.curves.assign(metric="episodes", value=100.0 * run.curves["env_frames"])
        curves = pd.concat([run.curves, episodes]).assign(updates=1)
        runs.append(replace(run, manifest=manifest, curves=curves))
    return runs


def both(at: tuple[int | None, int | None] = (1, 1), **options: Any) -> list[RunData]:
    """16 threads in 100 seconds, and one in 1,250."""
    many, one = runs_of(MANY, 100.0, at[0], actors=16, **options), runs_of(ONE, 1250.0, at[1], actors=1, **options)
    return many + one


def compared(runs: list[RunData], published: float = 12.5, rule: CellRule = RULE, **changes: Any) -> dict[str, Any]:
    paper = replace(PAPER, milestones=MILESTONES)
    row = {"value": published, "seeds": 1, "deviation": math.nan}
    return _compare(Given(paper, {}, pd.DataFrame(), pd.DataFrame(), {}), rule, row, runs, changes.get("obstacles", []))


def test_a_ratio_of_times_is_how_many_times_as_early() -> None:
    found = cell_values.own_values(RULE, {}, both(), pd.DataFrame(), None, MILESTONES)
    assert found == pytest.approx(np.full(5, 12.5))
    saved = replace(RULE, compared_as="reduction")
    assert cell_values.own_values(saved, {}, both(), pd.DataFrame(), None, MILESTONES) == pytest.approx(
        np.full(5, 92.0)
    )


@pytest.mark.parametrize(("published", "verdict"), [(12.5, "equivalent"), (20.0, "below"), (1 / 12.5, "above")])
def test_a_published_speed_up_gets_a_verdict(published: float, verdict: str) -> None:
    found = compared(both(), published)
    assert (found["verdict"], found["ours"]) == (verdict, pytest.approx(12.5))


def test_on_fewer_cores_than_threads_a_speed_up_is_shown_and_not_judged() -> None:
    for rule in (RULE, replace(RULE, metric="steady_frames_per_second")):
        found = compared(both(cores=8), 20.0, rule)
        assert found["verdict"] == "inconclusive"
        assert found["detail"] == "fewer cores than workers: 8 cores for up to 16 workers"
        assert np.isnan(found["p_difference"])
    flagged = compared(both(cores=8), obstacles=["other_hardware"])
    assert flagged["verdict"] == "not_comparable"


def test_times_on_different_machines_are_not_judged() -> None:
    many, one = runs_of(MANY, 100.0, 1, actors=16), runs_of(ONE, 1250.0, 1, actors=1, cores=32)
    found = compared(many + one)
    assert found["verdict"] == "inconclusive"
    assert found["detail"].startswith("times on different hardware")


def test_a_time_that_was_cut_is_no_published_speed_up() -> None:
    found = compared(both(at=(1, None)))
    assert found["verdict"] == "inconclusive"
    assert found["detail"] == "5 of 10 runs did not reach the milestone while it could be compared"
    assert found["ours"] == pytest.approx(125, rel=0.05)  # 10 s against the 1,250 that were watched
    assert len(cell_values.own_values(RULE, {}, both(at=(None, None)), pd.DataFrame(), None, MILESTONES)) == 0


def test_tasks_are_averaged_geometrically_and_those_without_a_milestone_left_out() -> None:
    delayed = runs_of(MANY, 100.0, 1, actors=16, environment="toy/delayed")
    delayed += runs_of(ONE, 200.0, 1, actors=1, environment="toy/delayed")
    runs = both() + delayed
    found = cell_values.own_values(RULE, {}, runs, pd.DataFrame(), None, MILESTONES)
    assert found == pytest.approx(np.full(5, 5.0))  # 12.5 and 2
    alone = cell_values.own_values(RULE, {}, runs, pd.DataFrame(), None, {"toy/catch": 0.9})
    assert alone == pytest.approx(np.full(5, 12.5))
    assert len(cell_values.own_values(RULE, {}, runs, pd.DataFrame(), None, {})) == 0
