"""The suite's tables: systems from experiments.yaml, and what ran from the tables of the papers alone."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ddrl.algorithms import NAMES
from ddrl.analysis.__main__ import main
from ddrl.analysis.tables.suite import _lag, _throughput
from ddrl.analysis.tables.systems import (
    CELL_VERDICTS,
    algorithm_module,
    coverage,
    matrix,
    published_only,
    read_papers,
    systems,
)
from ddrl.errors import UserError
from ddrl.interfaces import System
from ddrl.papers.claim_verdicts import CLAIM_VERDICTS
from ddrl.papers.declared import declared, defaults
from ddrl.papers.published import load_published
from ddrl.papers.table_names import SUITE_TABLES
from ddrl.training.config.experiments import expand
from tests.analysis.fakes import write_bench, write_run, write_scale

ROOT = Path(__file__).parents[3] / "replications"
PAPER = "impala_2018"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Catch at scale smoke without one run, one damaged and one reference run, a benchmark, and the suite's tables."""
    folder = tmp_path_factory.mktemp("suite") / "results"
    runs = expand(PAPER, "smoke", root=ROOT, experiments=["off_policy_correction"])
    write_scale(runs, folder)
    (runs[0].directory(folder) / "run.json").unlink()
    (runs[1].directory(folder) / "curves.parquet").write_bytes(b"")
    shutil.rmtree(runs[-1].directory(folder).parent)
    pong = expand(PAPER, "workstation", root=ROOT, experiments=["atari"], environments=["atari/pong"])[0]
    write_run(pong, folder, start=-20.7, final=18.0, origin="reference")
    write_bench(folder)
    (folder / "reference" / "bench" / "broken.json").write_text("{}")
    assert call("aggregate", folder, "--paper", PAPER, "--allow-missing") == 0
    assert call("suite", folder) == 0
    return folder


def call(command: str, results: Path, *arguments: str) -> int:
    only = ["--papers", PAPER] if command == "suite" and "--papers" not in arguments else []
    return main([command, "--results", str(results), "--replications", str(ROOT), *only, *arguments])


