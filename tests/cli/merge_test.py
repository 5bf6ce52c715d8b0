"""Results of several clusters in one folder: what is copied, what is left out, and what is refused."""

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
from ddrl.api.launch import train
from ddrl.cli.merge import FILES, merge
from ddrl.errors import UserError
from ddrl.system.locks import locked
from ddrl.training.config.run_config import fingerprint_of, load_run_config

PLACE = "smoke/impala_2018/off_policy_correction/v_trace/toy-catch"
CONFIG: dict[str, Any] = {
    "algorithm": "impala",
    "environment": {"name": "toy/catch"},
    "env_frames": 600,
    "hyperparameters": {"unroll_length": 5, "batch_size": 4, "network": "mlp"},
    "topology": {"runtime": "serial", "num_actors": 1, "envs_per_actor": 4},
    "evaluation": {"final_episodes": 2},
    "recording": {"period_frames": 200, "tensorboard": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one variant."""
    results = tmp_path_factory.mktemp("trained")
    for seed in (1, 2):
        run = results / PLACE / f"seed{seed}"
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps(CONFIG | {"seed": seed}))
        train(load_run_config(run / "config.json"), run, quiet=True)
    return results


@pytest.fixture
def clusters(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """This cluster with seed 1, another one with seed 2."""
    here, there = tmp_path / "here", tmp_path / "there"
    for results, seed in ((here, 1), (there, 2)):
        shutil.copytree(trained / PLACE / f"seed{seed}", results / PLACE / f"seed{seed}")
    return here, there


def edit(run: Path, change: Callable[[Any], None]) -> None:
    """Changes a manifest, and what must agree with it."""
    manifest = json.loads((run / "run.json").read_text())
    change(manifest)
    manifest["fingerprint"] = fingerprint_of(manifest["config"])
    (run / "run.json").write_text(json.dumps(manifest))
    (run / "config.json").write_text(json.dumps(manifest["config"]))


def test_finished_runs_are_copied_and_nothing_else(clusters: tuple[Path, Path]) -> None:
    here, there = clusters
    done = merge([there], here)
    assert done.copied == (here / PLACE / "seed2",)
    assert (done.present, done.skipped) == (0, ())
    assert sorted(path.name for path in done.copied[0].iterdir()) == sorted(FILES)
    for name in FILES:
        assert (done.copied[0] / name).read_bytes() == (there / PLACE / "seed2" / name).read_bytes()
    again = merge([there], here)
    assert (again.copied, again.present) == ((), 1)


def test_results_are_younger_than_their_configuration(clusters: tuple[Path, Path]) -> None:
    here, there = clusters
    (copied,) = merge([there], here).copied
    times = [(copied / name).stat().st_mtime_ns for name in FILES]
    assert times == sorted(times)


def test_a_dry_run_copies_nothing(clusters: tuple[Path, Path]) -> None:
    here, there = clusters
    assert merge([there], here, dry_run=True).copied == (here / PLACE / "seed2",)
    assert not (here / PLACE / "seed2").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda manifest: manifest.update(protocol="other"), 'different protocol: "'),
        (lambda manifest: manifest.update(algorithm_version=99), "different algorithm_version: 1 and 99"),
        (
            lambda manifest: manifest["config"]["hyperparameters"].update(discount=0.5),
            "different configuration: hyperparameters.discount 0.99 and 0.5",
        ),
        (
            lambda manifest: manifest["config"].update(env_frames=500),
            "different configuration: env_frames 600 and 500",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_not_merged(
    clusters: tuple[Path, Path], change: Callable[[Any], None], says: str
) -> None:
    here, there = clusters
    edit(there / PLACE / "seed2", change)
    with pytest.raises(UserError) as caught:
        merge([there], here)
    assert says in str(caught.value) and str(there) in str(caught.value) and "\n" not in str(caught.value)
    assert not (here / PLACE / "seed2").exists()


def test_mixed_protocols_are_refused_between_variants_too(clusters: tuple[Path, Path]) -> None:
    here, there = clusters
    moved = there / PLACE.replace("v_trace", "no_correction")
    shutil.copytree(there / PLACE, moved)
    shutil.rmtree(there / PLACE)
    edit(moved / "seed2", lambda manifest: manifest.update(protocol="other"))
    with pytest.raises(UserError, match="different protocol"):
        merge([there], here)


def test_a_key_that_is_younger_than_a_run_counts_at_its_default(clusters: tuple[Path, Path]) -> None:
    here, there = clusters
    edit(there / PLACE / "seed2", lambda manifest: manifest["config"]["hyperparameters"].pop("initialisation"))
    assert len(merge([there], here).copied) == 1


def test_one_run_with_different_records_in_two_places_is_refused(clusters: tuple[Path, Path], trained: Path) -> None:
    here, there = clusters
    shutil.copytree(trained / PLACE / "seed1", there / PLACE / "seed1")
    assert merge([there], here, dry_run=True).present == 1
    path = there / PLACE / "seed1" / "curves.parquet"
    table = pd.read_parquet(path)
    table.loc[0, "value"] += 1.0
    table.to_parquet(path, index=False, write_page_checksum=True)
    with pytest.raises(UserError, match="same run with different records"):
        merge([there], here)


def test_damaged_and_unfinished_runs_are_named_and_left_out(clusters: tuple[Path, Path], trained: Path) -> None:
    here, there = clusters
    shutil.copytree(trained / PLACE / "seed1", there / PLACE / "seed3")
    edit(there / PLACE / "seed3", lambda manifest: manifest["config"].update(seed=3))
    (there / PLACE / "seed3" / "curves.parquet").write_bytes(b"no table")
    shutil.copytree(trained / PLACE / "seed1", there / PLACE / "seed4")
    (there / PLACE / "seed4" / "run.json").unlink()
    shutil.copytree(trained / PLACE / "seed1", there / PLACE / "seed5")
    for name in ("run.json", "curves.parquet"):
        (there / PLACE / "seed5" / name).unlink()  # planned, or at work: nothing to speak of
    done = merge([there], here)
    assert len(done.copied) == 1
    damaged, without_manifest = done.skipped
    assert "seed3: curves.parquet: not valid Parquet" in damaged
    assert without_manifest.endswith("seed4: run.json: no such file")


def test_the_command_says_what_it_did(clusters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    here, there = clusters
    assert cli.main(["merge", str(there), "--into", str(here)]) == 0
    assert f"1 run copied into {here}, 0 already there, 0 left out" in capsys.readouterr().out
    assert cli.main(["merge", str(here / "nothing"), "--into", str(here)]) == 2
    assert "nothing: no such folder" in capsys.readouterr().err


def _edited(run: Path, **values: Any) -> None:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | values))


def _without(run: Path, key: str) -> None:
    manifest = json.loads((run / "run.json").read_text())
    del manifest[key]
    (run / "run.json").write_text(json.dumps(manifest))


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(bytes(content))


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("gone"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _retyped(run: Path) -> None:
    table = pd.read_parquet(run / "curves.parquet")
    table["value"] = table["value"].astype(str)
    table.to_parquet(run / "curves.parquet", index=False)


def _of_another_seed(run: Path) -> None:
    shutil.rmtree(run)
    shutil.copytree(run.with_name("seed2"), run)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "curves empty": lambda run: (run / "curves.parquet").write_bytes(b""),
    "curves cut": lambda run: os.truncate(run / "curves.parquet", 3000),
    "curves flipped": lambda run: _flipped(run / "curves.parquet"),
    "curves a folder": lambda run: _as_folder(run / "curves.parquet"),
    "curves a pipe": lambda run: _pipe(run / "curves.parquet"),
    "curves dangling": lambda run: _dangling(run / "curves.parquet"),
    "curves of texts": _retyped,
    "curves gone": lambda run: (run / "curves.parquet").unlink(),
    "manifest gone": lambda run: (run / "run.json").unlink(),
    "manifest empty": lambda run: (run / "run.json").write_text(""),
    "manifest garbage": lambda run: (run / "run.json").write_text("{nothing"),
    "manifest binary": lambda run: (run / "run.json").write_bytes(bytes(range(256))),
    "manifest Latin-1": lambda run: (run / "run.json").write_bytes('{"config": "caf\xe9"}'.encode("latin-1")),
    "manifest a list": lambda run: (run / "run.json").write_text("[1, 2]"),
    "manifest a number": lambda run: (run / "run.json").write_text("3"),
    "manifest nested": lambda run: (run / "run.json").write_text("[" * 100_000),
    "manifest a folder": lambda run: _as_folder(run / "run.json"),
    "manifest a pipe": lambda run: _pipe(run / "run.json"),
    "manifest dangling": lambda run: _dangling(run / "run.json"),
    "manifest without protocol": lambda run: _without(run, "protocol"),
    "manifest without version": lambda run: _without(run, "algorithm_version"),
    "manifest without frames": lambda run: _without(run, "env_frames"),
    "manifest without fingerprint": lambda run: _without(run, "fingerprint"),
    "manifest without configuration": lambda run: _without(run, "config"),
    "configuration a list": lambda run: _edited(run, config=[1]),
    "frames a text": lambda run: _edited(run, env_frames="many"),
    "frames huge": lambda run: (run / "run.json").write_text(
        (run / "run.json").read_text().replace('"agent_steps": ', '"agent_steps": ' + "9" * 5000)
    ),
    "version a list": lambda run: _edited(run, algorithm_version=[1]),
    "protocol a list": lambda run: _edited(run, protocol=["toy"]),
    "configuration gone": lambda run: (run / "config.json").unlink(),
    "configuration empty": lambda run: (run / "config.json").write_text(""),
    "configuration binary": lambda run: (run / "config.json").write_bytes(bytes(range(256))),
    "configuration of another run": lambda run: (run / "config.json").write_text(json.dumps(CONFIG | {"seed": 99})),
    "configuration a folder": lambda run: _as_folder(run / "config.json"),
    "all of another run": _of_another_seed,
    "the folder a file": lambda run: (shutil.rmtree(run), run.write_text("")),
    "the folder dangling": lambda run: (shutil.rmtree(run), run.symlink_to("gone")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_is_named_in_one_line_and_the_others_are_copied(
    clusters: tuple[Path, Path], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = clusters
    damaged = there / PLACE / "seed3"
    shutil.copytree(there / PLACE / "seed2", damaged)
    edit(damaged, lambda manifest: manifest["config"].update(seed=3))
    DAMAGE[kind](damaged)
    assert cli.main(["merge", str(there), "--into", str(here)]) == 0
    out, err = capsys.readouterr()
    assert f"1 run copied into {here}, 0 already there, 1 left out" in out
    (line,) = err.splitlines()
    assert line.startswith(f"left out: {damaged}: ") and len(line) < len(str(damaged)) + 300
    assert (here / PLACE / "seed2" / "curves.parquet").is_file() and not (here / PLACE / "seed3").exists()


def test_folders_without_a_whole_run_are_refused_with_the_first_reason(clusters: tuple[Path, Path]) -> None:
    here, there = clusters
    (there / PLACE / "seed2" / "run.json").write_text("[]")
    with pytest.raises(UserError, match=r"^no run is whole of 1; the first: .*seed2: run.json: "):
        merge([there], here)


def test_a_folder_that_cannot_be_read_is_named(clusters: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = clusters
    closed, names = there / "workstation", os.listdir
    closed.mkdir()

    def refuse(folder: Path) -> list[str]:
        if folder == closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return names(folder)

    monkeypatch.setattr(os, "listdir", refuse)
    done = merge([there], here)
    assert len(done.copied) == 1
    assert done.skipped == (f"{closed}: cannot be read: Permission denied",)


@pytest.mark.parametrize("name", ["file", "file/below", "dangling", "dangling/below"])
def test_merging_into_what_is_no_folder_is_one_line(
    clusters: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("gone")
    assert cli.main(["merge", str(clusters[1]), "--into", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"ddrl: --into {tmp_path / name}: {tmp_path / name.partition('/')[0]} is no folder"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_damaged_run_in_the_target_is_not_written_over(
    clusters: tuple[Path, Path], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = clusters
    shutil.copytree(trained / PLACE / "seed2", here / PLACE / "seed2")
    (here / PLACE / "seed2" / "run.json").write_text("{")
    kept = (here / PLACE / "seed2" / "curves.parquet").read_bytes()
    assert cli.main(["merge", str(there), "--into", str(here)]) == 2
    out, err = capsys.readouterr()
    assert "0 runs copied" in out and "holds a damaged run; remove it, or merge into another folder" in err
    assert (here / PLACE / "seed2" / "run.json").read_text() == "{"
    assert (here / PLACE / "seed2" / "curves.parquet").read_bytes() == kept


def test_a_run_that_cannot_be_written_is_named_and_the_others_are_copied(
    clusters: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = clusters
    shutil.copytree(there / PLACE / "seed2", there / PLACE / "seed0")
    edit(there / PLACE / "seed0", lambda manifest: manifest["config"].update(seed=0))
    copy = shutil.copyfile

    def fill(source: Path, target: Path) -> None:
        if "seed0" in str(target):
            raise OSError(28, "No space left on device", str(target))
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", fill)
    assert cli.main(["merge", str(there), "--into", str(here)]) == 2
    out, err = capsys.readouterr()
    assert "1 run copied" in out and "seed0: cannot be copied: " in err and "No space left on device" in err
    assert len(err.splitlines()) == 1
    assert not any((here / PLACE / "seed0").iterdir())


def test_nothing_is_copied_to_where_a_process_trains(
    clusters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = clusters
    (here / PLACE / "seed2").mkdir()
    with locked(here / PLACE / "seed2"):
        assert cli.main(["merge", str(there), "--into", str(here)]) == 2
    assert "another process is training" in capsys.readouterr().err
    assert not (here / PLACE / "seed2" / "run.json").exists()


def test_a_source_that_is_missing_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddrl.cli.merge._finished", lambda folder, beside=None: pytest.fail("reads runs"))
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match=r"/missing: no such folder$"):
        merge([tmp_path / "there", tmp_path / "missing"], tmp_path / "into")


def test_experiments_may_have_protocols_of_their_own_for_a_task(clusters: tuple[Path, Path]) -> None:
    here, there = clusters
    moved = there / PLACE.replace("off_policy_correction", "throughput")
    shutil.copytree(there / PLACE, moved)

    def change(manifest: Any) -> None:
        manifest["config"]["environment"]["rows"] = 12
        manifest["protocol"] = "toy/catch;rows12"

    edit(moved / "seed2", change)
    assert len(merge([there], here).copied) == 2


def test_runs_that_both_sides_have_alike_are_not_read(
    clusters: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = clusters
    shutil.copytree(here / PLACE / "seed1", there / PLACE / "seed1")
    assert (len(merge([there], here).copied), merge([there], here).present) == (1, 2)
    monkeypatch.setattr("ddrl.cli.merge.try_run", lambda *place: pytest.fail("reads a run"))
    assert merge([there], here).present == 2


def test_runs_that_were_together_before_are_not_held_against_a_source(
    clusters: tuple[Path, Path], trained: Path
) -> None:
    here, there = clusters
    moved = here / PLACE.replace("off_policy_correction", "other")
    for seed in (1, 2):
        shutil.copytree(trained / PLACE / f"seed{seed}", moved / f"seed{seed}")
    edit(moved / "seed2", lambda manifest: manifest.update(algorithm_version=99))
    assert len(merge([there], here).copied) == 1
