"""A test that hangs fails with what it had to say, and the rest of the tests go on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import ROOT
from tests.time_limit import Limit

HANGING = """
import threading
import time

import pytest


@pytest.fixture
def stubborn():
    yield
    time.sleep(60)


def test_that_asserts_and_then_hangs_on_its_way_out():
    worker = threading.Event()
    try:
        assert 6 * 7 == 43, "the telling words"
    finally:
        worker.wait()


def test_whose_fixture_hangs(stubborn):
    assert "one" == "two"


def test_that_is_well():
    pass
"""


@pytest.mark.slow
def test_a_test_that_hangs_fails_with_its_own_assertion_before_the_process_is_ended(tmp_path: Path) -> None:
    (tmp_path / "hanging_test.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.time_limit", "-p", "no:cacheprovider"]
    options = ["-o", "faulthandler_timeout=4", "-o", "faulthandler_exit_on_timeout=true", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, *options, str(tmp_path / "hanging_test.py")], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 1 passed, 1 error" in done.stdout, done.stdout
    assert "AssertionError: the telling words" in done.stdout
    assert "During handling of the above exception, another exception occurred" in done.stdout
    assert re.search(r"TookTooLong: \S*test_that_asserts_and_then_hangs_on_its_way_out took longer than", done.stdout)
    assert "assert 'one' == 'two'" in done.stdout
    assert re.search(r"TookTooLong: \S*test_whose_fixture_hangs took longer than 3\.2 s", done.stdout)
    assert "most recent call first" in done.stdout, "the stacks of all threads"


def test_there_is_time_left_to_say_what_failed_before_the_process_is_ended() -> None:
    assert [Limit(seconds).allowed for seconds in (180.0, 600.0, 7200.0, 10.0)] == [160.0, 580.0, 7180.0, 8.0]
    assert not Limit(0.0).applies
