"""Items and their priorities against whole episodes, looked at with hindsight, however unrolls cut them."""

from __future__ import annotations

import io
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddrl.actors.adders import Items, SequenceItems, TransitionItems
from ddrl.losses.q_learning import mixed_priority, n_step_targets, taken
from tests.episodes import ENDINGS, Stream, named, random_stream, states, unrolls

DISCOUNT, ETA = 0.9, 0.7
COLUMNS = 2

seeds = st.integers(0, 2**32 - 1)
unroll_lengths = st.integers(1, 17)
n_steps = st.integers(1, 6)
endings = st.lists(st.sampled_from(ENDINGS), min_size=1, unique=True)


def errors(q: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor, n: int) -> Tensor:
    return n_step_targets(reward, terminated, ended, q.amax(dim=-1), DISCOUNT, n) - taken(q[:-1], action)


def transition_items(n: int) -> TransitionItems:
    return TransitionItems(n, partial(errors, n=n))


def sequence_items(n: int, length: int = 6, period: int = 3, burn_in: int = 4, **keywords: Any) -> SequenceItems:
    return SequenceItems(
        n,
        partial(errors, n=n),
        length=length,
        period=period,
        burn_in=burn_in,
        priority=partial(mixed_priority, eta=ETA),
        **{"keeps_states": True} | keywords,
    )


class Made(NamedTuple):
    """What was made of all unrolls, of steps counted from the first one."""

    priorities: dict[tuple[int, int], float]
    """(column, step) -> priority."""
    written: dict[tuple[int, int], int]
    """(column, step) -> steps that had been made when the item came."""
    states: dict[tuple[int, int], list[list[float]]]
    """(column, step) -> the state before it."""


def make(items: Items, streams: list[Stream], length: int, *, first: int = 0, last: int | None = None) -> Made:
    """Of the unrolls from `first` to before `last`."""
    made = Made({}, {}, {})
    for number, unroll in list(enumerate(unrolls(streams, length)))[first:last]:
        begin = number * length
        given_states = states(range(COLUMNS), begin, length) if items.keeps_states else []
        found = items.make(unroll, given_states)
        assert found.unroll is unroll
        for column, step, priority in zip(found.item_column, found.item_step, found.priority, strict=True):
            name = (int(column), begin + int(step))
            assert name not in made.priorities
            made.priorities[name] = float(priority)
            made.written[name] = begin + length
        for row, (column, step) in enumerate(zip(found.state_column, found.state_step, strict=True)):
            assert 0 <= step < length
            made.states[int(column), begin + int(step)] = [part[row].tolist() for part in found.state]
    return made


def streams_of(seed: int, size: int = 160, *, longest: int = 25, endings: Any = ENDINGS) -> list[Stream]:
    return [
        random_stream(seed + column, size, named(column), longest=longest, endings=endings) for column in range(COLUMNS)
    ]


def slow_error(stream: Stream, step: int, n: int) -> float:
    """r_1 + discount r_2 + ... + discount^k max q - q(a), of the episode of `step` alone; k is at most n."""
    last = stream.last_paid(step)
    total, scale, at = 0.0, 1.0, step
    for _ in range(n):
        total += scale * float(stream.reward[at])
        scale *= DISCOUNT
        at += 1
        if at - 1 == last:
            break
    if not stream.terminated[at - 1]:
        total += scale * max(stream.distribution[at].tolist())
    return abs(total - float(stream.distribution[step, stream.action[step]]))


def due(length: int, size: int, n: int) -> int:
    """How many steps of a stream have their errors when the last whole unroll is made."""
    return (size - 1) // length * length - n


def slow_sequences(stream: Stream, length: int, period: int) -> list[tuple[int, int]]:
    """(first, last) of all sequences of whole episodes; of the one that the stream ends in, those that are whole."""
    found = []
    for episode in range(int(stream.episode[-1]) + 1):
        steps = np.flatnonzero((stream.episode == episode) & stream.valid).tolist()
        if not steps:
            continue
        end = stream.last(steps[0])
        begin = steps[0]
        while begin <= steps[-1]:
            if begin + length - 1 >= steps[-1] and end is not None:
                found.append((begin, steps[-1]))
                break
            if begin + length - 1 <= steps[-1]:
                found.append((begin, begin + length - 1))
            begin += period
    return found


# Transitions --------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(seed=seeds, length=unroll_lengths, n=n_steps, kinds=endings, longest=st.sampled_from([1, 4, 40]))
def test_every_step_is_a_transition_with_its_own_error(
    seed: int, length: int, n: int, kinds: list[str], longest: int
) -> None:
    streams = streams_of(seed, 100, longest=longest, endings=kinds)
    made = make(transition_items(n), streams, length)
    expected = {
        (column, step): slow_error(stream, step, n)
        for column, stream in enumerate(streams)
        for step in range(due(length, 100, n))
        if stream.valid[step]
    }
    assert made.priorities == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert not made.states
    for (_, step), written in made.written.items():
        assert step + n < written <= step + n + length, "the value n steps later is that of a step that was made"


