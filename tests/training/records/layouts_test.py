"""Checkpoints of another layout: former ones are continued, others passed over with a line each, and nothing else."""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl import cli
from ddrl.api.launch import train
from ddrl.api.trained import load_trained
from ddrl.system.files import write_whole
from ddrl.training.config.run_config import load_run_config
from ddrl.training.records import checkpoint
from ddrl.training.records.checkpoint_layout import MIGRATIONS, SCHEMA
from tests.runs import config, curves
from tests.training.turns import interrupted_after

FORMER = Path(__file__).parent / "former"
"""Runs interrupted under earlier commits, by the first digits of their names: `config.json`, a packed checkpoint."""
SHORT = config(
    env_frames=400, evaluation={"period_frames": None, "final_episodes": 2}, checkpoint={"period_frames": 80}
)
State = dict[str, Any]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted when it had two checkpoints."""
    directory = tmp_path_factory.mktemp("cut") / "run"
    with interrupted_after(30):
        train(SHORT, directory, quiet=True)
    assert len(list(directory.glob("checkpoints/*.pt"))) == 2
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The curves of the same run, undisturbed."""
    directory = tmp_path_factory.mktemp("whole")
    train(SHORT, directory, quiet=True)
    return curves(directory)


def change(path: Path, by: Callable[[State], Any]) -> None:
    """Makes another state of a checkpoint's, with the right checksum."""
    state = checkpoint.load(path.parent, int(path.stem))
    checkpoint.save(path.parent, int(path.stem), by(state))


def renamed(state: State, *place: Any) -> State:
    """With another name for the key at a place."""
    part: Any = state
    for key in place[:-1]:
        part = part[key]
    part["other"] = part.pop(place[-1])
    return state


def reshaped(state: State) -> State:
    """Of a network with other shapes."""
    network = state["learner"]["network"]
    for name, tensor in network.items():
        network[name] = tensor[..., :1]
    return state


def without(state: State, key: str) -> State:
    """Lacks a key."""
    return {name: value for name, value in state.items() if name != key}


OTHERS: dict[str, Callable[[State], Any]] = {
    "a list": lambda state: [state],
    "no identity": lambda state: without(state, "identity"),
    "no learner": lambda state: without(state, "learner"),
    "no counters": lambda state: renamed(state, "learner", "counters"),
    "other shapes": reshaped,
    "another optimizer": lambda state: renamed(state, "learner", "optimizer"),
    "of the optimizer": lambda state: renamed(state, "learner", "optimizer", "state", 0, "mean_square"),
    "no queue": lambda state: without(state, "queue"),
    "an actor less": lambda state: state | {"collectors": state["collectors"][1:]},
    "environments": lambda state: renamed(state, "collectors", 1, "env", "episode"),
    "policies": lambda state: renamed(state, "collectors", 1, "policy", "generator"),
    "records": lambda state: renamed(state, "recorder", "offset"),
    "to come": lambda state: state | {"schema": SCHEMA + 1},
}


@pytest.mark.parametrize("other", sorted(OTHERS))
def test_the_checkpoint_before_one_of_another_layout_is_continued(
    tmp_path: Path, cut: Path, whole: pd.DataFrame, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    directory = shutil.copytree(cut, tmp_path / "run")
    newest = sorted(directory.glob("checkpoints/*.pt"))[-1]
    change(newest, OTHERS[other])
    assert train(SHORT, directory) == "budget_reached"
    told = [line for line in capsys.readouterr().err.splitlines() if line.endswith("; passed over")]
    assert len(told) == 1 and str(newest) in told[0]
    pd.testing.assert_frame_equal(curves(directory), whole)
    assert json.loads((directory / "run.json").read_text())["resumes"] == 1


@pytest.mark.parametrize("other", ["a list", "other shapes", "records"])
def test_where_none_fits_all_is_set_aside_and_training_begins_anew(
    tmp_path: Path, cut: Path, whole: pd.DataFrame, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    directory = shutil.copytree(cut, tmp_path / "run")
    recorded = (directory / "curves.jsonl").read_text()
    for path in directory.glob("checkpoints/*.pt"):
        change(path, OTHERS[other])
    assert train(SHORT, directory) == "budget_reached"
    assert "no checkpoint can be continued: starting anew" in capsys.readouterr().err
    pd.testing.assert_frame_equal(curves(directory), whole)
    assert json.loads((directory / "run.json").read_text())["resumes"] == 0
    assert (directory / "checkpoints-unusable" / "curves.jsonl").read_text() == recorded
    assert len(list(directory.glob("checkpoints-unusable/*.pt"))) == 2


def test_a_state_that_the_environment_refuses_ends_in_its_line_and_stays(
    tmp_path: Path, cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(cut, tmp_path / "run")
    for path in directory.glob("checkpoints/*.pt"):
        change(path, OTHERS["environments"])
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert cli.main(["resume", str(directory), "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("ddrl: environment state: ")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_a_player_passes_over_it_too(tmp_path: Path, cut: Path) -> None:
    directory = shutil.copytree(cut, tmp_path / "run")
    older, newest = sorted(directory.glob("checkpoints/*.pt"))
    change(newest, OTHERS["other shapes"])
    assert (
        load_trained(directory).env_frames == checkpoint.load(older.parent, int(older.stem))["learner"]["counters"][0]
    )


def as_before(state: State) -> State:
    """In layout 1, as long ago as it goes."""
    for key in ("schema", "config", "version", "marks", "actor_restarts", "actors"):
        del state[key]
    del state["recorder"]["task_scores"], state["recorder"]["period"]
    state["recorder"]["episodes"] = [episode[1:3] for episode in state["recorder"]["episodes"]]
    for collector in state["collectors"]:
        del collector["acted"]
    return state


def test_layout_1_is_continued_to_the_same_bits(tmp_path: Path, cut: Path, whole: pd.DataFrame) -> None:
    directory = shutil.copytree(cut, tmp_path / "run")
    for path in directory.glob("checkpoints/*.pt"):
        change(path, as_before)
    train(SHORT, directory, quiet=True)
    pd.testing.assert_frame_equal(curves(directory), whole)
    assert json.loads((directory / "run.json").read_text())["resumes"] == 1


def test_every_layout_has_its_migrations() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA))


@pytest.mark.parametrize("commit", sorted(path.name for path in FORMER.iterdir()))
def test_a_run_that_an_earlier_commit_began_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], commit: str
) -> None:
    """Whose configuration lacks keys that have come since, and whose identity followed from those it had."""
    shutil.copy(FORMER / commit / "config.json", tmp_path)
    (packed,) = (FORMER / commit).glob("*.pt.xz")
    content = lzma.decompress(packed.read_bytes())
    write_whole(tmp_path / "checkpoints" / packed.stem, content)
    hashed = hashlib.sha256(content).hexdigest().encode()
    write_whole((tmp_path / "checkpoints" / packed.stem).with_suffix(".sha256"), hashed)
    frames = checkpoint.load(tmp_path / "checkpoints", int(packed.stem.removesuffix(".pt")))["learner"]["counters"][0]
    assert train(load_run_config(tmp_path / "config.json"), tmp_path) == "budget_reached"
    assert f"resumed at {frames:,} frames" in capsys.readouterr().err
    assert not list(tmp_path.glob("checkpoints-*"))
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1
