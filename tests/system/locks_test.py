"""The lock of a run directory: says who has it, and ends a workflow's own orphan and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddrl import cli
from ddrl.api.launch import train
from ddrl.errors import UserError
from ddrl.system.locks import WORKFLOW, Holder, Started, locked, open_lock, read_holder
from tests import processes
from tests.processes import finish
from tests.runs import config, curves

HOLD = """
import signal, sys
from pathlib import Path
from ddrl.system.locks import locked
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
with locked(Path(sys.argv[1])):
    print("has it", flush=True)
    signal.pause()
"""
"""A process that has the lock until SIGTERM."""
LONG = config(env_frames=2**40, checkpoint={"period_frames": 1000}, evaluation={"period_frames": None})


def gone() -> Started:
    """A process that was there and is not any more."""
    with subprocess.Popen(["sleep", "9"]) as process:
        found = started(process.pid)
        process.kill()
    return found


def started(pid: int) -> Started:
    return Started(socket.gethostname(), pid, psutil.Process(pid).create_time())


def variable(workflow: Started) -> str:
    return json.dumps(dataclasses.asdict(workflow))


class Rig:
    """A process that has the lock of a directory, as a job of a workflow that is gone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "lock"
        variables = {**os.environ, WORKFLOW: variable(gone())}
        command = [sys.executable, "-c", HOLD, str(directory)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables)
        assert self.process.stdout is not None and self.process.stdout.readline() == b"has it\n"
        with open_lock(self.path) as file:
            holder = read_holder(file)
        assert holder is not None
        self.holder: Holder = holder

    def say(self, **changes: Any) -> None:
        """Another holder in the lock file."""
        self.path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(self.holder, **changes))))

    def wait(self, seconds: float) -> list[str]:
        """Takes the lock, waiting so long; returns what was said meanwhile, and the error."""
        said: list[str] = []
        try:
            with locked(self.directory, seconds, said.append):
                said.append("taken")
        except UserError as error:
            said.append(str(error))
        return said


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a job of a workflow that is at work: of its own parent."""
    monkeypatch.setenv(WORKFLOW, variable(started(os.getppid())))


def test_who_waits_says_at_once_for_whom_and_so_does_the_error(rig: Rig) -> None:
    waiting, error = rig.wait(0.3)
    who = f"process {rig.process.pid} on host {socket.gethostname()}, since {rig.holder.since}: {sys.executable} -c"
    assert waiting.startswith(f"{rig.directory}: waiting for up to 0 s for {who}")
    assert error.startswith(f"{rig.directory}: another process is training in this run directory: {who}")
    assert "\n" not in waiting + error
    assert rig.process.poll() is None


@pytest.mark.usefixtures("job")
def test_the_orphan_of_a_workflow_that_is_gone_is_asked_to_end(rig: Rig) -> None:
    waiting, asked, taken = rig.wait(20.0)
    assert f"process {rig.process.pid}" in waiting
    assert asked.endswith("the workflow that started it is gone; it was asked to save and end (SIGTERM)")
    assert (taken, rig.process.wait(10)) == ("taken", 75)


def test_who_is_no_job_of_a_workflow_ends_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for workflow in ("", "{", "[1]", '{"host": 1, "pid": 1, "start": 1}', variable(gone())):
        monkeypatch.setenv(WORKFLOW, workflow)
        assert len(rig.wait(0.2)) == 2
    assert rig.process.poll() is None


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("what", ["workflow lives", "no workflow", "other host", "other user", "recycled", "innocent"])
def test_a_process_that_is_not_proven_to_be_our_orphan_is_left_alone(rig: Rig, what: str) -> None:
    me, other = started(os.getpid()), dataclasses.replace(rig.holder.process, host="elsewhere")
    with subprocess.Popen(["sleep", "60"]) as innocent:
        changes: dict[str, dict[str, Any]] = {
            "workflow lives": {"workflow": me},
            "no workflow": {"workflow": None},
            "other host": {"process": other},
            "other user": {"user": rig.holder.user + 1},
            "recycled": {"process": dataclasses.replace(rig.holder.process, start=rig.holder.process.start - 60)},
            "innocent": {"process": started(innocent.pid)},  # of this user, and it has nothing to do with the lock
        }
        rig.say(**changes[what])
        assert len(rig.wait(0.3)) == 2
        assert innocent.poll() is None and rig.process.poll() is None
        innocent.kill()


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[" * 20_000, b"[]", b'{"process": 3}', b'{"process": {"host": 1}, "workflow": 2}']
)
def test_a_lock_that_says_nothing_sound_is_waited_for_all_the_same(tmp_path: Path, content: bytes) -> None:
    said: list[str] = []
    with locked(tmp_path):
        (tmp_path / "lock").write_bytes(content)
        with pytest.raises(UserError, match="another process is training"), locked(tmp_path, 0.05, said.append):
            pass
    assert said[0].endswith("s for a process that has not said who it is")


def test_a_lock_speaks_of_its_holder_alone(tmp_path: Path) -> None:
    with locked(tmp_path):
        holder = json.loads((tmp_path / "lock").read_text())
        assert holder["process"]["pid"] == os.getpid()
        assert holder["user"] == os.getuid()
    assert (tmp_path / "lock").read_text() == ""


def test_a_lock_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(UserError, match=r"lock: is a folder, not a file$"), locked(tmp_path):
        pass


def test_the_words_of_a_lock_cannot_drive_a_terminal() -> None:
    me = started(os.getpid())
    holder = Holder(me, 0, "today", "\x1b[2Jddrl\ntrain", "", None)
    assert holder.describe().endswith("since today:  [2Jddrl train")


def as_job(workflow: str, path: Path, run: Path) -> None:
    """`ddrl train`, as the whole of a process that a workflow has started."""
    os.environ[WORKFLOW] = workflow
    sys.exit(cli.main(["train", str(path), "--directory", str(run), "--quiet"]))


def test_a_job_goes_on_where_the_orphan_of_a_killed_workflow_has_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The orphan trains for ever; the next job asks it to end, and reaches a budget a little beyond its checkpoint."""
    run, path = tmp_path / "run", tmp_path / "config.json"
    path.write_text(json.dumps(dataclasses.asdict(LONG)))
    orphan = processes.start(as_job, variable(gone()), path, run)
    while not list(run.glob("checkpoints/*.sha256")):
        time.sleep(0.02)
        assert orphan.is_alive()
    monkeypatch.setenv(WORKFLOW, variable(started(os.getppid())))
    budget = 10_000
    try:
        assert train(dataclasses.replace(LONG, env_frames=budget), run, quiet=True, wait=100.0) == "budget_reached"
        assert finish(orphan, 10) == 75
    finally:
        orphan.kill()
    said = capfd.readouterr().err
    assert "it was asked to save and end (SIGTERM)" in said and "Traceback" not in said
    assert json.loads((run / "run.json").read_text())["resumes"] == 1
    assert curves(run).env_frames.is_monotonic_increasing