@settings(max_examples=15)
@given(seed=seeds, lengths=st.tuples(unroll_lengths, unroll_lengths), n=n_steps)
def test_priorities_do_not_depend_on_how_unrolls_cut_episodes(seed: int, lengths: tuple[int, int], n: int) -> None:
    streams = streams_of(seed)
    common = min(due(length, 160, n) for length in lengths)
    one, other = (make(transition_items(n), streams, length).priorities for length in lengths)
    assert {name: value for name, value in one.items() if name[1] < common} == pytest.approx(
        {name: value for name, value in other.items() if name[1] < common}, rel=1e-6
    )


def test_an_episode_that_is_abandoned_between_unrolls_bootstraps_from_its_last_observation() -> None:
    streams = streams_of(5, 21, longest=8, endings=("abandoned",))
    stream = streams[0]
    step = int(np.flatnonzero(stream.abandoned & (np.arange(21) > 2))[0])
    made = make(transition_items(3), streams, step + 1)  # the unroll ends with the last valid step
    assert not unrolls(streams, step + 1)[0].truncated[-1, 0]
    expected = stream.reward[step] + DISCOUNT * stream.distribution[step + 1].max()
    expected = abs(expected - stream.distribution[step, stream.action[step]])
    assert made.priorities[0, step] == pytest.approx(expected, rel=1e-5)


# Sequences ----------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    seed=seeds,
    unroll_length=unroll_lengths,
    n=n_steps,
    length=st.integers(1, 12),
    skipped=st.integers(0, 11),
    kinds=endings,
    longest=st.sampled_from([1, 4, 25, 60]),
)
def test_sequences_are_those_of_whole_episodes(
    seed: int, unroll_length: int, n: int, length: int, skipped: int, kinds: list[str], longest: int
) -> None:
    period = max(1, length - skipped)
    streams = streams_of(seed, longest=longest, endings=kinds)
    made = make(sequence_items(n, length, period), streams, unroll_length)
    expected = {}
    for column, stream in enumerate(streams):
        for first, last in slow_sequences(stream, length, period):
            if last < due(unroll_length, 160, n):
                found = [slow_error(stream, step, n) for step in range(first, last + 1)]
                expected[column, first] = ETA * max(found) + (1 - ETA) * sum(found) / len(found)
    assert made.priorities == pytest.approx(expected, rel=1e-4, abs=1e-5)


@settings(max_examples=25)
@given(seed=seeds, length=st.integers(1, 12), skipped=st.integers(0, 11), longest=st.sampled_from([1, 4, 25, 60]))
def test_sequences_cover_every_episode_and_none_lies_within_another(
    seed: int, length: int, skipped: int, longest: int
) -> None:
    """What `slow_sequences` must be, said another way."""
    period = max(1, length - skipped)
    for stream in streams_of(seed, longest=longest):
        sequences = slow_sequences(stream, length, period)
        covered = Counter(step for first, last in sequences for step in range(first, last + 1))
        whole = [step for step in range(160) if stream.valid[step] and stream.last(step) is not None]
        assert set(whole) <= set(covered)
        assert all(stream.valid[step] for step in covered)
        for first, last in sequences:
            assert stream.episode[first] == stream.episode[last]
            assert (first - stream.first(first)) % period == 0
            assert last - first + 1 == length or (last == stream.last(first) and last - first + 1 < length)
            if stream.last(first) is not None and stream.last(first) < stream.first(first) + length:
                assert first == stream.first(first), "a short episode is one sequence"
        for (first, last), (second, end) in pairwise(sequences):
            if stream.episode[first] == stream.episode[second]:
                assert last - second + 1 == length - period
                assert end > last


@pytest.mark.parametrize(("steps", "times"), [(5, 4.0), (20, 4.0), (140, 7.4), (525, 7.9)])
def test_how_often_a_step_is_replayed_hangs_on_its_episode_s_length_as_the_deviations_say(
    steps: int, times: float
) -> None:
    """Of R2D2 below scale paper, whose sequences of 20 steps begin every 10 and are each drawn 4 times."""
    folder = Path(__file__).parents[2] / "replications" / "r2d2_2019"
    variants = yaml.safe_load((folder / "experiments.yaml").read_text())
    keys = [f"hyperparameters.{key}" for key in ("sequence_length", "sequence_period", "samples_per_insert", "burn_in")]
    assert {tuple(found[key] for key in keys) for found in _settings(variants) if set(keys) <= set(found)} == {
        (20, 10, 4.0, 10)
    }
    streams = [
        random_stream(seed, 3 * steps + 60, named(seed), longest=steps, shortest=steps, endings=("truncated",))
        for seed in range(COLUMNS)
    ]
    made = make(sequence_items(1, 20, 10, 10), streams, 5)
    begun = [(streams[column], first) for column, first in made.priorities]
    trained = [min(20, steps - first) for stream, first in begun if stream.episode[first] == 0]
    assert 4.0 * sum(trained) / (COLUMNS * steps) == pytest.approx(times, abs=0.05)
    words = (folder / "DEVIATIONS.md").read_text()
    assert (f"{times:.1f} times in an episode of up to 20 steps" if steps <= 20 else f"{times:.1f} at {steps}") in words


