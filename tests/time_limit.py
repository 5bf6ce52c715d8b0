"""A test that takes too long fails, with what it says, before `faulthandler_timeout` ends the whole process.

That ends the process at once: of an assertion that failed and whose test then hangs as its threads are joined, or its
fixtures are taken down, nothing would be seen. So some time before, the main thread gets an exception where it waits;
pytest reports it as any other failure, after the one on whose way out it came. Whoever hangs on, in the next fixture
say, gets another one every few seconds. What cannot be interrupted, and what threads that are left behind do to the end
of the process, is still ended by force.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

MARGIN_S = 20.0
"""Before `faulthandler_timeout`; at most a fifth of it."""
AGAIN_S = 5.0
"""Whoever hangs on gets another exception after so long; at most a twentieth of it."""
LEFTOVER_S = 30.0
"""That the process has to end in after a test that took too long: its threads may never end."""


class TookTooLong(AssertionError):
    """Raised in the main thread, wherever it is."""


class Limit:
    """Of one test run; `over` counts the tests that took too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.allowed = seconds - min(MARGIN_S, seconds / 5)
        self._again = min(AGAIN_S, seconds / 20)
        self._test: str | None = None
        self._within = False
        self.over = 0

    @property
    def applies(self) -> bool:
        """There is a limit, and signals come to this thread."""
        return self._seconds > 0 and threading.current_thread() is threading.main_thread()

    @contextmanager
    def of_test(self, name: str) -> Iterator[None]:
        """The time of a test runs within the block, of all its phases together."""
        before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self.allowed, self._again)
        self._test = name
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            self._test = None

    @contextmanager
    def within(self) -> Iterator[None]:
        """An exception may be raised within the block: pytest makes a failure of it."""
        self._within = True
        try:
            yield
        finally:
            self._within = False

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if not self._within or self._test is None:
            return  # pytest's own code would be interrupted; the next signal comes soon
        self.over += 1
        faulthandler.dump_traceback(file=sys.__stderr__)  # of all threads, as at the end of the whole process
        raise TookTooLong(
            f"{self._test} took longer than {self.allowed:g} s (faulthandler_timeout: {self._seconds:g} s)"
        )


LIMIT = pytest.StashKey[Limit]()


def limit_of(config: pytest.Config) -> Limit:
    """Made once a run, from the configuration."""
    if LIMIT not in config.stash:
        config.stash[LIMIT] = Limit(float(config.getini("faulthandler_timeout") or 0.0))
    return config.stash[LIMIT]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Starts and stops the time of a test."""
    limit = limit_of(item.config)
    if not limit.applies:
        return (yield)
    with limit.of_test(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A fixture may take too long."""
    with limit_of(item.config).within():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test may take too long."""
    with limit_of(item.config).within():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """And so may what takes down its fixtures."""
    with limit_of(item.config).within():
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """All has been said: threads of a test that took too long may no longer keep the process."""
    if limit_of(config).over:
        faulthandler.dump_traceback_later(LEFTOVER_S, exit=True, file=sys.__stderr__)
