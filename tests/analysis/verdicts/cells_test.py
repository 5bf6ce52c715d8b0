"""Verdicts on cells: each rule by an example, all of them by properties, and error rates by simulation."""

from __future__ import annotations

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.statistics.printed import PrintedMean
from ddrl.analysis.statistics.significance import equivalence_power, seeds_for_equivalence
from ddrl.analysis.verdicts import cell_decision
from ddrl.analysis.verdicts import cells as verdicts
from ddrl.analysis.verdicts.cell_decision import MIN_SEEDS, decide
from ddrl.analysis.verdicts.cell_values import suite_values
from ddrl.analysis.verdicts.cells import COLUMNS, cells
from ddrl.cli import tables
from ddrl.errors import UserError
from ddrl.papers.experiments import load_experiments
from ddrl.papers.ground_rules import to_register
from ddrl.papers.paper import CellRule, load_paper
from ddrl.papers.plans import appended, read_register, write_register
from ddrl.papers.published import load_published, load_references
from ddrl.report.sections.cells import cells as cell_section
from ddrl.system.csv_cells import table_as_csv

IMPALA = Path(__file__).parents[3] / "replications" / "impala_2018"
EXPERIMENTS = load_experiments(IMPALA)
PAPER = load_paper(IMPALA)
PUBLISHED = load_published(IMPALA)
REFERENCES = load_references(PAPER)


def sample(mean: float, deviation: float, n: int = 5) -> np.ndarray[Any, np.dtype[np.float64]]:
    """n values with exactly this mean and standard deviation."""
    shape = np.linspace(-1, 1, n)
    return mean + deviation * shape / shape.std(ddof=1)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (sample(100, 2), "equivalent"),
        (sample(80, 2), "below"),
        (sample(120, 2), "above"),
        (sample(100, 30), "inconclusive"),
        (sample(107, 4), "consistent"),
        (sample(109.5, 1.0), "inconclusive"),
        (sample(110.5, 1.0), "inconclusive"),
        (sample(100, 1, n=4), "inconclusive"),
        (sample(500, 1, n=4), "inconclusive"),
        (sample(500, 1, n=2)[:1], "inconclusive"),
    ],
)
def test_verdicts_on_a_published_100_with_a_margin_of_10(ours: Any, verdict: str) -> None:
    assert decide(ours, PrintedMean(100.0, 1), 10.0, []).verdict == verdict


@pytest.mark.parametrize(
    ("ours", "margin", "detail", "words"),
    [
        (sample(100, 30), 10.0, "is wider than the margins", "wider than the margin"),
        (sample(109.5, 1.0), 10.0, "reaches over the edge", "reaches over its edge"),
        (sample(100, 1, n=4), 10.0, "a verdict needs at least 5", "fewer than five seeds"),
        (sample(100, 1), math.nan, "no margin", "no margin"),
    ],
)
def test_the_guide_has_each_reason_for_which_a_cell_is_inconclusive(
    ours: Any, margin: float, detail: str, words: str
) -> None:
    found = decide(ours, PrintedMean(100.0, 1), margin, [])
    assert (found.verdict, detail in found.detail) == ("inconclusive", True)
    guide = (Path(__file__).parents[3] / "docs/guide/reading_reports.md").read_text(encoding="utf-8")
    (line,) = [row for row in guide.partition("## Cells")[2].splitlines() if row.startswith("| `inconclusive` |")]
    assert words in line


def test_a_hard_flag_leaves_no_verdict_and_no_p() -> None:
    found = decide(sample(100, 2), PrintedMean(100.0, 1), 10.0, ["reduced_budget(0.1)"])
    assert found.verdict == "not_comparable"
    assert "reduced_budget(0.1)" in found.detail
    assert math.isnan(found.p_equivalence) and math.isnan(found.p_difference)


def test_p_values_are_those_of_the_textbook_tests() -> None:
    ours = sample(104, 5, n=6)
    found = decide(ours, PrintedMean(100.0, 1), 10.0, [])
    assert found.p_difference == pytest.approx(stats.ttest_1samp(ours, 100.0).pvalue)
    one_sided = [
        stats.ttest_1samp(ours, 110.0, alternative="less").pvalue,
        stats.ttest_1samp(ours, 90.0, alternative="greater").pvalue,
    ]
    assert found.p_equivalence == pytest.approx(max(one_sided))


