"""What can be read from the history is what was written, bit for bit, however episodes begin and end."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddrl.replay.step_storage import EPISODE_STARTS, History
from ddrl.types import Array, EnvSpec, Experience, Unroll
from tests.episodes import ENDINGS, STACK, Observe, Stream, named, random_stream, stacked, states, unrolls

IMAGES = EnvSpec("test/images", (STACK, 3, 3), "uint8", 3, 4, "test", frame_stack=STACK)
PAIRS = EnvSpec("test/pairs", (2, 3, 3), "uint8", 3, 4, "test", frame_stack=2)
FLAT = EnvSpec("test/flat", (3,), "float32", 3, 1, "test")
NUMBER = EnvSpec("test/number", (), "float32", 3, 1, "test")
SPECS = {"images": IMAGES, "pairs": PAIRS, "flat": FLAT, "number": NUMBER}
FIELDS = ("start", "valid", "reward", "terminated", "truncated", "last_reward", "version", "action", "last_action")

every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def stacks(size: int) -> Observe:
    """A new frame after the ones before it, which are anything where an environment was reset, rarely elsewhere."""

    def observe(rng: np.random.Generator, step: int, episode: int, before: Array | None) -> Array:
        frame = rng.integers(0, 256, size=(1, 3, 3), dtype=np.uint8)
        if before is not None and rng.random() < 0.98:
            if rng.random() < 0.1:  # a still image
                frame = before[-1:].copy()
            return np.concatenate([before[1:], frame])
        older = {
            "repeated": np.repeat(frame, size - 1, axis=0),
            "zeros": np.zeros((size - 1, 3, 3), dtype=np.uint8),
            "unrelated": rng.integers(0, 256, size=(size - 1, 3, 3), dtype=np.uint8),
        }
        return np.concatenate([older[str(rng.choice(sorted(older)))], frame])

    return observe


def unrelated(rng: np.random.Generator, step: int, episode: int, before: Array | None) -> Array:
    """No observation continues the one before it."""
    return rng.integers(0, 256, size=(STACK, 3, 3), dtype=np.uint8)


def scalars(rng: np.random.Generator, step: int, episode: int, before: Array | None) -> Array:
    """Observations that are a single number each."""
    return np.array(rng.normal(), dtype=np.float32)


def observer(spec: EnvSpec, number: int) -> Observe:
    if spec.frame_stack > 1:
        return stacks(spec.frame_stack)
    return named(number) if spec.observation_shape else scalars


def experience(unroll: Unroll, kept: Sequence[tuple[int, int]] = (), numbers: Sequence[int] = (0,)) -> Experience:
    """Without items; `kept`: (step, column) whose state is kept, of the streams with these numbers."""
    begin = int(unroll.index[0]) * unroll.length
    made = states(numbers, begin, unroll.length) if kept else []
    none = torch.zeros(0, dtype=torch.int64)
    return Experience(
        unroll=unroll,
        item_column=none,
        item_step=none,
        priority=torch.zeros(0),
        state_column=torch.tensor([column for _, column in kept], dtype=torch.int64),
        state_step=torch.tensor([step for step, _ in kept], dtype=torch.int64),
        state=tuple(torch.stack([made[step][kind][column] for step, column in kept]) for kind in range(2) if kept),
    )


def insert(history: History, made: Experience) -> None:
    place = history.reserve(made.unroll)
    history.write(place, made)
    history.commit(place)


def readable(history: History, number: int) -> tuple[Array, Tensor]:
    """Steps of a stream that can be read, and where they lie."""
    steps = np.arange(history.oldest[number], history.written[number])
    return steps, torch.from_numpy(history.slots(np.full(len(steps), number), steps))


def assert_as_written(history: History, streams: Sequence[Stream]) -> None:
    for number, stream in enumerate(streams):
        steps, slots = readable(history, number)
        assert len(steps) <= history.length
        np.testing.assert_array_equal(history.observations(slots), stream.observation[steps])
        for name in FIELDS:
            expected = getattr(stream, name)[steps]
            if name == "truncated" and len(steps):  # the last one may be abandoned with the next unroll
                expected[-1] &= ~stream.abandoned[steps[-1]]
            np.testing.assert_array_equal(history.field(name, slots), expected, err_msg=name)
        np.testing.assert_array_equal(history.first(slots), np.searchsorted(stream.episode, stream.episode[steps]))


def frames_needed(stream: Stream) -> Array:
    """How many frames each step adds: one where its stack continues the one before, else the whole stack."""
    observation = stream.observation
    continues = [False, *((now[:-1] == before[1:]).all() for before, now in pairwise(observation))]
    return np.where(continues, 1, STACK)


@pytest.mark.parametrize("spec", [IMAGES, FLAT], ids=["images", "flat"])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_actors=st.integers(1, 2),
    columns=st.integers(1, 2),
    unroll_length=st.integers(1, 9),
    extra=st.integers(0, 30),
    longest=st.sampled_from([1, 3, 12, 60]),
    endings=st.lists(st.sampled_from(ENDINGS), min_size=1, unique=True),
)
def test_every_step_that_is_still_held_is_what_was_written(
    spec: EnvSpec,
    seed: int,
    num_actors: int,
    columns: int,
    unroll_length: int,
    extra: int,
    longest: int,
    endings: list[str],
) -> None:
    length = 3 * unroll_length + extra  # of the ring, which wraps several times
    num_streams = num_actors * columns
    history = History(spec, num_streams, length)
    streams = [
        random_stream(seed + number, 5 * length, observer(spec, number), longest=longest, endings=endings)
        for number in range(num_streams)
    ]
    actors = [
        unrolls(streams[actor * columns : (actor + 1) * columns], unroll_length, actor=actor)
        for actor in range(num_actors)
    ]
    rng = np.random.default_rng(seed)
    for actor in rng.permutation(np.repeat(np.arange(num_actors), len(actors[0]))):
        insert(history, experience(actors[actor].pop(0)))
        if rng.random() < 0.3 or not any(actors):
            assert_as_written(history, streams)
    for number, stream in enumerate(streams):
        written = int(history.written[number])
        assert written == (5 * length - 1) // unroll_length * unroll_length
        kept = np.arange(written) >= written - length
        if spec.frame_stack > 1:
            frames = np.cumsum(frames_needed(stream)[:written])
            room = length + STACK * (2 + length // EPISODE_STARTS)
            kept &= frames - STACK >= frames[-1] - room
        assert history.oldest[number] == written - kept.sum()


@pytest.mark.parametrize(("longest", "shorter"), [(1, True), (200, False)])
def test_many_short_episodes_make_the_history_shorter(longest: int, shorter: bool) -> None:
    history, shortest = History(IMAGES, 1, 160), min(longest, 100)
    stream = random_stream(0, 801, stacked, longest=longest, shortest=shortest, endings=("truncated",))
    for unroll in unrolls([stream], 10):
        insert(history, experience(unroll))
        assert_as_written(history, [stream])
    held = int(history.written[0] - history.oldest[0])
    assert (60 < held < 160) if shorter else held == 160


@pytest.mark.parametrize(("length", "room"), [(40, 40 + 4 * (2 + 2)), (160, 160 + 4 * (2 + 10))])
def test_an_unroll_whose_frames_do_not_fit_the_ring_is_refused(length: int, room: int) -> None:
    history = History(IMAGES, 1, length)
    whole = unrolls([random_stream(0, length + 1, unrelated)], length)[0]
    with pytest.raises(ValueError, match=f"{4 * length} frames does not fit a ring of {room}$"):
        history.reserve(whole)


def test_an_unroll_is_refused_where_the_frames_of_one_of_its_environments_do_not_fit() -> None:
    history = History(IMAGES, 2, 40)
    columns = [random_stream(0, 41, stacked, longest=60, shortest=60), random_stream(0, 41, unrelated)]
    with pytest.raises(ValueError, match=r"160 frames does not fit a ring of 56$"):
        history.reserve(unrolls(columns, 40)[0])


def test_an_unroll_whose_frames_just_fit_the_ring_takes_the_place_of_all_before_it() -> None:
    history = History(IMAGES, 1, 12)  # with room for 20 frames
    stream = random_stream(0, 16, unrelated)
    for number, unroll in enumerate(unrolls([stream], 5)):
        insert(history, experience(unroll))
        assert (history.oldest[0], history.written[0]) == (5 * number, 5 * number + 5)
        assert_as_written(history, [stream])


def test_an_unroll_that_is_longer_than_the_ring_is_refused() -> None:
    with pytest.raises(ValueError, match="an unroll of 8 steps does not fit a ring of 7"):
        History(FLAT, 1, 7).reserve(unrolls([random_stream(0, 9, named(0))], 8)[0])


@every_spec
def test_an_unroll_may_fill_the_whole_ring(spec: EnvSpec) -> None:
    history = History(spec, 1, 12)
    stream = random_stream(3, 121, observer(spec, 0), longest=20, shortest=9)
    for unroll in unrolls([stream], 12):
        insert(history, experience(unroll))
        assert_as_written(history, [stream])


@every_spec
def test_episodes_of_any_length_come_back_as_they_were_written(spec: EnvSpec) -> None:
    history = History(spec, 2, 40)
    streams = [random_stream(5 + number, 161, observer(spec, number), longest=9) for number in range(2)]
    for unroll in unrolls(streams, 8):
        insert(history, experience(unroll))
        assert_as_written(history, streams)


@pytest.mark.parametrize("length", [1, 4])
def test_an_observation_adds_one_frame_where_it_continues_the_one_before_it_and_else_all(length: int) -> None:
    """The first one adds all: frames of zeros before it are not in the ring."""
    frames = np.arange(1, 13, dtype=np.uint8)[:, None, None] + np.zeros((3, 3), dtype=np.uint8)
    frames[:3] = 0
    observation = np.stack([frames[step : step + 4] for step in range(9)])
    observation[6] = 99  # it continues nothing, and nothing continues it
    stream = random_stream(0, 9, named(0), longest=20, shortest=20)
    stream = Stream(**vars(stream) | {"observation": observation})
    history, added = History(IMAGES, 1, 12), []
    for unroll in unrolls([stream], length):
        added += history.reserve(unroll).new_frames[:, 0].tolist()
        insert(history, experience(unroll))
        assert_as_written(history, [stream])
    assert added == [4, 1, 1, 1, 1, 1, 4, 4]


@pytest.mark.parametrize("length", [1, 4])
def test_an_episode_that_was_abandoned_between_unrolls_is_truncated_once_that_is_known(length: int) -> None:
    flags = np.zeros(9, dtype=bool)
    stream = random_stream(0, 9, named(0), longest=8, shortest=8, endings=("truncated",))
    valid, start, abandoned = ~flags, flags.copy(), flags.copy()
    valid[length], start[[0, length + 1]], abandoned[length - 1] = False, True, True
    stream = Stream(
        **vars(stream)
        | {"valid": valid, "start": start, "terminated": flags, "truncated": abandoned, "abandoned": abandoned}
    )
    history = History(FLAT, 1, 20)
    first, second, *_ = unrolls([stream], length)
    assert not first.truncated.any()
    insert(history, experience(first))
    assert not history.field("truncated", torch.arange(length)).any()
    insert(history, experience(second))
    assert history.field("truncated", torch.arange(2 * length)).tolist() == abandoned[: 2 * length].tolist()


def test_a_dead_step_after_an_end_or_another_dead_one_truncates_nothing() -> None:
    stream = random_stream(1, 161, named(0), longest=2)
    for length in (1, 2, 3, 4, 5):
        history = History(FLAT, 1, 200)
        for unroll in unrolls([stream], length):
            insert(history, experience(unroll))
        assert_as_written(history, [stream])


# Recurrent states ---------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    period=st.integers(1, 12),
    unroll_length=st.integers(1, 9),
    extra=st.integers(0, 30),
    density=st.sampled_from([0.7, 1.0]),
)
def test_recurrent_states_come_back_at_their_steps_and_are_zeros_elsewhere(
    seed: int, period: int, unroll_length: int, extra: int, density: float
) -> None:
    length, rng = 2 * unroll_length + extra, np.random.default_rng(seed)
    history = History(FLAT, 2, length, [(2,), (1,)], period)
    streams = [random_stream(seed + number, 5 * length, named(number)) for number in range(2)]
    kept: list[list[int]] = [[], []]
    for unroll in unrolls(streams, unroll_length):
        begin, places = int(unroll.index[0]) * unroll_length, []
        for column in range(2):
            for step in range(begin, begin + unroll_length):
                if (not kept[column] or step - kept[column][-1] >= period) and rng.random() < density:
                    kept[column].append(step)
                    places.append((step - begin, column))
        rng.shuffle(places)
        insert(history, experience(unroll, [(int(step), int(column)) for step, column in places], range(2)))
        for column in range(2 if rng.random() < 0.3 else 0):
            steps, slots = readable(history, column)
            wanted = np.isin(steps, kept[column])
            named_state, step_state = history.states(slots)
            np.testing.assert_array_equal(named_state[:, 0], np.where(wanted, column, 0))
            np.testing.assert_array_equal(named_state[:, 1], np.where(wanted, steps, 0))
            np.testing.assert_array_equal(step_state[:, 0], np.where(wanted, steps + 0.5, 0))


def test_without_recurrent_states_there_are_none() -> None:
    history = History(FLAT, 1, 10)
    insert(history, experience(unrolls([random_stream(0, 6, named(0))], 5)[0]))
    assert history.states(torch.arange(5)) == ()


def test_every_state_may_be_kept_where_nothing_else_is_said() -> None:
    history = History(FLAT, 1, 10, [(2,), (1,)])
    for unroll in unrolls([random_stream(0, 41, named(0))], 5):
        insert(history, experience(unroll, [(step, 0) for step in range(5)]))
    steps, slots = readable(history, 0)
    assert len(steps) == 10
    assert history.states(slots)[1][:, 0].tolist() == [step + 0.5 for step in steps]


def test_where_nothing_was_written_the_state_is_zeros() -> None:
    history = History(FLAT, 1, 10, [(2,), (1,)])
    insert(history, experience(unrolls([random_stream(0, 6, named(0))], 5)[0], [(step, 0) for step in range(5)]))
    assert history.states(torch.arange(10))[1][:, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 0, 0, 0, 0, 0]


# Memory -------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_sequences_of_images_take_half_of_what_they_would_one_by_one() -> None:
    """120 steps each, 40 further on than the one before: 4,000,000 steps, each stored once."""
    spec = EnvSpec("test/atari", (STACK, 84, 84), "uint8", 18, 4, "test", frame_stack=STACK)
    small = History(spec, 1, 4000, [(512,), (512,)], state_period=40)
    whole = 100_000 * 120 * 84 * 84
    assert whole == 84_672_000_000
    assert small.nbytes * 100_000 * 40 / 4000 < whole / 2


def test_a_frame_is_stored_once() -> None:
    spec = EnvSpec("test/atari", (STACK, 84, 84), "uint8", 18, 4, "test", frame_stack=STACK)
    history, frame = History(spec, 2, 3200), 84 * 84
    places = 1 + STACK / EPISODE_STARTS  # one frame a step, and room for a whole stack in 16
    fields = 4 + 4 + 8 + 8 + 8 + 4  # two rewards, two actions, the version, four flags
    pointers = 8 + 8  # the newest frame, the episode's first step
    assert history.nbytes / (2 * 3200) == pytest.approx(places * frame + fields + pointers, rel=2e-3)
    assert history.nbytes / (2 * 3200) < 1.3 * frame


def test_memory_is_what_its_rings_take_byte_for_byte() -> None:
    fields = 4 + 4 + 8 + 8 + 8 + 4  # two rewards, two actions, the version, four flags
    step = fields + 8 + 8  # the newest frame, the episode's first step
    assert History(FLAT, 2, 10).nbytes == 2 * 10 * (step + 3 * 4)
    assert History(IMAGES, 2, 10).nbytes == 2 * (10 * step + (10 + 4 * 2) * 9)
    rows = 10 // 3 + 2  # of recurrent states
    assert History(FLAT, 2, 10, [(2,), (1,)], 3).nbytes == 2 * (10 * (step + 3 * 4 + 4) + rows * (2 + 1) * 4)


# State --------------------------------------------------------------------------------------------------------------


def restored(history: History, copy: History) -> None:
    """`copy` continues as `history`, by way of a file."""
    file = io.BytesIO()
    torch.save(history.state_dict(), file)
    file.seek(0)
    copy.load_state_dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@every_spec
@pytest.mark.parametrize("before", [0, 1, 4, 30])
def test_a_restored_history_continues_bit_for_bit(spec: EnvSpec, before: int, used: bool) -> None:
    streams = [random_stream(7 + number, 301, observer(spec, number)) for number in range(2)]
    made = [
        experience(unroll, [(number % 6, number % 2)], range(2)) for number, unroll in enumerate(unrolls(streams, 6))
    ]
    history, copy = (History(spec, 2, 60, [(2,), (1,)], state_period=6) for _ in range(2))
    for one in made[5 : 5 + 20 * used]:  # what a history held before it was restored is of no account
        insert(copy, one)
    for one in made[:before]:
        insert(history, one)
    restored(history, copy)
    assert_the_same(history, copy)
    for one in made[before:]:
        for each in (history, copy):
            insert(each, one)
        assert_the_same(history, copy)
    assert_as_written(copy, streams)


def test_a_history_of_single_steps_that_is_restored_into_a_used_one_continues_its_first_episode() -> None:
    stream = random_stream(7, 61, named(0), longest=9, shortest=9)
    history, copy = History(FLAT, 1, 20), History(FLAT, 1, 20)
    single = [experience(unroll) for unroll in unrolls([stream], 1)]
    for one in single[:50]:
        insert(copy, one)
    insert(history, single[0])
    restored(history, copy)
    for one in single[1:40]:
        insert(copy, one)
        assert_as_written(copy, [stream])


@every_spec
def test_an_actor_that_is_ahead_of_another_is_restored_with_all_its_steps(spec: EnvSpec) -> None:
    streams = [random_stream(7 + number, 61, observer(spec, number)) for number in range(2)]
    history, copy = (History(spec, 2, 60, [(2,), (1,)], state_period=6) for _ in range(2))
    for actor, number in ((0, 8), (1, 2)):
        for unroll in unrolls([streams[actor]], 6, actor=actor)[:number]:
            insert(history, experience(unroll, [(0, 0)], [actor]))
    restored(history, copy)
    assert copy.written.tolist() == [48, 12]
    assert_the_same(history, copy)
    assert_as_written(copy, streams)


def assert_the_same(one: History, other: History) -> None:
    for number in range(2):
        np.testing.assert_array_equal(one.written, other.written)
        np.testing.assert_array_equal(one.oldest, other.oldest)
        slots = readable(one, number)[1]
        assert torch.equal(one.observations(slots), other.observations(slots))
        assert all(torch.equal(one.field(name, slots), other.field(name, slots)) for name in FIELDS)
        assert torch.equal(one.first(slots), other.first(slots))
        assert all(torch.equal(mine, its) for mine, its in zip(one.states(slots), other.states(slots), strict=True))


@pytest.mark.parametrize("spec", [IMAGES, FLAT], ids=["images", "flat"])
def test_a_checkpoint_of_a_history_that_is_hardly_filled_is_small(spec: EnvSpec) -> None:
    history = History(spec, 2, 10_000, [(2,), (1,)])
    streams = [random_stream(0, 6, observer(spec, number)) for number in range(2)]
    insert(history, experience(unrolls(streams, 5)[0], [(2, 1)], range(2)))
    file = io.BytesIO()
    torch.save(history.state_dict(), file)
    assert len(file.getvalue()) < 20_000 < history.nbytes
