"""From run directories to tables, summary and figures, on runs that were never trained."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import font_manager

from ddrl.analysis.__main__ import main
from ddrl.analysis.runs.grids import on_common_grid
from ddrl.analysis.runs.run_data import RunData, load_run
from ddrl.analysis.tables.build import build
from ddrl.analysis.tables.runs import run_table
from ddrl.analysis.tables.scores import with_scores
from ddrl.analysis.tables.summary import source
from ddrl.errors import UserError
from ddrl.papers.paper import load_deviations, load_paper
from ddrl.papers.table_names import TABLES
from ddrl.training.config.experiments import PlannedRun, expand, load_experiments, write_configs
from tests.analysis.fakes import write_run, write_scale

ROOT = Path(__file__).parents[3] / "replications"
PAPER = "impala_2018"


def smoke(**filters: Any) -> list[PlannedRun]:
    return expand(PAPER, "smoke", root=ROOT, **filters)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every smoke run, and one reference run."""
    folder = tmp_path_factory.mktemp("results")
    write_scale(smoke(), folder)
    reference = expand(PAPER, "workstation", root=ROOT, experiments=["atari"], variants=["shallow"], seeds=[1])
    write_run(
        next(run for run in reference if run.environment == "atari/pong"),
        folder,
        start=-20.7,
        final=18.0,
        origin="reference",
    )
    assert call("aggregate", folder) == 0
    return folder


def call(command: str, folder: Path, *arguments: str) -> int:
    options = ["--results", str(folder)] if command == "aggregate" else []
    return main([command, "--paper", PAPER, "--replications", str(ROOT), *options, *arguments])


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / "smoke" / PAPER / "tables" / f"{name}.parquet")


def test_every_table_is_written_as_parquet_and_csv_with_the_same_rows(results: Path) -> None:
    for name in TABLES:
        path = results / "smoke" / PAPER / "tables" / name
        columns = pd.read_csv(path.with_suffix(".csv"))
        assert list(columns.columns) == list(table(results, name).columns)
        assert len(columns) == len(table(results, name))
        assert len(columns) > 0 or name in ("problems", "lineage", "evaluations", "peer_learning", "peer_speed")


def test_aggregating_again_gives_the_same_bytes(results: Path, tmp_path: Path) -> None:
    assert call("aggregate", results, "--output", str(tmp_path)) == 0
    first = sorted((results / "smoke" / PAPER / "tables").iterdir())
    assert [digest(path) for path in first] == [digest(path) for path in sorted(tmp_path.iterdir())]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_final_scores_are_normalised_between_random_and_human(results: Path) -> None:
    scores = table(results, "scores")
    pong = scores[
        (scores["environment"] == "atari/pong") & (scores["variant"] == "shallow") & (scores["origin"] == "run")
    ]
    expected = (pong["final_return"].item() + 20.7) / (14.6 + 20.7)
    assert pong["human_normalised_score"].item() == pytest.approx(expected)
    assert pong["episodes"].item() == 4
    catch = scores[scores["environment"] == "toy/catch"]
    assert catch["random"].eq(-0.6).all()
    assert catch["human_normalised_score"].isna().all()


def test_runs_that_were_made_for_a_speed_enter_no_table_of_scores(results: Path) -> None:
    speeds = {"throughput", "learner_scaling"}
    assert speeds <= set(table(results, "runs")["experiment"])
    for name in ("scores", "aggregates", "profiles", "improvement", "milestones"):
        assert not speeds & set(table(results, name)["experiment"])
    assert speeds & set(table(results, "efficiency")["experiment"])


def test_an_experiment_may_have_scores_on_some_of_its_tasks_alone() -> None:
    adjustment = load_experiments(ROOT / "ga3c_2017")["adjustment"]
    runs = [run_of(environment) for environment in ("toy/catch", "atari/pong")]
    assert [run.environment for run in with_scores(runs, {"adjustment": adjustment})] == ["toy/catch"]


