"""Interrupts training after a number of its roles' turns: a moment that no clock decides."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ddrl.coordinator.program import Program
from ddrl.runtimes.serial import SerialRuntime


@contextmanager
def interrupted_after(turns: int) -> Iterator[None]:
    """Within it SIGTERM comes before the turn of that number, of serial runs one after the other; they count from 0."""
    carry_out = SerialRuntime.run
    left = iter(range(turns))

    def run(self: SerialRuntime, program: Program) -> None:
        def interrupted() -> bool:
            if next(left, None) is None:
                signal.raise_signal(signal.SIGTERM)
            return program.interrupted()

        carry_out(self, dataclasses.replace(program, interrupted=interrupted))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SerialRuntime, "run", run)
        yield
