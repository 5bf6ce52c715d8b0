"""Whatever a prioritized replay gives out is what an environment did, and comes as often as its priority says."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from ddrl.actors.adders import Items, SequenceItems, TransitionItems
from ddrl.errors import Closed, UserError
from ddrl.losses.q_learning import mixed_priority, taken
from ddrl.replay.items import Cut, Drawing, Drawn, SequenceCut, Sequences, TransitionCut, Transitions
from ddrl.replay.prioritized import PrioritizedReplay
from ddrl.replay.replay_config import ReplayRule
from ddrl.replay.step_storage import History
from ddrl.types import Array, EnvSpec, Experience
from tests.episodes import ENDINGS, STACK, Stream, named, random_stream, stacked, states, unrolls

FLAT = EnvSpec("test/flat", (3,), "float32", 3, 1, "test")
IMAGES = EnvSpec("test/images", (STACK, 3, 3), "uint8", 3, 4, "test", frame_stack=STACK)
ALPHA, BETA, ETA = 0.6, 0.4, 0.9
TIMEOUT = 20.0

seeds = st.integers(0, 2**32 - 1)
endings = st.lists(st.sampled_from(ENDINGS), min_size=1, unique=True)


def rule_of(cut: Cut, capacity: int, state_period: int | None = None, **keywords: Any) -> ReplayRule:
    free = {"min_size": 1, "batch_size": 16, "samples_per_insert": None, "error_buffer": 100.0, "delay": 0}
    exponents = {"priority_exponent": ALPHA, "importance_exponent": BETA}
    return ReplayRule(cut=cut, capacity=capacity, state_period=state_period, **free | exponents | keywords)


def replay_of(
    cut: Cut, length: int, num_streams: int, *, spec: EnvSpec = FLAT, seed: int = 0, **keywords: Any
) -> PrioritizedReplay:
    """One whose streams are of `length` steps."""
    rule = rule_of(cut, length * num_streams, **keywords)
    shapes = [(2,), (1,)] if rule.state_period else []
    history = History(spec, num_streams, length, shapes, rule.state_period or 1)
    return PrioritizedReplay(rule, history, np.random.default_rng(seed))


def own_values(q: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor) -> Tensor:
    """As the error of each step: easily told from each other."""
    return taken(q[:-1], action)


def sequence_items(n: int, length: int, period: int, burn_in: int, *, keeps_states: bool = True) -> SequenceItems:
    keywords = {"length": length, "period": period, "burn_in": burn_in, "keeps_states": keeps_states}
    return SequenceItems(n, own_values, priority=partial(mixed_priority, eta=ETA), **keywords)


def experiences(
    items: Items, streams: Sequence[Stream], numbers: Sequence[int], length: int, actor: int = 0
) -> Iterator[Experience]:
    """What an actor with these environments sends."""
    for index, unroll in enumerate(unrolls(streams, length, actor=actor)):
        yield items.make(unroll, states(numbers, index * length, length) if items.keeps_states else [])


def streams_of(seed: int, number: int, size: int, *, spec: EnvSpec = FLAT, **keywords: Any) -> list[Stream]:
    """Flat observations say which stream, step and episode they are of."""
    return [
        random_stream(seed + stream, size, named(stream) if spec is FLAT else stacked, **keywords)
        for stream in range(number)
    ]


def transition_replay(seed: int = 0, **keywords: Any) -> tuple[PrioritizedReplay, Iterator[Experience]]:
    """Two streams of 40 steps that hold transitions of 3, and unrolls of 5 steps to put there."""
    streams = streams_of(seed, 2, 400)
    return replay_of(TransitionCut(3), 40, 2, **keywords), experiences(
        TransitionItems(3, own_values), streams, range(2), 5
    )


def fill(replay: PrioritizedReplay, source: Iterator[Experience], number: int) -> None:
    for _ in range(number):
        replay.insert(next(source))


def up_to(last: int | None, step: int, most: int) -> int:
    """How many of `most` steps an item has that begins at `step`, where no step after `last` is its own."""
    return most if last is None else min(most, last - step + 1)


def items_of(replay: PrioritizedReplay, drawn: Drawn) -> list[tuple[int, int]]:
    """(stream, step) of each item."""
    return list(zip((drawn.slot // replay._history.length).tolist(), drawn.step.tolist(), strict=True))


def assert_transitions(replay: PrioritizedReplay, found: Transitions, streams: Sequence[Stream], n: int) -> None:
    for i, (number, step) in enumerate(items_of(replay, found.drawn)):
        stream = streams[number]
        steps = up_to(stream.last_paid(step), step, n)
        assert stream.valid[step]
        assert np.array_equal(found.observation[i], stream.observation[step])
        assert found.steps[i] == steps
        assert found.action[i] == stream.action[step]
        assert found.reward[:, i].tolist() == [*stream.reward[step : step + steps], *[0.0] * (n - steps)]
        assert bool(found.terminated[i]) == bool(stream.terminated[step + steps - 1])
        assert np.array_equal(found.next_observation[i], stream.observation[step + steps])
        assert found.terminated[i] or stream.episode[step + steps] == stream.episode[step]
        assert found.version[:, i].tolist() == [stream.version[step]]
        assert found.td_error[i] == 0


def assert_sequences(
    replay: PrioritizedReplay, found: Sequences, streams: Sequence[Stream], length: int, before: int, *, stored: bool
) -> None:
    for i, (number, step) in enumerate(items_of(replay, found.drawn)):
        stream = streams[number]
        steps, first = up_to(stream.last(step), step, length), stream.first(step)
        inside = [min(max(step + t, first), step + steps) for t in range(-before, length + 1)]
        for name in ("observation", "last_action", "last_reward", "start"):
            assert np.array_equal(getattr(found, name)[:, i], getattr(stream, name)[inside]), name
        assert set(stream.episode[inside[: before + steps]]) == {stream.episode[step]}, "no step of another episode"
        trained = list(range(step, step + steps))
        missing = length - steps
        assert stream.valid[trained].all()
        assert found.action[:steps, i].tolist() == stream.action[trained].tolist()
        assert found.version[:steps, i].tolist() == stream.version[trained].tolist()
        assert found.valid[:, i].tolist() == [True] * steps + [False] * missing
        assert found.reward[:, i].tolist() == [*stream.reward[trained], *[0.0] * missing]
        assert found.terminated[:, i].tolist() == [*stream.terminated[trained], *[False] * missing]
        ended = stream.terminated[trained] | stream.truncated[trained]
        assert found.ended[:, i].tolist() == [*ended, *[False] * missing]
        begin = step - before
        expected = [[number, begin], [begin + 0.5]] if begin > first else [[0.0, 0.0], [0.0]]
        assert [part[i].tolist() for part in found.state] == (expected if stored else [])
        for t in range(before):
            assert bool(found.start[t, i]) == (step - before + t <= first), "zeroed throughout a prefix that is missing"
        assert not found.td_error[:, i].any()


def by_item(replay: PrioritizedReplay) -> dict[tuple[int, int], float]:
    """(stream, step) -> probability."""
    numbers, steps, probabilities = (part.tolist() for part in replay.probabilities())
    return dict(zip(zip(numbers, steps, strict=True), probabilities, strict=True))


def assert_items(
    replay: PrioritizedReplay, made: dict[tuple[int, int], float], streams: Sequence[Stream], before: int
) -> None:
    """Every item is there whose burn-in is, none that lacks a step; probabilities follow from priorities."""
    oldest = replay._history.oldest
    found = by_item(replay)
    whole = {item for item in made if not oldest[item[0]] or item[1] - before >= oldest[item[0]]}
    assert whole <= set(found) <= set(made)
    for number, step in set(found) - whole:
        assert streams[number].first(step) >= oldest[number]
    weights = {item: max(made[item], 1e-6) ** ALPHA for item in found}
    total = sum(weights.values())
    assert found == pytest.approx({item: weight / total for item, weight in weights.items()})
    assert replay.size == len(found)


def remember(made: dict[tuple[int, int], float], experience: Experience, begin: int, first: int) -> None:
    for column, step, priority in zip(experience.item_column, experience.item_step, experience.priority, strict=True):
        made[first + int(column), begin + int(step)] = float(priority)


# What is drawn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [FLAT, IMAGES], ids=["flat", "images"])
@settings(max_examples=15)
@given(
    seed=seeds,
    n=st.integers(1, 5),
    unroll_length=st.integers(1, 9),
    extra=st.integers(0, 20),
    kinds=endings,
    longest=st.sampled_from([1, 6, 40]),
)
def test_transitions_are_what_happened(
    spec: EnvSpec, seed: int, n: int, unroll_length: int, extra: int, kinds: list[str], longest: int
) -> None:
    cut = TransitionCut(n)
    length = 2 * unroll_length + n + extra
    assert rule_of(cut, 4 * length).stream_length(4, unroll_length) == length
    replay = replay_of(cut, length, 4, spec=spec, seed=seed)
    streams = streams_of(seed, 4, 4 * length, spec=spec, endings=kinds, longest=longest)
    actors = [
        experiences(TransitionItems(n, own_values), streams[2 * actor : 2 * actor + 2], range(2), unroll_length, actor)
        for actor in range(2)
    ]
    made: dict[tuple[int, int], float] = {}
    valid = 0
    for index, pair in enumerate(zip(*actors, strict=True)):
        for actor, experience in enumerate(pair):
            replay.insert(experience)
            remember(made, experience, index * unroll_length, 2 * actor)
            valid += int(experience.unroll.valid.sum())
        assert_items(replay, made, streams, 0)
        assert replay.inserted_steps == valid
        if replay.can_sample(16):
            drawn = replay.sample(16)
            assert_transitions(replay, drawn, streams, n)
            assert drawn.drawn.inserted_steps == valid
    assert replay.size > 0


@pytest.mark.parametrize("spec", [FLAT, IMAGES], ids=["flat", "images"])
@settings(max_examples=15)
@given(
    seed=seeds,
    n=st.integers(1, 4),
    unroll_length=st.integers(3, 9),
    length=st.integers(1, 8),
    skipped=st.integers(0, 7),
    before=st.integers(0, 12),
    extra=st.integers(0, 30),
    kinds=endings,
    longest=st.sampled_from([1, 6, 40]),
    stored=st.booleans(),
)
def test_sequences_are_what_happened_in_one_episode(
    spec: EnvSpec,
    seed: int,
    n: int,
    unroll_length: int,
    length: int,
    skipped: int,
    before: int,
    extra: int,
    kinds: list[str],
    longest: int,
    stored: bool,
) -> None:
    cut, period = SequenceCut(length, before), max(1, length - skipped)
    ring = 2 * unroll_length + before + length + extra
    assert rule_of(cut, 2 * ring).stream_length(2, unroll_length) == ring
    state_period = period - before % period if stored else None
    replay = replay_of(cut, ring, 2, spec=spec, seed=seed, state_period=state_period)
    streams = streams_of(seed, 2, 4 * ring, spec=spec, endings=kinds, longest=longest)
    items = sequence_items(n, length, period, before, keeps_states=stored)
    made: dict[tuple[int, int], float] = {}
    for index, experience in enumerate(experiences(items, streams, range(2), unroll_length)):
        replay.insert(experience)
        remember(made, experience, index * unroll_length, 0)
        assert_items(replay, made, streams, before)
        if replay.can_sample(16):
            assert_sequences(replay, replay.sample(16), streams, length, before, stored=stored)


def test_a_truncated_episode_leads_to_its_own_final_observation_and_a_terminated_one_to_nothing() -> None:
    for ending in ("truncated", "terminated"):
        streams = streams_of(0, 1, 60, endings=(ending,), longest=7, shortest=7)  # 7 steps and a dead one
        replay = replay_of(TransitionCut(3), 60, 1)
        fill(replay, experiences(TransitionItems(3, own_values), streams, [0], 10), 3)
        drawn = replay.sample(200)
        found = {int(step): i for i, step in enumerate(drawn.drawn.step)}
        assert drawn.steps[[found[step] for step in range(7)]].tolist() == [3, 3, 3, 3, 3, 2, 1]
        for step in (4, 5, 6):
            assert drawn.next_observation[found[step]].tolist() == [0, 7, 0]
            assert bool(drawn.terminated[found[step]]) == (ending == "terminated")
        assert 7 not in found
        assert drawn.next_observation[found[3]].tolist() == [0, 6, 0]


def test_items_come_as_often_as_their_priorities_say() -> None:
    replay, source = transition_replay()
    fill(replay, source, 30)
    probabilities = by_item(replay)
    counts = Counter(items_of(replay, replay.sample(40_000).drawn))
    assert set(counts) <= set(probabilities)
    assert len(probabilities) > 50
    assert max(probabilities.values()) > 5 * min(probabilities.values())
    expected = [probability * 40_000 for probability in probabilities.values()]
    assert chisquare([counts[item] for item in probabilities], expected).pvalue > 0.01


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_undo_the_priorities_as_far_as_beta_says(beta: float) -> None:
    replay, source = transition_replay(importance_exponent=beta)
    fill(replay, source, 12)
    probabilities = by_item(replay)
    drawn = replay.sample(64).drawn
    weights = [(len(probabilities) * probabilities[item]) ** -beta for item in items_of(replay, drawn)]
    assert drawn.weight.tolist() == pytest.approx([weight / max(weights) for weight in weights], rel=1e-6)
    assert drawn.weight.max() == 1.0


def test_without_an_exponent_all_items_are_alike() -> None:
    replay, source = transition_replay(priority_exponent=0.0)
    fill(replay, source, 12)
    assert replay.probabilities()[2].tolist() == pytest.approx([1 / replay.size] * replay.size)
    assert replay.sample(64).drawn.weight.tolist() == [1.0] * 64


# New priorities -----------------------------------------------------------------------------------------------------


def test_items_have_the_priority_that_the_learner_gave_them_last() -> None:
    replay, source = transition_replay(priority_exponent=1.0)
    made: dict[tuple[int, int], float] = {}
    for index in range(6):
        experience = next(source)
        replay.insert(experience)
        remember(made, experience, 5 * index, 0)
    drawn = replay.sample(32).drawn
    new = torch.rand(32, generator=torch.Generator().manual_seed(0)) + 0.5
    replay.update(drawn, new)
    changed = dict(zip(items_of(replay, drawn), new.tolist(), strict=True))
    assert len(changed) < 32, "some come twice"
    expected = made | changed
    total = sum(expected.values())
    assert by_item(replay) == pytest.approx({item: weight / total for item, weight in expected.items()})


def test_items_without_their_own_come_with_the_largest_priority_so_far_which_is_kept() -> None:
    replay, source = transition_replay(priority_exponent=1.0, first_priority="largest")
    fill(replay, source, 2)
    weights = replay.probabilities()[2] * replay._tree.total
    assert weights.tolist() == pytest.approx([1.0] * replay.size), "whatever the actor said"
    drawn = replay.sample(1).drawn
    for priority, largest in ((7.0, 7.0), (0.25, 7.0)):
        replay.update(drawn, torch.tensor([priority]))
        known = set(by_item(replay))
        fill(replay, source, 1)
        new = {item: p * replay._tree.total for item, p in by_item(replay).items() if item not in known}
        assert len(new) > 0 and list(new.values()) == pytest.approx([largest] * len(new))
    copied, source = transition_replay(seed=1, priority_exponent=1.0, first_priority="largest")
    copied.load_state_dict(replay.state_dict())
    assert copied._largest == 7.0
    own, _ = transition_replay(priority_exponent=1.0)
    assert "largest" not in own.state_dict(), "a checkpoint of other algorithms stays as it is"


def test_a_priority_of_0_leaves_a_small_chance() -> None:
    replay, source = transition_replay(priority_exponent=1.0)
    fill(replay, source, 2)
    size = replay.size
    for _ in range(size):  # what has not yet been drawn is nearly always drawn next
        replay.update(replay.sample(1).drawn, torch.zeros(1))
    assert replay.size == size
    assert list(by_item(replay).values()) == pytest.approx([1 / size] * size)


def test_new_priorities_of_items_that_are_gone_are_passed_over() -> None:
    replay, source = transition_replay()
    fill(replay, source, 8)
    drawn = replay.sample(32).drawn
    fill(replay, source, 8)
    assert (drawn.step.numpy() < replay._history.oldest[drawn.slot.numpy() // 40]).all()
    before, size = replay.probabilities(), replay.size
    replay.update(drawn, torch.full((32,), 1e6))
    for one, other in zip(before, replay.probabilities(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert replay.size == size


def test_an_item_that_is_gone_gets_no_new_priority_where_none_has_taken_its_place() -> None:
    """Environments that are lost again and again make nothing but dead steps."""
    replay, source = transition_replay()
    fill(replay, source, 8)
    drawn = replay.sample(32).drawn
    for experience in map(without_items, (next(source) for _ in range(9))):
        replay.insert(experience)
    assert replay.size == 0
    replay.update(drawn, torch.ones(32))
    assert replay.size == len(by_item(replay)) == 0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.5])
def test_a_priority_that_is_negative_or_no_number_is_refused(wrong: float) -> None:
    replay, source = transition_replay()
    fill(replay, source, 3)
    before, experience = replay.probabilities(), next(source)
    broken = experience.priority.clone()
    broken[1] = wrong
    expected = rf"^replay: {{}} gave the priority {wrong}; allowed: 0 and above, and finite$"
    with pytest.raises(UserError, match=expected.format("an actor")):
        replay.insert(replace(experience, priority=broken))
    with pytest.raises(UserError, match=expected.format("the learner")):
        replay.update(replay.sample(4).drawn, torch.tensor([1.0, wrong, 1.0, 1.0]))
    for one, other in zip(before, replay.probabilities(), strict=True):
        np.testing.assert_array_equal(one, other)
    replay.insert(experience)


# Sizes --------------------------------------------------------------------------------------------------------------


def test_nothing_is_drawn_before_there_are_enough_items() -> None:
    replay, source = transition_replay(min_size=30)
    while replay.size < 30:
        assert not replay.can_sample(1)
        replay.insert(next(source))
    assert replay.can_sample(1)


def test_a_replay_that_is_full_with_too_few_items_says_so() -> None:
    replay, source = transition_replay(min_size=80)  # of 80 steps some are dead
    with pytest.raises(UserError) as refusal:
        fill(replay, source, 79)
    assert str(refusal.value) == (
        f"the replay is full with {replay.size} items in 80 steps, and 80 must be there before any is drawn: raise "
        "hyperparameters.replay_capacity, or lower hyperparameters.min_replay_size"
    )
    assert (replay._history.written == 80).all()


def test_a_capacity_that_could_lose_items_before_they_are_whole_is_refused() -> None:
    rule = rule_of(SequenceCut(80, 40), 4 * 199, delay=5)
    with pytest.raises(UserError) as refusal:
        rule.stream_length(4, 40)
    assert str(refusal.value) == (
        "key 'hyperparameters.replay_capacity' must be at least 820, 205 steps for each of 4 environments: two unrolls "
        "and the longest item (got 796)"
    )
    assert rule_of(SequenceCut(80, 40), 4 * 205 + 3, delay=5).stream_length(4, 40) == 205


def test_it_measures_what_it_holds() -> None:
    replay, source = transition_replay(samples_per_insert=2.0, min_size=10)
    fill(replay, source, 5)
    replay.sample(16)
    gauges = replay.take_gauges()
    assert gauges["replay_items"] == replay.size == len(replay.probabilities()[0])
    assert gauges["replay_steps"] == 2 * 25
    assert gauges["replay_samples_per_insert"] == replay.limiter.samples_per_insert > 0
    assert replay.capacity == 80
    priorities_and_steps = (96 + 32 + 32) * 8 + 80 * 8  # the levels of a sum tree of 80 weights, and a step of each
    assert replay.nbytes == replay._history.nbytes + priorities_and_steps
    assert gauges["replay_bytes_per_step"] == replay.nbytes / 80


def test_steps_that_have_made_room_are_no_longer_counted() -> None:
    replay, source = transition_replay()
    fill(replay, source, 11)
    assert replay._history.written.tolist() == [55, 55]
    assert replay.take_gauges()["replay_steps"] == 2 * 40


def single_item_replay(step: int, **keywords: Any) -> tuple[PrioritizedReplay, Iterator[Experience]]:
    """Two streams with one item, which begins at this step of stream 0; all that follows has no item."""
    replay, source = transition_replay(**keywords)
    first = replace(
        next(source),
        item_column=torch.zeros(1, dtype=torch.int64),
        item_step=torch.full((1,), step),
        priority=torch.ones(1),
    )
    replay.insert(first)
    return replay, map(without_items, source)


@pytest.mark.parametrize("step", [0, 2])
def test_a_single_item_can_be_drawn(step: int) -> None:
    replay, _ = single_item_replay(step)
    assert replay.size == 1
    assert replay.can_sample(1)
    with running(lambda: replay.sample(3)) as found:
        pass
    assert items_of(replay, found[0].drawn) == [(0, step)] * 3
    assert found[0].drawn.weight.tolist() == [1.0] * 3


def test_a_replay_is_full_only_once_every_stream_is() -> None:
    """One actor may be far ahead of another, which may still bring the items that are missing."""
    cut, streams = TransitionCut(3), streams_of(0, 2, 400)
    replay = replay_of(cut, 40, 2, min_size=60)
    ahead, behind = (
        experiences(TransitionItems(3, own_values), [stream], [0], 5, actor) for actor, stream in enumerate(streams)
    )
    fill(replay, ahead, 20)
    assert replay._history.written.tolist() == [100, 0]
    assert replay.size < 60
    fill(replay, behind, 10)
    assert replay.can_sample(1)


def test_a_refilled_replay_has_room_enough_with_as_many_items_as_it_must_have() -> None:
    """It held more items before than fit in now; it goes on with the least number where it has exactly so many."""
    replay, source = transition_replay(min_size=1000)
    with pytest.raises(UserError):
        fill(replay, source, 20)
    size = replay.size
    copy, fresh = transition_replay(min_size=size)
    state = copy.state_dict(contents=False) | {"size": 1000}
    assert copy.load_state_dict(state) == 1000
    while not copy.can_sample(1):
        copy.insert(next(fresh))
    assert copy.size == size
    assert (copy._history.written == 80).all()


# Several threads ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meddling:
    """A cut that lets something happen between the draw of items and their copy."""

    cut: Cut
    meddle: Callable[[], None]

    @property
    def before(self) -> int:
        return self.cut.before

    @property
    def reach(self) -> int:
        return self.cut.reach

    def gather(self, history: History, streams: Array, steps: Array, drawn: Drawn) -> Drawing:
        self.meddle()
        return self.cut.gather(history, streams, steps, drawn)


@pytest.mark.parametrize("unrolls_meanwhile", [1, 4, 8, 30])
def test_items_that_are_overwritten_while_they_are_copied_are_drawn_again(unrolls_meanwhile: int) -> None:
    streams = streams_of(0, 2, 400)
    source = experiences(TransitionItems(3, own_values), streams, range(2), 5)
    gathered: list[int] = []

    def meddle() -> None:
        gathered.append(1)
        if len(gathered) == 1:
            fill(replay, source, unrolls_meanwhile)

    replay = replay_of(Meddling(TransitionCut(3), meddle), 40, 2)
    fill(replay, source, 8)
    drawn = replay.sample(64)
    assert len(gathered) == 2
    assert_transitions(replay, drawn, streams, 3)
    assert (drawn.drawn.step.numpy() >= replay._history.oldest[drawn.drawn.slot.numpy() // 40]).all()


@dataclass(frozen=True)
class Watched(Meddling):
    """It also keeps what was to be copied, each time."""

    seen: list[Drawn] = field(default_factory=list)

    def gather(self, history: History, streams: Array, steps: Array, drawn: Drawn) -> Drawing:
        self.seen.append(drawn)
        return super().gather(history, streams, steps, drawn)


def test_an_item_that_is_drawn_again_weighs_by_what_it_was_drawn_with() -> None:
    source = experiences(TransitionItems(3, own_values), streams_of(0, 2, 400), range(2), 5)
    probabilities: list[dict[tuple[int, int], float]] = []

    def meddle() -> None:
        if len(cut.seen) == 1:
            probabilities.append(by_item(replay))
            fill(replay, source, 4)
            replay.update(replay.sample(64).drawn, torch.full((64,), 50.0))
            probabilities.append(by_item(replay))

    cut = Watched(TransitionCut(3), meddle)
    replay = replay_of(cut, 40, 2, importance_exponent=1.0)
    fill(replay, source, 8)
    drawn = replay.sample(64).drawn
    first, last = items_of(replay, cut.seen[0]), items_of(replay, drawn)
    again = [one != other for one, other in zip(first, last, strict=True)]
    assert 8 < sum(again) < 56
    chances = [probabilities[late][item] for late, item in zip(again, last, strict=True)]
    assert drawn.weight.tolist() == pytest.approx([min(chances) / chance for chance in chances], rel=1e-5)


@contextmanager
def running(function: Callable[[], Any]) -> Iterator[list[Any]]:
    """In a thread, which must be over soon after the block; collects what it returned or raised."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(function())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert len(outcome) == 1
    if isinstance(outcome[0], Exception) and not isinstance(outcome[0], Closed):
        raise outcome[0]


