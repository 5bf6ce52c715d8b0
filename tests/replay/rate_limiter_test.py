"""The limiter keeps samples per insert near the ratio, in every order of both sides, and never makes both wait."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddrl.errors import UserError
from ddrl.replay.rate_limiter import Limiter

ratios = st.one_of(st.floats(0.01, 100.0), st.sampled_from([0.25, 0.5, 1.0, 4.0, 8.0]))
batches = st.integers(1, 64)
inserts = st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any)
"""Items of one insert after the other, over and over."""


def limiter(ratio: float | None, *, min_size: int = 1, error_buffer: float = 8.0, batch_size: int = 4) -> Limiter:
    return Limiter(min_size, ratio, error_buffer, batch_size)


@given(
    ratio=ratios,
    batch=batches,
    surplus=st.floats(0, 100),
    min_size=st.integers(1, 200),
    sizes=inserts,
    seed=st.integers(0, 2**32 - 1),
)
def test_the_ratio_is_kept_within_the_buffer_in_any_order(
    ratio: float, batch: int, surplus: float, min_size: int, sizes: list[int], seed: int
) -> None:
    buffer, rng = batch / 2 + surplus, np.random.default_rng(seed)
    found = limiter(ratio, min_size=min_size, error_buffer=buffer, batch_size=batch)
    inserted = sampled = 0
    offset: int | None = None
    for turn in range(300):
        size = sizes[turn % len(sizes)]
        if rng.random() < 0.5 and found.can_insert():
            inserted += size
            found.insert(size, inserted)
            if offset is None and inserted >= min_size:
                offset = inserted
        elif found.can_sample(batch):
            sampled += batch
            found.sample(batch)
        assert (found.inserted, found.sampled, found.offset) == (inserted, sampled, offset)
        if offset is None:
            assert sampled == 0
            continue
        due = ratio * (inserted - offset)
        assert found.credit == pytest.approx(due - sampled)
        assert -buffer - 1e-6 <= due - sampled <= buffer + ratio * max(sizes) + 1e-6
        assert found.samples_per_insert == (sampled / (inserted - offset) if inserted > offset else 0)


@given(ratio=ratios, batch=batches, surplus=st.floats(0, 100), min_size=st.integers(1, 200), sizes=inserts)
def test_one_side_may_always_go_on(ratio: float, batch: int, surplus: float, min_size: int, sizes: list[int]) -> None:
    """Whichever of both is preferred."""
    for prefers_samples in (False, True):
        found = limiter(ratio, min_size=min_size, error_buffer=batch / 2 + surplus, batch_size=batch)
        for turn in range(200):
            may = found.can_insert(), found.can_sample(batch)
            assert any(may)
            if may[1] and (prefers_samples or not may[0]):
                found.sample(batch)
            else:
                found.insert(sizes[turn % len(sizes)], found.inserted + sizes[turn % len(sizes)])
        assert found.inserted


@given(batch=batches, buffer=st.floats(0.01, 100), ratio=ratios)
def test_less_than_half_a_batch_could_make_both_wait_and_is_refused(batch: int, buffer: float, ratio: float) -> None:
    assume(2 * buffer < batch)
    with pytest.raises(UserError, match=r"^key 'hyperparameters\.error_buffer' must be at least [\d.]+, half a batch"):
        limiter(ratio, error_buffer=buffer, batch_size=batch)
    limiter(None, error_buffer=buffer, batch_size=batch)


def test_the_refusal_says_who_would_wait_for_whom() -> None:
    with pytest.raises(UserError) as refusal:
        limiter(1.0, error_buffer=31.5, batch_size=64)
    assert str(refusal.value) == (
        "key 'hyperparameters.error_buffer' must be at least 32, half a batch (got 31.5): with less, the learner would "
        "wait for the inserts of 64 samples, while actors wait for the learner"
    )
    limiter(1.0, error_buffer=32, batch_size=64)


def test_by_hand_with_two_samples_per_insert() -> None:
    found = limiter(2.0, min_size=10, error_buffer=6.0, batch_size=4)
    found.insert(9, 9)
    assert found.can_insert()
    assert not found.can_sample(4)
    found.insert(3, 12)  # 12 items are enough; what came before earns nothing
    assert (found.credit, found.offset) == (0.0, 12)
    found.sample(4)  # 4 of the 6 that the learner may be ahead
    assert (found.credit, found.can_sample(4), found.can_sample(2)) == (-4.0, False, True)
    found.insert(1, 13)
    assert (found.credit, found.can_sample(4)) == (-2.0, True)
    found.insert(4, 17)
    assert (found.credit, found.can_insert()) == (6.0, True)
    found.insert(1, 18)
    assert (found.credit, found.can_insert()) == (8.0, False)
    found.sample(4)
    assert (found.credit, found.can_insert()) == (4.0, True)
    assert found.samples_per_insert == 8 / 6


def test_without_a_ratio_both_sides_run_freely_once_there_is_enough() -> None:
    found = limiter(None, min_size=5, error_buffer=0.5, batch_size=512)
    for size in range(1, 5):
        found.insert(1, size)
        assert found.can_insert()
        assert not found.can_sample(1)
    found.insert(1, 5)
    for _ in range(100):
        assert found.can_sample(512)
        found.sample(512)
        assert found.can_insert()
        assert found.credit == 0
    for size in range(6, 1000):
        found.insert(1, size)
        assert found.can_insert()
    assert found.samples_per_insert == 51_200 / 994


def test_it_is_the_items_that_are_there_that_must_be_enough_not_those_that_ever_came() -> None:
    found = limiter(1.0, min_size=5)
    found.insert(4, 4)
    found.insert(4, 4)  # as many were given up
    assert not found.can_sample(1)
    found.insert(1, 5)
    assert found.can_sample(1)
    found.insert(1, 3)  # fewer again: sampling goes on
    assert found.can_sample(1)


@pytest.mark.parametrize("ratio", [1.0, None])
def test_a_refill_starts_anew_with_another_minimum(ratio: float | None) -> None:
    found = limiter(ratio, min_size=2)
    found.insert(10, 10)
    found.sample(4)
    found.refill(0, 7)
    assert (found.inserted, found.sampled, found.samples_per_insert) == (0, 0, 0.0)
    for size in range(1, 7):
        found.insert(1, size)
        assert found.can_insert()
        assert not found.can_sample(1)
    found.insert(1, 7)
    assert found.can_sample(1)
    assert (found.offset, found.credit) == (7, 0.0)


def test_a_refill_of_what_is_full_already_may_be_sampled_at_once() -> None:
    found = limiter(1.0)
    found.refill(7, 7)
    assert found.can_sample(1)


@pytest.mark.parametrize("turns", [0, 3, 40])
def test_a_restored_limiter_continues_identically(turns: int) -> None:
    found, copy = limiter(0.7, min_size=10), limiter(0.7, min_size=10)
    rng = np.random.default_rng(0)

    def play(one: Limiter, draws: list[bool]) -> list[bool]:
        for inserts_first in draws:
            if inserts_first and one.can_insert():
                one.insert(3, one.inserted + 3)
            elif one.can_sample(4):
                one.sample(4)
        return [one.can_insert(), one.can_sample(4)]

    play(found, (rng.random(turns) < 0.5).tolist())
    copy.load_state_dict(found.state_dict())
    rest = (rng.random(60) < 0.5).tolist()
    assert play(found, rest) == play(copy, rest)
    assert found.state_dict() == copy.state_dict()
