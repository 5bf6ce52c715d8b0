"""paper.yaml: what a wrong one is told, in one line; and that the IMPALA paper's numbers and claims are all there."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ddrl.errors import UserError
from ddrl.papers.check import check_paper, coverage
from ddrl.papers.claim_kinds import KIND_METRICS, TIMED_METRICS
from ddrl.papers.experiments import load_experiments, papers
from ddrl.papers.paper import FLAGS, load_deviations, load_paper
from ddrl.papers.published import load_published, matching

ROOT = Path(__file__).parents[2] / "replications"
IMPALA = ROOT / "impala_2018"
ACCELERATOR = re.compile(r"\b[1-9]\d* GPU|NVIDIA|TPU|Titan|M60|[PV]100")
DATA: dict[str, Any] = yaml.safe_load((IMPALA / "paper.yaml").read_text(encoding="utf-8"))
CLAIMS = {claim.name: claim for claim in load_paper(IMPALA).claims}


@pytest.mark.parametrize("name", papers(ROOT))
def test_every_published_row_is_named_by_exactly_one_rule_or_has_a_reason(name: str) -> None:
    paper, published = load_paper(ROOT / name), load_published(ROOT / name)
    named = coverage(paper, published)
    assert list(named["cell"]) == list(published["cell"])
    assert named[named["rules"] != 1].empty
    assert ((named["experiment"] == "") == (named["reason"] != "")).all()


@pytest.mark.parametrize("name", papers(ROOT))
def test_every_paper_of_the_suite_passes_its_check(name: str) -> None:
    check_paper(ROOT / name)


def test_only_what_is_no_result_of_the_paper_goes_without_a_comparison() -> None:
    paper, published = load_paper(IMPALA), load_published(IMPALA)
    skipped = coverage(paper, published).query("reason != ''").merge(published, on="cell")
    results = skipped[skipped["system"].isin(["IMPALA", "IMPALA-Experts", "A3C", "Batched A2C"])]
    assert set(results["statistic"]) == {"stated"}
    assert set(results["item_x"]).isdisjoint({"Table 1", "Table 2", "Table 3", "Table 4", "Table B.1", "Table C.1"})


def test_the_claims_of_the_impala_paper_are_all_stated() -> None:
    assert len(CLAIMS) >= 30
    assert {claim.kind for claim in CLAIMS.values()} == set(KIND_METRICS) - {
        "no_worse",
        "alike",
        "up_to",
        "diminishing",
    }
    wanted = {
        "throughput": "impala_fastest_on_one_machine dynamic_batching_helps_impala advantage_grows_with_variation",
        "throughput_distributed": "faster_than_a3c",
        "single_task": "fewer_frames_than_a3c_and_a2c higher_than_a3c_and_a2c",
        "hyperparameter_sweep": "robust_over_hyperparameters",
        "off_policy_correction": "v_trace_over_no_correction v_trace_best_with_replay replay_helps_v_trace",
        "policy_lag_sweep": "lag_hurts_without_correction v_trace_best_under_lag",
        "q_estimate": "v_trace_targets_in_the_policy_gradient",
        "atari": "deep_over_shallow",
        "dmlab30": "deep_over_shallow_dmlab30 multitask_over_experts multitask_over_a3c pbt_adds",
        "learner_scaling": "learners_scale",
        "a3c_comparison": "impala_over_a3c_atari impala_over_a3c_atari_shallow",
        "atari_multitask": "multitask_atari",
    }
    for experiment, names in wanted.items():
        assert {CLAIMS[name].experiment for name in names.split()} == {experiment}


def test_every_claim_has_a_source_and_the_numbers_it_cites_are_published() -> None:
    cells = set(load_published(IMPALA)["cell"])
    for claim in CLAIMS.values():
        assert claim.source and claim.text and claim.title
        assert set(claim.published) <= cells


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("faster_than_a3c", {"s1.impala.vs_single_machine_a3c.deepmind_lab.speed_up": 1.0}),
        ("learners_scale", {"s5_3_1.impala.deep_8_learners.dmlab_30.throughput": 0.9 / 30_000}),
        ("multitask_atari", {"t4.impala.deep_multi_task.atari_57.median_human_normalised_score": 0.9}),
        ("atari_within_an_hour", {"s5_3_2.impala.shallow_experts.atari_one_game.wall_clock_full_training": 2e8 / 3600}),
    ],
)
def test_thresholds_are_the_printed_numbers_with_the_stated_margin(name: str, cells: dict[str, float]) -> None:
    value = load_published(IMPALA).set_index("cell")["value"]
    for cell, factor in cells.items():
        assert CLAIMS[name].threshold == pytest.approx(value[cell] * factor, rel=1e-3)


def test_the_orderings_that_cite_numbers_hold_in_the_published_tables() -> None:
    value = load_published(IMPALA).set_index("cell")["value"]
    for name in ("multitask_over_a3c", "multitask_over_experts", "deep_over_shallow_dmlab30", "pbt_adds"):
        first, second = CLAIMS[name].published
        assert value[first] > value[second]


def test_what_claims_say_about_table_2_is_what_it_prints() -> None:
    table = matching(load_published(IMPALA), {"item": "Table 2"}).pivot(index="task", columns="variant", values="value")
    none, step = table["no correction, without replay"], table["1-step IS, without replay"]
    assert ((step > none).sum(), (none > table["no correction, with replay"]).sum()) == (5, 5)
    assert (table["V-trace, with replay"] > table["V-trace, without replay"]).sum() == 5
    with_replay = table[[name for name in table if name.endswith("with replay")]]
    assert (with_replay.idxmax(axis=1) == "V-trace, with replay").sum() == 4


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """A copy of the replication that a test may damage."""
    shutil.copytree(IMPALA.parent / "references", tmp_path / "references")
    shutil.copytree(IMPALA, tmp_path / "impala_2018", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "impala_2018"


def write(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The paper file after `change`, as JSON, which YAML holds."""
    data = copy.deepcopy(DATA)
    change(data)
    path.write_text(json.dumps(data))


