"""`ddrl register`: appends plans, names those that are missing, and reads older ones from git."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ddrl.cli import main
from ddrl.cli.new import new
from ddrl.papers.plan_dates import dated
from ddrl.papers.plans import halves, read_register, write_register

PAPER = "doe_2020"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one new paper, which is the working directory and a git repository."""
    new("paper", PAPER, tmp_path)
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    commit("first", "2026-01-01T00:00:00+01:00")
    return Path("replications") / PAPER


def git(*arguments: str, **variables: str) -> None:
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], env={**os.environ, **names, **variables}, check=True)


def commit(message: str, date: str) -> None:
    git("add", "--all")
    git("commit", "--quiet", "--message", message, GIT_COMMITTER_DATE=date, GIT_AUTHOR_DATE=date)


def change(folder: Path, key: str, value: object) -> str:
    """Set a key of the first claim's test; returns the claim's name."""
    path = folder / "paper.yaml"
    data = yaml.safe_load(path.read_text())
    data["claims"][0]["test"][key] = value
    path.write_text(yaml.safe_dump(data, allow_unicode=True))
    return str(data["claims"][0]["name"])


def register(*options: str) -> int:
    return main(["register", PAPER, "--replications", "replications", *options])


def test_a_changed_test_is_not_registered_until_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert register("--check") == 1
    assert register() == 0
    assert "commit it before the runs begin" in capsys.readouterr().out
    assert register("--check") == 0
    before = read_register(folder)
    name = change(folder, "smallest_effect", 0.123)
    capsys.readouterr()
    assert register("--check") == 1
    said = capsys.readouterr().out
    assert f"{folder}/plans.csv: claim '{name}' at scale smoke has the plan " in said
    assert register() == 0
    after = read_register(folder)
    assert after[: len(before)] == before, "rows are only appended"
    assert {row.claim for row in after[len(before) :]} == {name}