def test_a_part_of_a_suite_has_scores_where_its_suite_has_them() -> None:
    adjustment = load_experiments(ROOT / "ga3c_2017")["adjustment"]
    experiments = {"adjustment": replace(adjustment, scored=("firstperson/navigation",))}
    parts = [replace(run_of("firstperson/doom"), suite=suite) for suite in ("firstperson/navigation", "")]
    assert [run.suite for run in with_scores(parts, experiments)] == ["firstperson/navigation"]


def run_of(environment: str) -> RunData:
    return RunData("run", "ga3c_2017", "adjustment", "fixed", environment, 1, {}, pd.DataFrame())


def test_at_smoke_scale_no_cell_gets_a_verdict_about_values(results: Path) -> None:
    cells = table(results, "cells")
    assert set(cells["verdict"]) == {"not_comparable", "not_run"}
    own = cells[cells["ours"].notna() & (cells["origin"] == "run")]
    assert own["flags"].str.contains("reduced_budget").all()
    assert set(cells[cells["item"] == "Table 2"]["verdict"]) == {"not_comparable"}
    for flag in ("proxy_env", "published_best_of_k"):
        assert cells[cells["item"] == "Table 2"]["flags"].str.contains(flag).all()


def test_a_reference_run_is_flagged_for_what_differs_from_the_paper(results: Path) -> None:
    cells = table(results, "cells")
    pong = cells[(cells["origin"] == "reference") & (cells["task"] == "pong")]
    runs = table(results, "runs")
    ratio = runs[(runs["origin"] == "reference") & (runs["environment"] == "atari/pong")]["budget_ratio"].iloc[0]
    assert ratio < 1
    changed = "changed_hyperparameters(network,precision)"
    gap = "env_version_gap(ale-0.12.1 for a version not printed)"
    assert pong["flags"].item() == f"{gap};reduced_budget({ratio:g});{changed}"


def test_claims_are_decided_on_three_seeds_and_others_name_the_experiment_they_wait_for(results: Path) -> None:
    claims = table(results, "claims").set_index(["claim", "origin"])
    decided = claims.loc[("v_trace_over_no_correction", "run")]
    assert (decided["verdict"], decided["seeds"]) == ("supported", 3)
    assert decided["ci95_low"] > 1.0
    assert claims.loc[("deep_over_shallow", "run"), "verdict"] == "inconclusive"
    assert claims.loc[("faster_than_a3c", "run"), "detail"] == "planned as experiment 'throughput_distributed'"


def test_published_rows_come_with_source_and_nothing_is_invented(results: Path) -> None:
    published = table(results, "published")
    assert published["source"].str.len().min() > 0
    raw = pd.concat(
        pd.read_csv(path)
        for path in (ROOT / PAPER / "published").glob("*.csv")
        if not path.name.startswith("references")
    ).set_index("cell")["value"]
    assert (raw[published["cell"]].to_numpy() == published["value"].to_numpy()).all()


def test_settings_that_differ_from_the_paper_are_marked_and_explained(results: Path) -> None:
    settings = table(results, "hyperparameters").set_index(["experiment", "name"])
    assert not settings.loc[("atari", "optimizer.learning_rate"), "changed"]
    assert settings.loc[("atari", "env_frames"), "changed"]
    departures = table(results, "departures")
    assert departures["reason"].str.len().min() > 0
    assert departures["what"].str.startswith("env_frames (shallow)").any()
    # Settings of a sweep are counted: their names, 24 for each system, would fill a page.
    sweep = departures[departures["where"].str.startswith("hyperparameter_sweep")]
    assert {"topology.num_actors (a3c with 24 settings)"} <= set(sweep["what"])


@pytest.mark.parametrize("dirty", [[False, True], [None, True]])
def test_each_commit_says_for_itself_whether_it_had_uncommitted_changes(dirty: list[bool | None]) -> None:
    rows = pd.DataFrame({"git_sha": ["a" * 40, "b" * 40], "git_dirty": dirty}).to_dict("records")
    assert [source(row) for row in rows] == ["a" * 40, "b" * 40 + " with uncommitted changes"]


