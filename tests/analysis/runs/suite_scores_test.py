"""Tests of `ddrl.analysis.runs.suite_scores` and the claims that are about it, on planted curves with known times."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl.analysis.runs.by_task import by_task
from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.runs.suite_scores import score_times
from ddrl.analysis.verdicts.claims import evaluate
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper

TASKS = {"toy/near": (0.0, 10.0), "toy/far": (0.0, 100.0)}
BOUNDS = pd.DataFrame.from_dict(TASKS, orient="index", columns=["random", "human"])
PARTS = 100
IMPALA = Path("replications/impala_2018")


def agent(variant: str, seed: int, *, per_second: float, end: float) -> list[RunData]:
    """An agent of both tasks whose normalised return rises evenly to `end`, at `per_second` of it; 100 records."""
    rows: list[dict[str, Any]] = []
    for record in range(1, PARTS + 1):
        score = end * record / PARTS
        head = {"env_frames": 1000 * record, "seconds": score / per_second}
        for task, (_, high) in TASKS.items():
            rows.append(head | {"metric": f"episode_return/{task}", "value": score * high})
        rows.append(head | {"metric": "episodes", "value": float(record)})
    hardware = {"cpu": "planted", "cores": 4, "memory_gib": 8, "gpu": "a GPU"}
    manifest = {"config": {}, "hardware": hardware, "env_frames": 1000 * PARTS, "protocol": "toy-1/suite"}
    return by_task([RunData("run", "impala_2018", "dmlab30", variant, "toy/both", seed, manifest, pd.DataFrame(rows))])


def scores_of(runs: list[RunData]) -> pd.DataFrame:
    rows = [
        {"origin": "run", "experiment": run.experiment, "variant": run.variant, "environment": run.environment}
        | {"seed": run.seed, "env_frames": 1000 * PARTS, "final_return": 1.0, "human_normalised_score": 0.5}
        | dict(BOUNDS.loc[run.environment])
        for run in runs
    ]
    return pd.DataFrame(rows)


def test_the_level_is_what_the_other_ends_with() -> None:
    runs = agent("a3c_deep", 1, per_second=0.001, end=0.5) + agent("deep", 1, per_second=0.1, end=0.9)
    found = {row["variant"]: row for row in score_times(runs, BOUNDS, "a3c_deep")}
    # The last tenth of 0.5 is 0.45 to 0.5, 0.475 on average: record 95 or 96 of A3C.
    assert found["a3c_deep"]["value"] == pytest.approx(477.5, abs=2.6)
    assert found["deep"]["value"] == pytest.approx(4.77)


def test_scores_are_capped_task_by_task() -> None:
    runs = agent("deep", 1, per_second=0.1, end=3.0) + agent("a3c_deep", 1, per_second=0.1, end=1.0)
    found = {row["variant"]: row for row in score_times(runs, BOUNDS, "deep")}
    assert found["deep"]["value"] == pytest.approx(10.2)  # the first record at 1 or above
    assert found["a3c_deep"]["value"] == pytest.approx(10.0)


def test_who_never_gets_there_has_no_time() -> None:
    runs = agent("deep", 1, per_second=0.1, end=0.2) + agent("a3c_deep", 1, per_second=0.1, end=0.8)
    found = {row["variant"]: row for row in score_times(runs, BOUNDS, "a3c_deep")}
    assert math.isinf(found["deep"]["value"])
    assert found["deep"]["watched"] == pytest.approx(2.0)


def test_an_agent_with_a_task_that_no_episode_of_has_ended_has_no_time() -> None:
    whole = agent("a3c_deep", 1, per_second=0.1, end=0.8)
    near, far = agent("deep", 1, per_second=0.1, end=0.9)
    silent = dataclasses.replace(far, curves=far.curves[far.curves["metric"] != "episode_return"])
    found = {row["variant"]: row for row in score_times([*whole, near, silent], BOUNDS, "a3c_deep")}
    assert math.isinf(found["deep"]["value"])
    assert found["deep"]["watched"] == 0
    assert math.isnan(score_times([near, silent], BOUNDS, "deep")[0]["value"])


@pytest.mark.parametrize(("speed", "verdict"), [(0.05, "supported"), (0.004, "contradicted_here")])
def test_the_claim_of_figure_6_is_decided_by_how_many_times_as_early(speed: float, verdict: str) -> None:
    paper = load_paper(IMPALA)
    (claim,) = [claim for claim in paper.claims if claim.name == "impala_overtakes_a3c_in_hours"]
    runs: list[RunData] = []
    for seed in (1, 2, 3, 4):
        runs += agent("a3c_deep", seed, per_second=0.001 * (1 + seed / 100), end=0.5)
        runs += agent("deep", seed, per_second=speed * (1 + seed / 100), end=0.6)
    found = evaluate(claim, load_experiments(IMPALA)["dmlab30"], scores_of(runs), runs)
    assert (found["verdict"], found["seeds"]) == (verdict, 4)
    assert found["effect"] == pytest.approx(1000 * speed, rel=0.03)
    assert found["effect_unit"] == "times as early"
