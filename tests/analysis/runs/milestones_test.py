"""A training return counts as reached over enough episodes, whatever the records hold."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddrl.analysis.runs.milestones import FEWEST_EPISODES, reached, recent_returns
from ddrl.analysis.runs.run_data import RunData


def run_of(returns: list[float], episodes: list[int] | None) -> RunData:
    """A run with a record every 100 frames; `episodes`: how many each record is the mean of."""
    grid = 100 * np.arange(1, len(returns) + 1)
    parts = [pd.DataFrame({"env_frames": grid, "metric": "episode_return", "value": returns})]
    if episodes is not None:
        parts.append(
            pd.DataFrame({"env_frames": grid, "metric": "episodes", "value": np.cumsum(episodes, dtype=float)})
        )
    curves = pd.concat(parts, ignore_index=True).assign(seconds=lambda table: table["env_frames"] / 10)
    manifest = {"config": {}, "env_frames": int(grid[-1])}
    return RunData("run", "paper", "experiment", "variant", "toy/catch", 1, manifest, curves)


def test_one_lucky_episode_reaches_nothing() -> None:
    lucky = run_of([0.0] * 15 + [1.0] + [0.0] * 14, [1] * 30)
    assert reached(lucky, 0.5, "env_frames") == {"value": math.inf, "watched": 3000.0}
    learned = run_of([0.0] * 10 + [1.0] * 20, [1] * 30)
    assert reached(learned, 0.5, "env_frames")["value"] == 2000  # half of the last twenty episodes
    assert reached(learned, 0.5, "seconds") == {"value": 200.0, "watched": 300.0}


def test_records_of_many_episodes_are_as_they_are() -> None:
    returns = [0.1, 0.9, 0.3]
    assert recent_returns(run_of(returns, [20, 25, 100]))["value"].tolist() == returns
    assert recent_returns(run_of(returns, None))["value"].tolist() == returns  # no count of episodes


def test_a_return_is_the_mean_of_episodes_and_not_of_records() -> None:
    assert recent_returns(run_of([1.0, 0.0], [5, 15]))["value"].tolist() == [0.25]


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 30)), min_size=1, max_size=40))
def test_each_value_is_over_the_fewest_newest_records_that_hold_enough_episodes(
    records: list[tuple[float, int]],
) -> None:
    returns, episodes = [value for value, _ in records], [count for _, count in records]
    expected = {}
    for last in range(len(records)):
        for first in range(last, -1, -1):
            if sum(episodes[first : last + 1]) >= FEWEST_EPISODES:
                whole = np.repeat(returns[first : last + 1], episodes[first : last + 1])
                expected[100 * (last + 1)] = whole.mean()
                break
    found = recent_returns(run_of(returns, episodes)).set_index("env_frames")["value"]
    assert found.to_dict() == pytest.approx(expected)
