"""The clock of a run: with one thread its CPU time, else the clock on the wall."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from ddrl.analysis.runs.grids import on_common_clock
from ddrl.analysis.runs.run_data import RunData, clock_of, training_returns, training_speed


def run(runtime: str, *, cpu: bool = True, seed: int = 1) -> RunData:
    """Three records; on a busy machine the wall clock ran four times as fast as the CPU's."""
    rows = []
    for frames in (100, 200, 300):
        values = {"episode_return": float(frames), "frames_per_second": 1.0} | (
            {"cpu_seconds": frames / 10} if cpu else {}
        )
        rows += [(frames, frames, frames, frames / 2.5, name, value) for name, value in values.items()]
    rows.append((300, 300, 300, 500.0, "evaluation_return", 7.0))
    curves = pd.DataFrame(rows, columns=["env_frames", "agent_steps", "updates", "seconds", "metric", "value"])
    manifest = {"config": {"topology": {"runtime": runtime}}}
    return RunData("reference", "paper", "experiment", "variant", "toy/catch", seed, manifest, curves)


@pytest.mark.parametrize(
    ("runtime", "cpu", "clock", "seconds"),
    [
        ("serial", True, "cpu", [10.0, 20.0, 30.0]),
        ("serial", False, "wall", [40.0, 80.0, 120.0]),
        ("threads", True, "wall", [40.0, 80.0, 120.0]),
        ("ray", True, "wall", [40.0, 80.0, 120.0]),
    ],
)
def test_only_a_run_of_one_thread_is_timed_by_its_cpu(
    runtime: str, cpu: bool, clock: str, seconds: list[float]
) -> None:
    found = run(runtime, cpu=cpu)
    assert clock_of(found) == clock
    assert training_returns(found)["seconds"].tolist() == seconds
    assert training_returns(found)["value"].tolist() == [100.0, 200.0, 300.0]


def test_the_table_of_times_names_its_clock() -> None:
    table = on_common_clock([run("serial"), run("serial", seed=2), run("threads", seed=3)])
    assert table.groupby("seed")["clock"].unique().map(list).to_dict() == {1: ["cpu"], 2: ["cpu"], 3: ["wall"]}


def test_a_speed_is_of_training_by_the_runs_own_clock_without_the_final_evaluation() -> None:
    assert training_speed(run("serial")) == pytest.approx(300 / 30)
    threads = run("threads", cpu=False)
    episodes = threads.curves[threads.curves["metric"] == "episode_return"].assign(metric="episodes")
    timed = replace(threads, curves=pd.concat([threads.curves, episodes], ignore_index=True))
    assert training_speed(timed) == pytest.approx(300 / 120)
