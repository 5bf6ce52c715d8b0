"""Environments that do not answer, and those that end the program: who they are is said, and the run can stop."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddrl import cli
from ddrl.api.launch import train
from ddrl.cli import doctor
from ddrl.environments.base import registry
from ddrl.environments.tools import check, named
from ddrl.environments.tools.named import make_env
from ddrl.environments.toy import ToyEnvs
from ddrl.errors import Closed, UserError, crash
from ddrl.runtimes import threads
from ddrl.system import calls
from ddrl.system.calls import EnvironmentCall, under_way, watched
from ddrl.training.run import Run
from tests.runs import BASE, config, local_run, merged


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What hanging environments wait for: the end of the test, so that none of them outlives it."""
    event = threading.Event()
    yield event
    event.set()
    end = time.monotonic() + 10
    while under_way() and time.monotonic() < end:
        time.sleep(0.01)


def hanging(monkeypatch: pytest.MonkeyPatch, release: threading.Event, *, seed: int, after: int) -> threading.Event:
    """Environments of that seed hang from a step on; set once they do."""
    hangs, whole, steps = threading.Event(), ToyEnvs.step, 0

    def step(self: ToyEnvs, actions: Any) -> Any:
        nonlocal steps
        if self._seed == seed:
            steps += 1
            if steps == after:
                hangs.set()
                release.wait()
        return whole(self, actions)

    monkeypatch.setattr(ToyEnvs, "step", step)
    return hangs


def seed_of(run: Run, role: str, index: int) -> int:
    return run.builder.env_seed(role, index)


@pytest.mark.parametrize("role", ["actor", "evaluation"])
def test_threads_save_and_end_though_an_environment_hangs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    release: threading.Event,
    role: str,
) -> None:
    monkeypatch.setattr(threads, "ENDING_SECONDS", 0.2)
    monkeypatch.setattr(calls, "NOTABLE_SECONDS", 0.1)
    monkeypatch.setattr(calls, "FIRST_SECONDS", 0.1)
    endless = {"env_frames": 2**40, "topology": {"runtime": "threads"}, "checkpoint": {"period_frames": 2**40}}
    chosen = config(**endless | {"evaluation": {"period_frames": 300}})
    run = local_run(chosen, tmp_path, quiet=True)
    hangs = hanging(monkeypatch, release, seed=seed_of(run, role, 0), after=7)
    run.close()

    def stop() -> None:
        assert hangs.wait(60)
        time.sleep(0.3)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=stop).start()
    began = time.monotonic()
    assert train(chosen, tmp_path, quiet=True) == "interrupted"
    assert time.monotonic() - began < 60
    assert len(list((tmp_path / "checkpoints").glob("*.sha256"))) == 1
    said = capsys.readouterr().err.splitlines()
    name = f"{role} 0, environment toy/catch, environment seed {seed_of(run, role, 0)} has not answered for "
    assert any(line.startswith(name) and f"in {threading.__file__}" in line for line in said)
    assert said[-1].startswith(name) and said[-1].endswith("nobody waits for it any more")


def test_a_run_in_threads_reaches_its_budget_without_an_actor_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    monkeypatch.setattr(threads, "ENDING_SECONDS", 0.2)
    chosen = config(topology={"runtime": "threads"}, env_frames=1000)
    run = local_run(chosen, tmp_path, quiet=True)
    hanging(monkeypatch, release, seed=seed_of(run, "actor", 1), after=7)
    run.close()
    assert train(chosen, tmp_path, quiet=True) == "budget_reached"
    assert (tmp_path / "run.json").exists()