def table(results: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(results / "smoke" / "suite" / "tables" / f"{name}.parquet")


def test_a_system_is_an_algorithm_and_a_topology_of_an_experiment() -> None:
    found = systems(ROOT, [PAPER]).set_index(["paper", "experiment"])
    (_, atari), *others = found.loc[[(PAPER, "atari")]].iterrows()
    assert not others
    assert (atari["system"], atari["moves"], atari["schedule"]) == ("IMPALA", "unrolls", "asynchronous")
    assert (atari["store"], atari["inference"], atari["networks"]) == ("queue", "local", "nature, deep")
    assert (atari["num_actors"], atari["envs_per_actor"], atari["tasks"]) == (2, 32, "atari (57)")
    assert pd.isna(atari["max_policy_lag"])
    correction = found.loc[[(PAPER, "off_policy_correction")]].iloc[0]
    assert correction["store"] == "queue (also 50 % replay)"
    assert (correction["schedule"], correction["parameter_delay"], correction["tasks"]) == (
        "synchronous",
        20,
        "toy (catch); atari (5)",
    )


def test_each_algorithm_of_an_experiment_is_a_system_with_the_store_that_it_learns_from() -> None:
    found = systems(ROOT, ["impact_2020"])
    continuous = found[found["experiment"] == "continuous"].set_index("algorithm")
    assert list(continuous["store"]) == ["circular (N 16, K 20 or 32)", "queue", "queue"]
    assert list(continuous["schedule"]) == ["asynchronous", "synchronous", "asynchronous"]
    assert list(continuous["variants"]) == ["impact", "ppo", "impala"]
    assert set(continuous["networks"]) == {"tanh_mlp"}
    assert set(continuous["tasks"]) == {"mujoco (HalfCheetah-v5, Hopper-v5, Humanoid-v5)"}
    buffer = found[found["experiment"] == "circular_buffer"]
    assert list(buffer["store"]) == ["circular (N 16, K 1 to 32)"]
    assert list(found["num_actors"][found["experiment"] == "workers"]) == [1, 2, 4, 8, 16, 32]


def test_topologies_that_differ_within_an_experiment_are_systems_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(ROOT / PAPER, tmp_path / PAPER)
    path = tmp_path / PAPER / "experiments.yaml"
    data = yaml.safe_load(path.read_text())
    deep = data["experiments"]["atari"]["variants"]["deep"]["set"]
    deep |= {"topology.schedule": "bounded_lag", "topology.max_policy_lag": 3, "hyperparameters.lstm_size": 256}
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    found = systems(tmp_path)
    assert list(found["experiment"])[:4] == ["atari", "atari", "atari_gpu", "off_policy_correction"]
    assert list(found["max_policy_lag"].fillna(0))[:4] == [0, 3, 0, 0]
    assert {"A3C", "A2C", "IMPALA"} <= set(found["system"][found["experiment"] == "throughput"])
    assert list(found["networks"])[:2] == ["nature", "deep + LSTM 256"]


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_declares_its_version_and_what_it_moves(name: str) -> None:
    assert declared(algorithm_module(name), "VERSION") >= 1
    stated = declared(algorithm_module(name), "SYSTEM")
    assert {"name", "moves", "store", "schedules"} <= set(stated) <= set(System.__dataclass_fields__)


def test_what_the_syntax_tree_says_is_what_the_module_holds() -> None:
    from ddrl.algorithms import impala
    from ddrl.training.config.topology import Topology

    assert declared(algorithm_module("impala"), "VERSION") == impala.VERSION
    assert System(**declared(algorithm_module("impala"), "SYSTEM")) == impala.SYSTEM
    package = algorithm_module("impala").parents[1]
    topology = {key: value for key, value in vars(Topology()).items() if key != "central"}
    assert defaults(package / "training" / "config" / "topology.py", "Topology") == topology
    plain = {key: value for key, value in vars(impala.Config()).items() if key != "optimizer"}
    assert defaults(algorithm_module("impala"), "Config") == plain


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "no such file"),
        ("VERSION =", "not valid Python"),
        ("OTHER = 1", "must state VERSION as a plain value"),
        ("VERSION = 1 + one()", "must state VERSION as a plain value"),
        ("def f():\n    VERSION = 1", "must state VERSION as a plain value"),
    ],
)
def test_a_fact_that_is_not_declared_is_named_with_its_file(tmp_path: Path, source: str | None, message: str) -> None:
    path = tmp_path / "module.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(UserError, match=f"module.py: {message}"):
        declared(path, "VERSION")


def test_declared_facts_and_systems_need_no_torch() -> None:
    code = "import sys; from ddrl.analysis.tables.systems import systems; systems(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


def test_every_suite_table_is_written_as_parquet_and_csv(results: Path) -> None:
    for name in SUITE_TABLES:
        path = results / "smoke" / "suite" / "tables" / name
        assert len(pd.read_csv(path.with_suffix(".csv"))) == len(table(results, name))
        assert len(table(results, name)) > 0 or name == "published_only"  # every paper has experiments


def test_a_paper_whose_numbers_alone_are_here_is_listed_with_them(tmp_path: Path) -> None:
    shutil.copytree(ROOT / PAPER / "published", tmp_path / PAPER / "published")
    (row,) = published_only(tmp_path).to_dict("records")
    assert (row["paper"], row["cells"]) == (PAPER, len(load_published(ROOT / PAPER)))
    assert "Table 1" in row["items"].split("; ")
    assert published_only(ROOT).empty, "every paper has experiments"