def edited(paper: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """The one line that `check_paper` says to paper.yaml after `change`."""
    path = paper / "paper.yaml"
    write(path, change)
    with pytest.raises(UserError) as caught:
        check_paper(paper)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def named(data: dict[str, Any], claim: str) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in data["claims"] if item["name"] == claim)
    return found


def test_what_is_read_back_from_the_copy_is_accepted(paper: Path) -> None:
    check_paper(paper)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["protocols"].pop("atari_noop"), "unknown protocol 'atari_noop' (did you mean"),
        (lambda d: d["protocols"]["dmlab"].pop("reason"), "protocols.dmlab: key 'reason' is missing"),
        (lambda d: d["protocols"]["atari_noop"].update(version="0.6.0"), "key 'era_before' is only for a version"),
        (lambda d: d["protocols"]["atari_noop"].update(era_before="new"), "protocols.atari_noop.era_before"),
        (
            lambda d: d["protocols"]["dmlab"].update(other_versions="no"),
            "unknown value of 'protocols.dmlab.other_versions'",
        ),
        (lambda d: d["protocols"]["dmlab"].update(wrapper="x"), "protocols.dmlab: unknown key 'wrapper'"),
        (lambda d: d["cells"][0].update(env_version_gap="x"), "cells.0: unknown key 'env_version_gap'"),
        (lambda d: d["cells"][0].update(metric="score"), "unknown value of 'cells.0.metric': 'score'"),
        (lambda d: d["cells"][0].update(variant="shalow"), "unknown variant 'shalow' (did you mean 'shallow'?)"),
        (lambda d: d["cells"].append(d["cells"][0]), "is named by 2 rules (57 such)"),
        (lambda d: d["cells"].pop(0), "is named by no rule (57 such)"),
        (lambda d: d["cells"][0]["published"].update(item="Table 9"), "cells: no published row has {'item': 'Table 9'"),
        (lambda d: d["not_compared"].pop(0), "published cell 'c1.acktr.alien' is named by no rule (44 such)"),
        (lambda d: d["not_compared"][0].pop("reason"), "key 'not_compared.0': 'reason' is a required property"),
        (lambda d: d["not_compared"][0]["published"].update(item="X"), "not_compared: no published row has"),
    ],
)
def test_a_wrong_rule_is_refused_in_one_line(
    paper: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    assert message in edited(paper, change)


def test_a_run_without_scores_decides_no_claim_and_no_cell_about_scores(paper: Path) -> None:
    said = (
        "is of scores, and key 'scored' of experiment 'throughput' in experiments.yaml says that these runs have none"
    )
    change = {"metric": "final_return", "experiment": "throughput", "better": "impala", "worse": ["a3c"]}
    assert said in edited(paper, lambda data: named(data, "impala_fastest_on_one_machine")["test"].update(change))
    assert said in edited(paper, lambda data: data["cells"][0].update(experiment="throughput", variant="impala"))


def test_a_printed_version_needs_no_reason(paper: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["protocols"]["dmlab"] = data["protocols"]["dmlab"] | {"version": "1.0"}
        del data["protocols"]["dmlab"]["reason"]

    write(paper / "paper.yaml", change)
    assert load_paper(paper).protocols["dmlab"].version == "1.0"


def test_a_curve_needs_the_frames_of_its_points(paper: Path) -> None:
    rule = {"item": "Table 2", "variant": "V-trace, without replay"}
    place = next(n for n, item in enumerate(DATA["cells"]) if item["published"] == rule)
    curve = {"metric": "return_at_frames", "environment": "toy/{task}"}
    said = edited(paper, lambda d: d["cells"][place].update(curve))
    assert "of a curve has no budget_frames" in said


def test_what_is_said_without_a_number_has_a_threshold_of_ours(paper: Path) -> None:
    def unprinted(data: dict[str, Any]) -> None:
        item = named(data, "multitask_atari")
        del item["published"]
        item["test"]["threshold_from"] = "a part of the best score"

    write(paper / "paper.yaml", unprinted)
    check_paper(paper)
    said = edited(paper, lambda data: named(data, "faster_than_a3c")["test"].update(threshold_from="a guess"))
    assert "key 'threshold_from' is not read by kind 'ratio'" in said


@pytest.mark.parametrize("metric", ["final_return", "return_at_frames"])
def test_a_cell_of_one_task_names_it(paper: Path, metric: str) -> None:
    """Without it the runs of several tasks would count as so many seeds."""
    place = next(n for n, item in enumerate(DATA["cells"]) if "environment" not in item and "metric" not in item)
    said = edited(paper, lambda data: data["cells"][place].update(metric=metric))
    assert f"metric '{metric}' is of one task; key 'environment' is missing" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "seconds_to_milestone"}, "keys 'than' and 'compared_as' go with what frames take and seconds_to"),
        ({"metric": "updates_per_second"}, "keys 'than' and 'compared_as' go with what frames take and seconds_to"),
        ({"than": "deep", "compared_as": "ratio"}, "keys 'than' and 'compared_as' go with what frames take"),
    ],
)
def test_a_cell_of_two_variants_names_both(paper: Path, change: dict[str, str], message: str) -> None:
    assert message in edited(paper, lambda data: data["cells"][0].update(change))


