"""A preempted unroll holds what a whole one would hold up to there; what is left of it is dead, and nothing is lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import FileStore, HashStore, TCPStore

from ddrl.actors.preemption import Preemption
from ddrl.actors.unroll import UnrollCollector
from ddrl.learners.normalisation import Normalisation
from ddrl.losses.advantages import vtrace_gae
from ddrl.types import Episode, Unroll, concatenate
from tests.actors.evaluator_test import every_kind, recurrent

LENGTH = 8
STEPS = 40


class Ends:
    """Ends the unrolls after the number of steps that is stated for each."""

    def __init__(self, ends: list[int]) -> None:
        self.ends_at = ends
        self.finished: list[int] = []

    def ends(self, unroll_index: int, steps: int, length: int) -> bool:
        return steps >= self.ends_at[unroll_index]

    def finish(self, unroll_index: int) -> None:
        self.finished.append(unroll_index)


def collected(kind: str, ends: list[int]) -> tuple[list[Unroll], list[Episode], Ends]:
    env, _, policy = recurrent(kind)
    episodes: list[Episode] = []
    preemption: Any = Ends(ends)
    collector = UnrollCollector(env, policy, actor=0, on_episode=episodes.append, preemption=preemption)
    return [collector.collect(LENGTH) for _ in ends], episodes, preemption


def ends_of(data: Any) -> list[int]:
    """Numbers of steps that add up to `STEPS`."""
    ends: list[int] = []
    while (left := STEPS - sum(ends)) > 0:
        ends.append(data.draw(st.integers(1, min(LENGTH, left))))
    return ends


def joined(unrolls: list[Unroll], ends: list[int], name: str) -> torch.Tensor:
    return torch.cat([getattr(unroll, name)[:steps] for unroll, steps in zip(unrolls, ends, strict=True)])


@every_kind
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_wherever_unrolls_end_they_hold_the_same_steps_in_all(kind: str, data: Any) -> None:
    ends, whole = ends_of(data), [LENGTH] * (STEPS // LENGTH)
    parts, episodes, preemption = collected(kind, ends)
    unrolls, all_episodes, _ = collected(kind, whole)
    for name in ("observation", "last_action", "last_reward", "start", "action", "reward", "terminated", "truncated"):
        assert torch.equal(joined(parts, ends, name), joined(unrolls, whole, name)), name
    for name in ("valid", "distribution"):
        assert torch.equal(joined(parts, ends, name), joined(unrolls, whole, name)), name
    assert [unroll.preempted.tolist() for unroll in parts] == [
        [steps < LENGTH] * unroll.batch_size if unroll.valid[:steps].any(0).all() else unroll.preempted.tolist()
        for unroll, steps in zip(parts, ends, strict=True)
    ]
    assert not any(unroll.preempted.any() for unroll in unrolls)
    assert episodes == all_episodes
    assert preemption.finished == list(range(len(ends)))


@every_kind
def test_what_is_left_of_an_unroll_is_dead_and_shows_where_the_next_one_begins(kind: str) -> None:
    (first, second), _, _ = collected(kind, [3, LENGTH])
    assert first.length == LENGTH
    assert not first.valid[3:].any() and not first.reward[3:].any()
    assert not first.terminated[3:].any() and not first.truncated[3:].any()
    for name in ("observation", "last_action", "last_reward", "start"):
        rest = getattr(first, name)[3:]
        assert torch.equal(rest, getattr(second, name)[:1].expand_as(rest)), name


def test_a_preempted_unroll_is_worth_what_a_short_one_is() -> None:
    generator = torch.Generator().manual_seed(0)
    values, rewards = torch.randn(LENGTH + 1, 2, generator=generator), torch.randn(LENGTH, 2, generator=generator)
    valid = torch.ones(LENGTH, 2, dtype=torch.bool)
    valid[3:], rewards[3:] = False, 0.0
    discount = torch.full((LENGTH, 2), 0.9)
    long = vtrace_gae(
        values[:-1], values[-1], rewards, discount, torch.zeros_like(rewards), valid=valid, gae_lambda=0.95
    )
    short = vtrace_gae(
        values[:3], values[3], rewards[:3], discount[:3], torch.zeros(3, 2), valid=valid[:3], gae_lambda=0.95
    )
    torch.testing.assert_close(long.advantages[:3], short.advantages)
    assert not long.advantages[3:].any()


class Statistics:
    """Of returns: those that were added."""

    observation_normaliser = None

    def __init__(self) -> None:
        self.reward_normaliser = self
        self.added: list[torch.Tensor] = []

    def update(self, returns: torch.Tensor, reducer: Any) -> None:
        self.added.append(returns)


@every_kind
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_running_returns_go_on_behind_a_preempted_unroll(kind: str, data: Any) -> None:
    ends, whole = ends_of(data), [LENGTH] * (STEPS // LENGTH)
    found = []
    for steps in (ends, whole):
        statistics: Any = Statistics()
        normalisation = Normalisation(statistics, 0.9, "none", Any)
        for unroll in collected(kind, steps)[0]:
            column = concatenate([unroll.columns(0, 1)])
            normalisation.add_rewards(column)
        found.append(torch.cat(statistics.added))
    torch.testing.assert_close(*found)


def rules(store: Any, actors: int, **rule: float) -> list[Preemption]:
    chosen: dict[str, Any] = {"threshold": 0.6, "least_fraction": 0.25} | rule
    return [Preemption(store, actors, **chosen) for _ in range(actors)]


@pytest.mark.parametrize(("threshold", "needed"), [(0.6, 3), (0.5, 3), (0.2, 1), (1.0, 5)])
def test_unrolls_end_once_the_share_of_all_actors_is_done(threshold: float, needed: int) -> None:
    actors = rules(HashStore(), 5, threshold=threshold)
    for done, actor in enumerate(actors):
        assert actors[-1].ends(7, LENGTH, LENGTH) == (done >= needed)
        actor.finish(7)
    assert actors[0].ends(7, LENGTH, LENGTH)
    assert not actors[0].ends(8, LENGTH, LENGTH), "each unroll index has a counter of its own"


def test_a_share_of_an_unroll_is_always_collected() -> None:
    one, other = rules(HashStore(), 2, threshold=0.5)
    one.finish(0)
    assert [other.ends(0, steps, 10) for steps in range(1, 5)] == [False, False, True, True]


def test_actors_of_one_machine_meet_in_a_file(tmp_path: Path) -> None:
    one, other = (rules(FileStore(str(tmp_path / "store")), 2, threshold=0.5)[0] for _ in range(2))
    assert not one.ends(0, LENGTH, LENGTH)
    other.finish(0)
    assert one.ends(0, LENGTH, LENGTH)


def test_a_store_that_is_gone_ends_no_unroll_and_raises_nothing() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=1))
    actor, other = rules(client, 2, threshold=0.5)
    other.finish(0)
    assert actor.ends(0, LENGTH, LENGTH)
    del server
    assert not actor.ends(0, LENGTH, LENGTH)
    actor.finish(0)