def test_where_no_item_is_left_the_learner_waits_for_new_ones() -> None:
    """Environments that are lost again and again make nothing but dead steps."""
    replay, source = transition_replay()
    emptied = threading.Event()

    def meddle() -> None:
        if not emptied.is_set():
            for _ in range(8):
                replay.insert(without_items(next(source)))
            emptied.set()

    replay = replay_of(Meddling(TransitionCut(3), meddle), 40, 2)
    fill(replay, source, 8)
    waited = replay.sample_waited
    with running(lambda: replay.sample(8)) as outcome:
        assert emptied.wait(TIMEOUT)
        assert replay.size == 0
        assert not replay.can_sample(1)
        while not outcome and replay.sample_waited < waited + 0.02:
            time.sleep(0.001)
        fill(replay, source, 2)
    assert_transitions(replay, outcome[0], streams_of(0, 2, 400), 3)


def test_where_one_item_is_left_it_is_drawn_in_the_place_of_those_that_are_gone() -> None:
    replay, gathered = replay_of(TransitionCut(3), 40, 2), []
    source = experiences(TransitionItems(3, own_values), streams_of(0, 2, 400), range(2), 5)

    def meddle() -> None:
        gathered.append(1)
        if len(gathered) == 1:
            fill(replay, map(without_items, source), 7)
            replay.insert(replace(single, unroll=next(source).unroll))

    replay = replay_of(Meddling(TransitionCut(3), meddle), 40, 2)
    fill(replay, source, 8)
    single = replace(
        without_items(next(source)),
        item_column=torch.zeros(1, dtype=torch.int64),
        item_step=torch.zeros(1, dtype=torch.int64),
        priority=torch.ones(1),
    )
    with running(lambda: replay.sample(8)) as found:
        pass
    assert replay.size == 1
    assert items_of(replay, found[0].drawn) == [(0, 75)] * 8


