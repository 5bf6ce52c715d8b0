"""The arguments that Sample Factory gets for our configurations; the library itself is not needed here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ddrl.api.settings import run_config
from ddrl.peers.request import request_of
from tests.peers.fake import DRIVERS

NAMES = ("protocol", "sample_factory_settings")
SPEED = {
    "hyperparameters": {
        "batch_size": 32,
        "vtrace": True,
        "network": "shallow",
        "value_clip_epsilon": 0.2,
        "exploration": "symmetric_kl",
        "entropy_cost": 0.001,
    },
    "topology": {"inference": "central", "env_groups": 2, "num_actors": 2, "envs_per_actor": 16, "queue_capacity": 4},
}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield (algorithm, values, task) -> arguments, key -> what is said of a key that is not mapped."""
    monkeypatch.syspath_prepend(DRIVERS)
    protocol, module = map(importlib.import_module, NAMES)

    def found(algorithm: str, values: dict[str, Any], task: str = "atari/pong") -> Any:
        config = run_config("test", {"env_frames": 10**6, **values}, algorithm=algorithm, environment=task)
        request = request_of(config, threads=1)
        given = protocol.Settings(request["settings"])
        given.without_effect(*protocol.DESCRIBED)
        given.take("normalised_observation_clip")
        return module.arguments_of(request, given, "folder"), {entry["key"]: entry for entry in given.left()}

    found.__dict__["refused"] = protocol.Refused
    yield found
    for name in NAMES:
        sys.modules.pop(name, None)


def test_appo_s_settings_are_its_arguments(settings: Any) -> None:
    arguments, unmapped = settings("appo", SPEED)
    assert (
        arguments.items()
        >= {
            "async_rl": True,
            "with_vtrace": True,
            "rollout": 32,
            "recurrence": 32,
            "batch_size": 1024,
            "num_batches_per_epoch": 1,
            "num_epochs": 1,
            "num_workers": 2,
            "num_envs_per_worker": 16,
            "worker_num_splits": 2,
            "num_batches_to_accumulate": 2,
            "max_policy_lag": 1001,
            "ppo_clip_ratio": 0.1,
            "ppo_clip_value": 0.2,
            "value_loss_coeff": 0.5,
            "exploration_loss": "symmetric_kl",
            "exploration_loss_coeff": 0.001,
            "kl_loss_coeff": 0.0,
            "adam_eps": 1e-6,
            "learning_rate": 1e-4,
            "max_grad_norm": 4.0,
            "obs_scale": 255.0,
            "train_for_env_steps": 250_000,
            "decorrelate_envs_on_one_worker": False,
        }.items()
    )
    assert set(unmapped) == {"environment", "normalise_advantages", "time_limits", "exploration", "bootstrap"}


@pytest.mark.parametrize(
    ("hyperparameters", "topology", "key"),
    [
        ({"vtrace": False}, {}, "max_policy_lag"),
        ({"clip_bounds": "symmetric"}, {}, "clip_bounds"),
        ({"max_ratio": None}, {}, "max_ratio"),
        ({"values_at": "update"}, {}, "values_at"),
        ({"num_epochs": 2}, {}, "num_epochs"),
        ({"num_minibatches": 2}, {}, "version"),
        ({"feed_last_action_and_reward": True}, {}, "feed_last_action_and_reward"),
        ({"reward_normalisation": True}, {}, "reward_normalisation"),
        ({}, {"inference": "local", "env_groups": 1}, "topology.inference"),
        ({}, {"queue_capacity": 5}, "topology.queue_capacity"),
    ],
)
def test_what_cannot_be_mapped_is_said(
    settings: Any, hyperparameters: dict[str, Any], topology: dict[str, Any], key: str
) -> None:
    _, plain = settings("appo", SPEED)
    values = {
        "hyperparameters": SPEED["hyperparameters"] | hyperparameters,
        "topology": SPEED["topology"] | topology,
    }
    _, unmapped = settings("appo", values)
    assert key in set(unmapped) - set(plain)
    assert unmapped[key]["why"] != "the driver maps no such key"


def test_a_synchronous_learner_waits_and_ages_count_gradient_steps(settings: Any) -> None:
    hyperparameters = {"num_epochs": 2, "num_minibatches": 4, "max_policy_lag": 10, "values_at": "update"}
    topology = {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 8}
    arguments, unmapped = settings("appo", {"hyperparameters": hyperparameters, "topology": topology}, "toy/catch")
    assert (arguments["async_rl"], arguments["num_workers"], arguments["num_envs_per_worker"]) == (False, 2, 8)
    assert (arguments["max_policy_lag"], arguments["recurrence"], arguments["batch_size"]) == (81, 1, 64)
    assert not {"values_at", "version", "topology.inference"} & set(unmapped)
    arguments, _ = settings("appo", {"hyperparameters": {"max_policy_lag": None}}, "toy/catch")
    assert arguments["max_policy_lag"] > 10**9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"topology": {"parameter_delay": 2}}, "parameter_delay: 2 does not exist there"),
        ({"topology": {"schedule": "bounded_lag", "max_policy_lag": 4}}, "schedule: bounded_lag does not exist there"),
        ({"hyperparameters": {"batch_size": 30, "num_minibatches": 4}}, "30 unrolls are no 4 equal minibatches"),
        ({"hyperparameters": {"vtrace": True, "unroll_length": 1}}, "V-trace needs unrolls of two steps or more"),
    ],
)
def test_what_it_does_not_have_is_refused(settings: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(settings.refused, match=message):
        settings("appo", values)


def test_ppo_is_synchronous_with_one_environment_for_each_unroll(settings: Any) -> None:
    values = {
        "hyperparameters": {"batch_size": 8, "num_minibatches": 4},
        "topology": {"num_actors": 1, "envs_per_actor": 8},
    }
    arguments, unmapped = settings("ppo", values, "toy/catch")
    assert (arguments["async_rl"], arguments["with_vtrace"], arguments["recurrence"]) == (False, False, 1)
    assert (arguments["num_workers"], arguments["num_envs_per_worker"], arguments["worker_num_splits"]) == (1, 8, 1)
    assert "decorrelate_envs_on_one_worker" not in arguments
    assert "start" in unmapped


def test_a_task_of_vizdoom_gets_zeros_for_its_instruction(settings: Any) -> None:
    arguments, unmapped = settings("appo", SPEED, "firstperson/vizdoom_basic")
    assert arguments["obs_scale"] == 255.0
    assert unmapped["network.instructions"]["theirs"] == "zeros in its place"
    assert "environment" not in unmapped
