"""Results of several clusters in one folder: what is copied, what is left out, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl import cli
from ddrl.config import fingerprint_of, load_run_config
from ddrl.errors import UserError
from ddrl.merge import FILES, merge
from ddrl.run import train

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
    (there / PLACE / "seed3" / "curves.parquet").write_bytes(b"no table")
    shutil.copytree(trained / PLACE / "seed1", there / PLACE / "seed4")
    (there / PLACE / "seed4" / "run.json").unlink()
    done = merge([there], here)
    assert len(done.copied) == 1
    (reason,) = done.skipped
    assert "seed3: cannot be read" in reason


def test_the_command_says_what_it_did(clusters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    here, there = clusters
    assert cli.main(["merge", str(there), "--into", str(here)]) == 0
    assert f"1 runs copied into {here}, 0 were there, 0 left out" in capsys.readouterr().out
    assert cli.main(["merge", str(here / "nothing"), "--into", str(here)]) == 2
    assert "holds no finished run" in capsys.readouterr().err