def test_a_call_that_does_not_return_is_named_again_and_again_at_growing_distances(
    monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    monkeypatch.setattr(calls, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(calls, "NOTABLE_SECONDS", 60.0)
    lines: list[str] = []

    def hang() -> None:
        with EnvironmentCall("actor 7"):
            release.wait()

    with watched(lines.append):
        thread = threading.Thread(target=hang)
        thread.start()
        time.sleep(0.5)
        release.set()
        thread.join()
        said = len(lines)
        time.sleep(0.1)
    assert 2 <= said <= 6  # at 0.02, 0.04, 0.08, ... seconds
    assert len(lines) == said
    assert all(line.startswith("actor 7 has not answered for ") for line in lines)


def test_an_environment_that_another_thread_waits_for_is_not_freed_there_and_takes_no_further_step(
    monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    env = make_env({"name": "toy/catch"}, 2, 5, num_threads=1, name="actor 0")
    env.reset()
    hangs, closed, raised = hanging(monkeypatch, release, seed=5, after=1), [], []
    monkeypatch.setattr(ToyEnvs, "close", lambda self: closed.append(self))

    def act() -> None:
        env.step(np.zeros(2, dtype=np.int64))
        try:
            env.step(np.zeros(2, dtype=np.int64))
        except Closed as error:
            raised.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    assert hangs.wait(10)
    env.close()
    release.set()
    thread.join()
    assert closed == []
    assert len(raised) == 1


ENDS = [SystemExit(0), KeyboardInterrupt(), GeneratorExit("closed")]


def raising(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_an_environment_that_ends_the_program_is_a_crash(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    runtime: str,
    error: BaseException,
) -> None:
    monkeypatch.setattr(ToyEnvs, "step", raising(error))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(merged(BASE, {"topology": {"runtime": runtime}})))
    assert cli.main(["train", str(path), "--quiet"]) == 2
    *above, last = capsys.readouterr().err.splitlines()
    assert last.startswith("ddrl: actor ")
    assert "environment toy/catch, environment seed" in last and type(error).__name__ in last
    assert "Traceback" in above[0]


@pytest.mark.parametrize("place", ["make", "spec", "reset", "state_dict", "final evaluation"])
def test_so_is_one_that_does_it_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    if place == "make":
        monkeypatch.setattr(registry, "make", raising(SystemExit(0)))
    elif place == "spec":
        monkeypatch.setattr(registry, "spec_for", raising(SystemExit(0)))
    elif place == "final evaluation":
        nowhere = np.full(1, -1)
        monkeypatch.setattr("ddrl.actors.evaluator.play", lambda env, *_, **__: env.step(nowhere))
        whole = ToyEnvs.step
        monkeypatch.setattr(
            ToyEnvs,
            "step",
            lambda self, actions: raising(SystemExit(0))() if actions is nowhere else whole(self, actions),
        )
    else:
        monkeypatch.setattr(ToyEnvs, place, raising(SystemExit(0)))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(merged(BASE, {"env_frames": 100, "evaluation": {"period_frames": None}})))
    assert cli.main(["train", str(path), "--quiet"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(": SystemExit: 0")


def test_one_that_fails_as_it_is_closed_is_told_of_and_costs_no_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ToyEnvs, "close", raising(SystemExit(0)))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(merged(BASE, {"env_frames": 100, "evaluation": {"period_frames": None}})))
    assert cli.main(["train", str(path), "--quiet"]) == 0
    assert (tmp_path / "run.json").exists()
    said = capsys.readouterr().err.splitlines()
    assert any("environment toy/catch, environment seed" in line and "(as it was closed)" in line for line in said)


def test_the_text_of_an_error_harms_nobody() -> None:
    class Unsayable(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert str(crash("env", Unsayable())) == "env: Unsayable: its text cannot be made (ValueError)"
    assert str(crash("env", ValueError("a\x1b[31mred\nline"))) == "env: ValueError: a?[31mred line"


def test_whoever_else_calls_sys_exit_ends_a_command_as_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def systems(parsed: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr("ddrl.cli.commands.systems", systems)
    assert cli.main(["systems"]) == 2
    assert "ddrl: SystemExit: 0: " in capsys.readouterr().err


def test_the_users_own_interrupt_passes_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env({"name": "toy/catch"}, 2, 5, num_threads=1, name="actor 0")
    monkeypatch.setattr(ToyEnvs, "reset", raising(KeyboardInterrupt()))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            env.reset()
        signal.signal(signal.SIGINT, lambda *_: None)  # as within a run, where it asks for a checkpoint
        with pytest.raises(UserError, match="actor 0: KeyboardInterrupt"):
            env.reset()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_task_of_a_suite_that_ends_the_program_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "minigrid/Empty-Random-5x5-v0+DoorKey-5x5-v0"
    env: Any = registry.make(name, 2, seed=3)
    told: list[str] = []
    env._note = told.append
    env.reset()
    monkeypatch.setattr(env._envs["minigrid/Empty-Random-5x5-v0"], "step", raising(SystemExit(0)))
    step = env.step(np.zeros(2, dtype=np.int64))
    assert step.start.tolist() == [True, False]
    assert "SystemExit: 0; its environments begin anew" in told[0]


def test_the_doctor_goes_on_where_a_simulator_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "check_environment", raising(SystemExit("no display")))
    monkeypatch.setattr(registry, "prefixes", lambda: ("toy",))
    (found,) = doctor._environments(every_example=False)
    assert (found.fine, found.required) == (False, True)
    assert "no display" in found.describe()


def test_every_call_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(name: str) -> Any:
        seen.append(name)
        return EnvironmentCall(name)

    monkeypatch.setattr(named, "EnvironmentCall", noted)
    env = make_env({"name": "toy/catch"}, 2, 5, num_threads=1, name="actor 0")
    env.reset()
    env.step(np.zeros(2, dtype=np.int64))
    env.close()
    assert seen == ["actor 0"] * 4
    assert under_way() == []