def test_an_inconclusive_verdict_says_how_many_seeds_would_show_equality_and_with_which_power() -> None:
    found = decide(sample(100, 30), PrintedMean(100.0, 1), 10.0, [])
    assert found.seeds_needed == seeds_for_equivalence(30.0, 10.0, power=0.8)
    assert equivalence_power(found.seeds_needed, 30.0, 10.0) >= 0.8 > equivalence_power(found.seeds_needed - 1, 30, 10)
    assert f"{found.seeds_needed} seeds would decide it, if there were no difference (power 0.8)" in found.detail
    assert decide(sample(100, 2, n=3), PrintedMean(100.0, 1), 10.0, []).seeds_needed == MIN_SEEDS
    assert decide(sample(100, 30, n=3), PrintedMean(100.0, 1), 10.0, []).seeds_needed == found.seeds_needed
    assert decide(sample(100, 1e4), PrintedMean(100.0, 1), 10.0, []).seeds_needed is None


def test_at_the_edge_of_the_margin_more_seeds_are_asked_for_on_either_side() -> None:
    inside, outside = (decide(sample(mean, 1.0), PrintedMean(100.0, 1), 10.0, []) for mean in (109.5, 110.5))
    for found in (inside, outside):
        assert found.verdict == "inconclusive"
        assert found.seeds_needed is not None and found.seeds_needed > 5
        assert "if our mean were exact (power 0.8)" in found.detail


def test_equality_is_declared_by_mistake_in_at_most_5_percent_of_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("seeds_for_equivalence", "seeds_for_difference"):  # slow, and of no account here
        monkeypatch.setattr(cell_decision.significance, name, lambda *_, **__: None)
    generator = np.random.Generator(np.random.PCG64(3))
    draws = generator.normal(110.0, 4.0, size=(2000, 5))  # exactly at the margin
    assert np.mean([decide(row, PrintedMean(100.0, 1), 10.0, []).verdict == "equivalent" for row in draws]) < 0.06


def test_the_error_of_a_printed_mean_counts_where_it_is_printed() -> None:
    ours = sample(100, 2)
    assert decide(ours, PrintedMean(100.0, 6, 2.0), 10.0, []).verdict == "equivalent"
    uncertain = decide(ours, PrintedMean(100.0, 3, 40.0), 10.0, [])
    assert (uncertain.verdict, uncertain.seeds_needed) == ("inconclusive", None)
    assert "of the difference is wider than the margins; 1000 seeds would not decide it" in uncertain.detail
    assert decide(sample(80, 2), PrintedMean(100.0, 6, 2.0), 10.0, []).verdict == "below"
    exact, printed = (decide(sample(100, 12), PrintedMean(100.0, 6, spread), 10.0, []) for spread in (0.0, 4.0))
    assert exact.seeds_needed is not None and printed.seeds_needed is not None
    assert printed.seeds_needed > exact.seeds_needed


def test_equality_with_an_uncertain_printed_mean_is_declared_by_mistake_in_at_most_5_percent_of_cases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("seeds_for_equivalence", "seeds_for_difference"):
        monkeypatch.setattr(cell_decision.significance, name, lambda *_, **__: None)
    generator = np.random.Generator(np.random.PCG64(5))
    ours = generator.normal(110.0, 4.0, size=(2000, 5))  # exactly at the margin
    theirs = generator.normal(100.0, 4.0, size=(2000, 6))
    pairs = list(zip(ours, theirs, strict=True))
    printed = [decide(a, PrintedMean(b.mean(), 6, b.std(ddof=1)), 10.0, []).verdict for a, b in pairs]
    assert np.mean(np.array(printed) == "equivalent") < 0.06
    as_exact = [decide(a, PrintedMean(b.mean(), 6), 10.0, []).verdict for a, b in pairs]
    assert np.mean(np.array(as_exact) == "equivalent") > 0.08


def test_three_seeds_with_a_spread_that_no_number_of_seeds_overcomes_do_not_ask_for_five() -> None:
    found = decide(sample(100, 1e4, n=3), PrintedMean(100.0, 1), 10.0, [])
    assert found.seeds_needed is None
    assert "1000 seeds would not decide it, if there were no difference (power 0.8)" in found.detail


