"""New runs against the committed reference runs: do they learn as fast, and end as high? `make regression`.

The sample of reference seeds says what is usual (after the reference convergence points of MLPerf): a new mean of
frames-to-threshold more than three standard errors worse than the reference mean is a regression.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddrl.config import load_run_config
from ddrl.run import train
from tests.runs import curves

pytestmark = pytest.mark.regression

REFERENCE = Path(__file__).parents[2] / "results/reference/impala_2018/off_policy_correction/v_trace/toy-catch"
THRESHOLD = 0.5
NEW_SEEDS = (101, 102, 103)


def frames_to_threshold(table: pd.DataFrame) -> float:
    """Environment frames at the first record whose mean training return reaches the threshold."""
    returns = table[(table.metric == "episode_return") & (table.value >= THRESHOLD)]
    return float(returns.env_frames.min())


def final_return(table: pd.DataFrame) -> float:
    evaluation = table[table.metric == "evaluation_return"]
    return float(evaluation[evaluation.env_frames == evaluation.env_frames.max()].value.mean())


def test_v_trace_learns_catch_under_lag_as_fast_as_the_reference_runs(tmp_path: Path) -> None:
    directories = sorted(REFERENCE.glob("seed*"))
    assert len(directories) >= 5
    reference = [curves(directory) for directory in directories]
    settings = json.loads((directories[0] / "config.json").read_text())
    new = []
    for seed in NEW_SEEDS:
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(settings | {"seed": seed}))
        train(load_run_config(path), tmp_path / str(seed), quiet=True)
        new.append(curves(tmp_path / str(seed)))
    for measure, sign in ((frames_to_threshold, 1), (final_return, -1)):
        old, now = (np.array([measure(table) for table in tables]) for tables in (reference, new))
        error = old.std(ddof=1) * np.sqrt(1 / len(old) + 1 / len(now))
        assert sign * (now.mean() - old.mean()) <= 3 * error, (measure.__name__, old, now)
