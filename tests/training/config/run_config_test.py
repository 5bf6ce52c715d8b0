"""A configuration is checked before anything runs; every error names the file, the key and what is allowed."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.learners.optimizers import AdamConfig
from ddrl.training.config.run_config import fingerprint, fingerprint_of, load_run_config, parse_run_config, to_json
from tests.runs import BASE, config, merged, small

IMPACT, PPO = {"algorithm": "impact"}, {"algorithm": "ppo"}
APEX = {"algorithm": "apex_dqn", "hyperparameters": {"actor_update_period": 5, "optimizer": {"name": "adam"}}}
DEVICE = {"acting": "device", "schedule": "synchronous"}


@pytest.mark.parametrize("changes", [{}, merged(APEX, {"hyperparameters": {"network": "mlp", "mlp_size": [24, 12]}})])
def test_json_and_back_is_the_same_configuration(tmp_path: Path, changes: dict[str, Any]) -> None:
    chosen = config(**changes)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json(chosen)))
    assert json.loads(path.read_text()) == to_json(chosen)  # lists, as a run that is read has them
    assert load_run_config(path) == chosen
    assert fingerprint(load_run_config(path)) == fingerprint(chosen)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "64", "abc", [], [64, -1], [64, 1.5], [[64]], [True], {"a": 1}])
def test_what_is_no_size_of_layers_is_refused_in_one_line(size: Any) -> None:
    with pytest.raises(
        UserError,
        match=r"^configuration: key 'hyperparameters.mlp_size' must be a number of units above 0, or a list of such "
        r"numbers, one for each layer \(got .*\)$",
    ):
        config(**merged(APEX, {"hyperparameters": {"network": "mlp", "mlp_size": size}}))


@pytest.mark.parametrize(("size", "kept"), [(64, 64), ([120], (120,)), ([32, 16], (32, 16)), (None, None)])
def test_sizes_of_layers_are_a_number_or_a_list(size: Any, kept: Any) -> None:
    chosen = config(**merged(APEX, {"hyperparameters": {"network": "mlp", "mlp_size": size}}))
    assert chosen.hyperparameters.mlp_size == kept  # type: ignore[attr-defined]


def test_a_fingerprint_is_of_what_is_said_and_not_of_the_order_in_which_it_is_said() -> None:
    values, turned = {"b": 1, "a": {"d": 2.5, "c": None}}, {"a": {"c": None, "d": 2.5}, "b": 1}
    plain = hashlib.sha256(b'{"a": {"c": null, "d": 2.5}, "b": 1}').hexdigest()[:16]
    assert fingerprint_of(values) == fingerprint_of(turned) == plain
    assert fingerprint_of(values | {"b": 2}) != plain


def test_the_defaults_are_the_papers_table_g1() -> None:
    values = {"algorithm": "impala", "environment": {"name": "atari/pong"}, "seed": 0, "env_frames": 200_000_000}
    h = parse_run_config(values | {"hyperparameters": {}}).hyperparameters
    assert (h.unroll_length, h.batch_size, h.discount, h.value_cost, h.entropy_cost) == (20, 32, 0.99, 0.5, 0.01)
    assert (h.optimizer.learning_rate, h.optimizer.epsilon, h.optimizer.momentum) == (6e-4, 0.01, 0.0)
    assert (h.max_grad_norm, h.reward_clipping, h.loss_reduction, h.lstm_size) == (40.0, "abs_one", "sum", 0)


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_an_optimizer_of_which_some_keys_are_given_keeps_the_algorithms_own_values_in_the_others(
    algorithm: str,
) -> None:
    def optimizer(**given: Any) -> dict[str, Any]:
        sizes = {name: value for name, value in small(algorithm).items() if name != "optimizer"}
        hyperparameters = sizes | ({"optimizer": given} if given else {})
        topology = {"schedule": algorithms.load(algorithm).SYSTEM.schedules[0]}
        values = merged(BASE, {"algorithm": algorithm, "topology": topology}) | {"hyperparameters": hyperparameters}
        found: dict[str, Any] = to_json(parse_run_config(values))["hyperparameters"]["optimizer"]
        return found

    own = optimizer()
    assert optimizer(learning_rate=0.125) == own | {"learning_rate": 0.125}
    assert optimizer(learning_rate=0.125, name=own["name"]) == own | {"learning_rate": 0.125}


def test_another_optimizer_takes_nothing_of_the_algorithms_own() -> None:
    values = merged(BASE, {"algorithm": "apex_dqn"}) | {"hyperparameters": {"optimizer": {"name": "adam"}}}
    assert parse_run_config(values).hyperparameters.optimizer == AdamConfig()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"algorithm": "impalla"}, ["algorithm", "impalla", "did you mean 'impala'"]),
        ({"envframes": 3}, ["envframes", "did you mean 'env_frames'"]),
        ({"env_frames": 0}, ["env_frames", "greater than 0"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"precision": "float16"}, ["precision", "float32", "bfloat16"]),
        ({"topology": {"num_actor": 3}}, ["topology.num_actor", "did you mean 'topology.num_actors'"]),
        ({"topology": {"runtime": "dask"}}, ["topology.runtime", "serial", "threads", "ray"]),
        ({"topology": {"num_learners": 2}}, ["topology.num_learners", "ray", "serial"]),
        ({"topology": {"runtime": "ray", "num_learners": 3}}, ["topology.num_learners", "num_actors", "3 and 2"]),
        (
            {"algorithm": "ppo", "hyperparameters": {"network": "mlp"}}
            | {"topology": {"runtime": "ray", "schedule": "synchronous", "num_learners": 3, "num_actors": 3}},
            ["topology.num_learners", "must divide hyperparameters.batch_size", "got 3 and 8, which is its default)"],
        ),
        (
            {"topology": {"runtime": "ray", "num_learners": 3, "num_actors": 3}, "hyperparameters": {"batch_size": 11}},
            ["topology.num_learners", "must divide hyperparameters.batch_size", "got 3 and 11)"],
        ),
        (
            PPO | {"hyperparameters": {"feed_last_action_and_reward": "reward"}},
            ["key 'hyperparameters.feed_last_action_and_reward'", "'action'", "got 'reward'"],
        ),
        ({"topology": {"max_policy_lag": 3}}, ["max_policy_lag", "bounded_lag"]),
        ({"topology": {"runtime": "ray", "replay": "own"}}, ["topology.replay", "prioritized replay", "impala"]),
        (APEX | {"topology": {"runtime": "threads", "replay": "own"}}, ["topology.replay", "runtime: ray", "threads"]),
        (APEX | {"topology": {"replay": "actor"}}, ["topology.replay", "learner", "own"]),
        ({"topology": {"preemption": {}}}, ["topology.preemption", "synchronous", "got asynchronous"]),
        (
            PPO | {"topology": {"schedule": "synchronous", "preemption": {}}},
            ["topology.preemption", "several learners", "got 1"],
        ),
        (
            {"topology": {"preemption": {"threshold": 1.5}}},
            ["topology.preemption.threshold", "less than or equal to 1"],
        ),
        ({"topology": {"preemption": {"least_fraction": 0}}}, ["preemption.least_fraction", "greater than 0"]),
        (
            PPO | {"topology": {"runtime": "ray", "schedule": "synchronous", "num_learners": 2, "preemption": {}}},
            ["topology.preemption.threshold", "0.6 of 2 actors are all of them", "at most 0.5, or 1.0", "got 0.6"],
        ),
        (APEX | {"topology": {"preemption": {}}}, ["topology.preemption", "unrolls to a queue", "apex_dqn"]),
        ({"topology": {"required_gradients": 1}}, ["topology.required_gradients", "several learners", "got 1"]),
        (
            {"topology": {"runtime": "ray", "num_learners": 2, "required_gradients": 2}},
            ["topology.required_gradients", "below num_learners: 2", "got 2"],
        ),
        ({"topology": {"env_groups": 2}}, ["topology.env_groups", "inference: central", "got 2 with local"]),
        (
            {"topology": {"env_groups": 3, "inference": "central", "envs_per_actor": 4, "queue_capacity": 8}},
            ["topology.env_groups", "divide envs_per_actor 4", "got 3"],
        ),
        ({"topology": {"env_groups": 0}}, ["topology.env_groups", "greater than 0"]),
        ({"topology": {"acting": "gpu"}}, ["topology.acting", "'host' or 'device'", "gpu"]),
        ({"topology": {"acting": "device"}}, ["topology.acting", "schedule: synchronous", "got serial, local, asynch"]),
        (
            {"topology": DEVICE | {"runtime": "ray"}},
            ["topology.acting", "'topology.runtime: serial' or threads", "got ray, local, synchronous"],
        ),
        (
            {"topology": DEVICE | {"inference": "central"}},
            ["topology.acting", "inference: local", "serial, central"],
        ),
        (
            {"topology": DEVICE | {"runtime": "threads", "prefetch": True}},
            ["topology.acting", "prefetch: false", "prefetch true"],
        ),
        (
            {"topology": DEVICE, "hyperparameters": {"batch_size": 16, "replay_fraction": 0.5}},
            ["topology.acting", "from a queue without a replay", "got impala"],
        ),
        (IMPACT | {"topology": DEVICE}, ["topology.acting", "learns from each unroll once", "got impact"]),
        (APEX | {"topology": {"acting": "device"}}, ["topology.acting", "from a queue", "got apex_dqn"]),
        (
            APEX | {"topology": {"runtime": "ray", "inference": "central", "replay": "own"}},
            ["topology.replay", "inference: local", "ray and central"],
        ),
        ({"topology": {"schedule": "synchronous", "num_actors": 3}}, ["synchronous", "divide"]),
        ({"topology": {"queue_capacity": 1}}, ["queue_capacity", "at least 2", "got 1"]),
        ({"topology": {"queue_capacity": 7, "envs_per_actor": 1}}, ["queue_capacity", "at least 8", "got 7"]),
        (IMPACT | {"topology": {"queue_capacity": 1}}, ["queue_capacity", "at least 2", "got 1"]),
        (IMPACT | {"hyperparameters": {"num_traversals": 0}}, ["hyperparameters.num_traversals", "greater than 0"]),
        (IMPACT | {"hyperparameters": {"num_slots": 0}}, ["hyperparameters.num_slots", "greater than 0"]),
        (PPO | {"topology": {"schedule": "bounded_lag", "max_policy_lag": 9}}, ["topology.schedule", "synchronous"]),
        (PPO | {"topology": {"schedule": "synchronous", "parameter_delay": 2}}, ["parameter_delay", "be 0", "got 2"]),
        ({"topology": {"parameter_delay": -1}}, ["topology.parameter_delay", "greater than or equal to 0"]),
        ({"hyperparameters": {"initial_log_std": math.nan}}, ["hyperparameters.initial_log_std", "finite", "nan"]),
        ({"hyperparameters": {"optimizer": {"epsilon": math.inf}}}, ["hyperparameters.optimizer.epsilon", "finite"]),
        (PPO, ["topology.schedule", "synchronous", "ppo", "asynchronous"]),
        ({"hyperparameters": {"learning_rate": 1.0}}, ["hyperparameters.learning_rate"]),
        ({"hyperparameters": {"optimizer": {"lr": 1.0}}}, ["hyperparameters.optimizer.lr", "learning_rate"]),
        ({"hyperparameters": {"optimizer": {"name": "adam", "decay": 0.9}}}, ["optimizer.decay'", "optimizer.beta1"]),
        ({"hyperparameters": {"optimizer": {"name": "sgd"}}}, ["optimizer' must be", "name: rmsprop or adam", "'sgd'"]),
        *(
            ({"hyperparameters": {"initialisation": wrong}}, ["initialisation' must be", "name: truncated_normal or"])
            for wrong in ({"name": "xavier"}, {"policy_gain": 1.0}, "orthogonal", 3)
        ),
        (
            {"hyperparameters": {"initialisation": {"name": "orthogonal", "policy_gain": 0.0}}},
            ["initialisation.policy_gain"],
        ),
        ({"hyperparameters": {"initialisation": {"name": "orthogonal", "gain": 1.0}}}, ["initialisation.hidden_gain"]),
        ({"topology": "threads"}, ["topology' must be a mapping", "'threads'"]),
        ({"hyperparameters": 3}, ["key 'hyperparameters' must be a mapping", "got 3"]),
        ({"hyperparameters": {"correction": "vtrace"}}, ["hyperparameters.correction", "v_trace"]),
        ({"evaluation": {"episodes": "many"}}, ["evaluation.episodes", "many"]),
        ({"environment": {"task": "pong"}}, []),
    ],
)
def test_a_wrong_key_or_value_is_one_line_with_the_place_and_what_is_allowed(
    overrides: dict[str, Any], words: list[str]
) -> None:
    values = merged(BASE, overrides)
    if overrides.get("environment"):
        values["environment"] = overrides["environment"]
        words = ["environment.name"]
    with pytest.raises(UserError) as caught:
        parse_run_config(values, where="some.yaml")
    message = str(caught.value)
    assert message.startswith("some.yaml")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("algorithm", ["impala", "impact"])
def test_a_delay_is_allowed_to_an_algorithm_that_corrects_for_lag(algorithm: str) -> None:
    chosen = config(algorithm=algorithm, topology={"schedule": "synchronous", "parameter_delay": 2})
    assert chosen.topology.parameter_delay == 2


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bad\.yaml"):
        load_run_config(path)
    with pytest.raises(UserError, match="no such file"):
        load_run_config(tmp_path / "none.yaml")
