"""CPU seconds by role: all of the process, told apart by the names of its threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from ddrl.analysis.runs.efficiency import THREADS
from ddrl.api.launch import train
from ddrl.training.config.run_config import parse_run_config
from ddrl.training.records.recorder import TIMING_METRICS
from ddrl.training.records.thread_cpu import METRICS, cpu_by_role

IMPALA = {
    "algorithm": "impala",
    "environment": {"name": "atari/pong", "max_frames": 400},
    "seed": 1,
    "env_frames": 10_240,
    "hyperparameters": {"unroll_length": 20, "batch_size": 8, "network": "shallow"},
    "topology": {"runtime": "threads", "num_actors": 2, "envs_per_actor": 4},
    "recording": {"period_frames": 640, "tensorboard": False},
    "evaluation": {"final_episodes": 1},
    "device": "cpu",
}


def test_a_busy_thread_is_counted_where_its_name_says() -> None:
    before, over = cpu_by_role(), threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(1000))

    worker = threading.Thread(target=work, name="inference-3")
    worker.start()
    began = time.thread_time()
    while cpu_by_role()["inference_thread_cpu_seconds"] < before["inference_thread_cpu_seconds"] + 0.1:
        assert time.thread_time() - began < 20, "a thread that does nothing but work has no CPU seconds"
    over.set()
    worker.join()
    assert cpu_by_role()["inference_thread_cpu_seconds"] == before["inference_thread_cpu_seconds"], "it has ended"


def test_a_run_with_threads_records_what_each_role_takes(tmp_path: Path) -> None:
    train(parse_run_config(IMPALA), tmp_path, quiet=True)
    table = pd.read_parquet(tmp_path / "curves.parquet")
    wide = table[table["metric"].isin([*METRICS, "cpu_seconds"])].pivot_table(
        index="env_frames", columns="metric", values="value"
    )
    spent = (wide.iloc[-1] - wide.iloc[0])[[*METRICS, "cpu_seconds"]]
    roles = spent[list(METRICS)]
    assert roles.sum() == pytest.approx(spent["cpu_seconds"], rel=0.1, abs=0.1), "a tick is 0.01 s a thread"
    for role in ("actor", "learner", "environment"):
        assert spent[f"{role}_thread_cpu_seconds"] > 0, role
    assert spent["inference_thread_cpu_seconds"] == 0, "actors infer by themselves"


def test_tables_and_records_know_the_same_roles() -> None:
    assert tuple(f"{role}_thread_cpu_seconds" for role in THREADS) == METRICS
    assert set(METRICS) <= set(TIMING_METRICS), "no two runs take the same time"
