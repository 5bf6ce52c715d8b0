"""Items are cut from a history step by step as their episode went, and a batch of them is split item by item."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ddrl.replay.items import Cut, Drawing, Drawn, SequenceCut, Sequences, TransitionCut, Transitions
from ddrl.replay.step_storage import History
from tests.episodes import Stream, named, random_stream, unrolls
from tests.replay.step_storage_test import FLAT, experience, insert

UNROLL = 8
CUTS = {
    "transitions": TransitionCut(3),
    "sequences": SequenceCut(5, 3),
    "measured sequences": SequenceCut(5, 3, measured=True),
}

every_cut = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


def episodes_of_seven_steps(ending: str) -> tuple[History, list[Stream]]:
    """Two streams of 64 steps: 7 of an episode, then a dead one. Every recurrent state is kept."""
    streams = [
        random_stream(number, 65, named(number), longest=7, shortest=7, endings=(ending,)) for number in range(2)
    ]
    history = History(FLAT, 2, 64, [(2,), (1,)])
    every = [(step, column) for step in range(UNROLL) for column in range(2)]
    for unroll in unrolls(streams, UNROLL):
        insert(history, experience(unroll, every, range(2)))
    return history, streams


def gathered(cut: Cut, history: History, places: list[tuple[int, int]]) -> Drawing:
    """The items that begin at these (stream, step)."""
    streams, steps = (np.array([place[part] for place in places]) for part in range(2))
    weight = torch.arange(len(places)) / 10
    slots = torch.from_numpy(history.slots(streams, steps))
    return cut.gather(history, streams, steps, Drawn(weight, slots, torch.from_numpy(steps), 7))


def transitions(ending: str, steps: list[int]) -> tuple[Transitions, Stream]:
    """Transitions of 3 steps from stream 1."""
    history, streams = episodes_of_seven_steps(ending)
    found = gathered(TransitionCut(3), history, [(1, step) for step in steps])
    assert isinstance(found, Transitions)
    return found, streams[1]


def sequences(ending: str, steps: list[int], **keywords: Any) -> tuple[Sequences, Stream]:
    """Sequences of 5 steps after a burn-in of 3, from stream 1."""
    history, streams = episodes_of_seven_steps(ending)
    found = gathered(SequenceCut(5, 3, **keywords), history, [(1, step) for step in steps])
    assert isinstance(found, Sequences)
    return found, streams[1]


# Transitions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_a_transition_has_the_steps_up_to_the_end_of_its_episode(ending: str) -> None:
    steps, lengths = [8, 11, 12, 13, 14], [3, 3, 3, 2, 1]
    found, stream = transitions(ending, steps)
    assert found.steps.tolist() == lengths
    assert found.action.tolist() == stream.action[steps].tolist()
    assert found.observation.tolist() == stream.observation[steps].tolist()
    assert found.version.tolist() == [stream.version[steps].tolist()]
    assert found.next_observation.tolist() == stream.observation[np.add(steps, lengths)].tolist()
    for item, (step, length) in enumerate(zip(steps, lengths, strict=True)):
        assert found.reward[:, item].tolist() == [*stream.reward[step : step + length], *[0.0] * (3 - length)]
    assert found.ended.tolist() == [length + step == 15 for step, length in zip(steps, lengths, strict=True)]
    assert found.terminated.tolist() == [
        ending == "terminated" and length + step == 15 for step, length in zip(steps, lengths, strict=True)
    ]
    assert found.td_error.tolist() == [0.0] * 5


@pytest.mark.parametrize("ending", ["life", "rolling"])
def test_a_transition_that_ends_with_a_life_has_no_reward_of_the_next_one(ending: str) -> None:
    """No dead step lies between two lives: steps 7 to 13 are the second one."""
    steps, lengths = [11, 12, 13], [3, 2, 1]
    found, stream = transitions(ending, steps)
    assert found.steps.tolist() == lengths
    assert found.terminated.tolist() == [True] * 3
    for item, (step, length) in enumerate(zip(steps, lengths, strict=True)):
        assert found.reward[:, item].tolist() == [*stream.reward[step : step + length], *[0.0] * (3 - length)]


def test_a_transition_needs_no_step_before_its_own_and_reaches_n_steps_on() -> None:
    assert (TransitionCut(3).before, TransitionCut(3).reach) == (0, 3)
    assert (SequenceCut(5, 3).before, SequenceCut(5, 3).reach) == (3, 5)


# Sequences ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_a_sequence_has_its_burn_in_and_the_steps_up_to_the_end_of_its_episode(ending: str) -> None:
    steps, lengths = [8, 9, 11, 13], [5, 5, 4, 2]
    found, stream = sequences(ending, steps)
    assert (found.batch_size, found.burn_in) == (4, 3)
    for item, (step, length) in enumerate(zip(steps, lengths, strict=True)):
        inside = [min(max(step + t, 8), step + length) for t in range(-3, 6)]
        for name in ("observation", "last_action", "last_reward", "start"):
            assert getattr(found, name)[:, item].tolist() == getattr(stream, name)[inside].tolist(), name
        trained, missing = range(step, step + length), 5 - length
        assert found.valid[:, item].tolist() == [True] * length + [False] * missing
        assert found.action[:length, item].tolist() == stream.action[trained].tolist()
        assert found.version[:length, item].tolist() == stream.version[trained].tolist()
        assert found.reward[:, item].tolist() == [*stream.reward[trained], *[0.0] * missing]
        last = [step + t == 14 for t in range(5)]
        assert found.ended[:, item].tolist() == last
        assert found.terminated[:, item].tolist() == [ending == "terminated" and one for one in last]


def test_a_sequence_of_the_last_step_of_a_life_has_the_burn_in_of_that_life() -> None:
    """No dead step lies between two lives: steps 7 to 13 are the second one."""
    found, stream = sequences("life", [8, 13])
    assert found.valid.sum(dim=0).tolist() == [5, 1]
    for item, (step, length) in enumerate([(8, 5), (13, 1)]):
        inside = [min(max(step + t, 7), step + length) for t in range(-3, 6)]
        assert found.observation[:, item].tolist() == stream.observation[inside].tolist()
        assert found.start[:, item].tolist() == stream.start[inside].tolist()
        missing = 5 - length
        assert found.reward[:, item].tolist() == [*stream.reward[step : step + length], *[0.0] * missing]


def test_a_sequence_begins_with_the_state_before_its_burn_in_or_with_zeros() -> None:
    found, _ = sequences("terminated", [11, 13])
    assert [part.tolist() for part in found.state] == [[[1.0, 8.0], [1.0, 10.0]], [[8.5], [10.5]]]
    assert sequences("terminated", [11, 13], from_states=False)[0].state == ()


def test_a_measured_sequence_has_the_states_before_its_first_and_its_last_trained_step() -> None:
    found, _ = sequences("terminated", [8, 11, 13], measured=True)
    assert [part.tolist() for part in found.first_state] == [[[1, 8], [1, 11], [1, 13]], [[8.5], [11.5], [13.5]]]
    assert [part.tolist() for part in found.last_state] == [[[1, 12], [1, 14], [1, 14]], [[12.5], [14.5], [14.5]]]


def test_a_sequence_that_is_not_measured_has_one_state_only() -> None:
    found, _ = sequences("terminated", [8, 11, 13])
    assert (found.first_state, found.last_state) == ((), ())


# Batches ------------------------------------------------------------------------------------------------------------


def named_tensors(batch: Drawing) -> dict[str, Tensor]:
    """Every tensor of a batch, those in tuples and of what was drawn too."""
    found: dict[str, Tensor] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif isinstance(value, tuple):
            found |= {f"{field.name} {part}": tensor for part, tensor in enumerate(value)}
    return found | {name: getattr(batch.drawn, name) for name in ("weight", "slot", "step")}


def axis_of_items(batch: Drawing, name: str) -> int:
    """As the comments at the fields of `Transitions` and `Sequences` say."""
    if isinstance(batch, Transitions):
        return int(name in ("reward", "version"))
    return int("state" not in name and name not in ("weight", "slot", "step"))


PLACES = [(0, 8), (1, 9), (0, 11), (1, 13), (1, 16), (0, 20)]


@every_cut
def test_columns_are_views_of_these_items_in_every_tensor(cut: Cut) -> None:
    batch = gathered(cut, episodes_of_seven_steps("terminated")[0], PLACES)
    part = batch.columns(2, 5)
    assert (batch.batch_size, part.batch_size) == (6, 3)
    whole, parts = named_tensors(batch), named_tensors(part)
    assert list(parts) == list(whole)
    for name, tensor in whole.items():
        assert torch.equal(parts[name], tensor[2:5] if axis_of_items(batch, name) == 0 else tensor[:, 2:5]), name
        assert parts[name].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr(), name
    assert part.drawn.inserted_steps == 7


@every_cut
def test_the_tensors_of_a_batch_are_all_that_it_holds_and_go_to_a_device_with_it(cut: Cut) -> None:
    batch = gathered(cut, episodes_of_seven_steps("terminated")[0], PLACES)
    whole = named_tensors(batch)
    assert [id(tensor) for tensor in batch.tensors] == [id(tensor) for tensor in whole.values()]
    moved = batch.to(torch.device("meta"))
    assert type(moved) is type(batch)
    assert {name: tensor.shape for name, tensor in named_tensors(moved).items()} == {
        name: tensor.shape for name, tensor in whole.items()
    }
    assert all(tensor.is_meta for tensor in moved.tensors)
