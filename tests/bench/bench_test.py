"""What `ddrl bench` measures, computes and prints."""

from __future__ import annotations

import ast
import copy
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddrl import algorithms, bench, cli
from ddrl.algorithms import impala
from ddrl.analysis.tables.suite import _benchmarks
from ddrl.bench import text as bench_text
from ddrl.bench.defaults import SETTINGS, TOPOLOGY, read_settings, settings_of
from ddrl.bench.parts import alone, fresh_share
from ddrl.bench.sweep import KEYS, default_axes, parse_axes
from ddrl.bench.topology import batches_per_lap, mean_between, speed_of
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.inference import worker_pool
from ddrl.learners.replay_learner import ReplayLearner
from ddrl.training.config.overrides import parse_settings
from ddrl.training.config.run_config import RunConfig
from tests.runs import BATCHED, CONTINUOUS, DISCRETE, GRADIENTS, REPLAYING, SHARED, merged, task_of
from tests.runtimes.ray import prefork

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "hyperparameters": {"unroll_length": 5, "batch_size": 8},
    "topology": {"num_actors": 2, "envs_per_actor": 4, "learner_threads": 1},
    "device": "cpu",
}
RUNTIMES = ("threads", "serial")
COLUMNS = ("bound", "rollout", "training", "ratio", "actor duty", "learn duty", "cpu busy", "others", "lag mean")


def small(algorithm: str, environment: str = "toy/catch", **hyperparameters: Any) -> RunConfig:
    settings = copy.deepcopy(SMALL)
    settings["hyperparameters"] |= hyperparameters
    return bench.default_config(algorithm, environment, settings)


def note(line: str) -> None:
    """Nobody reads it."""


def test_speed_is_frames_between_batches_over_the_time_between_them() -> None:
    batches = [(float(second), 100 * second) for second in range(10)]
    assert speed_of(batches) == 100.0
    assert speed_of(batches[:1]) == 0.0, "one batch says nothing"
    assert speed_of([]) == 0.0


def test_a_mean_over_a_window_weighs_the_frames_that_a_record_sums_up_within_it() -> None:
    records = [(18, 0.0), (54, 1.0), (954, 18.0), (1170, 29.0)]
    assert mean_between(records, 18, 54) == 1.0, "the first record is of what came before"
    assert mean_between(records, 36, 756) == pytest.approx((18 * 1.0 + 702 * 18.0) / 720)
    assert mean_between(records, 0, 1170) == pytest.approx((36 * 1.0 + 900 * 18.0 + 216 * 29.0) / 1170)
    assert math.isnan(mean_between(records, 1170, 2000)), "no record covers them"


def test_where_fresh_batches_come_in_bursts_whole_laps_are_counted() -> None:
    bursts = [(10 * lap + slot, 100 * (3 * lap + slot)) for lap in range(4) for slot in range(3)]  # 300 in 10 s
    for first in range(4):
        assert speed_of(bursts[first:], lap=3) == 30.0
    assert speed_of(bursts[:3], lap=3) == 0.0, "a burst alone would look far too fast"


def test_the_pattern_of_fresh_batches_is_one_or_the_slots_of_a_circular_store() -> None:
    assert batches_per_lap(small("impala").hyperparameters.first_update) == 1
    assert batches_per_lap(small("ppo").hyperparameters.first_update) == 1
    assert batches_per_lap(small("impact", num_slots=3, num_traversals=5).hyperparameters.first_update) == 3
    assert batches_per_lap(small("impact", num_slots=3, num_traversals=1).hyperparameters.first_update) == 1


def test_a_step_is_fresh_once_however_often_it_is_learned_from() -> None:
    assert fresh_share(small("impala").hyperparameters) == 1
    assert fresh_share(small("impala", replay_fraction=0.5).hyperparameters) == 0.5
    assert fresh_share(small("ppo", num_epochs=7).hyperparameters) == 1, "an update is all epochs of its batch"
    share = fresh_share(small("impact", num_slots=4, num_traversals=8).hyperparameters)
    assert share == pytest.approx(1 / 8)


def test_topologies_with_the_same_parts_share_their_measurement() -> None:
    config = small("impala")
    others = [bench.default_config("impala", "toy/catch", SMALL | {"topology": {"num_actors": 5, "runtime": "ray"}})]
    others += [small("impala", batch_size=16)]
    assert alone(config).topology.envs_per_actor == 4
    assert alone(config).hyperparameters.optimizer.decay == config.hyperparameters.optimizer.decay
    assert alone(others[0]) == alone(bench.default_config("impala", "toy/catch", SMALL | {"topology": {}}))
    assert alone(others[1]) != alone(config)