def test_the_suite_is_made_from_tables_alone_with_the_same_bytes_each_time(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "smoke" / PAPER / "tables", tmp_path / "results" / "smoke" / PAPER / "tables")
    shutil.copytree(results / "reference" / "bench", tmp_path / "results" / "reference" / "bench")
    assert call("suite", tmp_path / "results") == 0
    folders = [root / "smoke" / "suite" / "tables" for root in (results, tmp_path / "results")]
    assert digests(folders[0]) == digests(folders[1])


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_matrix_says_what_is_done_missing_and_not_planned(results: Path) -> None:
    matrix = table(results, "matrix").set_index(["experiment", "variant", "environment"])

    def place(*names: str) -> dict[str, Any]:
        return matrix.loc[names, ["planned", "done", "left_out", "reference", "status"]].to_dict()

    correction = "off_policy_correction"
    counts = {"planned": 3, "done": 3, "left_out": 0, "reference": 0, "status": "done"}
    assert place(correction, "one_step_is", "toy/catch") == counts
    assert place(correction, "v_trace", "toy/catch") == counts | {"done": 1, "left_out": 2, "status": "partly"}
    gone = counts | {"done": 0, "left_out": 3, "status": "missing"}
    assert place(correction, "no_correction_replay", "toy/catch") == gone
    nothing = {"planned": 0, "done": 0, "left_out": 0, "reference": 0}
    assert place(correction, "v_trace", "atari/breakout") == nothing | {"status": "not_planned"}
    missing = {"planned": 1, "done": 0, "left_out": 1}
    assert place("atari", "shallow", "atari/pong") == missing | {"reference": 1, "status": "missing"}
    assert place("atari", "deep", "atari/alien") == nothing | {"status": "not_planned"}
    # One of the 24 settings of a sweep is planned at scale smoke; all of them are one row.
    assert place("hyperparameter_sweep", "impala", "toy/catch") == {
        **nothing,
        "planned": 1,
        "left_out": 1,
        "status": "missing",
    }
    sweep = matrix.loc["hyperparameter_sweep"]
    assert set(sweep.index.get_level_values("variant")) == {"impala", "a3c", "batched_a2c"}
    assert set(sweep["variant_label"]) == {"IMPALA, all settings", "A3C, all settings", "Batched A2C, all settings"}


def test_the_coverage_counts_every_cell_and_claim_once_also_of_experiments_to_come(results: Path) -> None:
    found = table(results, "coverage").set_index("experiment")
    tables = results / "smoke" / PAPER / "tables"
    for kind, verdicts in (("cell", CELL_VERDICTS), ("claim", CLAIM_VERDICTS)):
        whole = pd.read_parquet(tables / f"{kind}s.parquet")
        assert found[f"{kind}s"].sum() == whole[kind].nunique()
        assert (found[[f"{kind}s_{verdict}" for verdict in verdicts]].sum(axis=1) == found[f"{kind}s"]).all()
    assert found.loc["atari_multitask", "status"] == "not_run"
    assert found.loc["dmlab30", "claims"] == found.loc["dmlab30", "claims_not_run"] > 0
    assert found.loc["throughput", "status"] == "missing"
    correction = found.loc["off_policy_correction"]
    assert (correction["status"], correction["planned"], correction["done"], correction["left_out"]) == (
        "partly",
        24,
        19,
        5,
    )
    assert (found.loc["atari", "reference"], found.loc["atari", "cells_not_comparable"]) == (1, 0)
    papers = read_papers(ROOT, results / "smoke")[0]
    made = coverage(ROOT, papers, matrix(ROOT, "smoke", papers), "run")
    pd.testing.assert_frame_equal(made, table(results, "coverage"))


def test_compute_throughput_and_lag_come_from_runs_and_benchmarks(results: Path) -> None:
    compute = table(results, "compute").set_index(["paper", "origin"])
    runs = pd.read_parquet(results / "smoke" / PAPER / "tables" / "runs.parquet")
    own = runs[runs["origin"] == "run"]
    assert compute.loc[(PAPER, "run"), "env_frames"] == own["env_frames"].sum()
    assert compute.loc[(PAPER, "run"), "hours"] == pytest.approx(own["seconds"].sum() / 3600)
    assert compute.loc[(PAPER, "run"), "machines"] == "a processor, 2 cores, 23.5 GiB, no GPU"
    throughput = table(results, "throughput")
    (bench,) = throughput[throughput["source"] == "bench"].to_dict("records")
    assert (bench["frames_per_second"], bench["lowest"], bench["highest"]) == (1100, 1000, 1200)
    assert (bench["system"], bench["bound"], bench["policy_lag_mean"]) == ("IMPALA", 1250, 4)
    assert bench["file"] == "results/reference/bench/bench.json"
    assert throughput["runs"][throughput["source"] == "runs"].sum() == len(runs)
    lag = table(results, "lag").set_index(["origin", "variant"])
    one = lag.loc[("run", "one_step_is")]
    assert one["runs"] == 3
    assert 20 < one["lag_mean"] < 21
    assert one["lag_max"] == 42


