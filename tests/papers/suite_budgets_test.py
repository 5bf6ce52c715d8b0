"""One agent for several tasks beside an expert for each: compared where they have as many frames altogether."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.verdicts.claims import evaluate
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper

IMPALA = Path("replications/impala_2018")
TASKS = ("toy/near", "toy/far")
SEEDS = (1, 2, 3)


def part(variant: str, task: str, seed: int, frames: int, suite: str = "") -> RunData:
    manifest = {"config": {}, "env_frames": frames, "protocol": "toy-1/suite", "started": "2026-11-26T00:00:00+00:00"}
    return RunData("run", "impala_2018", "dmlab30_subset", variant, task, seed, manifest, pd.DataFrame(), suite)


def scores_of(runs: list[RunData]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {"origin": "run", "experiment": run.experiment, "variant": run.variant, "environment": run.environment}
        | {"seed": run.seed, "env_frames": run.manifest["env_frames"], "final_return": 1.0, "random": 0.0}
        | {"human_normalised_score": (0.8 if run.variant == "shallow" else 0.5) + run.seed / 100}
        for run in runs
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("frames_of_an_expert", "verdict"), [(1000, "supported"), (2000, "inconclusive")])
def test_experts_share_the_budget_of_the_agent_for_all(frames_of_an_expert: int, verdict: str) -> None:
    (claim,) = [one for one in load_paper(IMPALA).claims if one.name == "multitask_over_experts_on_a_subset"]
    runs = [part("shallow", task, seed, 2000, "toy/both") for task in TASKS for seed in SEEDS]
    runs += [part("experts_shallow", task, seed, frames_of_an_expert) for task in TASKS for seed in SEEDS]
    found = evaluate(claim, load_experiments(IMPALA)["dmlab30_subset"], scores_of(runs), runs)
    assert found["verdict"] == verdict
    refused = "budgets differ over all tasks: 2,000 against 4,000 frames"
    assert (refused in found["detail"]) == (verdict == "inconclusive")


def test_a_seed_without_every_task_is_no_budget() -> None:
    (claim,) = [one for one in load_paper(IMPALA).claims if one.name == "multitask_over_experts_on_a_subset"]
    runs = [part("shallow", task, seed, 2000, "toy/both") for task in TASKS for seed in SEEDS]
    runs += [part("experts_shallow", task, seed, 1000) for task in TASKS for seed in SEEDS]
    runs.append(part("experts_shallow", TASKS[0], 4, 1000))
    found = evaluate(claim, load_experiments(IMPALA)["dmlab30_subset"], scores_of(runs), runs)
    assert found["verdict"] == "supported"
