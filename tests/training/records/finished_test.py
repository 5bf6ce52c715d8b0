"""A run that has finished is never trained over, and a call that has nothing to do changes no file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl import cli
from ddrl.algorithms import impala
from ddrl.api.launch import train
from ddrl.training.config.run_config import RunConfig, to_json
from ddrl.training.records.recorder import TIMING_METRICS
from tests.population.population_test import small as population
from tests.runs import config, local_run
from tests.training.turns import interrupted_after

SHORT: dict[str, Any] = {
    "env_frames": 400,
    "evaluation": {"period_frames": None, "final_episodes": 2},
    "checkpoint": {"period_frames": 100},
}
THREADS = {"topology": {"runtime": "threads"}}
MADE: dict[str, Callable[[], RunConfig]] = {
    "serial": lambda: config(**SHORT),
    "threads": lambda: config(**SHORT | THREADS),
    "population": lambda: population(
        {"size": 2, "burn_in_frames": 100, "period_frames": 200}, env_frames=400, evaluation=SHORT["evaluation"]
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of each kind, in a folder of its name."""
    folder = tmp_path_factory.mktemp("finished")
    for name, made in MADE.items():
        assert train(made(), folder / name, quiet=True) == "budget_reached"
    return folder


def files(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Path -> when it was written, and what."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def committed(directory: Path) -> None:
    """Leaves of a run what is committed, copied or merged."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("config.json", "curves.parquet", "lineage.parquet", "run.json"):
            path.unlink()


def asked(directory: Path, values: dict[str, Any], capsys: pytest.CaptureFixture[str], code: int) -> str:
    """What `ddrl train` says in one line, and with which exit code, where it changes no file."""
    path = directory.parent / "asked.json"
    path.write_text(json.dumps(values))
    before = files(directory)
    assert cli.main(["train", str(path), "--directory", str(directory)]) == code
    told = capsys.readouterr().err.splitlines()
    assert files(directory) == before
    assert len(told) == 1
    return told[0]


@pytest.mark.parametrize("left", ["all", "results"])
@pytest.mark.parametrize("kind", sorted(MADE))
def test_a_finished_run_stays_as_it_is(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], kind: str, left: str
) -> None:
    directory = shutil.copytree(finished / kind, tmp_path / "run")
    if left == "results":
        committed(directory)
    values = to_json(MADE[kind]())
    before = files(directory)
    assert "already finished" in asked(directory, values, capsys, 0)
    assert cli.main(["resume", str(directory), "--quiet"]) == 0
    assert "already finished" in capsys.readouterr().err
    assert files(directory) == before
    rarer = values | {
        "recording": {"period_frames": 17},
        "tracking": ["tensorboard"],
        "checkpoint": {"period_frames": 17},
    }
    assert "already finished" in asked(directory, rarer, capsys, 0)


@pytest.mark.parametrize("left", ["all", "results"])
@pytest.mark.parametrize("kind", sorted(MADE))
def test_nor_is_it_replaced_by_another_one(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], kind: str, left: str
) -> None:
    directory = shutil.copytree(finished / kind, tmp_path / "run")
    if left == "results":
        committed(directory)
    values = to_json(MADE[kind]())
    told = asked(directory, values | {"seed": 9, "precision": "bfloat16"}, capsys, 2)
    assert str(directory) in told and "differs in precision, seed;" in told and "another directory" in told
    assert "after 400 frames, more than env_frames: 300" in asked(directory, values | {"env_frames": 300}, capsys, 2)
    if left == "results":
        assert "cannot go on to 800" in asked(directory, values | {"env_frames": 800}, capsys, 2)


def test_nor_where_its_manifest_is_damaged_and_its_checkpoints_are_gone(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(finished / "threads", tmp_path / "run")
    committed(directory)
    (directory / "run.json").write_text("garbage")
    before = (directory / "curves.parquet").read_bytes()
    assert cli.main(["resume", str(directory), "--quiet"]) == 2
    assert "run.json: is damaged, and no checkpoint of the run there can be continued" in capsys.readouterr().err
    assert (directory / "curves.parquet").read_bytes() == before
    assert (directory / "run.json").read_text() == "garbage"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("serial", "curves.parquet"), ("population", "curves.parquet"), ("population", "lineage.parquet")],
)
def test_a_damaged_table_of_a_finished_run_is_made_anew(
    tmp_path: Path, finished: Path, kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(finished / kind, tmp_path / "run")
    (directory / name).write_bytes(b"PAR1")
    assert train(MADE[kind](), directory, quiet=True) == "budget_reached"
    assert f"{directory / name}: is damaged; it is made anew, from the newest checkpoint" in capsys.readouterr().err
    assert cli.main(["verify", str(directory)]) == 0
    one, other = (pd.read_parquet(path / name) for path in (directory, finished / kind))
    clocks = ["seconds"] if "seconds" in one else []
    if "metric" in one:
        one, other = (table[~table.metric.isin(TIMING_METRICS)].reset_index(drop=True) for table in (one, other))
    pd.testing.assert_frame_equal(one.drop(columns=clocks), other.drop(columns=clocks))


@pytest.mark.parametrize(
    ("spoil", "words"), [(Path.mkdir, "is a folder, not a file"), (os.mkfifo, "is a pipe or a device, not a file")]
)
def test_what_is_no_file_in_the_place_of_a_table_is_named_before_anything_is_done(
    tmp_path: Path,
    finished: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None],
    words: str,
) -> None:
    directory = shutil.copytree(finished / "serial", tmp_path / "run")
    (directory / "curves.parquet").unlink()
    spoil(directory / "curves.parquet")
    (tmp_path / "asked.json").write_text(json.dumps(to_json(MADE["serial"]())))
    before = (directory / "run.json").read_bytes()
    assert cli.main(["train", str(tmp_path / "asked.json"), "--directory", str(directory)]) == 2
    assert capsys.readouterr().err == f"ddrl: {directory / 'curves.parquet'}: {words}\n"
    assert (directory / "run.json").read_bytes() == before


def test_a_manifest_with_values_too_deep_in_each_other_is_damaged_as_any_other(tmp_path: Path, finished: Path) -> None:
    directory = shutil.copytree(finished / "serial", tmp_path / "run")
    (directory / "run.json").write_text("[" * 100_000)
    assert train(MADE["serial"](), directory, quiet=True) == "budget_reached"
    assert cli.main(["verify", str(directory)]) == 0


@pytest.mark.parametrize("name", ["curves.parquet", "lineage.parquet"])
def test_a_damaged_table_that_cannot_be_made_anew_is_named(
    tmp_path: Path, finished: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(finished / "population", tmp_path / "run")
    committed(directory)
    (directory / name).write_bytes(b"PAR1")
    said = asked(directory, to_json(MADE["population"]()), capsys, 2)
    assert f"{directory / name}: is damaged, and no checkpoint of the run there can be continued" in said


def test_nor_by_one_of_a_later_version(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(finished / "serial", tmp_path / "run")
    monkeypatch.setattr(impala, "VERSION", impala.VERSION + 1)
    assert "finished there with version" in asked(directory, to_json(MADE["serial"]()), capsys, 2)


@pytest.mark.parametrize("kind", ["serial", "population"])
def test_it_may_become_longer(tmp_path: Path, finished: Path, kind: str) -> None:
    directory = shutil.copytree(finished / kind, tmp_path / "run")
    longer = to_json(MADE[kind]()) | {"env_frames": 800}
    path = tmp_path / "longer.json"
    path.write_text(json.dumps(longer))
    assert cli.main(["train", str(path), "--directory", str(directory), "--quiet"]) == 0
    record = json.loads((directory / "run.json").read_text())
    assert (record["config"]["env_frames"], record["resumes"]) == (800, 1)
    aside = directory / "finished-400"
    for name in ("run.json", "curves.parquet"):
        assert (aside / name).read_bytes() == (finished / kind / name).read_bytes()
    assert cli.main(["verify", str(directory)]) == 0


def test_what_had_finished_is_whole_when_the_longer_run_is_interrupted(tmp_path: Path, finished: Path) -> None:
    directory = shutil.copytree(finished / "serial", tmp_path / "run")
    longer = config(**SHORT | {"env_frames": 800})
    with interrupted_after(20):
        assert train(longer, directory, quiet=True) == "interrupted"
    assert not (directory / "run.json").exists() and not (directory / "curves.parquet").exists()
    aside = directory / "finished-400"
    assert cli.main(["verify", str(directory)]) == 0
    assert (aside / "curves.parquet").read_bytes() == (finished / "serial" / "curves.parquet").read_bytes()
    assert train(longer, directory, quiet=True) == "budget_reached"
    assert json.loads((directory / "run.json").read_text())["resumes"] == 2
    assert cli.main(["verify", str(directory)]) == 0


@pytest.mark.parametrize("moved", [("curves.parquet",), ("curves.parquet", "lineage.parquet")])
def test_results_that_were_put_aside_in_part_are_put_aside_in_whole(
    tmp_path: Path, finished: Path, moved: tuple[str, ...]
) -> None:
    directory = shutil.copytree(finished / "population", tmp_path / "run")
    (directory / "finished-400").mkdir()
    for name in moved:
        (directory / name).rename(directory / "finished-400" / name)
    longer = population(
        {"size": 2, "burn_in_frames": 100, "period_frames": 200}, env_frames=800, evaluation=SHORT["evaluation"]
    )
    assert train(longer, directory, quiet=True) == "budget_reached"
    assert cli.main(["verify", str(directory)]) == 0
    for name in ("run.json", "curves.parquet", "lineage.parquet"):
        assert (directory / "finished-400" / name).read_bytes() == (finished / "population" / name).read_bytes()


def test_a_budget_below_what_is_trained_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with interrupted_after(20):
        train(config(**SHORT), tmp_path / "run", quiet=True)
    assert "frames of the run there are trained, more than env_frames: 50" in refused(tmp_path, 50, capsys)


def refused(folder: Path, env_frames: int, capsys: pytest.CaptureFixture[str]) -> str:
    """As `asked`, of a run that was interrupted, whose lock and open files are those of a start."""
    path = folder / "asked.json"
    path.write_text(json.dumps(to_json(config(**SHORT | {"env_frames": env_frames}))))
    before = {name: content for name, (_, content) in files(folder / "run").items()}
    assert cli.main(["train", str(path), "--directory", str(folder / "run")]) == 2
    assert {name: content for name, (_, content) in files(folder / "run").items()} == before
    return capsys.readouterr().err


def test_what_only_records_does_not_begin_a_run_anew(tmp_path: Path) -> None:
    with interrupted_after(20):
        train(config(**SHORT), tmp_path, quiet=True)
    quiet = {"recording": {"period_frames": 7}, "checkpoint": {"period_frames": 1000}}
    run = local_run(config(**SHORT | quiet), tmp_path, quiet=True)
    recorded = (tmp_path / "curves.jsonl").read_text()
    updates = run.resume()
    assert updates and updates > 1
    assert (tmp_path / "curves.jsonl").read_text() == recorded
    frames = run.learner.core.env_frames
    assert run.recorder._next == (frames // 7 + 1) * 7
    assert run._next_checkpoint == 1000
    run.close()