def test_items_that_are_gone_are_not_drawn_again_while_it_is_frozen() -> None:
    streams, gathered, frozen = streams_of(0, 2, 400), [], threading.Event()
    source = experiences(TransitionItems(3, own_values), streams, range(2), 5)
    freeze = replay_of(TransitionCut(3), 40, 2).frozen()

    def meddle() -> None:
        nonlocal freeze
        gathered.append(1)
        if len(gathered) == 1:
            fill(replay, source, 30)
            freeze = replay.frozen()
            freeze.__enter__()
            frozen.set()

    replay = replay_of(Meddling(TransitionCut(3), meddle), 40, 2)
    fill(replay, source, 8)
    with running(lambda: replay.sample(8)) as found:
        assert frozen.wait(TIMEOUT)
        time.sleep(0.05)
        assert len(gathered) == 1 and not found
        freeze.__exit__(None, None, None)
    assert len(gathered) == 2
    assert_transitions(replay, found[0], streams, 3)


def without_items(experience: Experience) -> Experience:
    none = torch.zeros(0, dtype=torch.int64)
    return replace(experience, item_column=none, item_step=none, priority=torch.zeros(0))


@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_two_writers_and_a_reader_never_mix_what_they_copy(kind: str) -> None:
    """The ring is tiny, and copies begin late: items are overwritten meanwhile, and drawn again."""
    length, before, n = 6, 4, 2
    cut: Cut = TransitionCut(n) if kind == "transitions" else SequenceCut(length, before)
    streams, gathered, drawn = streams_of(1, 4, 1501, spec=IMAGES), [], 0

    def late() -> None:
        gathered.append(1)
        time.sleep(0.0005 * (len(gathered) % 4))

    replay = replay_of(Meddling(cut, late), 60, 4, spec=IMAGES, state_period=2 if kind == "sequences" else None)

    def write(actor: int) -> None:
        items = TransitionItems(n, own_values) if kind == "transitions" else sequence_items(n, length, 3, before)
        numbers = [2 * actor, 2 * actor + 1]
        for experience in experiences(items, [streams[number] for number in numbers], numbers, 5, actor):
            replay.insert(experience)
            time.sleep(0.0002)

    with running(lambda: write(0)) as first, running(lambda: write(1)) as second:
        while not (first and second):
            if not replay.can_sample(8):
                time.sleep(0.0002)
                continue
            found = replay.sample(8)
            drawn += 1
            replay.update(found.drawn, torch.rand(8, generator=torch.Generator().manual_seed(drawn)))
            if isinstance(found, Transitions):
                assert_transitions(replay, found, streams, n)
            else:
                assert_sequences(replay, found, streams, length, before, stored=True)
    assert len(gathered) > drawn > 20, "some were drawn again"
    assert replay.inserted_steps == sum(int(stream.valid[:1500].sum()) for stream in streams)