def test_a_speed_up_needs_milestones(paper: Path) -> None:
    def without(data: dict[str, Any]) -> None:
        data["cells"][0].update(metric="seconds_to_milestone", than="deep", compared_as="ratio")
        data.pop("milestones")

    assert "metric 'seconds_to_milestone' needs the key 'milestones'" in edited(paper, without)


TIMES: dict[str, Any] = {
    "kind": "time_to_reach",
    "experiment": "x",
    "metric": "seconds",
    "needs": {"gpu": False},
    "better": "a",
    "worse": ["b"],
}
GAIN: dict[str, Any] = TIMES | {
    "kind": "interaction",
    "metric": "frames_per_second",
    "smallest_effect": 0.1,
    "over": {"better": "c", "worse": "d"},
}
STATED = {key: value for key, value in GAIN.items() if key != "smallest_effect"}
ELSEWHERE = {"over": {"environments": ["toy/catch"]}}


@pytest.mark.parametrize(
    ("claim", "change", "message"),
    [
        ("multitask_atari", {"published": ["t4.impala.nothing"]}, "unknown published cell 't4.impala.nothing'"),
        (
            "multitask_atari",
            {"published": None},
            "key 'published' is missing; kind 'at_least' is about a printed number",
        ),
        ("faster_than_a3c", {"published": None}, "key 'published' is missing; kind 'ratio' is about a printed number"),
        ("multitask_atari", {"published": None}, "or say in 'test.threshold_from' where the threshold is from"),
        (
            "fewer_frames_than_a3c_and_a2c",
            {"published": None, "test": TIMES | {"factor": 12.5}},
            "key 'published' is missing; kind 'time_to_reach' with a 'factor' is about a printed number",
        ),
        (
            "faster_than_a3c",
            {"published": None, "test": STATED | {"threshold": 1.5}},
            "key 'published' is missing; kind 'interaction' with a 'threshold' is about a printed number",
        ),
    ],
)
def test_a_claim_on_a_number_must_cite_a_row_that_exists(paper: Path, claim: str, change: Any, message: str) -> None:
    def damage(data: dict[str, Any]) -> None:
        item = named(data, claim)
        item.update(change)
        for key in [key for key, value in item.items() if value is None]:
            del item[key]

    said = edited(paper, damage)
    assert f"claims.{claim}" in said
    assert message in said


