"""Signals stop a run after a checkpoint, and end one that hangs with the newest checkpoint as it was."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddrl import cli
from ddrl.api.launch import train
from ddrl.environments.toy import ToyEnvs
from ddrl.system import signals
from ddrl.system.calls import EnvironmentCall
from ddrl.system.signals import STOP, StopRequest, stopping
from ddrl.training.records import checkpoint
from ddrl.training.run import Run
from tests import processes
from tests.runs import BASE, config, merged

Ended = list[tuple[str, int]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Why the process would have been ended, and by which signal; patience is short."""
    found: Ended = []
    monkeypatch.setattr(signals, "_end", lambda why, number, directory: found.append((why, number)))
    monkeypatch.setattr(signals, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(signals, "POLL_SECONDS", 0.05)
    return found


@pytest.mark.parametrize("number", STOP)
@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_each_of_the_signals_saves_a_checkpoint_and_the_exit_code_says_that_it_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, runtime: str
) -> None:
    def learn(self: Run) -> None:
        whole(self)
        if self.learner.core.updates == 5:
            os.kill(os.getpid(), number)

    whole = Run._learn
    monkeypatch.setattr(Run, "_learn", learn)
    path = tmp_path / "config.json"
    never = {"env_frames": 2**40, "checkpoint": {"period_frames": 2**40}, "topology": {"runtime": runtime}}
    path.write_text(json.dumps(merged(BASE, never | {"evaluation": {"period_frames": None}})))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may have been started by `nohup`
    before = [signal.getsignal(one) for one in STOP]
    assert cli.main(["train", str(path), "--quiet"]) == 75
    assert len(list((tmp_path / "checkpoints").glob("*.sha256"))) == 1
    assert [signal.getsignal(one) for one in STOP] == before


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    asked: list[bool] = []
    try:
        with stopping(lambda: asked.append(True)):
            signal.raise_signal(signal.SIGHUP)
            assert not asked
            signal.raise_signal(signal.SIGUSR1)
            assert asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_that_come_while_a_checkpoint_is_saved_do_not_end_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    def save(directory: Path, updates: int, state: dict[str, Any]) -> Path:
        for _ in range(2):  # the first and the second one of the run
            signal.raise_signal(signal.SIGTERM)
        time.sleep(0.6)  # longer than patience: nothing but a call into an environment is waited for with patience
        return whole(directory, updates, state)

    whole = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(Run, "_is_finished", lambda self: self.learner.core.updates >= 3)
    assert train(config(checkpoint={"period_frames": 2**40}), tmp_path, quiet=True) == "interrupted"
    assert len(list((tmp_path / "checkpoints").glob("*.sha256"))) == 1
    assert ended == []


def test_an_environment_that_hangs_in_the_main_thread_ends_the_process_after_a_signal(ended: Ended) -> None:
    with stopping(lambda: None), EnvironmentCall("actor 3"):
        time.sleep(0.5)
        assert ended == [], "without a signal nothing is ended"
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.6)
    assert "actor 3 has not answered for" in ended[0][0]
    assert ended[0][1] == signal.SIGUSR1


def test_calls_that_return_one_after_another_are_no_hanging_environment(ended: Ended) -> None:
    with stopping(lambda: None):
        signal.raise_signal(signal.SIGTERM)
        for _ in range(6):
            with EnvironmentCall("actor 3"):
                time.sleep(0.1)
    assert ended == []


def test_a_third_signal_ends_the_process_unless_all_came_at_once(
    ended: Ended, capsys: pytest.CaptureFixture[str]
) -> None:
    with stopping(lambda: None):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)
        assert ended == []
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.3)
    assert "three times" in ended[0][0]
    assert "a third signal" in capsys.readouterr().err


def test_the_exit_code_of_a_forced_end_says_whether_there_is_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    signals._end("it hangs", signal.SIGTERM, tmp_path)
    for number in (7, 30):
        checkpoint.save(tmp_path / "members" / "2" / "checkpoints", number, {})
    signals._end("it hangs", signal.SIGTERM, tmp_path)
    assert codes == [128 + signal.SIGTERM, 75]
    first, second = capsys.readouterr().err.splitlines()
    assert first == "ddrl: it hangs; no checkpoint yet: the same command begins anew"
    assert second == f"ddrl: it hangs; the same command goes on from {tmp_path}/members/2/checkpoints/{30:012d}.pt"


def test_a_request_that_comes_before_who_can_answer_it_is_answered() -> None:
    asked: list[str] = []
    request = StopRequest()
    request.ask()
    request.answer(lambda: asked.append("stopped"))
    assert asked == ["stopped"]
    request.ask()
    assert asked == ["stopped"] * 2


# The real thing, in processes of their own ---------------------------------------------------------------------------


def in_python() -> None:
    """Never returns; other threads, and handlers of signals, go on."""
    while True:
        time.sleep(0.05)


def in_native_code() -> None:
    """Never returns: a lock that is taken twice, which no signal interrupts. Other threads go on, handlers do not."""
    lock, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    for _ in range(2):
        library.pthread_mutex_lock(lock)


def train_and_hang(hang: Callable[[], None], path: Path, said: Path) -> None:
    """`ddrl train` with environments that hang in their 200th step."""
    whole, steps = ToyEnvs.step, 0

    def step(self: ToyEnvs, actions: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 200:
            (path.parent / "hangs").touch()
            hang()
        return whole(self, actions)

    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    ToyEnvs.step = step  # type: ignore[method-assign]
    signals.PATIENCE_SECONDS = 0.5
    sys.argv = ["ddrl", "train", str(path), "--directory", str(path.parent), "--quiet"]
    cli.command()


@pytest.mark.parametrize(
    ("runtime", "hang"),
    [("serial", in_native_code), ("serial", in_python), ("threads", in_native_code)],
    ids=["serial, native", "serial, Python", "threads, native"],
)
def test_a_run_whose_environment_hangs_ends_within_seconds_of_a_signal(
    tmp_path: Path, runtime: str, hang: Callable[[], None]
) -> None:
    path, said = tmp_path / "config.json", tmp_path / "said.txt"
    changes = {"env_frames": 2**40, "evaluation": {"period_frames": None}, "topology": {"runtime": runtime}}
    path.write_text(json.dumps(merged(BASE, changes)))
    process = processes.start(train_and_hang, hang, path, said)
    end = time.monotonic() + 100
    while not (tmp_path / "hangs").exists():
        assert process.is_alive() and time.monotonic() < end, said.read_text()
        time.sleep(0.02)
    saved = sorted((tmp_path / "checkpoints").glob("*.sha256"))
    time.sleep(0.2)
    process.terminate()
    assert processes.finish(process, 40.0) == 75, said.read_text()
    words = said.read_text()
    assert "environment toy/catch, environment seed" in words and "has not answered for" in words
    now = sorted((tmp_path / "checkpoints").glob("*.sha256"))
    if runtime == "serial":  # nothing that was half stepped is saved
        assert now == saved != []
        assert f"the same command goes on from {now[-1].with_suffix('.pt')}" in words
    else:
        assert now[-1] >= saved[-1]