VALUES = st.lists(st.floats(-300, 300).map(lambda value: round(value, 3)), min_size=1, max_size=9)
WORDS = ("equivalent", "consistent", "below", "above", "inconclusive", "not_comparable")


def spelled_out(ours: Any, published: float, margin: float, seeds: int, flags: list[str]) -> set[str]:
    """The ones of the module's six definitions that hold, each stated for itself."""
    n = len(ours)
    if flags:
        return {"not_comparable"}
    if n < 5:
        return {"inconclusive"}
    mean, error = ours.mean(), ours.std(ddof=1) / np.sqrt(n)
    half = stats.t.ppf(0.95, n - 1) * error
    inside = abs(mean - published) + half <= margin
    low, high = mean + half < published - margin, mean - half > published + margin
    wide = half > margin
    reach = stats.t.ppf(0.975, n - 1) * ours.std(ddof=1) * np.sqrt(1 / n + 1 / seeds)
    predicted = abs(mean - published) <= reach
    decided = inside or low or high
    return {
        word
        for word, holds in {
            "equivalent": inside,
            "below": low,
            "above": high,
            "consistent": not decided and not wide and predicted,
            "inconclusive": not decided and (wide or not predicted),
        }.items()
        if holds
    }


@given(VALUES, st.integers(-200, 200), st.floats(0.5, 100), st.integers(1, 5), st.booleans())
@settings(max_examples=150, deadline=None)
def test_exactly_one_verdict_holds_and_it_is_the_one_given(
    values: list[float], published: int, margin: float, seeds: int, flagged: bool
) -> None:
    ours, flags = np.array(values), ["proxy_env"] if flagged else []
    found = decide(ours, PrintedMean(float(published), seeds), margin, flags)
    assert found.verdict in WORDS
    assert spelled_out(ours, float(published), margin, seeds, flags) == {found.verdict}
    assert (found.verdict == "not_comparable") == flagged


@given(VALUES.filter(lambda values: len(values) >= 5), st.floats(0, 1), st.floats(0.5, 100))
@settings(max_examples=80, deadline=None)
def test_a_smaller_spread_never_turns_equivalent_into_anything_else(
    values: list[float], part: float, margin: float
) -> None:
    ours = np.array(values) / 10
    narrower = ours.mean() + part * (ours - ours.mean())
    if decide(ours, PrintedMean(0.0, 1), margin, []).verdict == "equivalent":
        assert decide(narrower, PrintedMean(0.0, 1), margin + 1e-9, []).verdict == "equivalent"


@given(VALUES.filter(lambda values: len(values) >= 5), st.floats(0, 500), st.floats(0.5, 100))
@settings(max_examples=80, deadline=None)
def test_moving_further_below_the_margin_stays_below(values: list[float], further: float, margin: float) -> None:
    ours = np.array(values)
    if decide(ours, PrintedMean(0.0, 1), margin, []).verdict == "below":
        assert decide(ours - further, PrintedMean(0.0, 1), margin - 1e-9, []).verdict == "below"


def atari_run(task: str, seed: int, final: float, *, frames: int = 200_000_000, origin: str = "run") -> RunData:
    """A run with the paper's setting, whose training return rises to `final`."""
    config = EXPERIMENTS["atari"].paper_setting("shallow", f"atari/{task}") | {"seed": seed}
    parts = "skip4,max2,gray84x84,stack4;noop1-30;sticky0;minimal-actions;life-loss-terminal;cap108k"
    manifest = {"config": config, "env_frames": frames, "seconds": 1.0, "protocol": f"ale-0.12.1/{task};{parts}"}
    grid = np.linspace(0, frames, 11).astype(np.int64)
    curves = pd.DataFrame({"env_frames": grid, "metric": "episode_return", "value": final * grid / frames})
    return RunData(origin, "impala_2018", "atari", "shallow", f"atari/{task}", seed, manifest, curves)


def scores_of(runs: list[RunData]) -> pd.DataFrame:
    rows = []
    for run in runs:
        bounds = REFERENCES.set_index("environment").loc[run.environment]
        final = float(run.curves["value"].iloc[-1])
        normalised = (final - bounds["random"]) / (bounds["human"] - bounds["random"])
        rows.append(
            run.keys()
            | {"final_return": final, "human_normalised_score": normalised, "score_error": 0.0}
            | {"random": bounds["random"], "human": bounds["human"]}
        )
    return pd.DataFrame(rows)


