"""The plan of a claim: what changes its digest, and what stands in the register."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddrl.cli.register import rewritten, unregistered
from ddrl.errors import UserError
from ddrl.papers.expansion import expand
from ddrl.papers.experiments import SCALES, papers
from ddrl.papers.ground_rules import EVERY
from ddrl.papers.paper import Claim, Needs, Prices, load_paper
from ddrl.papers.plans import (
    Registered,
    appended,
    carried,
    half_of_test,
    halves,
    in_force,
    latest,
    plans_of,
    read_register,
    since,
    write_register,
)
from ddrl.system.git import utc

ROOT = Path(__file__).parents[2] / "replications"
IMPALA = ROOT / "impala_2018"
CLAIM = Claim(
    name="a_over_b",
    title="A beats B",
    text="A ends higher.",
    source="Table 1",
    kind="ordering",
    experiment="e",
    metric="final_return",
    better="a",
    worse=("b",),
    smallest_effect=0.1,
)


def half(claim: Claim = CLAIM, milestones: Any = None, prices: Prices | None = None) -> str:
    return half_of_test(claim, milestones or {}, prices, ("toy/catch",))


@pytest.mark.parametrize("name", papers(ROOT))
def test_every_plan_in_force_is_registered(name: str) -> None:
    assert unregistered([ROOT / name]) == [], "register the plans before the runs: ddrl register"


def test_no_row_of_a_register_was_changed_since_they_are_append_only() -> None:
    folders = [ROOT / name for name in papers(ROOT)]
    try:
        assert rewritten(folders) == []
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", papers(ROOT))
def test_the_dates_of_a_register_never_fall(name: str) -> None:
    rows = read_register(ROOT / name)
    for found in ([row.date for row in rows if (row.scale == EVERY) is rule] for rule in (False, True)):
        assert found == sorted(found)
    assert all(row.date.endswith("+00:00") for row in rows)
    assert {row.scale for row in rows} <= {*SCALES, EVERY}


@pytest.mark.parametrize("name", papers(ROOT))
def test_a_plan_of_a_commit_has_the_date_of_that_commit(name: str) -> None:
    dates = {row.commit: row.date for row in read_register(ROOT / name) if row.commit}
    if not dates:
        pytest.skip("no plan is registered")
    asked = ["git", "-C", str(ROOT), "show", "--no-patch", "--format=%H %cI", *dates]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no repository with its history")
    found = dict(line.split() for line in done.stdout.splitlines())
    assert {commit[:12]: utc(date) for commit, date in found.items()} == dates


@pytest.mark.parametrize(
    "change",
    [
        {"smallest_effect": 0.2},
        {"worse": ("c",)},
        {"environments": ("toy/catch",)},
        {"needs": Needs(gpu=True)},
        {"metric": "mean_return"},
        {"kind": "monotone"},
        {"margin": 0.1},
    ],
)
def test_a_change_of_the_test_changes_its_half(change: dict[str, Any]) -> None:
    assert half(dataclasses.replace(CLAIM, **change)) != half()


@pytest.mark.parametrize(
    "change", [{"title": "x"}, {"text": "x"}, {"source": "x"}, {"published": ("x",)}, {"effect_unit": "x"}]
)
def test_words_are_no_part_of_a_plan(change: dict[str, Any]) -> None:
    assert half(dataclasses.replace(CLAIM, **change)) == half()


def test_a_half_is_the_same_on_every_machine_and_for_numbers_that_are_equal() -> None:
    assert half() == "63b2678aa403"
    assert half(dataclasses.replace(CLAIM, smallest_effect=2)) == half(dataclasses.replace(CLAIM, smallest_effect=2.0))


def test_the_returns_to_reach_are_part_of_a_test_of_times_that_takes_them_from_the_paper() -> None:
    timed = dataclasses.replace(CLAIM, kind="time_to_reach", metric="env_frames")
    milestones = {"toy/catch": 0.9, "toy/other": 1.0}
    assert half(timed, milestones) != half(timed, milestones | {"toy/catch": 0.8})
    assert half(timed, milestones) == half(timed, milestones | {"toy/other": 2.0})
    fixed = dataclasses.replace(timed, threshold=0.5)
    assert half(fixed, milestones) == half(fixed, {})


def test_prices_are_part_of_a_test_of_dollars_alone() -> None:
    dollars = dataclasses.replace(CLAIM, metric="dollars_per_billion_frames")
    cheap, dear = Prices(0.1, 1.0, ""), Prices(0.1, 2.0, "")
    assert half(dollars, prices=cheap) != half(dollars, prices=dear)
    assert half(prices=cheap) == half(prices=dear)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("best.csv", "toy/catch,1,", "toy/catch,2,"),
        ("toy.csv", "catch,-0.6,", "catch,-3,"),
        ("toy.csv", ",,,", ",4,rule_of_the_task,"),
    ],
)
def test_the_numbers_of_references_that_a_claim_uses_are_part_of_its_test(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    folder = edited(tmp_path, "", None)
    shutil.copytree(ROOT / "references", tmp_path / "references")
    assert in_force(folder) == BEFORE
    path = tmp_path / "references" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    after = in_force(folder)
    changed = {claim for claim, scale in BEFORE if BEFORE[claim, scale] != after[claim, scale]}
    assert {"replay_helps_v_trace", "v_trace_over_no_correction"} <= changed
    assert not changed & {"deep_over_shallow", "impala_fastest_on_one_machine"}, "other tasks, or no score at all"
    assert all(halves(BEFORE[key])[1] == halves(after[key])[1] for key in BEFORE)


def test_a_set_of_tasks_has_the_references_of_all_its_tasks(tmp_path: Path) -> None:
    folder = edited(tmp_path, "", None)
    shutil.copytree(ROOT / "references", tmp_path / "references")
    path = tmp_path / "references" / "firstperson.csv"
    path.write_text(path.read_text().replace("vizdoom_basic,-2.18,", "vizdoom_basic,-2.19,"))
    after = in_force(folder)
    changed = {claim for claim, scale in BEFORE if BEFORE[claim, scale] != after[claim, scale]}
    assert "multitask_over_a3c" in changed
    assert "v_trace_over_no_correction" not in changed


def edited(tmp_path: Path, part: str, change: Any, order: bool = True) -> Path:
    """A copy of the files of a paper, of which `change` edits one."""
    folder = tmp_path / IMPALA.name
    folder.mkdir()
    for name in ("paper.yaml", "experiments.yaml"):
        data = yaml.safe_load((IMPALA / name).read_text(encoding="utf-8"))
        if name == part:
            change(data)
        (folder / name).write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=order))
    return folder


CORRECTION = "off_policy_correction"
BEFORE = in_force(IMPALA)


def test_the_order_of_keys_changes_no_digest(tmp_path: Path) -> None:
    assert in_force(edited(tmp_path, "paper.yaml", lambda data: None)) == BEFORE


def test_a_seed_changes_the_settings_of_its_experiment_and_scale_alone(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["experiments"][CORRECTION]["scales"]["workstation"]["seeds"].append(99)

    before, after = BEFORE, in_force(edited(tmp_path, "experiments.yaml", change))
    changed = {key for key in before if before[key] != after[key]}
    claims = {claim.name for claim in load_paper(IMPALA).claims if claim.experiment == CORRECTION}
    assert changed == {(claim, "workstation") for claim in claims}
    assert all(halves(before[key])[0] == halves(after[key])[0] for key in changed)


def test_a_hyperparameter_of_a_variant_changes_the_claims_that_name_it(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["experiments"][CORRECTION]["variants"]["one_step_is"].setdefault("set", {})["hyperparameters.c_bar"] = 0.5

    after = in_force(edited(tmp_path, "experiments.yaml", change))
    changed = {claim for claim, scale in BEFORE if BEFORE[claim, scale] != after[claim, scale]}
    assert "one_step_is_over_no_correction" in changed
    assert "replay_helps_v_trace" not in changed


def test_what_is_recorded_changes_no_digest(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        scale = data["experiments"][CORRECTION]["scales"]["workstation"]
        scale.setdefault("departures", []).append({"set": {"recording.period_frames": 12345}, "reason": "as a test"})

    assert in_force(edited(tmp_path, "experiments.yaml", change)) == BEFORE


def row(digest: str, date: str) -> Registered:
    return Registered("c", "smoke", digest, date, "")


def test_a_plan_counts_from_its_newest_return_on() -> None:
    rows = [row("a-x", "1"), row("b-x", "2"), row("a-x", "3"), row("a-y", "4")]
    assert since(rows, "c", "smoke", 0) == "3"
    assert since(rows, "c", "smoke", 1) == "4"
    assert since(rows[:3], "c", "smoke", 1) == "1"
    assert since(rows, "c", "paper", 0) == ""
    assert [one.digest for one in appended(rows, {("c", "smoke"): "a-x"}, "5", "")] == ["a-x"]
    assert list(appended(rows, {("c", "smoke"): "a-y"}, "5", "")) == []


def test_a_register_reads_as_it_was_written(tmp_path: Path) -> None:
    rows = [row("a-x", "2026-01-01T00:00:00+00:00"), row("b-x", "2026-01-02T00:00:00+00:00")]
    write_register(tmp_path, rows)
    assert read_register(tmp_path) == rows
    assert latest(rows) == {("c", "smoke"): "b-x"}


def test_a_run_carries_the_registered_plans_of_the_claims_that_use_it(tmp_path: Path) -> None:
    folder = edited(tmp_path, "", None)
    planned = expand(folder.name, "smoke", root=tmp_path)
    assert not any(carried(folder, "smoke", planned).values())
    plans = in_force(folder)
    write_register(folder, appended([], plans, "2026-01-01T00:00:00+00:00", ""))
    found = carried(folder, "smoke", planned)
    run = next(run for run in planned if run.variant == "v_trace_replay" and run.experiment == CORRECTION)
    assert found[run.key]["replay_helps_v_trace"] == plans["replay_helps_v_trace", "smoke"]
    assert "v_trace_over_no_correction" not in found[run.key]


def test_one_of_few_runs_carries_the_whole_plan_and_one_with_another_seed_its_test_alone() -> None:
    few = expand(IMPALA.name, "workstation", variants=["v_trace_replay"], seeds=[11, 99], root=ROOT)
    found = carried(IMPALA, "workstation", few)
    own = [run for run in few if run.experiment == CORRECTION and run.environment == "toy/catch"]
    digests = [found[run.key]["replay_helps_v_trace"] for run in own]
    test, settings = halves(BEFORE["replay_helps_v_trace", "workstation"])
    assert digests == [f"{test}-{settings}", f"{test}-"]


def test_a_claim_without_planned_runs_has_no_plan() -> None:
    assert plans_of(load_paper(IMPALA), {"smoke": []}) == {}