def test_an_image_with_an_instruction_has_the_network_of_images() -> None:
    config = bench.default_config("impala", "firstperson/miniworld_sign", {})
    assert config.hyperparameters.network == "shallow"


@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [
        (algorithm, environment)
        for algorithm in REPLAYING
        for environment in (("atari/pong", "toy/catch") if algorithm in DISCRETE else ("toy/track",))
    ],
)
def test_the_defaults_of_algorithms_with_a_replay_fit_every_environment_that_they_learn(
    algorithm: str, environment: str
) -> None:
    config = bench.default_config(algorithm, environment, {})
    algorithms.load(algorithm).check(config.hyperparameters, registry.spec_for(environment), 1)
    assert config.topology.schedule == "asynchronous"
    assert config.hyperparameters.samples_per_insert in (1.3, 0.4, 32.0)  # of Ape-X, R2D2 and D4PG
    assert config.hyperparameters.fresh_steps in (512 / 1.3, 64 / 0.4 * 40, 256 / 32.0)


@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [
        (algorithm, environment)
        for algorithm in sorted(BATCHED + GRADIENTS)
        for environment in ("atari/pong", "toy/catch", "mujoco/HalfCheetah-v5", "toy/track")
        if algorithm in CONTINUOUS or environment in ("atari/pong", "toy/catch")
    ],
)
def test_the_defaults_of_every_algorithm_fit_every_kind_of_environment(algorithm: str, environment: str) -> None:
    config = bench.default_config(algorithm, environment, {})
    module, spec = algorithms.load(algorithm), registry.spec_for(environment)
    module.check(config.hyperparameters, spec, 1)
    assert config.topology.runtime == "threads"
    assert config.topology.schedule in module.SYSTEM.schedules
    if not settings_of(algorithm):
        return
    normalised = getattr(config.hyperparameters, "observation_normalisation", None)
    assert normalised == (None if algorithm in SHARED else bool(spec.action_size))
    assert (config.hyperparameters.reward_clipping == "abs_one") == (environment == "atari/pong" or not_set(config))


def test_settings_are_of_an_algorithm_and_a_kind_of_environment_and_no_benchmark_names_one() -> None:
    files = list(SETTINGS.iterdir())
    assert {file.stem for file in files} <= set(algorithms.NAMES)
    for file in files:
        for kind, settings in read_settings(file).items():
            assert kind in (*TOPOLOGY, "replay")
            assert set(settings) <= {"hyperparameters", "topology", "paper"}
    for file in SETTINGS.parent.glob("*.py"):
        texts = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
        assert not texts & set(algorithms.NAMES), file.name


def not_set(config: RunConfig) -> bool:
    """IMPALA, A2C, A3C and GA3C clip rewards unless told otherwise."""
    return config.algorithm in ("impala", "a2c", *SHARED) and config.environment["name"] == "toy/catch"


def test_the_defaults_give_way_to_what_is_said_and_leave_it_as_it_was() -> None:
    overrides: dict[str, Any] = {"topology": {"num_actors": 1}, "hyperparameters": {"lstm_size": 8}}
    before = copy.deepcopy(overrides)
    config = bench.default_config("impala", "toy/catch", overrides)
    assert (config.topology.num_actors, config.topology.envs_per_actor) == (1, 16)
    assert (config.hyperparameters.network, config.hyperparameters.lstm_size) == ("mlp", 8)
    assert overrides == before


def test_the_queue_holds_what_a_batch_needs_unless_something_is_said() -> None:
    one = {"topology": {"envs_per_actor": 3}}
    assert bench.default_config("impala", "toy/catch", one).topology.queue_capacity == 11  # batches of 32
    one["topology"]["queue_capacity"] = 12
    assert bench.default_config("impala", "toy/catch", one).topology.queue_capacity == 12
    with pytest.raises(UserError, match="queue_capacity"):
        bench.default_config("impala", "toy/catch", {"topology": {"envs_per_actor": 3, "queue_capacity": 2}})


def test_settings_are_keys_and_values() -> None:
    texts = ["topology.num_actors=2", "precision=bfloat16", "topology.runtime=ray", "environment.sticky=true"]
    expected = {"topology": {"num_actors": 2, "runtime": "ray"}, "precision": "bfloat16"}
    assert parse_settings(texts) == expected | {"environment": {"sticky": True}}
    for text in ("topology", "=3", "topology..x=3"):
        with pytest.raises(UserError, match="allowed: key=value"):
            parse_settings([text])


