"""Seconds that roles wait for each other."""

from __future__ import annotations

import threading
import time

import pytest

from ddrl.system import wait_clock
from ddrl.system.wait_clock import DutyCycle, WaitClock


def test_waits_that_are_over_and_waits_under_way_add_up() -> None:
    clock = WaitClock()
    with clock.running():
        time.sleep(0.02)
    over = clock.seconds
    assert over >= 0.02
    assert clock.seconds == over, "nobody waits"
    go, begun = threading.Event(), threading.Event()

    def wait() -> None:
        with clock.running():
            begun.set()
            go.wait()

    wait_clock = [threading.Thread(target=wait) for _ in range(2)]
    for thread in wait_clock:
        thread.start()
    assert begun.wait(10)
    before = clock.seconds
    time.sleep(0.02)
    assert clock.seconds - before >= 0.02
    go.set()
    for thread in wait_clock:
        thread.join()
    after = clock.seconds
    assert after > over
    assert clock.seconds == after


def test_a_duty_cycle_is_the_part_of_the_time_without_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, waited = [50.0], [100.0]
    monkeypatch.setattr(wait_clock.time, "perf_counter", lambda: now[0])
    duty = DutyCycle(lambda: waited[0])
    now[0] += 8.0
    assert duty.take() == 1.0
    now[0], waited[0] = now[0] + 8.0, waited[0] + 2.0
    assert duty.take() == 0.75
    now[0], waited[0] = now[0] + 8.0, waited[0] + 8.1
    assert duty.take() == 0.0
