"""`ddrl bench --all`: systems side by side, alike in all but who waits for whom."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ddrl import bench, cli
from ddrl.bench import architectures
from ddrl.errors import UserError

NAMES = list(architectures.SYSTEMS)


def test_all_systems_have_the_same_network_environments_unrolls_and_batches() -> None:
    configs = bench.system_configs("atari/pong", {})
    assert list(configs) == NAMES
    for config in configs.values():
        topology, hyperparameters = config.topology, config.hyperparameters
        assert topology.num_actors * topology.envs_per_actor == architectures.ENVIRONMENTS
        assert (hyperparameters.unroll_length, hyperparameters.network) == (architectures.UNROLL, "shallow")
        assert hyperparameters.batch_size == (architectures.BATCH if hyperparameters.fresh_columns else 0)
        assert config.precision == "float32"
    schedules = {name: config.topology.schedule for name, config in configs.items()}
    assert {name for name, schedule in schedules.items() if schedule == "synchronous"} == {
        name for name in NAMES if name.startswith("A2C")
    }
    central = {name for name, config in configs.items() if config.topology.inference == "central"}
    assert central == {"GA3C", "A2C, dynamic batching", "IMPALA, dynamic batching"}


def test_what_is_said_is_said_of_all() -> None:
    configs = bench.system_configs("toy/catch", {"hyperparameters": {"unroll_length": 10}, "precision": "bfloat16"})
    assert {config.hyperparameters.unroll_length for config in configs.values()} == {10}
    assert {config.precision for config in configs.values()} == {"bfloat16"}


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(UserError, match=r"toy/track' has continuous actions; allowed: tasks with discrete"):
        bench.system_configs("toy/track", {})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A short repeat of all systems, by the command itself."""
    path = tmp_path_factory.mktemp("bench") / "all.json"
    command = ["bench", "--all", "toy/catch", "--seconds", "0.3", "--repeats", "1", "--json", str(path)]
    assert cli.main(command) == 0
    return json.loads(path.read_text()), path


def test_each_system_is_measured_in_every_repeat_and_the_file_says_with_what(measured: Any) -> None:
    result, _ = measured
    assert [one["system"] for one in result["measurements"]] == NAMES
    for one in result["measurements"]:
        assert [repeat["training"] > 0 for repeat in one["repeats"]] == [True]
        assert one["config"]["topology"]["runtime"] == "threads"
    lags = {
        one["system"]: max(repeat["policy_lag_mean"] for repeat in one["repeats"]) for one in result["measurements"]
    }
    assert {lags[name] for name in NAMES if name.startswith("A2C")} == {0.0}
    assert lags["A3C"] > 0


def test_the_table_holds_each_system_against_a3c_and_tells_where_its_time_goes(measured: Any) -> None:
    result, _ = measured
    lines = bench.describe_all(result).splitlines()
    rows = {name: next(line for line in lines if line.startswith(name + " ")) for name in NAMES}
    a3c, impala = (next(one for one in result["measurements"] if one["system"] == name) for name in ("A3C", "IMPALA"))
    ratios = [own["training"] / base["training"] for own, base in zip(impala["repeats"], a3c["repeats"], strict=True)]
    cells = rows["IMPALA"].removeprefix("IMPALA").split()
    assert cells[4:7] == [f"{value:.2f}" for value in (median(ratios), min(ratios), max(ratios))]
    assert rows["A3C"].removeprefix("A3C").split()[4:7] == ["1.00"] * 3
    repeat = impala["repeats"][0]
    cost = architectures.cpu_per_frame(repeat, cores=2, frame_skip=1)
    assert cost["all"] == pytest.approx(2e6 * repeat["cpu_utilisation"] / repeat["training"])
    parts = sum(cost[name] for name in ("simulation", "inference", "training_part", "rest"))
    assert parts == pytest.approx(cost["all"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--all", "toy/catch", "--runtime", "ray"], "its systems have topologies of their own"),
        (["--all", "toy/no_such_game"], "no_such_game"),
        ([], "say which algorithm and environment"),
        (["impala"], "say which algorithm and environment"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err