@pytest.mark.parametrize("runtime", ["serial", "threads"])
@pytest.mark.parametrize("algorithm", ["impala", "impact", "apex_dqn", "r2d2", "a3c", "ga3c"])
def test_one_repeat_measures_the_parts_and_the_whole(algorithm: str, runtime: str) -> None:
    settings = copy.deepcopy(SMALL)
    settings["topology"]["runtime"] = runtime
    if algorithm in GRADIENTS:
        del settings["hyperparameters"]["batch_size"]
    repeat = bench.measure(bench.default_config(algorithm, "toy/catch", settings), 0.3)
    assert repeat.training > 0
    assert repeat.rollout > 0
    assert repeat.ratio == repeat.training / repeat.bound
    assert 0 < repeat.cpu_utilisation <= 1.2
    assert 0 <= repeat.others <= 1.2
    central = algorithm == "ga3c" and runtime != "serial"  # there an environment may wait for actions
    assert set(repeat.duty) == {"actor", "learner"} | ({"environments"} if central else set())
    assert all(0 <= duty <= 1 for duty in repeat.duty.values())
    if runtime == "serial":
        assert sum(repeat.duty.values()) == pytest.approx(1), "they take turns"
    assert repeat.policy_lag_mean >= 0


def test_synchronous_actors_wait_while_the_learner_learns() -> None:
    config = small("ppo", "toy/track", num_epochs=10, num_minibatches=10)
    repeat = bench.measure(config, 0.5)
    assert repeat.duty["actor"] < 0.5 < repeat.duty["learner"]
    assert repeat.policy_lag_mean == 0


