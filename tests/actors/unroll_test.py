"""What a policy is fed is what the environments answered: by the letter of `ddrl.types`, for actors and evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.actors import evaluator
from ddrl.actors.policy import Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.types import Array, Episode, RecurrentState, Unroll
from tests.actors.evaluator_test import every_kind, recurrent
from tests.scripted import Played, Scripted

LENGTH = 9
UNROLLS = 4


def collected(env: Scripted, policy: Policy) -> list[Unroll]:
    collector = UnrollCollector(env, policy, actor=0, on_episode=lambda episode: None)
    return [collector.collect(LENGTH) for _ in range(UNROLLS)]


def evaluated(env: Scripted, policy: Policy) -> list[Episode]:
    return evaluator.play(env, policy, 12)


def before(played: list[Played], t: int, name: str) -> Array:
    """Last action or last reward at observation t: what led there, and 0 where an episode starts."""
    step = played[t].step
    value = played[t].actions if name == "action" else step.reward
    if value is None:
        return np.zeros(())  # the first of all
    found = [np.zeros_like(one) if start else one for one, start in zip(value, step.start, strict=True)]
    return np.stack(found)


@every_kind
@pytest.mark.parametrize("play", [collected, evaluated])
def test_a_network_is_fed_the_last_action_and_the_last_raw_reward_but_none_of_an_episode_before(
    kind: str, play: Callable[[Scripted, Policy], Any]
) -> None:
    env, watched, policy = recurrent(kind)
    play(env, policy)
    kept, lost = 0, 0
    for t, (inputs, one) in enumerate(zip(watched.fed, env.played, strict=False)):
        np.testing.assert_array_equal(inputs.observation, one.step.observation)
        np.testing.assert_array_equal(inputs.start, one.step.start)
        for name, fed in (("action", inputs.last_action), ("reward", inputs.last_reward)):
            expected = before(env.played, t, name)
            np.testing.assert_array_equal(fed, np.broadcast_to(expected, fed.shape))
        kept += int(((one.step.reward != 0) & ~one.step.start).sum())
        lost += int(((one.step.reward != 0) & one.step.start).sum())
    assert kept > 20
    assert lost > 1, "a lost life brings a reward to the start of another episode"


@every_kind
@pytest.mark.parametrize("play", [collected, evaluated])
def test_the_state_that_comes_out_of_a_step_goes_into_the_next(
    kind: str, play: Callable[[Scripted, Policy], Any]
) -> None:
    env, watched, policy = recurrent(kind)
    play(env, policy)
    assert all(not part.any() for part in watched.fed[0].state)
    for out, into in zip(watched.put_out, watched.fed[1:], strict=False):
        assert all(torch.equal(a, b) and bool(a.any()) for a, b in zip(out.state, into.state, strict=True))


@every_kind
def test_an_unroll_holds_what_was_played_and_what_the_network_was_fed(kind: str) -> None:
    env, watched, policy = recurrent(kind)
    unrolls = collected(env, policy)
    for number, unroll in enumerate(unrolls):
        first = number * LENGTH
        assert all(torch.equal(a, b) for a, b in zip(unroll.initial_state, watched.fed[first].state, strict=True))
        for t in range(LENGTH + (number + 1 < UNROLLS)):
            fed = watched.fed[first + t]
            for name in ("observation", "last_action", "last_reward", "start"):
                assert torch.equal(getattr(unroll, name)[t], getattr(fed, name)), name
        for t in range(LENGTH):
            after = env.played[first + t + 1]
            assert torch.equal(unroll.distribution[t], watched.put_out[first + t].distribution)
            np.testing.assert_array_equal(unroll.action[t], after.actions)
            for name in ("reward", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(unroll, name)[t], getattr(after.step, name))
        last = env.played[first + LENGTH].step
        np.testing.assert_array_equal(unroll.observation[-1], last.observation)
        np.testing.assert_array_equal(unroll.last_reward[-1], np.where(last.start, 0.0, last.reward))


def test_the_states_that_a_replay_is_given_are_those_before_each_step() -> None:
    env, watched, policy = recurrent("values")
    collector = UnrollCollector(env, policy, actor=0, on_episode=lambda episode: None)
    states: list[RecurrentState] = []
    for _ in range(2):
        collector.collect(LENGTH, states)
    for kept, fed in zip(states, watched.fed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(kept, fed.state, strict=True))


def test_values_are_of_every_observation_and_the_last_one_is_acted_on_next() -> None:
    env, watched, policy = recurrent("discrete")
    collector = UnrollCollector(env, policy, actor=0, on_episode=lambda episode: None)
    for number in range(3):
        values: list[torch.Tensor] = []
        collector.collect(LENGTH, values=values)
        out = watched.put_out[number * LENGTH : (number + 1) * LENGTH + 1]
        assert all(torch.equal(a, b.value) for a, b in zip(values, out, strict=True))


@every_kind
def test_episodes_are_counted_from_start_to_end_across_unrolls(kind: str) -> None:
    env, _, policy = recurrent(kind)
    episodes: list[Episode] = []
    collector = UnrollCollector(env, policy, actor=0, on_episode=episodes.append)
    for _ in range(UNROLLS):
        collector.collect(LENGTH)
    assert collector.agent_steps == sum(int(one.step.valid.sum()) for one in env.played[1:])
    expected = []
    totals, lengths = np.zeros(4), np.zeros(4, dtype=np.int64)
    for one in env.played[1:]:
        totals, lengths = totals + one.step.reward, lengths + one.step.valid
        for column in np.flatnonzero(one.step.ended):
            expected.append((totals[column], lengths[column]))
            totals[column], lengths[column] = 0.0, 0
    assert [episode.length for episode in episodes] == [length for _, length in expected]
    assert [episode.episode_return for episode in episodes] == pytest.approx([total for total, _ in expected])


@every_kind
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_restored_collector_continues_in_mid_episode_with_the_same_bits(kind: str, cut: int) -> None:
    env, _, policy = recurrent(kind)
    collector = UnrollCollector(env, policy, actor=0, on_episode=lambda episode: None)
    others, _, other_policy = recurrent(kind)
    ended: list[list[Episode]] = [[], []]
    copy = UnrollCollector(others, other_policy, actor=0, on_episode=ended[1].append)
    collector.collect(1)
    for _ in range(cut):
        collector.collect(5)
    collector._on_episode = ended[0].append
    copy.collect(3)
    copy.load_state_dict(collector.state_dict())
    ended[1].clear()
    for _ in range(4):
        one, two = collector.collect(6), copy.collect(6)
        assert all(torch.equal(a, b) for a, b in zip(one.tensors, two.tensors, strict=True))
    assert ended[0] == ended[1] != []
