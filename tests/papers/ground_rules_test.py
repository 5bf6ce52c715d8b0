"""What decides a verdict without being in a plan has digests of its own, and records of tuning stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddrl.papers.experiments import load_experiments
from ddrl.papers.ground_rules import CELL, EVERY, SETTING, TUNING, ground_rules, missing, removed
from ddrl.papers.plans import appended, in_force, read_register, write_register

IMPACT = Path(__file__).parents[2] / "replications" / "impact_2020"
BEFORE = ground_rules(IMPACT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the paper of IMPACT, whose ground rules are registered."""
    found = tmp_path / IMPACT.name
    shutil.copytree(IMPACT, found, ignore=shutil.ignore_patterns("__pycache__", "plans.csv", "published"))
    everything = in_force(found) | ground_rules(found)
    write_register(found, appended([], everything, "2026-01-01T00:00:00+00:00", ""))
    return found


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def changed(folder: Path) -> set[str]:
    """The keys whose digest is not that of the committed paper."""
    after = ground_rules(folder)
    return {key for key, _ in BEFORE.keys() | after.keys() if BEFORE.get((key, EVERY)) != after.get((key, EVERY))}


def kinds(keys: set[str]) -> set[str]:
    return {key.partition(":")[0] + ":" for key in keys}


def test_the_part_of_a_budget_that_counts_as_all_changes_settings_and_cells_and_no_plan(folder: Path) -> None:
    edit(folder / "paper.yaml", "full_budget: 0.99", "full_budget: 0.0001")
    assert changed(folder) == {key for key, _ in BEFORE if not key.startswith(TUNING)}
    assert {scale for _, scale in missing(folder)} == {EVERY}


def test_a_margin_changes_cells_alone(folder: Path) -> None:
    edit(folder / "paper.yaml", "human_normalised: 0.1", "human_normalised: 0.9")
    assert changed(folder) == {key for key, _ in BEFORE if key.startswith(CELL)}


def test_whether_tasks_are_stand_ins_changes_the_settings_of_their_experiment(folder: Path) -> None:
    experiments = folder / "experiments.yaml"
    experiments.write_text(experiments.read_text().replace("proxy: null", "proxy: other tasks"))
    found = changed(folder)
    assert kinds(found) == {SETTING, CELL}
    edit(folder / "experiments.yaml", "proxy: other tasks", "proxy: tasks that are here")
    assert changed(folder) == found, "the words of a reason are no part of it"


def test_a_record_of_tuning_is_registered_and_is_missed_where_it_is_removed(folder: Path) -> None:
    assert removed(read_register(folder), load_experiments(folder)) == []
    edit(folder / "experiments.yaml", "        seeds: [21, 22]\n", "")
    found = removed(read_register(folder), load_experiments(folder))
    assert len(found) == 1
    assert found[0][1].startswith(f"{TUNING}{found[0][0]}:")
    edit(folder / "experiments.yaml", "        source: reasons of the departures\n", "        source: a book\n")
    assert removed(read_register(folder), load_experiments(folder)) == found, "words are no part of a record"
