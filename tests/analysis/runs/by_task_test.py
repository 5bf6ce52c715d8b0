"""One agent on a suite is scored task by task, like as many agents on a task each."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from ddrl.analysis.runs.by_task import by_task, unevaluated
from ddrl.analysis.runs.run_data import RunData, clock_of, training_returns, training_speed
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.cell_values import suite_values

TASKS = ("firstperson/near", "firstperson/far")
REFERENCES = pd.DataFrame(
    {"environment": TASKS, "task": ["near", "far"], "random": [0.0, -1.0], "human": [10.0, 1.0], "source": ""}
)
COUNTS = {"agent_steps": 1, "updates": 1}


def row(frames: int, metric: str, value: float) -> dict[str, Any]:
    return {"env_frames": frames, **COUNTS, "seconds": frames / 100, "metric": metric, "value": value}


def run_of(environment: str, rows: list[dict[str, Any]], variant: str = "one_agent") -> RunData:
    manifest = {"config": {"topology": {"runtime": "serial"}}, "env_frames": 200, "evaluated_tasks": list(TASKS)}
    return RunData("run", "paper", "experiment", variant, environment, 1, manifest, pd.DataFrame(rows))


def suite_run() -> RunData:
    rows = [row(frames, "cpu_seconds", frames / 50) for frames in (100, 200)]
    rows += [row(frames, "episodes", frames / 10) for frames in (100, 200)]
    rows += [row(frames, "episode_return", 99.0) for frames in (100, 200)]  # of all tasks together: no task's return
    rows += [row(100, f"episode_return/{TASKS[0]}", 3.0), row(200, f"episode_return/{TASKS[0]}", 5.0)]
    rows += [row(200, f"episode_return/{TASKS[1]}", 0.0)]
    rows += [row(100, f"episodes/{TASKS[0]}", 4.0), row(200, f"episodes/{TASKS[0]}", 7.0)]
    rows += [row(200, f"episodes/{TASKS[1]}", 2.0)]
    rows += [row(200, f"evaluation_return/{TASKS[0]}", value) for value in (20.0, 30.0)]
    rows += [row(200, f"evaluation_return/{TASKS[1]}", value) for value in (0.0, 1.0)]
    return run_of("firstperson/both", rows)


def test_each_task_has_its_own_returns_and_the_runs_own_clock() -> None:
    far, near = by_task([suite_run()])
    assert (far.environment, near.environment) == (TASKS[1], TASKS[0])
    assert near.suite == "firstperson/both"
    assert training_returns(near)["value"].tolist() == [3.0, 5.0]
    assert training_returns(near)["seconds"].tolist() == [2.0, 4.0]  # CPU seconds, since it is serial
    counts = [part.curves["value"][part.curves["metric"] == "episodes"].tolist() for part in (far, near)]
    assert counts == [[0.0, 2.0], [4.0, 11.0]]  # at each record those until then, as of any run
    assert clock_of(far) == "cpu"
    assert training_speed(far) == training_speed(near) == training_speed(suite_run()) == 50.0


def test_a_run_on_one_task_is_left_as_it_is() -> None:
    run = run_of(TASKS[0], [row(200, "evaluation_return", 1.0), row(200, "episode_return", 1.0)])
    assert by_task([run]) == [run]


def test_a_run_that_is_tested_on_another_task_is_scored_on_that_one() -> None:
    run = run_of(
        TASKS[0],
        [row(200, "episode_return", 3.0), row(200, "evaluation_return", 0.5), row(200, "cpu_seconds", 4.0)],
    )
    config = {**run.config, "evaluation": {"environment": {"name": TASKS[1], "test_seeds": True}}}
    run = replace(run, manifest={**run.manifest, "config": config})
    trained, tested = by_task([run])
    assert (trained.environment, tested.environment, tested.suite) == (TASKS[0], TASKS[1], TASKS[0])
    assert set(trained.curves["metric"]) == {"episode_return", "cpu_seconds"}
    assert set(tested.curves["metric"]) == {"evaluation_return", "cpu_seconds"}
    assert scores([trained, tested], REFERENCES)["final_return"].tolist() == [0.5]
    options_only = {**run.config, "evaluation": {"environment": {"test_seeds": True}}}
    same = replace(run, manifest={**run.manifest, "config": options_only})
    assert by_task([same]) == [same]


def test_one_agent_and_experts_give_the_same_score_where_they_play_alike() -> None:
    experts = [
        run_of(TASKS[0], [row(200, "evaluation_return", 25.0)], "experts"),
        run_of(TASKS[1], [row(200, "evaluation_return", 0.5)], "experts"),
    ]
    table = scores(by_task([suite_run(), *experts]), REFERENCES)
    metric = "mean_capped_human_normalised_score"
    for variant in ("one_agent", "experts"):
        found = suite_values(table[table["variant"] == variant], metric)
        assert found.tolist() == pytest.approx([100 * (1.0 + 0.75) / 2])


def test_a_task_without_a_final_evaluation_is_a_hole_and_the_others_have_scores() -> None:
    run = suite_run()
    lost = replace(run, curves=run.curves[run.curves["metric"] != f"evaluation_return/{TASKS[1]}"])
    assert unevaluated(lost) == [TASKS[1]]
    assert unevaluated(run) == []
    assert scores(by_task([lost]), REFERENCES)["environment"].tolist() == [TASKS[0]]
