"""A training that is refused leaves the configuration of a run directory as it was: `ddrl resume` goes on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddrl import cli
from ddrl.errors import UserError
from ddrl.runtimes.ray import launch
from ddrl.training.run import Run
from tests.runs import BASE, merged
from tests.runtimes.ray import clusters

MINIBATCHES = {
    "algorithm": "ppo",
    "hyperparameters": {"network": "mlp", "unroll_length": 5, "batch_size": 8, "num_minibatches": 1000},
    "topology": {"schedule": "synchronous"},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "by the algorithm": (MINIBATCHES, "hyperparameters.num_minibatches"),
    "by the network": ({"hyperparameters": {"network": "deep"}}, "network 'deep'"),
}


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose run was interrupted after its twentieth update."""

    def interrupt(self: Run) -> None:
        learn(self)
        self.interrupted = self.learner.core.updates == 20

    learn = Run._learn
    path = tmp_path / "own.json"
    path.write_text(json.dumps(BASE))
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_learn", interrupt)
        assert cli.main(["train", str(path), "--directory", str(tmp_path / "run"), "--quiet"]) == 75
    return tmp_path / "run"


def refuse(directory: Path, config: dict[str, Any]) -> None:
    """Has `ddrl train` refuse a configuration, and `ddrl resume` complete the run that was there."""
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    path = directory.parent / "other.json"
    path.write_text(json.dumps(config))
    assert cli.main(["train", str(path), "--directory", str(directory), "--quiet"]) == 2
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "learner.lock"}
    assert after == before
    assert cli.main(["resume", str(directory), "--quiet"]) == 0
    assert json.loads((directory / "run.json").read_text())["resumes"] == 1


@pytest.mark.parametrize("runtime", ["serial", "threads", "ray"])
@pytest.mark.parametrize("by", sorted(REFUSED))
def test_a_refused_configuration_does_not_replace_that_of_the_run(
    interrupted: Path, capsys: pytest.CaptureFixture[str], runtime: str, by: str
) -> None:
    departures, words = REFUSED[by]
    refuse(interrupted, merged(merged(BASE, departures), {"topology": {"runtime": runtime}}))
    assert words in capsys.readouterr().err


def test_nor_does_one_for_a_cluster_that_cannot_be_reached(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    refuse(interrupted, merged(BASE, {"seed": 4, "topology": {"runtime": "ray"}}))
    assert "cannot be reached" in capsys.readouterr().err


def refusing_learner(*_: Any, **__: Any) -> None:
    """Of a process that finds no such device, or its run directory in use."""
    raise UserError("not here")


def test_nor_does_one_for_a_cluster_that_is_too_small_or_whose_learner_refuses_it(
    interrupted: Path,
    holder: psutil.Process,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = merged(BASE, {"seed": 4, "topology": {"runtime": "ray"}})
    own = (interrupted / "config.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(launch, "make_learner", refusing_learner)
        path = interrupted.parent / "other.json"
        path.write_text(json.dumps(config))
        assert cli.main(["train", str(path), "--directory", str(interrupted), "--quiet"]) == 2
    assert "not here" in capsys.readouterr().err
    assert (interrupted / "config.json").read_bytes() == own
    refuse(interrupted, merged(config, {"topology": {"num_actors": 12}}))
    assert "8 CPUs" in capsys.readouterr().err
    assert clusters.workers(holder, "LearnerProcess") == []
