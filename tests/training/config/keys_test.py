"""The list of all keys is that of the dataclasses which check them."""

from __future__ import annotations

import json

import pytest

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.training.config.defaults import completed
from ddrl.training.config.keys import all_keys
from ddrl.training.config.run_config import nearest, parse_run_config, to_json

FOUR_KEYS = {"algorithm": "impala", "environment": {"name": "toy/catch"}, "seed": 1, "env_frames": 1000}


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_every_value_of_a_configuration_has_a_key_and_each_default_is_true(algorithm: str) -> None:
    values = to_json(parse_run_config(completed(FOUR_KEYS | {"algorithm": algorithm})))
    keys = {key.name for key in all_keys(algorithm)}
    missing = [name for name in flat(values) if not any(name == key or name.startswith(f"{key}.") for key in keys)]
    assert missing == []
    defaults = {key.name: json.loads(key.default) for key in all_keys(algorithm) if key.default}
    config = algorithms.load(algorithm).Config()
    assert defaults["hyperparameters.network"] == config.network  # type: ignore[attr-defined]
    assert defaults["topology.num_actors"] == 2


def flat(values: object, prefix: str = "") -> list[str]:
    """The full names of all values."""
    if not isinstance(values, dict):
        return [prefix.removesuffix(".")]
    return [name for key, value in values.items() for name in flat(value, f"{prefix}{key}.")]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("learning_rate", "hyperparameters.optimizer.learning_rate"),
        ("num_actors", "topology.num_actors"),
        ("topology.unroll_length", "hyperparameters.unroll_length"),
        ("env_frame", "env_frames"),
        ("unrol_length", "hyperparameters.unroll_length"),
        ("xyz", ""),
    ],
)
def test_a_part_of_a_key_or_one_that_is_misspelt_means_the_nearest(name: str, full: str) -> None:
    assert nearest(name, algorithms.load("impala")) == full


def test_an_unknown_key_of_a_file_is_answered_with_the_full_one() -> None:
    values = FOUR_KEYS | {"learning_rate": 0.1}
    with pytest.raises(
        UserError, match=r"'learning_rate' \(did you mean 'hyperparameters.optimizer.learning_rate'\?\)"
    ):
        parse_run_config(values)