def test_actors_that_are_ahead_wait_for_the_learner_and_a_learner_that_is_ahead_for_actors() -> None:
    replay, source = transition_replay(samples_per_insert=1.0, error_buffer=8.0)
    while replay.can_insert():
        replay.insert(next(source))
    with running(lambda: replay.insert(next(source))) as outcome:
        time.sleep(0.05)
        assert not outcome
        while not replay.can_insert():
            replay.sample(16)
    assert replay.insert_waited > 0.04
    while replay.can_sample(16):
        replay.sample(16)
    with running(lambda: replay.sample(16)) as outcome:
        time.sleep(0.05)
        assert not outcome
        while not replay.can_sample(16) and not outcome:
            replay.insert(next(source))
    assert replay.sample_waited > 0.04


def test_closing_ends_every_wait() -> None:
    full, source = transition_replay(samples_per_insert=1.0, error_buffer=8.0)
    while full.can_insert():
        full.insert(next(source))
    empty, _ = transition_replay()
    with running(lambda: full.insert(next(source))) as writer, running(lambda: empty.sample(1)) as reader:
        time.sleep(0.05)
        assert not writer
        assert not reader
        full.close()
        empty.close()
    assert isinstance(writer[0], Closed)
    assert isinstance(reader[0], Closed)
    with pytest.raises(Closed):
        empty.insert(next(source))


