"""Bad input: whatever is wrong with a run is named in one line, and everything else is still built."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.__main__ import main
from ddrl.analysis.runs.problems import COLUMNS, KINDS, planned_runs, reference_runs
from ddrl.analysis.runs.run_data import RunData, load_run, try_run
from ddrl.errors import UserError
from ddrl.papers.experiments import load_experiments
from ddrl.papers.table_names import TABLES
from ddrl.training.config.experiments import PlannedRun, expand
from tests.analysis.fakes import write_run, write_scale

ROOT = Path(__file__).parents[3]
REPLICATIONS = ROOT / "replications"
PAPER = "impala_2018"
EXPERIMENTS = load_experiments(REPLICATIONS / PAPER)
SEEDS = (11, 12, 13, 14, 15)
NARROW = ["--experiments", "off_policy_correction", "--variants", "v_trace", "no_correction", "--environments"]
NARROW += ["toy/catch", "--seeds", *map(str, SEEDS)]


def runs_of(*variants: str, validate: bool = False) -> list[PlannedRun]:
    """Planned runs; with `validate`, their configurations have defaults, as those of finished runs do."""
    filters = {"experiments": ["off_policy_correction"], "variants": variants, "environments": ["toy/catch"]}
    return expand(PAPER, "smoke", root=REPLICATIONS, seeds=SEEDS, validate=validate, **filters)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two variants with five seeds each, and three reference seeds."""
    results = tmp_path_factory.mktemp("whole") / "results"
    write_scale(runs_of("v_trace", "no_correction", validate=True), results)
    for run in runs_of("v_trace", validate=True)[:3]:
        write_run(run, results, start=-0.6, final=0.9, origin="reference")
    return results


@pytest.fixture
def results(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "results"))


def directory(results: Path, seed: int, variant: str = "v_trace", origin: str = "run") -> Path:
    root = results / "smoke" if origin == "run" else results / "reference"
    return root / PAPER / "off_policy_correction" / variant / "toy-catch" / f"seed{seed}"


@dataclass(frozen=True)
class Fault:
    file: str
    what: str
    detail: str
    plant: Callable[[Path], object]
    """Change the file."""


def in_bytes(file: str, what: str, detail: str, change: Callable[[bytes], bytes]) -> Fault:
    return Fault(file, what, detail, lambda path: path.write_bytes(change(path.read_bytes())))