def table(
    runs: list[RunData], rules: list[CellRule] | None = None, published: pd.DataFrame = PUBLISHED
) -> pd.DataFrame:
    paper = PAPER if rules is None else replace(PAPER, cells=tuple(rules))
    return cells(paper, EXPERIMENTS, published, REFERENCES, scores_of(runs), runs)


SHALLOW = next(rule for rule in PAPER.cells if rule.variant == "shallow" and rule.environment is not None)
PRINTED = PUBLISHED[PUBLISHED["item"] == "Table C.1"].set_index(["variant", "task"])["value"]["shallow, experts"]


def suite_runs(tasks: list[str], *, shift: float = 0.0, seeds: int = 5) -> list[RunData]:
    """Runs whose mean is the printed score, moved by `shift` of it, with a spread of 1 %."""
    return [
        atari_run(task, seed, float(PRINTED[task]) * (1 + shift + 0.01 * (seed - 2)))
        for task in tasks
        for seed in range(seeds)
    ]


def test_every_published_cell_of_a_rule_has_a_row_and_each_row_set_one_for_the_suite() -> None:
    found = table(suite_runs(["pong", "breakout"]), [SHALLOW])
    assert list(found.columns) == COLUMNS
    assert len(found) == 57 + 1
    assert (found["task"] == "").sum() == 1
    assert set(found["verdict"]) == {"equivalent", "not_run", "not_comparable"}