def _settings(found: Any) -> list[dict[str, Any]]:
    """Every mapping of hyperparameters by their full names, at any depth."""
    if isinstance(found, list):
        return [own for part in found for own in _settings(part)]
    if not isinstance(found, dict):
        return []
    here = [found] if any(str(key).startswith("hyperparameters.") for key in found) else []
    return here + [own for part in found.values() for own in _settings(part)]


@settings(max_examples=15)
@given(
    seed=seeds,
    unroll_length=unroll_lengths,
    length=st.integers(1, 12),
    skipped=st.integers(0, 11),
    burn_in=st.integers(0, 15),
)
def test_states_are_kept_where_a_burn_in_begins(
    seed: int, unroll_length: int, length: int, skipped: int, burn_in: int
) -> None:
    period = max(1, length - skipped)
    streams = streams_of(seed)
    made = make(sequence_items(2, length, period, burn_in), streams, unroll_length)
    expected = set()
    for column, stream in enumerate(streams):
        for step in range(159 // unroll_length * unroll_length):
            age = step - stream.first(step)
            if stream.valid[step] and age > 0 and (age + burn_in) % period == 0:
                expected.add((column, step))
    assert set(made.states) == expected
    for (column, step), state in made.states.items():
        assert state == [[column, step], [step + 0.5]]
    for column, first in made.priorities:
        begin = first - burn_in
        assert begin <= streams[column].first(first) or (column, begin) in made.states


@pytest.mark.parametrize("unroll_length", [1, 4, 30])
def test_an_episode_by_hand(unroll_length: int) -> None:
    """20 steps, sequences of 8 every 4, burn-in 6: they begin at 0, 4, 8, 12, and their burn-ins at 0, 0, 2, 6."""
    stream = random_stream(0, 61, named(0), longest=20, shortest=20, endings=("terminated",))  # 20 and a dead step
    made = make(sequence_items(3, 8, 4, 6), [stream] * COLUMNS, unroll_length)
    assert [step for column, step in made.priorities if column == 1][:8] == [0, 4, 8, 12, 21, 25, 29, 33]
    assert [step for column, step in made.states if column == 1][:8] == [2, 6, 10, 14, 18, 23, 27, 31]


def test_no_state_is_kept_where_none_is_wanted() -> None:
    items = sequence_items(2, keeps_states=False)
    assert not items.keeps_states
    found = items.make(unrolls(streams_of(0), 50)[0], [])
    assert len(found.item_step)
    assert (len(found.state_step), len(found.state_column), found.state) == (0, 0, ())


def test_an_unroll_without_items_or_states_has_empty_ones_of_the_same_kinds() -> None:
    stream = random_stream(0, 61, named(0), longest=50, shortest=50)
    for items in (sequence_items(3), transition_items(3)):
        found = items.make(unrolls([stream] * COLUMNS, 1)[0], states(range(COLUMNS), 0, 1))
        later = items.make(unrolls([stream] * COLUMNS, 40)[0], states(range(COLUMNS), 0, 40))
        assert len(found.item_step) == len(found.priority) == len(found.state_step) == 0
        assert len(later.item_step)
        for name in ("item_column", "item_step", "priority", "state_column", "state_step"):
            assert getattr(found, name).dtype == getattr(later, name).dtype
        for none, some in zip(found.state, later.state, strict=True):
            assert (none.dtype, none.shape[1:]) == (some.dtype, some.shape[1:])


@pytest.mark.parametrize("kind", [transition_items, sequence_items])
@pytest.mark.parametrize("before", [0, 1, 5])
def test_restored_items_continue_with_the_same_bits_in_mid_episode(kind: Any, before: int) -> None:
    streams = streams_of(9, longest=60)
    items, copy = kind(3), kind(3)
    assert before == 0 or stream_goes_on(streams[0], before * 7)
    make(items, streams, 7, last=before)
    file = io.BytesIO()
    torch.save(items.state_dict(), file)
    rest = make(items, streams, 7, first=before)
    file.seek(0)
    copy.load_state_dict(torch.load(file, weights_only=True))
    assert make(copy, streams, 7, first=before) == rest
    assert rest.priorities


def stream_goes_on(stream: Stream, step: int) -> bool:
    return bool(stream.episode[step] == stream.episode[step - 1])


@pytest.mark.parametrize("kind", [transition_items, sequence_items])
def test_a_checkpoint_is_not_changed_by_what_comes_after_it(kind: Any) -> None:
    streams = streams_of(9, longest=60)
    items, copies = kind(3), [kind(3), kind(3)]
    make(items, streams, 7, last=3)
    state = items.state_dict()
    copies[0].load_state_dict(state)
    expected = make(copies[0], streams, 7, first=3)
    make(items, streams, 7, first=3)
    copies[1].load_state_dict(state)
    assert make(copies[1], streams, 7, first=3) == expected