@pytest.mark.parametrize(
    ("claim", "change", "message"),
    [
        ("deep_over_shallow", {"kind": "order"}, "unknown value of 'claims"),
        ("deep_over_shallow", {"metric": "final_score"}, "unknown metric of kind 'ordering': 'final_score'"),
        ("deep_over_shallow", {"metric": None}, "key 'metric' is missing, but there is an experiment 'atari'"),
        ("deep_over_shallow", {"better": None}, "key 'better' is missing; kind 'ordering' needs better, worse"),
        ("deep_over_shallow", {"better": "deeep"}, "unknown variant 'deeep' (did you mean 'deep'?)"),
        ("deep_over_shallow", {"environments": ["atari/pon"]}, "unknown environment 'atari/pon'"),
        ("deep_over_shallow", {"threshold": 3.0}, "key 'threshold' is not read by kind 'ordering'"),
        ("faster_than_a3c", {"threshold": 0}, "key 'threshold' must be above 0 (got 0)"),
        ("faster_than_a3c", {"threshold": None}, "key 'threshold' is missing; kind 'ratio' needs"),
        ("faster_than_a3c", {"smallest_effect": 1}, "key 'smallest_effect' is not read by kind 'ratio'"),
        ("deep_over_shallow", {"smallest_effect": None}, "key 'smallest_effect' is missing; it must be above 0"),
        ("pbt_adds", {"smallest_effect": 0}, "smallest_effect"),
        ("faster_than_a3c", {"needs": None}, "key 'needs.gpu' is missing; true if the paper measured this"),
        (
            "impala_overtakes_a3c_in_hours",
            {"smallest_effect": 0.1},
            "is not read beside a margin, a factor",
        ),
        (
            "multitask_atari",
            {"metric": "final_return"},
            "key 'environments' must name one task; a return to reach has the unit of one",
        ),
        ("robust_over_hyperparameters", {"settings": None}, "key 'settings' is missing; kind 'stability' needs"),
        ("robust_over_hyperparameters", {"statistic": "median"}, "unknown value of 'claims"),
        ("robust_over_hyperparameters", {"statistic": "near_best"}, "key 'within' is missing"),
        ("robust_over_hyperparameters", {"within": 0.1}, "key 'within' is not read by statistic 'area'"),
        ("robust_over_hyperparameters", {"metric": "seconds"}, "unknown metric of kind 'stability': 'seconds'"),
        ("fewer_frames_than_a3c_and_a2c", {"metric": "final_return"}, "unknown metric of kind 'time_to_reach'"),
        ("fewer_frames_than_a3c_and_a2c", {"settings": ["seed"]}, "key 'settings' is not read by kind 'time_to_reach'"),
        ("multitask_atari", {"variants": None}, "key 'variants' is missing; kind 'at_least' needs"),
    ],
)
def test_a_wrong_test_of_a_claim_is_refused_in_one_line(paper: Path, claim: str, change: Any, message: str) -> None:
    def damage(data: dict[str, Any]) -> None:
        test = named(data, claim)["test"]
        test.update(change)
        for key in [key for key, value in test.items() if value is None]:
            del test[key]

    assert message in edited(paper, damage)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (TIMES | {"factor": 0}, "test.factor"),
        (GAIN | {"factor": 2}, "key 'factor' is not read by kind 'interaction'"),
        (GAIN | {"metric": "final_return"}, "unknown metric of kind 'interaction': 'final_return'"),
        (GAIN | {"threshold": 0}, "key 'threshold' must be above 0 (got 0)"),
        (GAIN | {"over": {"better": "c"}}, "key 'over' has better; allowed: better and worse, or environments"),
        (GAIN | {"over": {"better": "a", "worse": "d"}}, "'better', 'worse' and 'over' must name four variants"),
        (GAIN | {"worse": ["b", "e"]}, "'better', 'worse' and 'over' must name four variants"),
        (GAIN | ELSEWHERE, "key 'environments' is missing; 'over.environments' is held against it"),
        (
            GAIN | ELSEWHERE | {"environments": ["toy/catch", "toy/delayed"]},
            "key 'over.environments' names toy/catch, which 'environments' names as well",
        ),
        (GAIN | {"experiment": "atari", "better": "deep"}, "unknown variant 'b'"),
        (GAIN | {"experiment": "atari", "better": "deep", "worse": ["shallow"]}, "unknown variant 'c'"),
        (
            GAIN
            | {"experiment": "atari", "better": "deep", "worse": ["shallow"], "environments": ["atari/pong"]}
            | {"over": {"environments": ["atari/pon"]}},
            "unknown environment 'atari/pon'",
        ),
    ],
)
def test_a_wrong_claim_about_how_many_times_is_refused_in_one_line(
    paper: Path, test: dict[str, Any], message: str
) -> None:
    assert message in edited(paper, lambda data: named(data, "faster_than_a3c").update(test=test))