def test_the_summary_counts_what_ran_against_the_papers_budget(results: Path) -> None:
    summary = json.loads((results / "smoke" / PAPER / "tables" / "summary.json").read_text())
    assert summary["runs"] == len(smoke())
    atari = [run for run in smoke() if run.experiment in ("atari", "atari_gpu")]
    assert summary["paper_frames_total"] == 200_000_000 * len(atari)
    assert summary["budget_ratio"] == pytest.approx(sum(run.config["env_frames"] for run in atari) / (2e8 * len(atari)))
    assert summary["reference"]["runs"] == 1
    assert sum(summary["claims"].values()) == len(load_paper(ROOT / PAPER).claims)


@pytest.fixture(scope="module")
def reference(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables at the pseudo-scale `reference`, of the reference run beside every smoke run."""
    output = tmp_path_factory.mktemp("reference")
    assert call("aggregate", results, "--scale", "reference", "--output", str(output)) == 0
    return output


def test_at_scale_reference_the_committed_runs_are_the_only_subject(reference: Path, results: Path) -> None:
    tables = {name: pd.read_parquet(reference / f"{name}.parquet") for name in TABLES}
    for name, found in tables.items():
        if "origin" in found:
            assert set(found["origin"]) <= {"reference"}, name
    assert len(tables["runs"]) == 1
    for name, key in (("claims", "claim"), ("cells", "cell")):
        beside = table(results, name)
        assert len(tables[name]) == tables[name][key].nunique() == beside[key].nunique()
    pong = tables["cells"][tables["cells"]["ours"].notna() & (tables["cells"]["task"] == "pong")]
    same_cell = table(results, "cells").set_index(["cell", "origin"]).loc[(pong["cell"].iloc[0], "reference")]
    assert pong["ours"].iloc[0] == same_cell["ours"]
    assert set(tables["claims"]["verdict"]) == {"not_run"}
    summary = json.loads((reference / "summary.json").read_text())
    assert (summary["subject"], summary["runs"], summary["reference"]) == ("reference", 1, None)


def test_departures_of_reference_runs_come_from_their_own_configurations(reference: Path, results: Path) -> None:
    departures = pd.read_csv(reference / "departures.csv", keep_default_na=False)
    own = departures[departures["where"] == "atari, reference runs"].set_index("what")
    assert own.loc["network", ["paper", "ours"]].tolist() == ["nature", "shallow"]
    assert own.loc["precision", "flag"] == "changed_hyperparameters"
    assert own.loc["env_frames", "reason"].startswith("A sixth of the paper's budget")
    config = next((results / "reference").rglob("config.json"))
    assert own.loc["env_frames", "ours"].replace("\u00a0", "") == str(json.loads(config.read_text())["env_frames"])
    known = table(results, "departures")
    deviations = known[known["where"] == "DEVIATIONS.md"]
    assert list(departures["what"][departures["where"] == "DEVIATIONS.md"]) == list(deviations["what"])
    settings = pd.read_parquet(reference / "hyperparameters.parquet").set_index(["experiment", "name"])
    assert settings.loc[("atari", "env_frames"), "ours"] == own.loc["env_frames", "ours"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scale", "reference"], "--output: needed with --scale reference"),
        (["--scale", "reference", "--output", "x", "--seeds", "1"], "--seeds: not with --scale reference"),
        (["--scale", "references"], "unknown scale 'references' (did you mean 'reference'?)"),
    ],
)
def test_what_scale_reference_cannot_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert call("aggregate", tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err


def test_scale_reference_without_committed_runs_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("aggregate", tmp_path, "--scale", "reference", "--output", str(tmp_path / "tables")) == 2
    place = tmp_path / "reference" / PAPER
    assert capsys.readouterr().err == f"ddrl: {place}: no run of {PAPER} at scale reference has finished\n"


def test_milestones_say_when_a_return_was_reached_and_how_long_was_looked(results: Path) -> None:
    milestones = table(results, "milestones").set_index(["origin", "experiment", "variant", "environment", "seed"])
    catch = milestones.loc[("run", "off_policy_correction", "v_trace", "toy/catch", 11)]
    assert 0 < catch["env_frames"] < catch["final_frames"] == 60_000
    pong = milestones.loc[("run", "atari", "shallow", "atari/pong", 1)]
    assert pd.isna(pong["env_frames"])
    assert pong["final_frames"] == 280_000


@pytest.mark.parametrize("name", [figure.name for figure in load_paper(ROOT / PAPER).figures])
def test_a_figure_is_drawn_from_its_tables_alone_with_the_same_bytes_each_time(
    results: Path, tmp_path: Path, name: str
) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    for wanted in next(figure for figure in load_paper(ROOT / PAPER).figures if figure.name == name).tables:
        shutil.copy(results / "smoke" / PAPER / "tables" / f"{wanted}.parquet", tables)
    for folder in ("first", "second"):
        assert call("figure", results, "--name", name, "--tables", str(tables), "--output", str(tmp_path / folder)) == 0
    for suffix in ("svg", "png"):
        assert digest(tmp_path / "first" / f"{name}.{suffix}") == digest(tmp_path / "second" / f"{name}.{suffix}")
    assert "DejaVu Sans" in (tmp_path / "first" / f"{name}.svg").read_text()


def test_the_font_is_the_one_matplotlib_brings() -> None:
    assert "matplotlib" in font_manager.findfont("DejaVu Sans")


def test_tables_and_figures_need_no_torch() -> None:
    modules = "ddrl.analysis.__main__, ddrl.analysis.figures.plots, ddrl.analysis.tables.build"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


@pytest.fixture
def one_run(tmp_path: Path) -> Path:
    """A single finished run."""
    run = smoke(experiments=["atari"], variants=["shallow"], environments=["atari/pong"])[0]
    write_configs([run], tmp_path)
    return write_run(run, tmp_path, start=-20.0, final=-15.0)


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_run(folder, "run", PAPER, "atari", "shallow")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_damaged_parquet_file_is_refused(one_run: Path) -> None:
    (one_run / "curves.parquet").write_bytes((one_run / "curves.parquet").read_bytes()[:500])
    assert "curves.parquet: not valid Parquet: " in refused(one_run)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("value", np.nan, "not finite"),
        ("env_frames", 0.5, "column 'env_frames' is double; allowed: int64"),
        ("metric", 3, "column 'metric' is int64; allowed: string"),
        ("updates", -1, "column 'updates' has values below 0"),
        ("metric", "entropy", "has no metric 'episodes'"),
        ("extra", 1, "columns are"),
        ("env_frames", 10**12, "has more env_frames than run.json"),
    ],
)
def test_wrong_curves_are_refused_with_the_file_and_the_column(
    one_run: Path, column: str, value: Any, message: str
) -> None:
    curves = pd.read_parquet(one_run / "curves.parquet")
    curves[column] = value
    curves.to_parquet(one_run / "curves.parquet", index=False)
    assert message in refused(one_run)


@pytest.mark.parametrize(("key", "lost"), [({}, None), ({"records_lost_bytes": 311}, 311)])
def test_the_table_of_runs_says_how_many_bytes_of_records_were_lost(
    one_run: Path, key: dict[str, int], lost: int | None
) -> None:
    manifest = json.loads((one_run / "run.json").read_text())
    (one_run / "run.json").write_text(json.dumps(manifest | key))
    row = run_table([load_run(one_run, "run", PAPER, "atari", "shallow")], load_experiments(ROOT / PAPER)).iloc[0]
    assert (None if pd.isna(row["records_lost_bytes"]) else row["records_lost_bytes"]) == lost


@pytest.mark.parametrize("key", ["config", "env_frames", "seconds", "hardware"])
def test_a_manifest_without_a_key_is_refused(one_run: Path, key: str) -> None:
    manifest = json.loads((one_run / "run.json").read_text())
    del manifest[key]
    (one_run / "run.json").write_text(json.dumps(manifest))
    assert f"run.json: '{key}' is a required property" in refused(one_run)


def test_a_run_in_another_runs_folder_is_refused(one_run: Path) -> None:
    moved = one_run.parent / "seed2"
    one_run.rename(moved)
    assert "is of atari-pong/seed1, not of atari-pong/seed2" in refused(moved)


def test_a_missing_run_is_an_error_unless_allowed(one_run: Path, tmp_path: Path) -> None:
    planned = smoke(experiments=["atari"], variants=["shallow"])
    with pytest.raises(UserError, match=r"run.json: no such file; the run has not finished"):
        build(ROOT / PAPER, "smoke", planned, tmp_path)
    evidence = build(ROOT / PAPER, "smoke", planned, tmp_path, allow_missing=True)
    assert len(evidence.tables["runs"]) == 1


def test_without_any_run_there_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("aggregate", tmp_path, "--allow-missing") == 2
    assert capsys.readouterr().err == f"ddrl: {tmp_path}: no run of {PAPER} at scale smoke has finished\n"


def run_data(frames: list[int], values: list[float], seed: int) -> RunData:
    curves = pd.DataFrame({"env_frames": frames, "seconds": 0.0, "metric": "lag", "value": values})
    return RunData("run", "p", "e", "v", "toy/catch", seed, {}, curves)


def test_evaluations_of_runs_that_were_evaluated_while_they_trained_are_a_table_and_no_others(tmp_path: Path) -> None:
    planned = [
        write_periodic(run, tmp_path, often=run.seed == 11) for run in smoke(experiments=["off_policy_correction"])
    ]
    found = build(ROOT / PAPER, "smoke", planned, tmp_path).tables["evaluations"]
    assert set(found["seed"]) == {11}
    one = found[found["variant"] == "v_trace"]
    assert one["env_frames"].min() == 1000
    assert one["evaluation_return"].iloc[0] == pytest.approx(2.0, abs=1.0)  # the mean of 1 and 3, and half way on


def write_periodic(run: PlannedRun, results: Path, *, often: bool) -> PlannedRun:
    path = write_run(run, results, start=0.0, final=1.0) / "curves.parquet"
    if often:
        curves = pd.read_parquet(path)
        added = curves.iloc[:2].assign(env_frames=1000, metric="evaluation_return", value=[1.0, 3.0])
        pd.concat([curves, added], ignore_index=True).to_parquet(path, index=False, write_page_checksum=True)
    return run


def test_seeds_share_a_grid_and_straight_lines_stay_straight() -> None:
    runs = [run_data([100, 200, 400], [1.0, 2.0, 4.0], 1), run_data([150, 300], [1.5, 3.0], 2)]
    grid = on_common_grid(runs, ["lag"], points=3)
    assert set(grid["env_frames"]) == {150, 225, 300}
    middle = grid[grid["env_frames"] == 225]
    assert list(middle["lag"]) == pytest.approx([2.25, 2.25])


def test_many_records_are_averaged_and_not_sampled() -> None:
    noise = np.tile([0.0, 2.0], 500)
    runs = [run_data(list(range(1, 1001)), list(noise), 1)]
    assert np.abs(on_common_grid(runs, ["lag"], points=11)["lag"] - 1.0).max() < 0.05


def test_deviations_are_one_table_with_known_flags(tmp_path: Path) -> None:
    assert len(load_deviations(ROOT / PAPER)) > 10
    head = "| Deviation | Paper | Here | Why | Flag |\n|---|---|---|---|---|\n"
    (tmp_path / "DEVIATIONS.md").write_text(head + "| a | b | c | d | prxy_env |\n")
    with pytest.raises(UserError, match=r"line 3: unknown flag 'prxy_env' \(did you mean 'proxy_env'\?\)"):
        load_deviations(tmp_path)
    (tmp_path / "DEVIATIONS.md").write_text(head + "| a | b | c |\n")
    with pytest.raises(UserError, match="line 3: 3 columns; allowed: 5"):
        load_deviations(tmp_path)