def test_speed_and_lag_of_a_sweep_are_those_of_its_systems(results: Path) -> None:
    runs = pd.read_parquet(results / "smoke" / PAPER / "tables" / "runs.parquet").head(2)
    names = {"variant": ["impala__s01", "impala__s02"], "variant_label": ["IMPALA, 0.1", "IMPALA, 0.2"]}
    alike = {name: runs[name].iloc[0] for name in runs.columns if name not in names}
    runs = runs.assign(**{**alike, **names, "frames_per_second": [100.0, 300.0]})
    (row,) = _throughput(runs, []).to_dict("records")
    assert (row["variant"], row["runs"], row["frames_per_second"]) == ("impala", 2, 200)
    lags = runs.assign(policy_lag_mean=[2.0, 4.0], policy_lag_max=[3, 9])
    (row,) = _lag(runs, lags).to_dict("records")
    assert (row["variant_label"], row["runs"], row["lag_mean"], row["lag_max"]) == ("IMPALA, all settings", 2, 3, 9)


def test_problems_of_runs_and_of_benchmarks_are_listed_together(results: Path) -> None:
    problems = table(results, "problems")
    assert list(problems["what"].value_counts().sort_index().items()) == [("damaged", 2), ("missing", 27)]
    (bench,) = problems[problems["origin"] == "bench"].to_dict("records")
    assert bench["detail"] == "has no 'config'"
    summary = json.loads((results / "smoke" / "suite" / "tables" / "summary.json").read_text())
    assert summary["problems"] == 29
    assert [paper["key"] for paper in summary["papers"]] == [PAPER]
    assert summary["runs"] == 19
    assert summary["reference"]["runs"] == 1


def test_a_damaged_table_is_named_and_other_papers_go_on(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replications = tmp_path / "replications"
    shutil.copytree(ROOT / PAPER, replications / PAPER)
    shutil.copytree(ROOT / PAPER, replications / "other_2020")
    for name in ("paper.yaml", "experiments.yaml"):
        path = replications / "other_2020" / name
        path.write_text(path.read_text().replace(PAPER, "other_2020", 1))
    made = tmp_path / "results" / "smoke"
    for paper in (PAPER, "other_2020"):
        shutil.copytree(results / "smoke" / PAPER / "tables", made / paper / "tables")
    (made / "other_2020" / "tables" / "cells.parquet").write_bytes(b"PAR1")
    options = ["suite", "--results", str(tmp_path / "results"), "--replications", str(replications)]
    assert main(options) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ddrl: results/smoke/other_2020/tables/cells.parquet: damaged: ")
    summary = json.loads((made / "suite" / "tables" / "summary.json").read_text())
    assert summary["papers_without_tables"] == ["other_2020"]
    assert [paper["key"] for paper in summary["papers"]] == [PAPER]
    (made / "other_2020" / "tables" / "cells.parquet").unlink()
    shutil.rmtree(made / PAPER)
    assert main(options) == 2
    assert (
        capsys.readouterr().err == f"ddrl: {made}: no paper has tables; run 'python -m ddrl.analysis aggregate' first\n"
    )


def test_a_wrong_name_is_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("suite", results, "--papers", "impala_2019") == 2
    assert "unknown paper 'impala_2019' (did you mean 'impala_2018'?)" in capsys.readouterr().err
    assert call("suite", results, "--scale", "smokes") == 2
    assert "allowed: paper, reference, smoke, workstation" in capsys.readouterr().err
