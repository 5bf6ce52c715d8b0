"""Keys that nobody would read are refused, by every algorithm, and only where they say something."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.system.config_types import check_read
from ddrl.types import EnvSpec
from tests.runs import CONTINUOUS as CONTINUOUS_TASKS
from tests.runs import VERSIONED

DISCRETE = EnvSpec("toy/test", (5,), "float32", 3, 1, "test")
CONTINUOUS = EnvSpec("mujoco/test", (5,), "float32", 0, 1, "test", action_size=2)
READ_NOWHERE: list[tuple[str, EnvSpec, dict[str, Any], str, dict[str, Any]]] = [
    # algorithm, task, keys, the one that is not read, and what makes it read.
    *((name, DISCRETE, {"initial_log_std": -1.0}, "initial_log_std", {}) for name in CONTINUOUS_TASKS),
    *(
        (name, CONTINUOUS, {f"{kind}_normalisation": False, key: 5.0}, key, {f"{kind}_normalisation": True})
        for name in VERSIONED
        for kind, key in (("observation", "normalised_observation_clip"), ("reward", "normalised_reward_clip"))
    ),
    ("appo", DISCRETE, {"vtrace": True, "gae_lambda": 0.5}, "gae_lambda", {"vtrace": False}),
    ("appo", DISCRETE, {"rho_bar": 2.0}, "rho_bar", {"vtrace": True}),
    ("appo", DISCRETE, {"c_bar": 2.0}, "c_bar", {"vtrace": True}),
    ("impact", DISCRETE, {"ratio": "worker", "rho": 3.0}, "rho", {"ratio": "target_worker_clipping"}),
    ("impact", DISCRETE, {"ratio": "target", "rho": 3.0}, "rho", {"ratio": "target_worker_clipping"}),
    ("impala", DISCRETE, {"correction": "one_step_is", "rho_bar": 2.0}, "rho_bar", {"correction": "v_trace"}),
    ("impala", DISCRETE, {"correction": "no_correction", "c_bar": 2.0}, "c_bar", {"correction": "v_trace"}),
    ("impala", DISCRETE, {"correction": "no_correction", "pg_rho_bar": 2.0}, "pg_rho_bar", {"correction": "v_trace"}),
    ("impala", DISCRETE, {"correction_epsilon": 1e-3}, "correction_epsilon", {"correction": "epsilon_correction"}),
    ("impala", DISCRETE, {"replay_capacity": 64}, "replay_capacity", {"replay_fraction": 0.5}),
]


def has(algorithm: str, keys: dict[str, Any]) -> bool:
    """Return whether an algorithm has these keys at all."""
    return set(keys) <= {field.name for field in fields(algorithms.load(algorithm).Config)}


@pytest.mark.parametrize(
    ("name", "spec", "keys", "unread", "reader"), [case for case in READ_NOWHERE if has(case[0], case[2])]
)
def test_a_key_that_nothing_would_read_is_refused(
    name: str, spec: EnvSpec, keys: dict[str, Any], unread: str, reader: dict[str, Any]
) -> None:
    module = algorithms.load(name)
    with pytest.raises(
        UserError, match=rf"^key 'hyperparameters\.{unread}': .* would not be read; it goes with .*allowed"
    ):
        module.check(module.Config(**keys), spec, 1)
    module.check(module.Config(**keys | reader), CONTINUOUS if unread == "initial_log_std" else spec, 1)
    default = {key: value for key, value in keys.items() if key != unread}
    module.check(module.Config(**default), spec, 1)


@dataclass
class Keys:
    read: int = 1
    unread: float | None = None


def test_the_message_names_the_value_what_would_read_it_and_what_is_allowed() -> None:
    with pytest.raises(UserError) as error:
        check_read(Keys(unread=2.5), {"unread": "read: 7"})
    assert str(error.value) == (
        "key 'hyperparameters.unread': 2.5 would not be read; it goes with read: 7; allowed otherwise: null"
    )
    check_read(Keys(read=3), {"unread": "read: 7"})
