"""`ddrl new` writes skeletons that pass the project's own checks, and overwrites nothing."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ddrl.cli.new import KINDS, new
from ddrl.errors import UserError
from ddrl.papers.check import check_paper
from tests.architecture_test import violations

ROOT = Path(__file__).parents[2]
FIRST_PARTY = "lint.isort.known-first-party = ['ddrl']"
NAMES = {"paper": "doe_2020", "algorithm": "some_policy", "environment": "some_game"}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder that looks like a checkout the working directory."""
    for part in ("ddrl/algorithms", "ddrl/environments", "replications/references"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_written_keeps_the_rules_of_this_project(checkout: Path) -> None:
    files = [path for kind, name in NAMES.items() for path in new(kind, name).files]
    assert {path.parts[0] for path in files} == {"ddrl", "replications", "tests"}
    for command in (["check"], ["format", "--check"]):
        options = ["--quiet", "--config", str(ROOT / "pyproject.toml"), "--config", FIRST_PARTY]
        python = [str(path) for path in files if path.suffix == ".py"]
        typed = [sys.executable, "-m", "ruff", *command, *options, *python]
        done = subprocess.run(typed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    for path in files:
        if path.suffix == ".py" and path.parts[0] != "tests":
            assert violations(path.as_posix(), path.read_text()) == []
        assert max(map(len, path.read_text().splitlines())) <= 140 or path.suffix == ".csv"
    check_paper(Path("replications/doe_2020"))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(checkout: Path, kind: str) -> None:
    made = new(kind, NAMES[kind])
    texts = {path: path.read_text() for path in made.files}
    with pytest.raises(UserError, match="exists"):
        new(kind, NAMES[kind])
    assert {path: path.read_text() for path in made.files} == texts


def test_a_file_that_stands_in_the_way_is_named_before_anything_is_written(checkout: Path) -> None:
    test = checkout / "tests/algorithms/some_policy_test.py"
    test.parent.mkdir(parents=True)
    test.write_text("mine")
    with pytest.raises(UserError, match=r"^tests/algorithms/some_policy_test.py: exists; nothing was written$"):
        new("algorithm", "some_policy")
    assert not Path("ddrl/algorithms/some_policy.py").exists() and test.read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("algorithm", "Some-Policy", "'Some-Policy' is no good name; allowed: lower-case letters, digits and _"),
        ("algorithm", "class", "'class' is no good name: it is a word of Python itself"),
        ("algorithm", "../x", "'../x' is no good name"),
        ("algorithm", "impala", "algorithm 'impala' exists: .*impala.py"),
        ("environment", "toy", "environment 'toy' exists: .*toy.py"),
        ("paper", "doe", "'doe' is no good name; allowed: .*, then the year"),
    ],
)
def test_a_bad_name_is_one_clear_line(checkout: Path, kind: str, name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        new(kind, name)


def test_outside_of_a_checkout_a_folder_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no checkout of ddrl; allowed here: --into DIR, a package of your own"):
        new("algorithm", "some_policy")
    assert not list(tmp_path.iterdir())


def test_a_package_gets_an_entry_point_for_each_module_and_keeps_the_rest_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\nname = "my-research"  # mine\nversion = "2"\n[tool.ruff]\nline-length = 99\n')
    for kind, name in (("algorithm", "one"), ("algorithm", "two"), ("environment", "game"), ("paper", "doe_2020")):
        new(kind, name, tmp_path)
    assert "# mine" in path.read_text()
    data = tomllib.loads(path.read_text())
    assert data["tool"] == {"ruff": {"line-length": 99}}
    assert data["project"]["entry-points"] == {
        "ddrl.algorithms": {"one": "my_research.one", "two": "my_research.two"},
        "ddrl.environments": {"game": "my_research.game"},
    }
    assert (tmp_path / "my_research/two.py").exists() and (tmp_path / "replications/doe_2020/paper.yaml").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[project\n", "pyproject.toml: not valid TOML"),
        ("[tool.x]\n", "pyproject.toml: key 'project.name' is missing"),
        ('[project]\nname = "a"\nentry-points = {"ddrl.algorithms" = {}}\n', "has entry points in another form"),
        ('[project]\nname = "ddrl"\n', "'ddrl' cannot be the name of a package"),
    ],
)
def test_a_pyproject_that_cannot_be_added_to_is_left_as_it_is(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UserError, match=says):
        new("algorithm", "one", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
    assert (tmp_path / "pyproject.toml").read_text() == text


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_twice_in_a_package_exists_the_second_time(kind: str, tmp_path: Path) -> None:
    new(kind, NAMES[kind], tmp_path)
    texts = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    with pytest.raises(UserError, match="exists"):
        new(kind, NAMES[kind], tmp_path)
    assert {path: path.read_text() for path in texts} == texts


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_that_are_printed_can_be_typed(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "my research dir"
    made = new(kind, NAMES[kind], folder)
    paths = [word for command in made.commands for word in shlex.split(command) if str(folder) in word]
    assert paths and all(Path(word).exists() for word in paths)