@pytest.mark.parametrize("change", ["human_normalised", "full_budget", "rule"])
def test_a_cell_says_which_runs_are_older_than_its_rule_or_margins(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the verdict, and in every output."""
    folder = tmp_path / IMPALA.name
    shutil.copytree(IMPALA, folder, ignore=shutil.ignore_patterns("__pycache__", "plans.csv"))
    dates = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3)]
    write_register(folder, appended([], to_register(folder), dates[0], ""))
    made = suite_runs(["pong", "breakout"], seeds=2)
    own = [replace(run, manifest={**run.manifest, "started": dates[1 + run.seed]}) for run in made]

    def notes() -> tuple[set[str], set[str]]:
        paper = load_paper(folder)
        found = cells(paper, EXPERIMENTS, PUBLISHED, REFERENCES, scores_of(own), own)
        tables.print_rows(tables.rows("cells", found.assign(paper="impala_2018")))
        printed = cell_section(csv_rows(found), "run")
        said = capsys.readouterr().out
        late = set(found["late"][found["ours"].notna()])
        assert all(note in said and note in str(printed) for note in late)
        return late, set(found["late"][found["ours"].isna()])

    assert notes() == ({""}, {""})
    data = yaml.safe_load((folder / "paper.yaml").read_text())
    if change == "rule":
        for rule in data["cells"]:
            rule["paper_envs"] = 7
    elif change == "full_budget":
        data["evidence"]["full_budget"] = 0.5
    else:
        data["evidence"]["margin"]["human_normalised"] = 0.9
    (folder / "paper.yaml").write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False))
    late, others = notes()
    assert others == {""}
    assert late == {"rule or margins written after 2 of 2 runs", "rule or margins written after 4 of 4 runs"}
    rows = read_register(folder)
    write_register(folder, [*rows, *appended(rows, to_register(folder), dates[2], "")])
    late, _ = notes()
    assert late == {"rule or margins written after 1 of 2 runs", "rule or margins written after 2 of 4 runs"}


def csv_rows(table: pd.DataFrame) -> list[dict[str, str]]:
    """The rows as a report reads them."""
    return list(csv.DictReader(table_as_csv(table).splitlines()))


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in IMPALA.parent.glob("*/paper.yaml")))
def test_no_two_cells_of_a_paper_have_one_name(folder: str) -> None:
    """R2D2 and R2D2+ had: 193 rows counted as 192 cells, and a report as "-1 not run"."""
    path = IMPALA.parent / folder
    paper = load_paper(path)
    found = cells(paper, load_experiments(path), load_published(path), load_references(paper), scores_of([]), [])
    assert not found[["cell", "environment"]].duplicated().any()


def test_p_holm_corrects_the_p_of_a_difference_within_one_row_set() -> None:
    runs = suite_runs(["pong", "breakout", "qbert"])
    single = table(runs, [SHALLOW]).dropna(subset="p_difference").query("task != ''").set_index("task")
    assert len(single) == 3
    ordered = single.sort_values("p_difference")
    expected = np.minimum(np.maximum.accumulate(ordered["p_difference"].to_numpy() * [3, 2, 1]), 1)
    assert list(ordered["p_holm"]) == pytest.approx(list(expected))
    alone = table(suite_runs(["pong"]), [SHALLOW]).dropna(subset="p_difference").query("task != ''")
    assert list(alone["p_holm"]) == pytest.approx(list(alone["p_difference"]))


def test_cells_that_are_not_compared_do_not_count_for_holm() -> None:
    runs = suite_runs(["pong", "breakout"])
    short = [
        replace(run, manifest={**run.manifest, "env_frames": 10**6}) for run in runs if "breakout" in run.environment
    ]
    mixed = [run for run in runs if "pong" in run.environment] + short
    single = table(mixed, [SHALLOW]).query("task != ''").set_index("task")
    assert single.loc["breakout", "verdict"] == "not_comparable"
    assert math.isnan(single.loc["breakout", "p_holm"])
    assert single.loc["pong", "p_holm"] == pytest.approx(single.loc["pong", "p_difference"])


def test_the_suite_row_compares_the_iqm_over_tasks_seed_by_seed() -> None:
    tasks = [task for task in PRINTED.index if f"atari/{task}" in set(REFERENCES["environment"])]
    runs = suite_runs(tasks)
    suite = table(runs, [SHALLOW]).query("task == ''").iloc[0]
    values = suite_values(scores_of(runs), "iqm_human_normalised_score")
    bounds = REFERENCES.set_index("environment").loc[[f"atari/{task}" for task in tasks]]
    normalised = (PRINTED[tasks].to_numpy() - bounds["random"]) / (bounds["human"] - bounds["random"])
    # A quarter of 57 is 14.25: the 15th value from either end counts for three quarters.
    middle = np.sort(normalised.to_numpy())
    expected = 100 * (0.75 * (middle[14] + middle[42]) + middle[15:42].sum()) / 28.5
    assert suite["published"] == pytest.approx(expected)
    assert suite["ours"] == pytest.approx(values.mean())
    assert (suite["verdict"], suite["seeds"], suite["published_statistic"]) == ("equivalent", 5, "derived")
    assert table(suite_runs(tasks, shift=-0.5), [SHALLOW]).query("task == ''").iloc[0]["verdict"] == "below"


def test_a_suite_of_fewer_tasks_is_flagged_and_compared_on_those_alone() -> None:
    suite = table(suite_runs(["pong", "breakout"]), [SHALLOW]).query("task == ''").iloc[0]
    assert "reduced_suite(2/57)" in suite["flags"]
    assert suite["verdict"] == "not_comparable"
    assert suite["ours"] == pytest.approx(suite["published"], rel=0.05)


def test_a_seed_that_lacks_a_task_does_not_count_for_the_suite() -> None:
    runs = [run for run in suite_runs(["pong", "breakout"]) if (run.environment, run.seed) != ("atari/pong", 0)]
    assert table(runs, [SHALLOW]).query("task == ''").iloc[0]["seeds"] == 4


def test_a_smaller_budget_is_compared_with_a_published_curve_at_its_own_frames_alone() -> None:
    runs = [atari_run("pong", seed, 20.0 + 0.1 * seed, frames=100_000_000) for seed in range(5)]
    plain = table(runs, [SHALLOW]).query("task == 'pong'").iloc[0]
    assert plain["verdict"] == "not_comparable"
    assert "no published curve at these frames" in plain["detail"]
    point = PUBLISHED[PUBLISHED["cell"] == "c1.impala.shallow_experts.pong"].assign(
        cell="f1.pong.50m", item="Figure 1", value=10.1, budget_frames=50_000_000, digitised=True
    )
    curve = replace(SHALLOW, published={"item": "Figure 1"}, metric="return_at_frames")
    both = table(runs, [SHALLOW, curve], pd.concat([PUBLISHED, point], ignore_index=True)).set_index("cell")
    assert both.loc["f1.pong.50m", "ours"] == pytest.approx(10.1)
    assert both.loc["f1.pong.50m", "verdict"] == "equivalent"
    assert "reduced_budget" not in both.loc["f1.pong.50m", "flags"]
    assert "a published curve is compared" in both.loc["c1.impala.shallow_experts.pong", "detail"]


def test_a_curve_that_begins_after_the_published_frames_has_no_value_there() -> None:
    runs = [atari_run("pong", seed, 20.0, frames=100_000_000) for seed in range(5)]
    late = [replace(run, curves=run.curves[run.curves["env_frames"] > 50_000_000]) for run in runs]
    point = PUBLISHED[PUBLISHED["cell"] == "c1.impala.shallow_experts.pong"].assign(
        cell="f1.pong.50m", item="Figure 1", value=10.0, budget_frames=50_000_000, digitised=True
    )
    curve = replace(SHALLOW, published={"item": "Figure 1"}, metric="return_at_frames")
    (found,) = table(late, [curve], point).query("verdict != 'not_run'").to_dict("records")
    assert (found["verdict"], math.isnan(found["ours"])) == ("inconclusive", True)
    assert "a record before the published frames" in found["detail"]
    other = {**late[0].config, "hyperparameters": late[0].config["hyperparameters"] | {"rho_bar": 9.0}}
    changed = [replace(run, manifest={**run.manifest, "config": other}) for run in late]
    (flagged,) = table(changed, [curve], point).query("verdict != 'not_run'").to_dict("records")
    assert (flagged["verdict"], flagged["seeds"]) == ("not_comparable", 0), "a hard flag goes first"
    assert "changed_hyperparameters(rho_bar)" in flagged["detail"]
    mixed = table([*runs[:1], *late[1:]], [curve], point).set_index("cell").loc["f1.pong.50m"]
    assert (mixed["seeds"], mixed["ours"]) == (1, pytest.approx(10.0))


def test_protocols_of_both_sides_stand_in_every_cell() -> None:
    found = table(suite_runs(["pong", "breakout"]), [SHALLOW])
    pong = found.query("task == 'pong'").iloc[0]
    assert pong["protocol_published"].startswith("ale version not printed (the emulator of 2018")
    assert "max_frames not printed" in pong["protocol_published"]
    assert pong["protocol_ours"].startswith("ale-0.12.1/pong;skip4")
    assert found.query("task == ''").iloc[0]["protocol_ours"].startswith("ale-0.12.1;skip4")


def test_a_published_protocol_that_the_paper_file_does_not_state_is_refused() -> None:
    wrong = PUBLISHED.assign(protocol=PUBLISHED["protocol"].replace("atari_noop", "atari_nop"))
    with pytest.raises(UserError, match=r"unknown protocol 'atari_nop' \(did you mean 'atari_noop'\?\)"):
        table([], [SHALLOW], wrong)


def test_reference_runs_have_rows_of_their_own() -> None:
    runs = suite_runs(["pong"]) + [atari_run("pong", seed, 5.0 + seed, origin="reference") for seed in range(5)]
    pong = table(runs, [SHALLOW]).query("task == 'pong'")
    assert list(pong["origin"]) == ["run", "reference"]
    assert list(pong["verdict"]) == ["equivalent", "below"]


def test_without_a_random_and_a_human_score_there_is_no_margin_and_no_verdict() -> None:
    assert decide(sample(100, 2), PrintedMean(100.0, 1), math.nan, []).verdict == "inconclusive"
    assert "no margin" in decide(sample(100, 2), PrintedMean(100.0, 1), math.nan, []).detail


def test_every_cell_of_the_paper_without_a_run_says_why() -> None:
    found = cells(PAPER, EXPERIMENTS, PUBLISHED, REFERENCES, scores_of(suite_runs(["pong"])), [])
    assert found["ours"].isna().all()
    assert found["detail"].str.len().min() > 0
    waiting = found[found["experiment"] == "atari_multitask"]
    assert set(waiting["detail"]) == {"planned as experiment 'atari_multitask'"}
    assert set(found[found["item"] == "Table 2"]["verdict"]) == {"not_comparable"}


def test_the_flags_that_are_hard_are_documented() -> None:
    from ddrl.analysis.runs.flags import HARD_FLAGS
    from ddrl.papers.paper import FLAGS

    assert set(HARD_FLAGS) <= set(FLAGS)
    assert verdicts.__doc__ is not None
    assert all(word in verdicts.__doc__ for word in (*WORDS, "not_run"))
