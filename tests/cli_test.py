"""The commands do what their help says, and bad input ends with one line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from ddrl import cli
from tests.runs import BASE, curves


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    config = directory.parent / "config.yaml"
    config.write_text(json.dumps(BASE))
    assert cli.main(["train", str(config), "--directory", str(directory), "--quiet"]) == 0
    return directory


def test_train_writes_the_declared_files(run: Path) -> None:
    assert {"config.json", "run.json", "curves.parquet"} <= {path.name for path in run.iterdir()}
    assert len(curves(run)) > 50


def test_resuming_a_finished_run_changes_no_curve(run: Path) -> None:
    before = curves(run)
    assert cli.main(["resume", str(run), "--quiet"]) == 0
    pd.testing.assert_frame_equal(before, curves(run))


def test_evaluate_plays_the_newest_parameters(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(run), "--episodes", "4"]) == 0
    assert "4 episodes" in capsys.readouterr().out


def test_watch_writes_an_animation(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "episode.gif"
    assert cli.main(["watch", str(run), "--output", str(output)]) == 0
    assert output.read_bytes()[:3] == b"GIF"


def test_verify_passes_a_whole_run_and_names_what_is_wrong_with_a_damaged_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(run)]) == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "run.json", "curves.parquet"):
        (copy / name).write_bytes((run / name).read_bytes())
    assert cli.main(["verify", str(copy)]) == 0
    manifest = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(manifest | {"fingerprint": "0"}))
    table = pd.read_parquet(copy / "curves.parquet")
    table.iloc[::-1].to_parquet(copy / "curves.parquet", index=False)
    assert cli.main(["verify", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "fingerprint" in printed
    assert "runs backwards" in printed


def test_systems_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["systems"]) == 0
    printed = capsys.readouterr().out
    for word in ("impala", "atari/", "toy/", "serial, threads", "bounded_lag"):
        assert word in printed


def test_print_config_shows_every_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(BASE))
    assert cli.main(["train", str(config), "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["hyperparameters"]["c_bar"] == 1.0
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "none.yaml"], "none.yaml: no such file"),
        (["resume", "nowhere"], "nowhere/config.json: no such file"),
        (["verify", "nowhere"], "nowhere: holds no finished run"),
        (["bench", "impala", "atari/pongg"], "pongg"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