def test_nothing_is_inserted_or_drawn_while_it_is_frozen() -> None:
    replay, source = transition_replay()
    fill(replay, source, 3)
    before, begins = by_item(replay), threading.Event()

    def insert() -> None:
        assert begins.wait(TIMEOUT)
        replay.insert(next(source))

    def draw() -> None:
        assert begins.wait(TIMEOUT)
        replay.sample(4)

    with running(insert) as inserted, running(draw) as drawn, replay.frozen():
        begins.set()
        time.sleep(0.05)
        assert not replay.can_insert() and not replay.can_sample(4)
        assert not inserted and not drawn
        assert by_item(replay) == before and not replay.limiter.sampled
    assert replay.can_insert() and replay.limiter.sampled == 4
    assert len(by_item(replay)) > len(before)


def test_it_is_frozen_once_what_is_being_written_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, source = transition_replay()
    fill(replay, source, 3)
    size, begun, goes_on = replay.size, threading.Event(), threading.Event()
    write = replay._history.write

    def slow_write(*arguments: Any) -> None:
        begun.set()
        assert goes_on.wait(TIMEOUT)
        write(*arguments)

    monkeypatch.setattr(replay._history, "write", slow_write)

    def size_when_frozen() -> int:
        with replay.frozen():
            return replay.size

    with running(lambda: replay.insert(next(source))):
        assert begun.wait(TIMEOUT)
        with running(size_when_frozen) as frozen:
            time.sleep(0.05)
            assert not frozen
            goes_on.set()
    assert frozen[0] == replay.size > size


