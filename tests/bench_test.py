"""What `ddrl bench` computes from its measurements."""

from __future__ import annotations

import copy
from typing import Any

from ddrl import bench


def test_speed_is_frames_between_updates_over_the_time_between_them() -> None:
    updates = [(float(second), 100 * second) for second in range(10)]
    assert bench._speed(updates, 1.5, 8.9) == 100.0, "the window's edges do not matter"
    assert bench._speed(updates, 1.5, 2.5) == 0.0, "one update says nothing"
    assert bench._speed([], 0.0, 9.0) == 0.0


def test_the_default_topology_gives_way_to_what_is_said_and_leaves_it_as_it_was() -> None:
    overrides: dict[str, Any] = {"topology": {"num_actors": 1}, "hyperparameters": {"network": "mlp"}}
    before = copy.deepcopy(overrides)
    config = bench.default_config("impala", "toy/catch", overrides)
    assert config.topology.num_actors == 1
    assert config.topology.runtime == "threads"
    assert overrides == before


def test_one_repeat_measures_the_parts_and_the_whole() -> None:
    settings = {
        "hyperparameters": {"network": "mlp", "unroll_length": 5, "batch_size": 8},
        "topology": {"num_actors": 2, "envs_per_actor": 4, "learner_threads": 1},
        "device": "cpu",
    }
    repeat = bench.measure(bench.default_config("impala", "toy/catch", settings), 0.5)
    assert repeat.training > 0
    assert repeat.bound > 0
    assert repeat.ratio == repeat.training / repeat.bound
    assert 0 <= repeat.others <= 1.2
    assert set(repeat.duty) == {"actor", "learner"}
