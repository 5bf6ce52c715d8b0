"""Times of sums over a ring of workers."""

from __future__ import annotations

import pytest

from ddrl.analysis.ring import Ring


def test_a_sum_has_two_hops_less_than_twice_the_workers_each_with_a_part() -> None:
    ring = Ring(latency=0.001, transfer=0.008)
    assert ring.seconds(1) == 0.0
    assert ring.seconds(2) == pytest.approx(2 * (0.001 + 0.004))
    assert ring.seconds(8) == pytest.approx(14 * (0.001 + 0.001))


def test_two_workers_take_what_was_measured_of_them() -> None:
    """One number is hardly more than two messages; a gradient takes as long as was measured."""
    assert Ring.of_two(0.0002, 0.0006).seconds(2) == pytest.approx(0.0006)
    assert Ring.of_two(0.0002, 0.0002).latency == pytest.approx(0.0001)
