"""The uniform replay keeps the newest columns and draws each with the same probability."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ddrl.replay.uniform import UniformReplay
from ddrl.system.seeding import numpy_generator
from tests.unrolls import make_unroll, tags


@given(st.integers(1, 8), st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_it_holds_the_newest_columns_up_to_its_capacity(capacity: int, sizes: list[int]) -> None:
    replay, inserted = UniformReplay(capacity, numpy_generator(0, "replay")), []
    for index, size in enumerate(sizes):
        unroll = make_unroll(columns=size, first_tag=10 * index)
        inserted += tags(unroll)
        replay.insert(unroll)
    assert len(replay) == min(capacity, len(inserted))
    assert set(tags(replay.sample(200))) <= set(inserted[-capacity:])


def test_every_column_is_drawn_equally_often() -> None:
    replay = UniformReplay(8, numpy_generator(0, "replay"))
    replay.insert(make_unroll(columns=8))
    counts = np.bincount(tags(replay.sample(8000)), minlength=8)
    assert chisquare(counts).pvalue > 1e-3


def test_a_stored_column_does_not_change_with_the_unroll_it_came_from() -> None:
    replay, unroll = UniformReplay(4, numpy_generator(0, "replay")), make_unroll(first_tag=5)
    replay.insert(unroll)
    unroll.reward.zero_()
    assert set(tags(replay.sample(20))) == {5, 6}


def test_a_restored_replay_draws_the_same_columns() -> None:
    replay = UniformReplay(5, numpy_generator(0, "replay"))
    for index in range(3):
        replay.insert(make_unroll(columns=3, first_tag=10 * index))
    copy = UniformReplay(5, numpy_generator(1, "replay"))
    copy.load_state_dict(replay.state_dict())
    for store in (replay, copy):
        store.insert(make_unroll(columns=1, first_tag=99))
    assert tags(replay.sample(50)) == tags(copy.sample(50))
