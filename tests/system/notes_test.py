"""A reader that goes away ends the display, never the run."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from ddrl import cli
from ddrl.errors import UserError
from ddrl.system import notes
from ddrl.system.exit_code import exit_code
from ddrl.training.records import progress
from ddrl.training.records.progress import Progress
from ddrl.training.records.recorder import Counts
from tests import processes
from tests.runs import BASE, merged

SHORT = merged(BASE, {"env_frames": 400, "evaluation": {"period_frames": None, "final_episodes": 1}})


class Failing:
    """A standard error whose writes fail from the second one on."""

    encoding = "utf-8"

    def __init__(self, error: Exception, *, in_terminal: bool = False) -> None:
        self.error = error
        self.in_terminal = in_terminal
        self.writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        if self.writes > 1:
            raise self.error
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""

    def isatty(self) -> bool:
        return self.in_terminal

    def fileno(self) -> int:
        raise io.UnsupportedOperation


@contextmanager
def pipe_without_reader() -> Iterator[IO[str]]:
    """As `| head -1` leaves it."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as file:
        yield file


@contextmanager
def full_disk() -> Iterator[IO[str]]:
    with open("/dev/full", "w", buffering=1) as file, open(os.devnull, "w") as nowhere:
        yield file
        os.dup2(nowhere.fileno(), file.fileno())  # or closing it, which writes what is left, would raise


def assert_trains_to_its_end(tmp_path: Path, runtime: str, *options: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(merged(SHORT, {"topology": {"runtime": runtime}})))
    assert cli.main(["train", str(path), "--directory", str(tmp_path / "run"), *options]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_reason"] == "budget_reached"


@pytest.mark.parametrize(
    ("runtime", "error"),
    [
        ("serial", BrokenPipeError(errno.EPIPE, "nobody reads")),
        ("threads", OSError(errno.EIO, "the terminal is gone")),
        ("threads", ValueError("I/O operation on closed file")),
        ("serial", OSError(errno.ENOSPC, "the disk is full")),
    ],
    ids=["pipe", "terminal", "closed", "full"],
)
@pytest.mark.parametrize("in_terminal", [False, True], ids=["lines", "bar"])
def test_a_run_whose_reader_goes_away_reaches_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, error: Exception, in_terminal: bool
) -> None:
    for name in ("LINE_SECONDS", "BAR_SECONDS"):
        monkeypatch.setattr(progress, name, 0.0)
    stream = Failing(error, in_terminal=in_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert_trains_to_its_end(tmp_path, runtime)
    assert stream.writes > 1


@pytest.mark.parametrize("lost", [pipe_without_reader, full_disk])
def test_so_it_is_with_a_real_pipe_and_a_real_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Any
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with lost() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert_trains_to_its_end(tmp_path, "serial")


def train_into_nothing(config: Path, directory: Path) -> None:
    """`ddrl train ... 2>/dev/full`, as the whole of a process."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 (as the interpreter opens it)
    sys.argv = ["ddrl", "train", str(config), "--directory", str(directory)]
    cli.command.__globals__["main"].__defaults__ = (sys.argv[1:],)
    cli.command()


def test_the_exit_code_is_that_of_the_run_though_its_last_words_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHORT))
    assert processes.finish(processes.start(train_into_nothing, path, tmp_path), 100.0) == 0
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize("error", [UserError("no such key"), SystemExit(0)], ids=["user error", "SystemExit"])
def test_bad_input_is_bad_input_though_nobody_reads_why(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys, "stderr", Failing(BrokenPipeError()))
    sys.stderr.write("the line that was read")
    assert exit_code(fail) == 2


def test_a_disk_that_is_full_for_a_while_hides_only_the_lines_of_that_while(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    stream = Failing(OSError(errno.ENOSPC, "the disk is full"))
    monkeypatch.setattr(sys, "stderr", stream)
    for line in ("before\n", "meanwhile\n"):
        notes.say(line, end="")
    monkeypatch.setattr(stream, "write", written.append)
    notes.say("after\n", end="")
    assert "".join(written) == "after\n"
    assert sys.stderr is stream


def test_a_broken_pipe_that_is_not_the_readers_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def systems(parsed: object) -> int:
        raise BrokenPipeError("to another process")

    monkeypatch.setattr("ddrl.cli.commands.systems", systems)
    with open(os.devnull, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(BrokenPipeError, match="to another process"):
            cli.main(["systems"])


def test_a_bar_draws_into_a_terminal_and_says_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    stream = Failing(RuntimeError(), in_terminal=True)
    monkeypatch.setattr(stream, "write", written.append)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with Progress(1000) as shown:
        shown.show(Counts(0, 0, 0), {})
        shown.show(Counts(400, 100, 1), {"episode_return": 1.5})
        shown.note("a [bracketed] note")
        notes.say("from elsewhere")
    drawn = "".join(written)
    for word in ("1,000 frames", "return 1.50", "a [bracketed] note", "from elsewhere"):
        assert word in drawn
    assert sys.stderr is stream