def in_curves(what: str, detail: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Fault:
    def plant(path: Path) -> None:
        change(pd.read_parquet(path)).to_parquet(path, index=False)

    return Fault("curves.parquet", what, detail, plant)


def in_manifest(what: str, detail: str, change: Callable[[Any], Any]) -> Fault:
    return Fault("run.json", what, detail, lambda path: edit(path, change))


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def on_row_5(table: pd.DataFrame, value: float) -> pd.DataFrame:
    return table.assign(value=table["value"].where(table.index != 5, value))


NOT_PARQUET = ("curves.parquet", "damaged", "not valid Parquet: ")
UNREADABLE, OTHER, MISSING = "unreadable_manifest", "different_config", "no such file; the run has not finished"
FAULTS = {
    "truncated": in_bytes(*NOT_PARQUET, lambda whole: whole[: len(whole) // 2]),
    "random_bytes": in_bytes(*NOT_PARQUET, lambda _: np.random.Generator(np.random.PCG64(1)).bytes(4000)),
    "empty_file": in_bytes(*NOT_PARQUET, lambda _: b""),
    "no_rows": in_curves("damaged", "has no rows", lambda table: table.iloc[:0]),
    "wrong_columns": in_curves(
        "damaged", "columns are frames, agent_steps", lambda table: table.rename(columns={"env_frames": "frames"})
    ),
    "wrong_type": in_curves(
        "damaged",
        "column 'env_frames' is double; allowed: int64",
        lambda table: table.assign(env_frames=table["env_frames"].astype(float)),
    ),
    "without_evaluation": in_curves(
        "damaged",
        "has no metric 'evaluation_return'",
        lambda table: table[table["metric"] != "evaluation_return"],
    ),
    "nan_value": in_curves("not_finite", "has value nan at", lambda table: on_row_5(table, np.nan)),
    "infinite_time": in_curves("not_finite", "has seconds inf at", lambda table: table.assign(seconds=np.inf)),
    "huge_value": in_curves("not_finite", "has value 1e+300 at", lambda table: on_row_5(table, 1e300)),
    "huge_time": in_curves("not_finite", "has seconds -1e+300 at", lambda table: table.assign(seconds=-1e300)),
    "huge_count": in_curves(
        "damaged",
        "column 'updates' has values above 1,000,000,000,000,000",
        lambda table: table.assign(updates=2**62),
    ),
    "huge_seconds": in_manifest(
        UNREADABLE,
        "key 'seconds': 1e+300 is greater than the maximum of",
        lambda manifest: manifest.update(seconds=1e300),
    ),
    "not_json": in_bytes("run.json", UNREADABLE, "not valid JSON: ", lambda _: b'{"config": '),
    "not_a_number": in_manifest(
        UNREADABLE, "not valid JSON: NaN is not a number", lambda manifest: manifest.update(seconds=float("nan"))
    ),
    "without_hardware": in_manifest(
        UNREADABLE, "'hardware' is a required property", lambda manifest: manifest.pop("hardware")
    ),
    "wrong_frames": in_manifest(
        UNREADABLE,
        "key 'env_frames': 'many' is not of type 'integer'",
        lambda manifest: manifest.update(env_frames="many"),
    ),
    "edited_config": in_manifest(
        OTHER,
        "hyperparameters.discount is 0.5, experiments.yaml plans 0.99",
        lambda manifest: manifest["config"]["hyperparameters"].update(discount=0.5),
    ),
    "smaller_budget": in_manifest(
        OTHER,
        "env_frames is 1000, experiments.yaml plans 60000",
        lambda manifest: manifest["config"].update(env_frames=1000),
    ),
    "other_task": in_manifest(
        OTHER,
        "is of toy-grid/seed13, not of toy-catch/seed13",
        lambda manifest: manifest["config"]["environment"].update(name="toy/grid"),
    ),
    # A key that experiments.yaml leaves at its default.
    "unplanned_key": in_manifest(
        OTHER,
        "hyperparameters.correction_epsilon is 0.1, seeds 11, 12, 14, 15 have 1e-06",
        lambda manifest: manifest["config"]["hyperparameters"].update(correction_epsilon=0.1),
    ),
    "lost_manifest": Fault("run.json", "missing", MISSING, Path.unlink),
    "lost_curves": Fault("curves.parquet", "missing", MISSING, Path.unlink),
}


def plant(name: str, run: Path) -> None:
    FAULTS[name].plant(run / FAULTS[name].file)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_leaves_out_its_own_run_and_no_other(results: Path, name: str) -> None:
    fault = FAULTS[name]
    plant(name, directory(results, 13))
    found = planned_runs(runs_of("v_trace", "no_correction"), results, allow_missing=True)
    assert [(run.variant, run.seed) for run in found.runs] == [
        (variant, seed)
        for variant in ("v_trace", "no_correction")
        for seed in SEEDS
        if (variant, seed) != ("v_trace", 13)
    ]
    (problem,) = found.problems
    assert (problem.what, problem.file) == (fault.what, directory(results, 13) / fault.file)
    assert fault.detail in problem.detail
    assert "\n" not in problem.detail
    assert str(results) not in problem.detail
    assert problem.what in KINDS


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.what != OTHER])
def test_a_fault_of_a_reference_run_leaves_out_that_run_and_stops_nothing(results: Path, name: str) -> None:
    plant(name, directory(results, 13, origin="reference"))
    found = reference_runs(results / "reference" / PAPER, PAPER, EXPERIMENTS)
    assert [run.seed for run in found.runs] == [11, 12]
    (problem,) = found.problems
    assert (problem.origin, problem.what, problem.seed) == ("reference", FAULTS[name].what, 13)


def reference_problems(results: Path) -> dict[int, str]:
    found = reference_runs(results / "reference" / PAPER, PAPER, EXPERIMENTS)
    assert {problem.what for problem in found.problems} <= {"different_config"}
    problems = {problem.seed: problem.detail for problem in found.problems}
    assert {run.seed for run in found.runs}.isdisjoint(problems)
    return problems


def test_of_reference_seeds_with_different_configurations_the_majority_stays(results: Path) -> None:
    plant("edited_config", directory(results, 11, origin="reference"))
    assert reference_problems(results) == {11: "hyperparameters.discount is 0.5, seeds 12, 13 have 0.99"}


def test_of_two_reference_seeds_with_different_configurations_the_lower_stays(results: Path) -> None:
    shutil.rmtree(directory(results, 13, origin="reference"))
    plant("smaller_budget", directory(results, 11, origin="reference"))
    assert reference_problems(results) == {12: "env_frames is 60000, seed 11 has 1000"}


def test_how_often_a_run_was_recorded_makes_no_other_run_of_it(results: Path) -> None:
    for origin in ("run", "reference"):
        path = directory(results, 12, origin=origin) / "run.json"
        edit(path, lambda manifest: manifest["config"]["recording"].update(period_frames=7))
    assert reference_problems(results) == {}
    assert planned_runs(runs_of("v_trace"), results, allow_missing=False).problems == ()


def test_a_planned_value_that_written_configurations_leave_out_is_no_difference(tmp_path: Path) -> None:
    only = {"experiments": ["double_buffering"], "root": REPLICATIONS}
    for run in expand("appo_2020", "smoke", **only):
        write_run(run, tmp_path, start=0.0, final=1.0)
    planned = expand("appo_2020", "smoke", validate=False, **only)
    assert [run.config["topology"]["env_groups"] for run in planned] == [1, 2]
    assert planned_runs(planned, tmp_path, allow_missing=False).problems == ()
    swapped = planned[1].directory(tmp_path) / "run.json"
    edit(swapped, lambda manifest: manifest["config"]["topology"].pop("env_groups"))
    (problem,) = planned_runs(planned, tmp_path, allow_missing=False).problems
    assert problem.detail == "topology.env_groups is 1, experiments.yaml plans 2"


def test_a_reference_run_of_an_unknown_variant_is_named(results: Path) -> None:
    directory(results, 11, origin="reference").parents[1].rename(results / "reference" / PAPER / "gone")
    (results / "reference" / PAPER / "off_policy_correction").rmdir()
    target = results / "reference" / PAPER / "off_policy_correction" / "v_trase"
    target.parent.mkdir()
    (results / "reference" / PAPER / "gone").rename(target)
    assert set(reference_problems(results).values()) == {"experiments.yaml has no off_policy_correction/v_trase"}


def test_many_differing_keys_are_counted(results: Path) -> None:
    def change(manifest: Any) -> None:
        for name in ("rho_bar", "c_bar", "pg_rho_bar", "value_cost", "entropy_cost", "batch_size"):
            manifest["config"]["hyperparameters"][name] = 3

    edit(directory(results, 13) / "run.json", change)
    (problem,) = planned_runs(runs_of("v_trace"), results, allow_missing=False).problems
    assert problem.detail.endswith("; and 2 more")


def test_a_missing_run_is_an_error_unless_allowed_and_a_damaged_one_is_not(results: Path) -> None:
    plant("truncated", directory(results, 11))
    plant("lost_manifest", directory(results, 12))
    with pytest.raises(UserError, match=r"seed12/run.json: no such file; the run has not finished"):
        planned_runs(runs_of("v_trace"), results, allow_missing=False)
    found = planned_runs(runs_of("v_trace"), results, allow_missing=True)
    assert [problem.what for problem in found.problems] == ["damaged", "missing"]


def test_random_damage_never_ends_in_an_exception(results: Path) -> None:
    generator = np.random.Generator(np.random.PCG64(5))
    run = directory(results, 13)
    usable = 0
    for name in ("curves.parquet", "run.json"):
        whole = (run / name).read_bytes()
        for _ in range(100):
            content = bytearray(whole)
            for place in generator.integers(0, len(content), size=4):
                content[place] = generator.integers(0, 256)
            (run / name).write_bytes(content)
            found = try_run(run, "run", PAPER, "off_policy_correction", "v_trace")
            assert isinstance(found, RunData) or (found.what in KINDS and "\n" not in found.detail)
            usable += isinstance(found, RunData)
        (run / name).write_bytes(whole)
    assert usable < 100


def test_a_flipped_bit_in_a_value_is_found(results: Path) -> None:
    run = directory(results, 13)
    path = run / "curves.parquet"
    whole, curves = path.read_bytes(), load_run(run, "run", PAPER, "off_policy_correction", "v_trace").curves
    pages = len(whole) - 2000  # behind them stand the file's own facts, which no checksum covers
    places = np.random.Generator(np.random.PCG64(6)).integers(4, pages, size=100)
    found = 0
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        read = try_run(run, "run", PAPER, "off_policy_correction", "v_trace")
        assert not isinstance(read, RunData) or read.curves.equals(curves)
        found += not isinstance(read, RunData)
    path.write_bytes(whole)
    assert found > 50


def aggregate(results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command that the workflow runs, in a process of its own."""
    command = [sys.executable, "-m", "ddrl.analysis", "aggregate", "--paper", PAPER, *NARROW, *arguments]
    return subprocess.run([*command, "--results", str(results)], cwd=ROOT, capture_output=True, text=True, check=False)


def table(results: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(results / "smoke" / PAPER / "tables" / f"{name}.parquet")


def test_the_command_names_each_fault_in_a_line_and_builds_everything_else(results: Path) -> None:
    planted = [("truncated", 11), ("random_bytes", 12), ("nan_value", 13), ("wrong_columns", 14), ("lost_manifest", 15)]
    for name, seed in planted:
        plant(name, directory(results, seed, variant="no_correction"))
    plant("empty_file", directory(results, 14))
    plant("edited_config", directory(results, 15))
    plant("not_json", directory(results, 13, origin="reference"))
    done = aggregate(results, "--allow-missing")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 8
    assert all(line.startswith("ddrl: results/") and line.endswith("; left out") for line in lines)

    problems = table(results, "problems")
    assert list(problems.columns) == COLUMNS
    found = list(problems[["origin", "variant", "seed", "what"]].itertuples(index=False, name=None))
    assert found == [
        ("run", "no_correction", 11, "damaged"),
        ("run", "no_correction", 12, "damaged"),
        ("run", "no_correction", 13, "not_finite"),
        ("run", "no_correction", 14, "damaged"),
        ("run", "no_correction", 15, "missing"),
        ("run", "v_trace", 14, "damaged"),
        ("run", "v_trace", 15, "different_config"),
        ("reference", "v_trace", 13, "unreadable_manifest"),
    ]
    assert not problems["file"].str.startswith("/").any()
    for name in ("runs", "scores", "curves", "policy_lag", "milestones"):
        left = table(results, name)[["origin", "variant", "seed"]].drop_duplicates()
        assert sorted(left.itertuples(index=False, name=None)) == [
            ("reference", "v_trace", 11),
            ("reference", "v_trace", 12),
            ("run", "v_trace", 11),
            ("run", "v_trace", 12),
            ("run", "v_trace", 13),
        ]
    assert all((results / "smoke" / PAPER / "tables" / f"{name}.csv").exists() for name in TABLES)
    summary = json.loads((results / "smoke" / PAPER / "tables" / "summary.json").read_text())
    assert summary["problems"] == 8
    assert summary["problems_by_kind"] == {
        "damaged": 4,
        "different_config": 1,
        "missing": 1,
        "not_finite": 1,
        "unreadable_manifest": 1,
    }
    claims = table(results, "claims").set_index(["claim", "origin"])
    assert claims.loc[("v_trace_over_no_correction", "run"), "verdict"] == "not_run"


def test_a_fault_and_no_fault_give_the_same_tables_but_for_the_run(
    results: Path, healthy: Path, tmp_path: Path
) -> None:
    seeds = [text for text in NARROW if text != "13"]

    def command(folder: Path, output: str, narrow: list[str]) -> None:
        options = ["aggregate", "--paper", PAPER, "--replications", str(REPLICATIONS), "--results", str(folder)]
        assert main([*options, *narrow, "--output", str(tmp_path / output)]) == 0

    for variant in ("v_trace", "no_correction"):
        plant("truncated", directory(results, 13, variant=variant))
    command(results, "faulty", NARROW)
    command(healthy, "whole", seeds)
    for name in set(TABLES) - {"problems"}:
        first, second = ((tmp_path / folder / f"{name}.csv").read_bytes() for folder in ("faulty", "whole"))
        assert first == second, name


def test_of_many_missing_runs_the_first_are_printed_and_all_are_listed(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for variant, seeds in (("v_trace", SEEDS[1:]), ("no_correction", SEEDS)):
        for seed in seeds:
            plant("lost_manifest", directory(results, seed, variant=variant))
    options = ["--replications", str(REPLICATIONS), "--results", str(results), "--output", str(tmp_path / "tables")]
    assert main(["aggregate", "--paper", PAPER, *NARROW, *options, "--allow-missing"]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 6
    assert printed[-1] == "ddrl: and 4 more runs that have not finished; left out"
    assert len(pd.read_csv(tmp_path / "tables" / "problems.csv")) == 9


def test_when_no_run_is_left_there_is_one_line(results: Path) -> None:
    shutil.rmtree(results / "reference")
    for variant in ("v_trace", "no_correction"):
        for seed in SEEDS:
            plant("truncated", directory(results, seed, variant=variant))
    done = aggregate(results)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "seed11/curves.parquet: not valid Parquet: " in done.stderr
    assert "all 10 runs of impala_2018 have such problems" in done.stderr
    assert not (results / "smoke" / PAPER / "tables").exists()


def test_a_copy_of_a_seed_is_no_run_of_its_own_and_is_named_once(results: Path) -> None:
    """Also where its times were changed."""
    copy = directory(results, 16, origin="reference")
    shutil.copytree(directory(results, 11, origin="reference"), copy)
    edit(copy / "run.json", lambda manifest: manifest["config"].update(seed=16))
    table = pd.read_parquet(copy / "curves.parquet")
    table.assign(seconds=table["seconds"] + 1.0).to_parquet(copy / "curves.parquet", index=False)
    found = reference_runs(results / "reference" / PAPER, PAPER, EXPERIMENTS)
    assert [run.seed for run in found.runs] == [11, 12, 13]
    (problem,) = found.problems
    assert (problem.seed, problem.what, problem.detail) == (16, "identical", "every loss and return is that of seed 11")
    assert problem.file == copy / "curves.parquet"


def test_curves_of_one_variant_that_stand_under_another_are_those_of_neither(results: Path) -> None:
    """A result is made up as easily by copying a file to another variant as to another seed."""
    write_run(runs_of("no_correction", validate=True)[0], results, start=-0.6, final=0.1, origin="reference")
    own, other = (directory(results, 11, variant=name, origin="reference") for name in ("v_trace", "no_correction"))
    assert not reference_runs(results / "reference" / PAPER, PAPER, EXPERIMENTS).problems
    shutil.copy(own / "curves.parquet", other / "curves.parquet")
    found = reference_runs(results / "reference" / PAPER, PAPER, EXPERIMENTS)
    assert sorted((one.variant, one.seed, one.what) for one in found.problems) == [
        ("no_correction", 11, "identical"),
        ("v_trace", 11, "identical"),
    ]
    assert found.problems[0].detail == "every loss and return, with its time, is that of v_trace, seed 11"
    table = pd.read_parquet(other / "curves.parquet")
    table.assign(seconds=table["seconds"] + 1.0).to_parquet(other / "curves.parquet", index=False)
    found = reference_runs(results / "reference" / PAPER, PAPER, EXPERIMENTS)
    assert not found.problems, "what differs between two variants may not change what is learned"