@pytest.mark.parametrize("algorithm", REPLAYING)
def test_the_window_waits_for_a_learner_that_draws_slowly_from_its_replay(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(learner: ReplayLearner, batch: Any) -> Any:
        time.sleep(0.2)
        return update(learner, batch)

    update = ReplayLearner.update
    monkeypatch.setattr(ReplayLearner, "update", slowly)
    repeat = bench.measure(small(algorithm, task_of(algorithm)), 0.3)  # two draws take longer
    assert 0 < repeat.training < float("inf")


def test_what_a_role_raises_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(learner: Any) -> Any:
        raise ValueError("the learner is ill")

    monkeypatch.setattr(impala.Learner, "step", fail)
    with pytest.raises(ValueError, match="is ill"):
        bench.measure(small("impala"), 0.3)


def test_topologies_are_measured_in_turn_and_the_best_is_named_with_its_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--seconds", "0.2", "--repeats", "2", "--set", "hyperparameters.unroll_length=5"]
    sweep = ["--runtime", *RUNTIMES, "--sweep", "num_actors=1,2", "envs_per_actor=8"]
    file = tmp_path / "x.json"
    assert cli.main(["bench", "impala", "toy/catch", *short, *sweep, "--json", str(file)]) == 0
    shown = capsys.readouterr()
    order = [line.split(":")[0] for line in shown.err.splitlines()]
    one_round = [f"{name}, {actors} x 8 environments, 1 learner thread" for actors in (1, 2) for name in RUNTIMES]
    assert order == [f"repeat {index}/2, {topology}" for index in (1, 2) for topology in one_round]
    assert shown.out.count("\nbest: ") == 2
    assert "env thr" in shown.out
    assert "serial / threads, each at its best: " in shown.out
    result = json.loads(file.read_text())
    assert len(result["measurements"]) == 4
    assert all(len(one["repeats"]) == 2 for one in result["measurements"])
    (comparison,) = result["comparisons"]
    assert comparison["lowest"] <= comparison["median"] <= comparison["highest"]
    assert all(column in shown.out for column in COLUMNS[3:])
    title, *rows = next(block for block in shown.out.split("\n\n") if "env thr" in block).splitlines()
    assert {key for key, _ in bench_text._SIZES.values()} == set(KEYS), "what a sweep may change is shown"
    assert [title.index(name) for name in bench_text._SIZES] == sorted(title.index(name) for name in bench_text._SIZES)
    assert sorted(row.split()[:6] for row in rows) == [
        [name, actors, "8", "1", "1", "1"] for name in sorted(RUNTIMES) for actors in ("1", "2")
    ]


def test_a_grid_leaves_out_what_is_not_allowed_and_says_so() -> None:
    notes: list[str] = []
    axes = {"num_actors": [2, 3], "envs_per_actor": [16]}
    configs = bench.grid("ppo", "toy/catch", {}, runtimes=["threads", "ray"], axes=axes, note=notes.append)
    assert [(one.topology.num_actors, one.topology.runtime) for one in configs] == [(2, "threads"), (2, "ray")]
    assert len(notes) == 2
    assert "left out: num_actors 3, envs_per_actor 16, runtime threads: " in notes[0]
    with pytest.raises(UserError, match="divide"):
        bench.grid("ppo", "toy/catch", {}, runtimes=[], axes={"num_actors": [3]}, note=note)


def test_axes_are_keys_of_the_topology_with_whole_numbers() -> None:
    assert parse_axes(["num_actors=1,2", "learner_threads=1"]) == {"num_actors": [1, 2], "learner_threads": [1]}
    assert parse_axes([]) == default_axes()
    with pytest.raises(UserError, match="unknown key 'actors'"):
        parse_axes(["actors=2"])
    for text in ("num_actors", "num_actors=", "num_actors=0", "num_actors=1,x"):
        with pytest.raises(UserError, match="allowed: whole numbers from 1"):
            parse_axes([text])


def test_every_measurement_of_a_file_is_a_row_of_the_reports_table(tmp_path: Path) -> None:
    configs = bench.grid("impala", "toy/catch", SMALL, runtimes=RUNTIMES, axes={}, note=note)
    result = bench.bench(configs, seconds=0.2, repeats=1, note=note)
    text = bench.describe(result)
    assert all(column in text for column in COLUMNS)
    assert "serial / threads: " in text
    folder = tmp_path / "reference" / "bench"
    folder.mkdir(parents=True)
    (folder / "several.json").write_text(json.dumps(result))
    rows, problems = _benchmarks(tmp_path)
    assert problems == []
    assert [row["runtime"] for row in rows] == list(RUNTIMES)
    for row, one in zip(rows, result["measurements"], strict=True):
        assert row["frames_per_second"] == one["repeats"][0]["training"]
        assert row["machine"]


def test_the_committed_benchmarks_can_be_read() -> None:
    files = sorted((ROOT / "results" / "reference" / "bench").glob("*.json"))
    rows, problems = _benchmarks(ROOT / "results")
    assert problems == []
    assert {Path(row["file"]).name for row in rows} == {file.name for file in files}


@pytest.mark.system
def test_ray_is_measured_beside_threads_over_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert worker_pool.COMMAND[0] == sys.executable  # imported before it is another
    chosen = {"runtimes": ["threads", "ray"], "inferences": ["local", "central", "workers"]}
    settings = merged(SMALL, {"topology": {"num_actors": 1}})
    configs = bench.grid("impala", "toy/catch", settings, **chosen, axes={}, note=note)
    with prefork.interpreter(tmp_path) as python, monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        result = bench.bench(configs, seconds=1.0, repeats=1, note=note)
    threads, _, workers, ray, ray_central = (one["repeats"][0] for one in result["measurements"])
    for remote in (workers, ray_central):
        assert remote["rollout"] > 0
        assert remote["training"] > 0
    assert ray["simulation"] == threads["simulation"], "the parts are the same"
    assert ray["training"] > 0
    assert ray["rollout"] > 0
    assert 0 < ray["cpu_utilisation"] <= 1.2
    others = result["comparisons"]
    assert [one["runtime"] for one in others] == ["threads central", "threads workers", "ray", "ray central"]
    assert all(one["against"] == "threads" for one in others)
    comparison = others[2]
    assert "ray central / threads" in bench.describe(result)
    assert comparison["ratios"] == [ray["training"] / threads["training"]]


def test_a_cluster_elsewhere_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    settings = copy.deepcopy(SMALL)
    settings["topology"]["runtime"] = "ray"
    with pytest.raises(UserError, match="RAY_ADDRESS"):
        bench.measure(bench.default_config("impala", "toy/catch", settings), 0.2)


def test_what_was_measured_is_kept_where_a_later_repeat_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["ddrl.bench.measure"]  # its function `measure` hides its name in the package
    measure, calls = bench.measure, list[Any]()

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise UserError("Ray did not start on this machine")
        return measure(*arguments)

    monkeypatch.setattr(module, "measure", failing)
    path, settings = tmp_path / "bench.json", tmp_path / "settings.yaml"
    settings.write_text(json.dumps(SMALL))
    command = ["bench", "impala", "toy/catch", "--config", str(settings), "--seconds", "0.2", "--repeats", "3"]
    assert cli.main([*command, "--json", str(path)]) == 2
    (measurement,) = json.loads(path.read_text())["measurements"]
    assert len(measurement["repeats"]) == 1
