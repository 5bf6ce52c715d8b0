"""Rewards are clipped, and ends cut or bootstrap, wherever an algorithm learns from them: in losses and in returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ddrl import algorithms
from ddrl.types import Metrics, Unroll
from tests.algorithms.contract_test import every_algorithm, every_task_of_every_actor_critic
from tests.algorithms.rigs import SPECS, Rig


def learned(rig: Rig, unroll: Unroll) -> tuple[Metrics, torch.Tensor]:
    """What one update makes of one batch, and the parameters after it."""
    for _ in range(20):
        if not rig.learner.ready():
            rig.queue.insert(unroll)
    return rig.learner.step(), rig.weights()


def same(one: tuple[Metrics, torch.Tensor], other: tuple[Metrics, torch.Tensor]) -> bool:
    return one[0] == other[0] and torch.equal(one[1], other[1])


@every_algorithm
def test_clipped_rewards_are_all_that_is_learned_from_where_the_key_says_so(name: str) -> None:
    results: dict[tuple[str, float], Any] = {}
    for clipping in ("abs_one", "none"):
        for loudness in (1.0, 5.0):
            rig = Rig(name, reward_clipping=clipping)
            unroll = rig.unroll(3)
            results[clipping, loudness] = learned(rig, replace(unroll, reward=loudness * unroll.reward.sign()))
    assert same(results["abs_one", 1.0], results["abs_one", 5.0])
    assert not same(results["none", 1.0], results["none", 5.0])


def cut_at(unroll: Unroll, t: int, kind: str) -> Unroll:
    """An unroll without ends but for one at step t, with the dead step and the start that follow."""
    flags = {name: torch.zeros_like(getattr(unroll, name)) for name in ("terminated", "truncated", "start")}
    valid = torch.ones_like(unroll.valid)
    valid[t + 1] = False
    flags["start"][t + 2] = True
    if kind != "unsaid":
        flags[kind][t] = True
    reward = unroll.reward.masked_fill(~valid, 0.0)
    return replace(unroll, **flags, valid=valid, reward=reward)


@every_task_of_every_actor_critic
def test_a_time_limit_bootstraps_from_its_own_final_observation_and_a_terminal_state_from_nothing(
    name: str, task: str
) -> None:
    keys = ("observation_normalisation", "reward_normalisation")
    plain = {key: False for key in keys if hasattr(algorithms.load(name).Config(), key)}
    found = {}
    for kind in ("truncated", "terminated", "unsaid"):
        for last in ("its own", "another"):
            rig = Rig(name, SPECS[task], **plain)
            unroll = cut_at(rig.unroll(1, ends=False), 2, kind)
            if last == "another":  # the final observation alone, on which nothing was acted: step 3 is dead
                observation = unroll.observation.clone()
                observation[3] += 3.0
                unroll = replace(unroll, observation=observation)
            found[kind, last] = learned(rig, unroll)
    assert same(found["truncated", "its own"], found["unsaid", "its own"]), "it cuts by the dead step alone"
    assert not same(found["truncated", "its own"], found["truncated", "another"])
    assert same(found["terminated", "its own"], found["terminated", "another"])
    assert not same(found["truncated", "its own"], found["terminated", "its own"])


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_a_time_limit_is_a_terminal_state_where_the_key_says_so(name: str) -> None:
    found = {}
    for kind in ("truncated", "terminated"):
        rig = Rig(name, time_limits="terminal")
        found[kind] = learned(rig, cut_at(rig.unroll(3, ends=False), 2, kind))
    rig = Rig(name)
    assert same(found["truncated"], found["terminated"])
    assert not same(found["truncated"], learned(rig, cut_at(rig.unroll(3, ends=False), 2, "truncated")))
