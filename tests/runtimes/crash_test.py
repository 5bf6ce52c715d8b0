"""An environment that fails: under every runtime its traceback, one line that says which one it was, exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from ddrl import cli
from ddrl.environments.base import registry
from ddrl.environments.toy import ToyEnvs
from ddrl.errors import UserError
from ddrl.runtimes.ray import launch
from ddrl.training.builder import Builder
from ddrl.training.device import resolve_device
from tests.runs import BASE, config, merged
from tests.runtimes import crash

RUNTIMES = ["serial", "threads", "ray"]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("role", sorted(crash.CRASHES))
def test_an_environment_that_raises_is_its_traceback_and_a_line_with_role_environment_and_seed(
    tmp_path: Path,
    holder: psutil.Process,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    runtime: str,
    role: str,
) -> None:
    monkeypatch.setattr(launch, "act_alone", crash.crashing_actor if role == "actor" else launch.act_alone)
    if role == "evaluation":
        monkeypatch.setattr(launch, "make_learner", crash.crashing_learner)
    if runtime != "ray":
        monkeypatch.setattr(ToyEnvs, "step", crash.broken_step(role, BASE["seed"]))
    path = tmp_path / "config.json"
    # An endless budget for a failing actor, or the other one could reach it first; evaluations come at its end.
    frames = 2**40 if role == "actor" else BASE["env_frames"]
    path.write_text(json.dumps(merged(BASE, {"topology": {"runtime": runtime}, "env_frames": frames})))
    assert cli.main(["train", str(path), "--quiet"]) == 2
    shown = capfd.readouterr().err
    *before, last = shown.splitlines()
    name = f"{role} {crash.CRASHES[role]}, environment toy/catch"
    seed = crash.environment_seed(role, BASE["seed"])
    assert last == f"ddrl: {name}, environment seed {seed}: ArithmeticError: the ball fell through the floor"
    traceback = "\n".join(before)
    assert "Traceback" in before[0] and "crash.py" in traceback
    assert "ArithmeticError: the ball fell through\nthe floor" in traceback
    assert "\x1b" not in shown


@pytest.mark.parametrize("runtime", RUNTIMES[:2])
def test_other_errors_of_a_role_are_raised_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a mistake in ddrl")

    monkeypatch.setattr("ddrl.actors.unroll.UnrollActor.step", fail)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(merged(BASE, {"topology": {"runtime": runtime}})))
    with pytest.raises(ZeroDivisionError) as caught:
        cli.main(["train", str(path), "--quiet"])
    assert "in actor " in caught.value.__notes__[0]


def test_an_environment_that_cannot_be_made_is_named_unless_a_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> None:
        def make(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(registry, "make", make)

    builder = Builder(config(), resolve_device("cpu"))
    fail(OSError("no screen"))
    words = r"^actor 3, environment toy/catch, environment seed \d+: OSError: no screen$"
    with pytest.raises(UserError, match=words) as caught:
        builder.actor_env(3)
    assert isinstance(caught.value.__cause__, OSError)
    fail(UserError("no such game"))
    with pytest.raises(UserError, match=r"^no such game$"):
        builder.actor_env(3)
