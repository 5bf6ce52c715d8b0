"""Seconds that roles wait for each other."""

from __future__ import annotations

import threading
import time

from ddrl.waiting import WaitClock


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

    waiting = [threading.Thread(target=wait) for _ in range(2)]
    for thread in waiting:
        thread.start()
    assert begun.wait(10)
    before = clock.seconds
    time.sleep(0.02)
    assert clock.seconds - before >= 0.02
    go.set()
    for thread in waiting:
        thread.join()
    after = clock.seconds
    assert after > over
    assert clock.seconds == after
