"""The recipes of CONTRIBUTING.md are run as they are written, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("ddrl", "replications", "workflows", "reports", "tests")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^### (.+)$", re.MULTILINE)


def recipes(text: str) -> dict[str, str]:
    """Return heading -> commands, of every section below `## Recipes` that has some."""
    part = text[text.index("\n## Recipes") :]
    part = part[: part.index("\n## ", 1)]
    _, *pieces = HEADING.split(part)
    sections = dict(zip(pieces[::2], pieces[1::2], strict=True))
    return {name: "".join(BLOCK.findall(section)) for name, section in sections.items()}


RECIPES = recipes((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
MADE = {
    "An algorithm": ["ddrl/runs/my_reinforce/toy/catch/1-1/run.json"],
    "An environment": ["ddrl/runs/a2c/my_game/corridor/1-1/run.json"],
    "A paper": [
        "ddrl/results/smoke/doe_2020/catch/with_bonus/toy-catch/seed1/run.json",
        "ddrl/results/smoke/doe_2020/tables/claims.csv",
        "ddrl/results/smoke/doe_2020/figures/learning_curves.svg",
        "ddrl/reports/doe_2020.pdf",
        "ddrl/reports/doe_2020.html",
    ],
    "A package of your own": [
        "my_research/runs/my_policy/my_maze/corridor/1-1/run.json",
        "my_research/results/smoke/roe_2021/figures/learning_curves.svg",
        "my_research/reports/roe_2021.pdf",
    ],
}
"""Recipe -> what its commands make, beside the checkout `ddrl`."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy what a recipe needs of this checkout."""
    target = tmp_path / "ddrl"
    for name in COPIED:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pdf", "evidence"))
    for name in ("Snakefile", "pyproject.toml"):
        shutil.copy(ROOT / name, target)
    return target


@pytest.fixture
def variables(tmp_path: Path, checkout: Path) -> dict[str, str]:
    """Make an environment like that of `make`, into which a recipe may install; return the variables that activate it.

    Nothing comes over the network: this one's packages are there too.
    """
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    for name, module in (("ddrl", "ddrl.cli"), ("snakemake", "snakemake")):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {folder}/bin/python -m {module} "$@"\n')
        script.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(checkout),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # to pip, this says that there is none
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(commands: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Type commands in `folder`; stop at the first that fails."""
    typed = ["bash", "-e", "-u", "-x", "-c", commands]
    return subprocess.run(typed, cwd=folder, env=variables, capture_output=True, text=True, timeout=500, check=False)


def test_every_recipe_has_commands() -> None:
    assert list(RECIPES) == list(MADE)
    assert all(commands.startswith("ddrl new ") for commands in RECIPES.values())


@pytest.mark.system
@pytest.mark.parametrize("recipe", MADE)
def test_a_recipe_works_as_it_is_written(recipe: str, checkout: Path, variables: dict[str, str]) -> None:
    done = run(RECIPES[recipe], checkout, variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [path for path in MADE[recipe] if not (checkout.parent / path).is_file()] == []


@pytest.mark.system
def test_a_recipe_that_does_not_work_is_noticed(checkout: Path, variables: dict[str, str]) -> None:
    broken = RECIPES["An environment"].replace("a2c my_game/corridor", "a2c my_game/coridor")
    done = run(broken, checkout, variables)
    assert done.returncode == 2
    assert "unknown task of my_game 'coridor' (did you mean 'corridor'?)" in done.stderr
    assert sys.executable not in done.stderr  # the commands ran in the environment of their own
