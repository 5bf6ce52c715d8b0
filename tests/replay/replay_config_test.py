"""A replay's settings are refused where it could not work with them, and where it just could they are not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ddrl.errors import UserError
from ddrl.replay.items import SequenceCut
from ddrl.replay.replay_config import ReplayRule, check_discrete, check_replay
from ddrl.types import EnvSpec

SPEC = EnvSpec("test/flat", (3,), "float32", 3, 1, "test")
RULE = ReplayRule(
    cut=SequenceCut(80, 40),
    capacity=1000,
    min_size=1000,
    batch_size=16,
    samples_per_insert=None,
    error_buffer=100.0,
    priority_exponent=0.6,
    importance_exponent=0.4,
    delay=5,
    state_period=None,
)


def check(*, spec: EnvSpec = SPEC, num_learners: int = 1, period: int = 100, **changed: Any) -> None:
    config: Any = SimpleNamespace(replay=replace(RULE, **changed), unroll_length=50, actor_update_period=period)
    check_discrete(spec)
    check_replay(config, num_learners)


def test_a_stream_holds_its_share_of_the_capacity_at_least_two_unrolls_and_the_longest_item() -> None:
    least = 2 * 40 + 5 + 40 + 80
    assert replace(RULE, capacity=4 * least + 3).stream_length(4, 40) == least
    with pytest.raises(UserError, match=r"must be at least 820, 205 steps for each of 4 environments.*got 819\)$"):
        replace(RULE, capacity=4 * least - 1).stream_length(4, 40)


def test_settings_that_just_work_are_not_refused() -> None:
    check()
    check(period=50)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"spec": replace(SPEC, action_size=2)}, "has continuous actions"),
        ({"num_learners": 2}, r"'topology\.num_learners' must be 1 with a prioritized replay \(got 2\)$"),
        ({"period": 25}, "must be a multiple of unroll_length, 50"),
        ({"period": 75}, "must be a multiple of unroll_length, 50"),
        ({"min_size": 1001}, r"'hyperparameters\.min_replay_size' must be at most replay_capacity, 1,000"),
    ],
)
def test_settings_with_which_a_replay_could_not_work_are_refused(changed: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        check(**changed)
