"""An algorithm and an environment of another installed package are trained, in every kind of process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddrl.cli.new import new

ROOT = Path(__file__).parents[2]
WORKERS = ["topology.runtime=threads", "topology.inference=central", "topology.central.worker_processes=true"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny package, and install it from its folder into one of its own; nothing comes over the network."""
    folder = tmp_path_factory.mktemp("outside")
    new("algorithm", "tiny_policy", folder / "tiny")
    new("environment", "tiny_game", folder / "tiny")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder / "site")]
    typed = [sys.executable, "-m", "pip", "install", *options, str(folder / "tiny")]
    done = subprocess.run(typed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def ddrl(*words: str, folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Type a command in `folder`, where packages below `path` are installed too."""
    typed = [sys.executable, "-m", "ddrl.cli", *words]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{path}"}
    return subprocess.run(typed, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(["topology.runtime=serial"], id="serial"),
        pytest.param(WORKERS, id="workers", marks=pytest.mark.system),
        pytest.param(["topology.runtime=ray"], id="ray", marks=pytest.mark.system),
    ],
)
def test_an_algorithm_and_an_environment_of_another_package_are_trained(
    tmp_path: Path, installed: Path, topology: list[str]
) -> None:
    settings = ["env_frames=1200", "evaluation.final_episodes=2", *topology]
    typed = ["train", "tiny_policy", "tiny_game/corridor", *settings, "--directory", "run"]
    done = ddrl(*typed, folder=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["config"]["algorithm"] == "tiny_policy"
    assert run["packages"]["tiny"] == "0.1.0"
    assert run["protocol"].startswith("tiny_game-1/corridor;length5;")


def test_without_the_package_its_names_are_unknown(tmp_path: Path) -> None:
    done = ddrl("train", "tiny_policy", "tiny_game/corridor", folder=tmp_path, path=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ddrl train: unknown algorithm 'tiny_policy'; allowed: a2c, ")
