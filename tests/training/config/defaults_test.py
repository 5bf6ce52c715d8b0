"""A configuration of four keys can learn: what follows from the algorithm and the task is filled in."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any

import pytest
import torch

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.learners.optimizers import AdamConfig, RMSPropConfig
from ddrl.training.builder import Builder
from ddrl.training.config.defaults import LEARNING_ENVS, completed
from ddrl.training.config.run_config import RunConfig, parse_run_config, to_json
from ddrl.training.config.topology import Topology

TASKS = {
    "atari/pong": "images",
    "toy/catch": "vectors",
    "gymnasium/CartPole-v1": "vectors",
    "firstperson/miniworld_hallway": "images",
    "mujoco/HalfCheetah-v5": "continuous actions",
}
IMPOSSIBLE = {
    (algorithm, "mujoco/HalfCheetah-v5"): "has continuous actions"
    for algorithm in ("apex_dqn", "ga3c", "gorila", "r2d2")
} | {("d4pg", task): "has discrete actions" for task, kind in TASKS.items() if kind != "continuous actions"}
"""By nature: values of each action, probabilities to which an epsilon is added, or a deterministic policy."""


def minimal(algorithm: str, task: str, **more: Any) -> RunConfig:
    """Four keys, and what a user adds."""
    return parse_run_config(
        completed({"algorithm": algorithm, "environment": {"name": task}, "seed": 1, "env_frames": 10_000, **more})
    )


def hyperparameters(algorithm: str, task: str, given: dict[str, Any]) -> dict[str, Any]:
    """All hyperparameters of a run with these."""
    found: dict[str, Any] = to_json(minimal(algorithm, task, hyperparameters=given))["hyperparameters"]
    return found


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_four_keys_make_a_run_that_can_learn(algorithm: str, task: str) -> None:
    if why := IMPOSSIBLE.get((algorithm, task)):
        with pytest.raises(UserError, match=why):
            Builder(minimal(algorithm, task), torch.device("cpu")).network()
        return
    config = minimal(algorithm, task)
    Builder(config, torch.device("cpu")).network()
    assert config.topology.schedule in config.system.schedules
    assert config.recording.period_frames == 100


def test_what_is_given_stays_and_a_complete_configuration_does_not_change() -> None:
    given = {"network": "mlp", "lstm_size": 8}
    config = minimal("impala", "toy/catch", hyperparameters=given, recording={"period_frames": 7})
    assert (config.hyperparameters.network, config.hyperparameters.lstm_size) == ("mlp", 8)  # type: ignore[attr-defined]
    assert config.recording.period_frames == 7
    for algorithm in algorithms.NAMES:
        whole = to_json(minimal(algorithm, "toy/catch"))
        assert completed(whole) == whole


@pytest.mark.parametrize(
    ("algorithm", "task", "network"), [("d4pg", "mujoco/HalfCheetah-v5", "mlp"), ("ppo", "atari/pong", "nature")]
)
def test_to_name_the_network_of_the_task_changes_nothing(algorithm: str, task: str, network: str) -> None:
    assert hyperparameters(algorithm, task, {"network": network}) == hyperparameters(algorithm, task, {})


def switched(config: Any) -> list[tuple[str, Any]]:
    """(key, another value that its type allows) of each switch, choice and key that may be null."""
    found: list[tuple[str, Any]] = []
    for key, kind in typing.get_type_hints(type(config)).items():
        options = [one for part in (kind, *typing.get_args(kind)) for one in typing.get_args(part)]
        options += [True, False] if kind is bool else []
        options += [None] if type(None) in typing.get_args(kind) else []
        found += [(key, one) for one in options if (one is None or isinstance(one, str | bool)) and key != "network"]
    return [(key, one) for key, one in found if one != getattr(config, key)]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_a_refusal_is_about_a_key_that_was_given(algorithm: str, task: str) -> None:
    if (algorithm, task) in IMPOSSIBLE:
        return
    config = minimal(algorithm, task)
    spec = Builder(config, torch.device("cpu")).spec

    def refusal(key: str, value: Any) -> str:
        try:
            own = minimal(algorithm, task, hyperparameters={key: value}).hyperparameters
            algorithms.load(algorithm).check(own, spec, 1)
        except UserError as error:
            return str(error)
        return key

    for key, value in switched(config.hyperparameters):
        assert key in refusal(key, value), f"{key}: {value}"


@pytest.mark.parametrize("given", [{"lstm_size": 8}, {"feed_last_action_and_reward": True}], ids=str)
@pytest.mark.parametrize("algorithm", ["a2c", "appo", "impala", "ppo"])
def test_a_memory_may_be_given_where_the_task_has_a_value_network_of_its_own(
    algorithm: str, given: dict[str, Any]
) -> None:
    for task in ("toy/catch", "mujoco/HalfCheetah-v5"):
        builder = Builder(minimal(algorithm, task, hyperparameters=given), torch.device("cpu"))
        algorithms.load(algorithm).check(builder.config.hyperparameters, builder.spec, 1)
        builder.network()


@pytest.mark.parametrize("network", ["tanh_mlp", "mlp"])
def test_a_memory_has_its_defaults_whichever_network_is_named(network: str) -> None:
    unnamed = hyperparameters("ppo", "toy/catch", {"lstm_size": 8})
    named = hyperparameters("ppo", "toy/catch", {"lstm_size": 8, "network": network})
    for key in ("unroll_length", "batch_size", "num_minibatches", "separate_value_network"):
        assert named[key] == unnamed[key]


def test_a_key_given_of_the_optimizer_stands_beside_those_of_the_task() -> None:
    given = {"optimizer": {"learning_rate": 0.5}}
    assert hyperparameters("a2c", "toy/catch", given)["optimizer"]["initial_mean_square"] == 0.0
    assert hyperparameters("impala", "mujoco/HalfCheetah-v5", given)["optimizer"]["name"] == "adam"
    for algorithm in ("a2c", "apex_dqn"):
        assert hyperparameters(algorithm, "toy/catch", given)["optimizer"]["learning_rate"] == 0.5


@pytest.mark.parametrize(("algorithm", "name"), [("a2c", "adam"), ("apex_dqn", "rmsprop"), ("impala", "adam")])
def test_another_optimizer_has_its_own_defaults(algorithm: str, name: str) -> None:
    optimizer = hyperparameters(algorithm, "toy/catch", {"optimizer": {"name": name}})["optimizer"]
    kind = {"adam": AdamConfig, "rmsprop": RMSPropConfig}[name]
    assert set(optimizer) == {field.name for field in dataclasses.fields(kind)}
    if name == "adam":
        assert optimizer == dataclasses.asdict(AdamConfig())


@pytest.mark.parametrize(
    ("given", "actors", "envs"),
    [({}, 2, 8), ({"num_actors": 4}, 4, 4), ({"envs_per_actor": 16}, 1, 16), ({"num_actors": 3}, 3, 16)],
)
def test_a_round_of_all_actors_divides_the_batch_of_a_synchronous_run(
    given: dict[str, int], actors: int, envs: int
) -> None:
    topology = completed({"algorithm": "a2c", "environment": {"name": "toy/catch"}, "topology": given})["topology"]
    assert (topology["num_actors"], topology["envs_per_actor"]) == (actors, envs)


def test_the_queue_holds_a_batch() -> None:
    assert minimal("impala", "toy/catch", topology={"envs_per_actor": 4}).topology.queue_capacity == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithm": "none"}, "unknown algorithm 'none'"),
        ({"environment": "atari/pong"}, "key 'environment.name' must be a text"),
        ({"topology": 3}, "key 'topology' must be a mapping"),
        ({"hyperparameters": 3}, "hyperparameters"),
        ({"topology": {"num_actors": "two"}}, "topology.num_actors"),
        ({"topology": {"num_actors": 0}, "algorithm": "ppo"}, "topology.num_actors"),
        ({"recording": 3}, "key 'recording' must be a mapping"),
        ({"env_frames": "many"}, "env_frames"),
        ({"env_frames": -1}, "env_frames"),
    ],
)
def test_what_is_wrong_is_refused_as_without_it(changes: dict[str, Any], says: str) -> None:
    values = {"algorithm": "a2c", "environment": {"name": "toy/catch"}, "seed": 1, "env_frames": 100} | changes
    with pytest.raises(UserError, match=re.escape(says)):
        parse_run_config(completed(values))


def test_an_actor_that_learns_from_its_own_replay_has_few_environments_unless_told() -> None:
    assert minimal("gorila", "toy/catch").topology.envs_per_actor == LEARNING_ENVS
    assert minimal("gorila", "toy/catch", topology={"envs_per_actor": 9}).topology.envs_per_actor == 9
    assert minimal("a3c", "toy/catch").topology.envs_per_actor == Topology.envs_per_actor