@pytest.mark.parametrize("test", [GAIN, GAIN | ELSEWHERE | {"environments": ["toy/delayed"]}, TIMES | {"factor": 12.5}])
def test_a_claim_about_how_many_times_is_read(paper: Path, test: dict[str, Any]) -> None:
    write(paper / "paper.yaml", lambda data: named(data, "faster_than_a3c").update(test=test))
    check_paper(paper)
    found = next(claim for claim in load_paper(paper).claims if claim.name == "faster_than_a3c")
    assert set(found.named_variants) == ({"a", "b", "c", "d"} if "better" in test.get("over", {}) else {"a", "b"})
    assert (found.factor, found.kind) == (test.get("factor", 1.0), test["kind"])


def test_a_monotone_claim_needs_two_variants(paper: Path) -> None:
    complete = {"metric": "final_return", "variants": ["a"]}
    said = edited(paper, lambda data: named(data, "lag_hurts_without_correction")["test"].update(complete))
    assert "must name at least two, highest first" in said


def test_the_variants_of_a_sweep_are_named_with_their_settings(paper: Path) -> None:
    path = paper / "experiments.yaml"
    text = path.read_text()
    for name in ("v_trace", "no_correction"):
        text = text.replace(f"      {name}: ", f"      {name}__s00: ")
    path.write_text(text)
    assert "v_trace__s00" in load_experiments(paper)["off_policy_correction"].variants
    said = edited(paper, lambda data: None)
    assert "unknown variant 'v_trace' (did you mean 'v_trace__s00'?)" in said
    claim = named(DATA, "v_trace_over_no_correction")
    stable = {"kind": "stability", "settings": ["hyperparameters.entropy_cost"], "statistic": "area"}

    def only_stability(data: dict[str, Any]) -> None:
        data["claims"] = [claim | {"test": claim["test"] | stable}]

    # The claim passes: what is wrong next is a rule that names a variant without its setting.
    assert "cells.off_policy_correction: unknown variant 'v_trace'" in edited(paper, only_stability)


def test_flags_in_deviations_are_known_ones() -> None:
    assert {deviation.flag for deviation in load_deviations(IMPALA)} - {""} <= set(FLAGS)
    assert pd.Series(FLAGS).str.len().min() > 0


@pytest.mark.parametrize("name", papers(ROOT))
def test_what_the_paper_timed_with_an_accelerator_needs_one(name: str) -> None:
    """One rule for all papers: a published speed or time of a machine with an accelerator, or a share of its cost."""
    paper, published = load_paper(ROOT / name), load_published(ROOT / name).set_index("cell")
    for claim in paper.claims:
        if claim.metric not in TIMED_METRICS:
            assert not claim.needs.gpu, claim.name
            continue
        machines = {str(published.loc[cell, "hardware"]) for cell in claim.published}
        assert claim.needs.gpu or not any(map(ACCELERATOR.search, machines)), (claim.name, machines)


@pytest.mark.parametrize("name", papers(ROOT))
def test_every_claim_with_a_test_has_a_smallest_effect_or_a_margin(name: str) -> None:
    for claim in load_paper(ROOT / name).claims:
        stated = claim.margin or claim.factor != 1 or claim.threshold is not None
        assert claim.metric is None or claim.smallest_effect > 0 or stated, claim.name