def test_a_row_that_was_changed_in_place_is_found_in_the_history_of_git(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also once it is committed; rows that are only appended are in order."""
    assert register() == 0
    commit("plans", "2027-01-01T00:00:00+00:00")
    change(folder, "smallest_effect", 0.123)
    assert register() == 0
    commit("another plan", "2027-01-02T00:00:00+00:00")
    capsys.readouterr()
    assert register("--check") == 0
    assert "no row of a register was changed" in capsys.readouterr().out
    whole = (folder / "plans.csv").read_text()
    last = read_register(folder)[-1].digest
    (folder / "plans.csv").write_text(whole.replace(last, f"0123456789ab-{halves(last)[1]}", 1).rstrip() + "\n")
    assert register() == 0, "the digest in force is appended"
    assert register("--check") == 1
    assert "rows differ from those of commit" in capsys.readouterr().out
    commit("backdated", "2027-01-03T00:00:00+00:00")
    assert register("--check") == 1
    assert "changed or removed rows that" in capsys.readouterr().out


def test_a_row_that_is_dated_before_those_above_it_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert register() == 0
    commit("plans", "2027-01-01T00:00:00+00:00")
    name = change(folder, "smallest_effect", 0.123)
    assert register() == 0
    rows = read_register(folder)
    write_register(folder, [replace(row, date="2020-01-01T00:00:00+00:00") if row == rows[-1] else row for row in rows])
    commit("backdated", "2027-01-02T00:00:00+00:00")
    capsys.readouterr()
    assert register("--check") == 1
    said = f"plans.csv: line {len(rows) + 1}: key '{name}' is dated 2020-01-01T00:00:00+00:00, before a row above it"
    assert said in capsys.readouterr().out


def test_a_row_that_names_a_commit_without_being_of_it_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert register("--history") == 0
    rows = read_register(folder)
    first = rows[-1].commit
    commit("plans", "2027-01-01T00:00:00+00:00")
    assert register("--check") == 0
    write_register(folder, [*rows[:-1], replace(rows[-1], date="2025-01-01T00:00:00+00:00")])
    capsys.readouterr()
    register("--check")
    assert f"its commit {first} is 2025-12-31T23:00:00+00:00" not in capsys.readouterr().out, "it is no row of git's"
    git("commit", "--quiet", "--amend", "--all", "--no-edit", GIT_COMMITTER_DATE="2027-01-01T00:00:00+00:00")
    assert register("--check") == 1
    assert f"its commit {first} is 2025-12-31T23:00:00+00:00" in capsys.readouterr().out
    write_register(folder, rows)
    git("commit", "--quiet", "--amend", "--all", "--no-edit", GIT_COMMITTER_DATE="2027-01-01T00:00:00+00:00")
    change(folder, "smallest_effect", 0.123)
    assert register() == 0
    later = [*rows, *(replace(row, date=rows[0].date, commit=first) for row in read_register(folder)[len(rows) :])]
    write_register(folder, later)
    commit("named", "2027-01-02T00:00:00+00:00")
    assert register("--check") == 1
    assert f"names commit {first}; allowed: none, since the row was added later" in capsys.readouterr().out
    assert dated(folder)[-1].date == "2027-01-02T00:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,smoke,b-c,2026-01-01T00:00:00+00:00,\n", "line 1 has no column 'claim'"),
        ("", "line 1 has no column 'claim'"),
        ("claim,digest,scale,date,commit\n", "line 1 has the columns claim, digest, scale, date, commit"),
        ("claim,scale,digest,date,commit\na,smoke\n", "line 2 has 2 columns"),
        ("claim,scale,digest,date,commit\na,b,c,d,e,f\n", "line 2 has 6 columns"),
    ],
)
def test_a_register_with_other_columns_is_one_line_with_file_column_and_what_is_allowed(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (folder / "plans.csv").write_text(text)
    for options in (("--check",), ()):
        assert register(*options) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"{folder}/plans.csv: {said}; allowed: claim, scale, digest, date, commit" in error


def test_without_a_history_the_check_refuses(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert register() == 0
    commit("plans", "2027-01-01T00:00:00+00:00")
    git("clone", "--quiet", "--depth", "1", f"file://{tmp_path}", str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    assert register("--check") == 2
    assert "the history of git is cut off (shallow)" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "shallow" / ".git")
    shutil.rmtree(tmp_path / ".git")
    assert register("--check") == 2
    assert "is in no repository of git" in capsys.readouterr().err


def test_the_register_of_the_past_is_in_the_history_of_git(folder: Path) -> None:
    name = change(folder, "smallest_effect", 0.123)
    commit("second", "2026-01-02T12:00:00+00:00")
    assert register("--history") == 0
    rows = [row for row in read_register(folder) if row.claim == name and row.scale == "smoke"]
    assert [row.date for row in rows] == ["2025-12-31T23:00:00+00:00", "2026-01-02T12:00:00+00:00"]
    tests, settings = zip(*(halves(row.digest) for row in rows), strict=True)
    assert len(set(tests)) == 2
    assert len(set(settings)) == 1
    assert all(len(row.commit) == 12 for row in rows)
    assert register("--check") == 0


@pytest.mark.parametrize("text", ["", "[]", "key: doe_2020", "claims: [x]", "claims: {"])
def test_a_commit_whose_files_cannot_be_read_brings_no_row(folder: Path, text: str) -> None:
    path = folder / "paper.yaml"
    whole = path.read_text()
    path.write_text(text)
    commit("broken", "2026-01-02T00:00:00+00:00")
    path.write_text(whole)
    commit("mended", "2026-01-03T00:00:00+00:00")
    assert register("--history") == 0
    assert {row.date for row in read_register(folder)} == {"2025-12-31T23:00:00+00:00"}


def test_without_a_repository_there_is_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new("paper", PAPER, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert register("--history") == 2
    assert "is in no repository of git" in capsys.readouterr().err


def test_history_does_not_replace_a_register(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert register() == 0
    assert register("--history") == 2
    assert "plans.csv: exists" in capsys.readouterr().err
