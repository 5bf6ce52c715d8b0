"""Tables that are kept between calls: made once, and anew as soon as anything they follow from has changed."""

from __future__ import annotations

import shutil
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl.analysis.tables import build, kept
from ddrl.papers.table_names import REFERENCE, TABLES
from ddrl.training.config.experiments import expand
from tests import house
from tests.analysis.fakes import write_run

ROOT = Path(__file__).parents[3] / "replications"
PAPER = "impala_2018"
SEEDS = (11, 12, 13, 14, 15)
WANTED: dict[str, Any] = {"experiments": ["off_policy_correction"], "environments": ["toy/catch"], "seeds": SEEDS}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a paper of one's own and ten reference runs of it, which its plan has."""
    for name in (PAPER, "references"):
        shutil.copytree(ROOT / name, tmp_path / "replications" / name)
    for variant, final in (("v_trace", 0.9), ("no_correction", 0.2)):
        for run in expand(PAPER, "workstation", root=ROOT, variants=[variant], **WANTED):
            write_run(run, tmp_path / "results", start=-1.0, final=final, origin="reference")
    return tmp_path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The names of tables that were made, one entry a call of `make`."""
    calls: list[tuple[str, ...]] = []
    make = build.make

    def counted(names: Any, *arguments: Any, **options: Any) -> dict[str, pd.DataFrame]:
        calls.append(tuple(names))
        return make(names, *arguments, **options)

    monkeypatch.setattr(build, "make", counted)
    return calls


def claims(place: Path) -> pd.DataFrame:
    return kept.tables(["claims"], place / "replications" / PAPER, REFERENCE, [], place / "results")["claims"]


def same(first: pd.DataFrame, second: pd.DataFrame) -> bool:
    """Whether two tables have the same columns, types and cells; a missing value may be None or NaN."""
    return first.dtypes.equals(second.dtypes) and build.table_as_csv(first) == build.table_as_csv(second)


def changed_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_is_kept_is_what_was_made_to_the_last_byte(place: Path, made: list[tuple[str, ...]]) -> None:
    paper, results = place / "replications" / PAPER, place / "results"
    first = kept.build(paper, REFERENCE, [], results)
    second = kept.build(paper, REFERENCE, [], results)
    assert made == [TABLES]
    assert first.summary == second.summary
    for name in TABLES:
        assert same(first.tables[name], second.tables[name]), name


def test_only_the_tables_asked_for_are_made(place: Path, made: list[tuple[str, ...]]) -> None:
    claims(place)
    kept.tables(["claims", "cells"], place / "replications" / PAPER, REFERENCE, [], place / "results")
    assert made == [("claims",), ("cells",)]


def test_a_changed_run_gives_new_numbers(place: Path, made: list[tuple[str, ...]]) -> None:
    before = claims(place)
    run = expand(PAPER, "workstation", root=ROOT, variants=["v_trace"], **WANTED)[0]
    write_run(run, place / "results", start=-1.0, final=0.5, origin="reference")
    after = claims(place)
    assert len(made) == 2 and not after["effect"].equals(before["effect"])


def test_a_new_and_a_removed_run_count_too(place: Path, made: list[tuple[str, ...]]) -> None:
    claims(place)
    (run,) = expand(PAPER, "workstation", root=ROOT, variants=["v_trace"], **WANTED | {"seeds": [4]})
    folder = write_run(run, place / "results", start=-1.0, final=0.5, origin="reference")
    claims(place)
    shutil.rmtree(folder)
    claims(place)
    assert len(made) == 3


def test_a_changed_threshold_of_a_claim_gives_a_new_verdict(place: Path, made: list[tuple[str, ...]]) -> None:
    before = claims(place).set_index("claim")["verdict"]
    changed_in(place / "replications" / PAPER / "paper.yaml", "smallest_effect: ", "smallest_effect: 100")
    after = claims(place).set_index("claim")["verdict"]
    assert len(made) == 2
    assert (before == "supported").any() and not before.equals(after)


def test_a_changed_source_file_of_the_analysis_makes_them_anew(
    place: Path, made: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in kept.SOURCES:
        copy = shutil.copytree if (kept.PACKAGE / name).is_dir() else shutil.copy
        (place / "ddrl").mkdir(exist_ok=True)
        copy(kept.PACKAGE / name, place / "ddrl" / name)
    monkeypatch.setattr(kept, "PACKAGE", place / "ddrl")
    claims(place)
    claims(place)
    assert len(made) == 1
    source = place / "ddrl" / "analysis" / "statistics" / "significance.py"
    source.write_text(source.read_text() + "\n")
    claims(place)
    assert len(made) == 2


def test_every_module_that_makes_a_table_is_in_the_digest() -> None:
    graph = {name: found.inside for name, found in house.read_imports(house.sources()).items()}
    within = tuple(f"ddrl.{name.removesuffix('.py')}" for name in kept.SOURCES)
    reached = house.reached(graph, ["ddrl.analysis.tables.build"]) - {"ddrl"}
    assert {name for name in reached if not name.startswith(within)} == set()


def test_times_of_files_do_not_count(place: Path, made: list[tuple[str, ...]]) -> None:
    claims(place)
    for path in (place / "results" / REFERENCE).rglob("*.*"):
        path.touch()
    claims(place)
    assert len(made) == 1


def test_a_damaged_file_is_made_anew(place: Path, made: list[tuple[str, ...]]) -> None:
    before = claims(place)
    (path,) = (place / "results" / kept.FOLDER).rglob("claims.*")
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert same(claims(place), before)
    path.write_bytes(b"")
    assert same(claims(place), before)
    assert len(made) == 3


def test_tables_of_an_older_state_are_removed(place: Path) -> None:
    claims(place)
    (old,) = (place / "results" / kept.FOLDER / f"{PAPER}-{REFERENCE}").iterdir()
    changed_in(place / "replications" / PAPER / "DEVIATIONS.md", "\n|", "\n\n|")
    claims(place)
    (new,) = old.parent.iterdir()
    assert new != old


def test_where_nothing_can_be_written_tables_are_made_each_time(place: Path, made: list[tuple[str, ...]]) -> None:
    (place / "results" / kept.FOLDER).write_text("a file in the way")
    assert same(claims(place), claims(place))
    assert len(made) == 2


def test_two_processes_at_once_do_no_harm(place: Path) -> None:
    with get_context("spawn").Pool(2) as pool:
        first, second = pool.map(claims, [place, place])
    assert same(first, second)
    assert same(claims(place), first)
