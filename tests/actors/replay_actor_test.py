"""The actor of Ape-X and R2D2 pulls parameters every so many unrolls, and goes on counting after a resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddrl.actors.replay_actor import ReplayActor
from ddrl.actors.unroll import UnrollCollector
from tests.actors.evaluator_test import recurrent


class Pulls:
    """Parameters that count how often they are pulled."""

    def __init__(self) -> None:
        self.version, self.unrolls = 0, list[int]()

    def pull(self, network: torch.nn.Module, unroll_index: int) -> int:
        self.unrolls.append(unroll_index)
        return 0


class Items:
    """Keeps no states and makes nothing."""

    keeps_states = False

    def make(self, unroll: Any, states: Any) -> Any:
        return unroll

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


class Store:
    """Takes everything."""

    def can_insert(self) -> bool:
        return True

    def insert(self, experience: Any) -> None:
        """Nothing to do."""


def actor_of(period: int) -> tuple[ReplayActor, Pulls, UnrollCollector]:
    env, _, policy = recurrent("values")
    collector, pulls, parts = UnrollCollector(env, policy, actor=0, on_episode=lambda one: None), Pulls(), (Items(),)
    params: Any = pulls
    store: Any = Store()
    return ReplayActor(3, period, collector, params, store, *parts), pulls, collector


@pytest.mark.parametrize("period", [1, 2, 5])
def test_parameters_are_pulled_before_the_first_unroll_and_every_period_from_then_on(period: int) -> None:
    actor, pulls, _ = actor_of(period)
    for _ in range(11):
        actor.step()
    assert pulls.unrolls == list(range(0, 11, period))


@pytest.mark.parametrize("saved_after", range(5))
def test_a_restored_actor_pulls_when_it_would_have(saved_after: int) -> None:
    actor, _, collector = actor_of(3)
    for _ in range(saved_after):
        actor.step()
    restored, pulls, its_collector = actor_of(3)
    restored.load_state_dict(actor.state_dict())
    if saved_after:
        its_collector.load_state_dict(collector.state_dict())
    for _ in range(11 - saved_after):
        restored.step()
    assert pulls.unrolls == [index for index in range(0, 11, 3) if index >= saved_after]
