"""A claim whose plan is younger than runs says so by rule, whatever its verdict and in every output."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.verdicts.planned_seeds import plan_columns, seeds_of, used
from ddrl.analysis.verdicts.plans import RULES, TUNING_REMOVED, Rule, changed_rules, with_plans
from ddrl.cli import tables
from ddrl.papers.experiments import Experiment
from ddrl.papers.ground_rules import to_register
from ddrl.papers.paper import Paper, load_paper
from ddrl.papers.plans import Registered, appended, halves, in_force, read_register, write_register
from ddrl.papers.tuning import Tuning
from ddrl.report.sections.answers import answers
from ddrl.report.sections.chosen import younger_rules
from ddrl.report.sections.claims import evidence, ledger
from docs.sitegen import evidence as pages
from tests.analysis.verdicts.claims_test import CORRECTION, PAPER, run_of
from tests.repositories import Repository

CLAIM = "v_trace_over_no_correction"
BEFORE, THEN, AFTER = (f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3))


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    """The IMPALA paper, whose plans were all registered at `THEN`."""
    folder = tmp_path / PAPER.key
    shutil.copytree(PAPER.directory, folder, ignore=shutil.ignore_patterns("__pycache__", "plans.csv"))
    write_register(folder, appended([], to_register(folder), THEN, ""))
    return load_paper(folder)


def runs(*began: str, plans: Any = None) -> list[RunData]:
    """One run of each variant for each time."""
    made = [run_of(variant, seed) for seed in range(len(began)) for variant in ("v_trace", "no_correction")]
    facts = [{"started": began[one.seed]} | ({} if plans is None else {"plans": plans}) for one in made]
    return [replace(one, manifest={**one.manifest, **fact}) for one, fact in zip(made, facts, strict=True)]


def noted(
    paper: Paper, own: list[RunData], verdict: str = "supported", experiments: dict[str, Experiment] | None = None
) -> dict[str, Any]:
    """The row of the claim, with what every table of claims has."""
    blank = dict.fromkeys(("effect", "ci95_low", "ci95_high", "p", "p_holm", "decided_by", "comparisons", "detail"), "")
    row = {"claim": CLAIM, "origin": "run", "verdict": verdict, "title": "V-trace", "source": "Table 2", **blank}
    row |= {"effect_unit": "", "flags": "", "seeds": "3", "env_frames": "1000", "tasks": "Catch", "paper": paper.key}
    known = next(claim for claim in paper.claims if claim.name == CLAIM)
    seeds = seeds_of(known, (experiments or {}).get(known.experiment), used(known, own), "workstation")
    row |= plan_columns(seeds, ())
    return dict(with_plans(pd.DataFrame([row]), paper, "workstation", own).iloc[0])


def test_runs_that_began_before_a_test_was_registered_are_counted(paper: Paper) -> None:
    found = noted(paper, runs(BEFORE, AFTER, AFTER))
    assert (found["plan_runs"], found["late_runs"], found["resettled_runs"]) == (6, 2, 2)
    assert found["late"].startswith("test written after 2 of 6 runs")
    assert found["plan"] == in_force(paper.directory)[CLAIM, "workstation"]
    assert found["plan_since"] == THEN


def test_runs_after_their_plan_need_no_note(paper: Paper) -> None:
    found = noted(paper, runs(THEN, AFTER))
    assert (found["late_runs"], found["resettled_runs"], found["late"]) == (0, 0, "")


def test_a_run_of_unknown_beginning_counts_as_older(paper: Paper) -> None:
    assert noted(paper, runs("", AFTER))["late_runs"] == 2


def test_a_plan_that_nobody_registered_is_younger_than_every_run(paper: Paper) -> None:
    (paper.directory / "plans.csv").unlink()
    found = noted(paper, runs(AFTER))
    assert (found["late_runs"], found["resettled_runs"], found["plan_since"]) == (2, 2, "")


def test_a_test_that_was_changed_without_being_registered_is_younger_too(paper: Paper) -> None:
    changed = replace(next(one for one in paper.claims if one.name == CLAIM), smallest_effect=0.5)
    path = paper.directory / "paper.yaml"
    text = path.read_text()
    assert text.count("smallest_effect: 0.05") > 1
    path.write_text(text.replace("smallest_effect: 0.05", "smallest_effect: 0.5", 1))
    assert load_paper(paper.directory).claims[0] == changed
    found = noted(load_paper(paper.directory), runs(AFTER))
    assert (found["late_runs"], found["resettled_runs"], found["redefined_runs"]) == (2, 0, 0)
    assert found["late"] == "test written after 2 of 2 runs"


@pytest.mark.parametrize("name", ["paper.yaml", "experiments.yaml"])
def test_a_change_of_what_counts_as_the_papers_own_setting_is_said(paper: Paper, name: str) -> None:
    """It decides between `contradicted` and `contradicted_here`, and is in no plan."""
    data = yaml.safe_load((paper.directory / name).read_text())
    if name == "paper.yaml":
        data["evidence"]["full_budget"] = 0.0001
    else:
        data["experiments"][CORRECTION.name]["proxy"] = None
    (paper.directory / name).write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False))
    found = noted(load_paper(paper.directory), runs(AFTER))
    assert (found["late_runs"], found["resettled_runs"], found["redefined_runs"]) == (0, 0, 2)
    assert found["late"] == "what counts as the paper's own setting changed after 2 of 2 runs"
    new_rows = appended(read_register(paper.directory), to_register(paper.directory), AFTER, "")
    write_register(paper.directory, [*read_register(paper.directory), *new_rows])
    assert noted(load_paper(paper.directory), runs(AFTER))["late"] == ""


def test_claims_say_that_a_recorded_tuning_of_their_experiment_was_removed(paper: Paper) -> None:
    gone = Registered(f"tuning:{CORRECTION.name}:0123456789ab", "every", "0123456789ab", THEN, "")
    write_register(paper.directory, [*read_register(paper.directory), gone])
    assert noted(paper, runs(AFTER))["late"] == TUNING_REMOVED


def made_at(own: list[RunData], commit: str, dirty: bool = False) -> list[RunData]:
    """The runs as a checkout of a commit made them."""
    return [replace(one, manifest={**one.manifest, "git_sha": commit, "git_dirty": dirty}) for one in own]


def test_the_digest_that_a_run_carries_goes_before_its_date_if_its_commit_has_the_plan(paper: Paper) -> None:
    """The plan was registered at `THEN`, then another one, and it returned: its row is younger than the run."""
    plan = in_force(paper.directory)[CLAIM, "workstation"]
    _, settings = halves(plan)
    repository = Repository(paper.directory.parent)
    first = repository.commit("2026-01-01T12:00:00+00:00")
    rows = read_register(paper.directory)
    rows += [Registered(CLAIM, "workstation", f"0123456789ab-{settings}", "2026-01-04T00:00:00+00:00", "")]
    rows += [Registered(CLAIM, "workstation", plan, "2026-01-05T00:00:00+00:00", "")]
    write_register(paper.directory, rows)
    repository.commit("2026-01-05T00:00:00+00:00")
    own = runs(THEN, plans={CLAIM: plan})
    assert noted(paper, made_at(own, first))["late"] == ""
    said = "test written after 2 of 2 runs"
    assert noted(paper, made_at(own, first, dirty=True))["late"] == said, "of other files nobody knows what they said"
    assert noted(paper, made_at(own, "0" * 40))["late"] == said, "git does not know the commit: the dates decide"
    assert noted(paper, own)["late"] == said
    early = runs("2026-01-01T00:00:00+00:00", plans={CLAIM: plan})
    assert noted(paper, made_at(early, first))["late"].startswith(said), "a run is not older than its commit"


def test_a_digest_that_was_written_into_an_old_run_does_not_count(paper: Paper) -> None:
    """The commit that the run was made with has no such plan."""
    plan = in_force(paper.directory)[CLAIM, "workstation"]
    registered = read_register(paper.directory)
    write_register(paper.directory, [row for row in registered if row.claim != CLAIM])
    repository = Repository(paper.directory.parent)
    first = repository.commit("2026-01-01T00:00:00+00:00")
    write_register(paper.directory, registered)
    repository.commit(AFTER)
    found = noted(paper, made_at(runs(THEN, plans={CLAIM: plan}), first))
    assert (found["late_runs"], found["resettled_runs"]) == (2, 2)


def test_a_backdated_row_counts_from_the_commit_that_added_it(paper: Paper) -> None:
    repository = Repository(paper.directory.parent)
    repository.commit(THEN)
    path = paper.directory / "paper.yaml"
    path.write_text(path.read_text().replace("smallest_effect: 0.05", "smallest_effect: 0.5", 1))
    new = appended(read_register(paper.directory), in_force(paper.directory), THEN, "")
    write_register(paper.directory, [*read_register(paper.directory), *new])
    repository.commit(AFTER)
    changed = load_paper(paper.directory)
    found = noted(changed, runs(THEN, AFTER))
    assert (found["late"], found["plan_since"]) == ("test written after 2 of 4 runs", AFTER)
    shutil.rmtree(paper.directory.parent / ".git")
    assert noted(changed, runs(THEN, AFTER))["late"] == "", "without git the dates of the file count"


def test_a_digest_that_a_run_does_not_carry_makes_it_older(paper: Paper) -> None:
    test, settings = halves(in_force(paper.directory)[CLAIM, "workstation"])
    other = noted(paper, runs(AFTER, plans={CLAIM: f"0123456789ab-{settings}"}))
    assert (other["late_runs"], other["resettled_runs"]) == (2, 0)
    settled = noted(paper, runs(AFTER, plans={CLAIM: f"{test}-0123456789ab"}))
    assert settled["late"] == "tasks, seeds or settings of the plan changed after 2 of 2 runs"
    assert noted(paper, runs(AFTER, plans={"another_claim": "x-y"}))["late_runs"] == 2


def test_settings_that_changed_later_are_told_apart_from_the_test(paper: Paper) -> None:
    plan = in_force(paper.directory)[CLAIM, "workstation"]
    test, _ = halves(plan)
    rows = [
        Registered(CLAIM, "workstation", f"{test}-0123456789ab", BEFORE, ""),
        Registered(CLAIM, "workstation", plan, AFTER, ""),
    ]
    write_register(paper.directory, rows)
    found = noted(paper, runs(THEN))
    assert (found["late_runs"], found["resettled_runs"], found["plan_since"]) == (0, 2, BEFORE)


def test_runs_whose_seeds_their_settings_were_chosen_with_are_counted(paper: Paper) -> None:
    entry = Tuning("a rate", "here", ("v_trace",), ("toy/catch",), (1, 7), runs=2, frames=None)
    tuned = {CORRECTION.name: replace(CORRECTION, tuning=(entry,))}
    found = noted(paper, runs(AFTER, AFTER, AFTER), experiments=tuned)
    said = "settings chosen with the seeds of 1 of 6 runs"
    assert (found["tuned_runs"], found["late"].partition(";")[0]) == (1, said)
    elsewhere = {CORRECTION.name: replace(CORRECTION, tuning=(replace(entry, tasks=("toy/other",)),))}
    assert noted(paper, runs(AFTER, AFTER), experiments=elsewhere)["tuned_runs"] == 0


def test_runs_that_the_plan_lacks_and_planned_ones_that_are_missing_are_counted(paper: Paper) -> None:
    own = [replace(one, seed=seed) for one, seed in zip(runs(AFTER, AFTER), (11, 11, 99, 99), strict=True)]
    found = noted(paper, own, experiments={CORRECTION.name: CORRECTION})
    number = len(CORRECTION.scales["workstation"].seeds) - 1
    assert (found["unplanned_runs"], found["missing_runs"]) == (2, 2 * number)
    assert found["late"] == f"2 runs are not in the plan; {2 * number} planned runs are missing"


@pytest.mark.parametrize("verdict", ["supported", "contradicted", "inconclusive"])
def test_every_output_has_the_note_also_where_no_test_was_made(
    paper: Paper, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "test written after 2 of 2 runs"
    said_first = "test after 2, settings after 2, own setting after 2 of 2 runs"
    found = noted(paper, runs(BEFORE), verdict)
    row = {name: "" if value is None else str(value) for name, value in found.items()}
    assert said in evidence(row)
    assert said in str(ledger([row], {paper.key: "IMPALA"}, "run").groups)
    assert answers([row | {"contradicted_below": "", "supported_above": ""}], "run").rows[0].origin == said_first
    assert said in pages._effect({"seeds_needed": "", **row})
    empty = dict.fromkeys(("seeds_needed", "p", "ci95_low", "ci95_high", "effect"))
    tables.print_rows(tables.rows("claims", pd.DataFrame([found | empty | {"env_frames": 1000.0}])))
    assert said in capsys.readouterr().out


def test_a_rule_for_all_claims_that_is_younger_than_runs_is_said_once() -> None:
    rules = (Rule(THEN, "medians count"), Rule(BEFORE, "means count"))
    found = changed_rules([BEFORE, AFTER, AFTER], rules)
    assert found == [{"date": "2026-01-02", "older": 1, "runs": 3, "text": "medians count"}]
    assert changed_rules([AFTER], rules) == []
    assert "Medians count" in str(younger_rules(found))
    assert [rule.date for rule in RULES] == sorted(rule.date for rule in RULES)