def test_the_steps_of_an_environment_have_one_writer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, source = transition_replay()
    begun, goes_on, write = threading.Event(), threading.Event(), replay._history.write

    def slow_write(*arguments: Any) -> None:
        begun.set()
        assert goes_on.wait(TIMEOUT)
        write(*arguments)

    monkeypatch.setattr(replay._history, "write", slow_write)
    with running(lambda: replay.insert(next(source))):  # of an actor's process that is gone
        assert begun.wait(TIMEOUT)
        with running(lambda: replay.insert(next(source))) as second:  # of the one in its place
            time.sleep(0.05)
            assert not second and not replay._history.written.any()
            goes_on.set()
    assert (replay._history.written == 10).all()


def test_an_unroll_that_does_not_fit_leaves_no_writer_behind() -> None:
    replay = replay_of(TransitionCut(3), 13, 1)
    too_long = next(experiences(TransitionItems(3, own_values), streams_of(0, 1, 20), [0], 14))
    with pytest.raises(ValueError, match="does not fit"):
        replay.insert(too_long)
    with running(lambda: replay.frozen().__enter__()):
        pass


# State --------------------------------------------------------------------------------------------------------------


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def assert_same(one: Drawing, other: Drawing) -> None:
    assert one.drawn.inserted_steps == other.drawn.inserted_steps
    assert len(one.tensors) == len(other.tensors)
    for mine, its in zip(one.tensors, other.tensors, strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("before", [0, 2, 9, 40])
@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_a_restored_replay_continues_with_the_same_draws(kind: str, before: int) -> None:
    streams = streams_of(3, 2, 400)
    if kind == "transitions":
        cut, items, period = TransitionCut(3), TransitionItems(3, own_values), None
    else:
        cut, items, period = SequenceCut(6, 4), sequence_items(2, 6, 3, 4), 2
    made = list(experiences(items, streams, range(2), 5))
    keywords = {"samples_per_insert": 2.0, "error_buffer": 50.0, "min_size": 5, "state_period": period}
    replay, copy = (replay_of(cut, 40, 2, seed=seed, **keywords) for seed in (1, 2))

    def play(one: PrioritizedReplay, experience: Experience) -> list[Drawing]:
        one.insert(experience)
        drawings = []
        while one.can_sample(8):
            drawings.append(one.sample(8))
            one.update(drawings[-1].drawn, drawings[-1].drawn.weight * 3)
        return drawings

    for experience in made[:before]:
        play(replay, experience)
    with replay.frozen():
        state = saved(replay.state_dict())
    assert copy.load_state_dict(state) is None
    drawings = 0
    for experience in made[before:]:
        one, other = play(replay, experience), play(copy, experience)
        drawings += len(one)
        for mine, its in zip(one, other, strict=True):
            assert_same(mine, its)
        assert by_item(replay) == by_item(copy)
        assert replay.take_gauges() == copy.take_gauges()
    assert drawings > 10
    assert replay.inserted_steps == copy.inserted_steps


def test_a_replay_that_was_restored_before_forgets_what_it_held() -> None:
    replay, source = transition_replay()
    state = saved(replay.state_dict())
    fill(replay, source, 10)
    full = saved(replay.state_dict())
    copy, other_source = transition_replay(seed=5)
    fill(copy, other_source, 20)
    copy.load_state_dict(full)
    assert by_item(copy) == by_item(replay)
    copy.load_state_dict(state)
    assert (copy.size, len(by_item(copy)), copy.inserted_steps) == (0, 0, 0)


def test_a_checkpoint_has_no_more_items_than_were_made() -> None:
    replay, source = transition_replay()
    assert [len(part) for part in replay.state_dict()["items"]] == [0, 0, 0]
    fill(replay, source, 3)
    made, state = by_item(replay), saved(replay.state_dict())
    copy, _ = transition_replay()
    copy.load_state_dict(state)
    for one in (replay, copy):
        slots, steps, _ = (part.tolist() for part in one.state_dict()["items"])
        assert sorted((slot // 40, step) for slot, step in zip(slots, steps, strict=True)) == sorted(made)


@pytest.mark.parametrize("ratio", [2.0, None])
def test_without_its_contents_a_replay_is_first_filled_as_far_as_it_was(ratio: float | None) -> None:
    keywords = {"samples_per_insert": ratio, "error_buffer": 50.0, "min_size": 5}
    replay, source = transition_replay(**keywords)
    for _ in range(6):
        replay.insert(next(source))
        while ratio and replay.can_sample(8):
            replay.sample(8)
    state = saved(replay.state_dict(contents=False))
    assert set(state) == {"steps", "size", "limiter", "generator"}
    copy, fresh = transition_replay(**keywords)
    assert copy.load_state_dict(state) == replay.size > 5
    assert copy.inserted_steps == replay.inserted_steps
    before = copy.inserted_steps
    while copy.size < replay.size:
        assert not copy.can_sample(1)
        assert copy.can_insert()
        copy.insert(next(fresh))
    assert copy.can_sample(8)
    assert copy.sample(8).drawn.inserted_steps > before
    assert copy.limiter.samples_per_insert == 0


def test_without_its_contents_a_replay_is_filled_at_least_as_far_as_it_must() -> None:
    replay, source = transition_replay(min_size=30)
    fill(replay, source, 2)
    copy, _ = transition_replay(min_size=30)
    assert copy.load_state_dict(saved(replay.state_dict(contents=False))) == 30


def test_items_that_began_before_the_contents_were_lost_are_left_out() -> None:
    """An actor goes on in mid-episode; its first items begin at steps that the replay has not seen."""
    streams = streams_of(0, 2, 400, longest=60, shortest=40)
    source = experiences(TransitionItems(3, own_values), streams, range(2), 5)
    for _ in range(3):
        next(source)
    replay = replay_of(TransitionCut(3), 40, 2)
    experience = next(source)
    assert (experience.item_step < 0).any()
    replay.insert(experience)
    assert replay.size == int((experience.item_step >= 0).sum())
    found = replay.sample(100)
    assert (found.observation[:, 1] >= 15).all()


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "zeros"])
@pytest.mark.parametrize("first", range(1, 9))
def test_sequences_whose_burn_in_was_lost_are_left_out(first: int, stored: bool) -> None:
    """An actor goes on in mid-episode: no step that the replay has not seen is made up from the first that it has."""
    length, before, period = 6, 4, 3
    streams = streams_of(2, 2, 400, longest=30, shortest=20, endings=("terminated", "truncated"))
    items = sequence_items(2, length, period, before, keeps_states=stored)
    source = list(experiences(items, streams, range(2), 5))
    begin = 5 * first
    replay = replay_of(SequenceCut(length, before), 60, 2, state_period=2 if stored else None)
    made: dict[tuple[int, int], float] = {}
    for index, experience in enumerate(source[first : first + 9]):
        replay.insert(experience)
        remember(made, experience, 5 * index, 0)
    cut = [Stream(**{name: part[begin:] for name, part in vars(stream).items()}) for stream in streams]
    found = replay.sample(200)
    lost = [not stream.start[0] for stream in cut]
    assert any(lost)
    assert set(by_item(replay)) == {(s, step) for s, step in made if step >= (before if lost[s] else 0)}
    for i, (number, step) in enumerate(items_of(replay, found.drawn)):
        inside = [max(step - before + t, cut[number].first(step)) for t in range(before + 1)]
        prefix = [begin + t for t in inside]
        assert found.observation[: before + 1, i, 1].tolist() == prefix, "of this very step of the stream"
        for t in range(before):
            missing = prefix[t + 1] == prefix[t]
            assert bool(found.start[t, i]) or not missing, "a prefix that is missing is where an episode began"
        if stored and prefix[0] + 0.5 != found.state[1][i].item():
            assert found.start[0, i], "a zero state is that of an episode's beginning"
