"""What stands around the package (a repository, a locale, variables) is not taken for its own."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PLACE = {"elsewhere": "venv/lib/python3/site-packages/ddrl", "vendored": "third_party/ddrl", "own": "ddrl"}


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *author, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path, *, package: str, tracked: bool) -> Any:
    """Somebody's repository with this package in it; the package's module, as imported from there."""
    records = folder / package / "training" / "records"
    records.mkdir(parents=True)
    (folder / "README").touch()
    (folder / ".gitignore").write_text("__pycache__/\n")  # as the project's own has it: loading the copy writes there
    (folder / package / "__init__.py").touch()
    copy = records / "manifest.py"
    copy.write_bytes((ROOT / "ddrl" / "training" / "records" / "manifest.py").read_bytes())
    git(folder, "init", "--quiet")
    git(folder, "add", *(["."] if tracked else ["README", ".gitignore"]))
    git(folder, "commit", "--quiet", "--message", "theirs")
    spec = importlib.util.spec_from_file_location("copy_of_manifest", copy)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("place", "tracked"), [("elsewhere", False), ("elsewhere", True), ("vendored", True), ("own", False)]
)
def test_the_commit_of_somebody_elses_repository_is_none(tmp_path: Path, place: str, tracked: bool) -> None:
    assert repository(tmp_path, package=PLACE[place], tracked=tracked)._git() == (None, None)


def test_the_packages_own_repository_says_commit_and_changes(tmp_path: Path) -> None:
    module = repository(tmp_path, package="ddrl", tracked=True)
    sha = git(tmp_path, "rev-parse", "HEAD")
    assert module._git() == (sha, False)
    (tmp_path / "README").write_text("no part of the package")
    assert module._git() == (sha, False)
    (tmp_path / "ddrl" / "new.py").touch()
    assert module._git() == (sha, True)


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"])
def test_variables_of_git_name_no_other_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    module = repository(tmp_path / "own", package="ddrl", tracked=True)
    repository(tmp_path / "other", package="ddrl", tracked=False)
    places = {"GIT_DIR": ".git", "GIT_WORK_TREE": "", "GIT_INDEX_FILE": ".git/index"}
    monkeypatch.setenv(variable, str(tmp_path / "other" / places[variable]))
    assert module._git() == (git(tmp_path / "own", "rev-parse", "HEAD"), False)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = repository(tmp_path, package="ddrl", tracked=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module._git() == (None, None)


# Locales --------------------------------------------------------------------------------------------------------------

OPENING = {"read_text", "write_text", "open", "NamedTemporaryFile", "TextIOWrapper"}
NO_FILE = {"av.open", "os.open", "self.open", "self.remote.open"}


def without_encoding(path: Path) -> Iterator[str]:
    """Calls that read or write text as the locale has it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called, keywords = ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
        texts = [one.value for one in (*node.args, *keywords.values()) if isinstance(one, ast.Constant)]
        binary = any(isinstance(text, str) and "b" in text and set(text) <= set("rwaxb+") for text in texts)
        opens = called.rpartition(".")[2] in OPENING and called not in NO_FILE and not binary and called != "read_text"
        decodes = any(getattr(keywords.get(name), "value", False) for name in ("text", "universal_newlines"))
        if (opens or decodes) and "encoding" not in keywords:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {called}"


def test_every_text_has_an_encoding() -> None:
    files = [path for folder in ("ddrl", "replications", "workflows") for path in (ROOT / folder).rglob("*.py")]
    assert [call for path in files for call in without_encoding(path)] == []


def test_a_locale_without_utf_8_reads_and_prints_the_same(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("algorithm: impala\nenvironment: {name: toy/café}\nseed: 1\nenv_frames: 1\n", encoding="utf-8")
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "ddrl.cli", "train", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True)
    assert done.returncode == 2
    assert "unknown task of toy 'café'" in done.stderr.decode("utf-8")
