"""The SEED RL replication: its files agree, its own tables and figures come from the tables of runs alone."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddrl.analysis.__main__ import main
from ddrl.analysis.figures import plots
from ddrl.analysis.tables.build import read
from ddrl.errors import UserError
from ddrl.papers.check import check_paper
from ddrl.papers.expansion import expand as expand_unchecked
from ddrl.papers.paper import load_paper
from ddrl.training.config.experiments import SCALES, expand
from replications.seed_rl_2020.calibration import service_times
from replications.seed_rl_2020.inputs import read_scenarios
from tests.analysis.fakes import write_measured

ROOT = Path(__file__).parents[3] / "replications"
PAPER = "seed_rl_2020"
OPTIONS = ("--paper", PAPER, "--replications", str(ROOT))
FIGURES = load_paper(ROOT / PAPER).figures
SPEEDS = {"impala_shallow": 4000.0, "seed_shallow": 3000.0, "impala_deep": 400.0, "seed_deep": 300.0}
"""With one worker; each further one adds half of it."""


def measured(run: Any) -> tuple[float, dict[str, float]]:
    """Speed and recorded metrics of a planted run: 2 of 2 cores are busy from two workers on."""
    workers = run.config["topology"]["num_actors"]
    speed = SPEEDS.get(run.variant.rsplit("_", 1)[0], 1000.0) * (1 + 0.5 * (min(workers, 2) - 1))
    cpu = 1e6 * 2 / (1.5 * speed)
    facts = {
        "cpu_seconds": cpu / 2,
        "worker_cpu_seconds": cpu / 2,
        "learner_utilisation": 0.7,
        "wire_bytes_per_frame_to_learner": 1800.0,
        "wire_bytes_per_frame_from_learner": 16000.0,
        "policy_lag_first": 2.0,
        "policy_lag_last": 2.0,
    }
    if run.config["topology"]["inference"] == "central":
        facts |= {
            "inference_columns_mean": 32.0 * min(workers, 2),
            "inference_batch_ms_mean": 0.2 * 32.0 * 4 / speed * 1000 / 2,
            "inference_call_ms_p50": 4.0,
            "inference_call_ms_p99": 9.0,
            "round_trip_ms_p50": 5.0,
            "round_trip_ms_p99": 12.0,
            "wire_bytes_per_frame_from_learner": 16.0,
            "policy_lag_last": 0.3,
        }
    return speed, facts


def planted(folder: Path) -> None:
    """Every smoke run, and two seeds of part of workstation's as reference runs; then the tables."""
    runs = [(run, "run") for run in expand(PAPER, "smoke", root=ROOT)]
    for name in ("learning", "throughput", "near_on_policy"):
        chosen = expand(PAPER, "workstation", root=ROOT, experiments=[name], seeds=[21, 22])
        runs += [(run, "reference") for run in chosen if run.environment != "atari/breakout"]
    for run, origin in runs:
        speed, facts = measured(run)
        write_measured(run, folder, final=1.0, speed=speed, start=-0.5, measured=facts, origin=origin)
    assert main(["aggregate", *OPTIONS, "--results", str(folder)]) == 0


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seed") / "results"
    planted(folder)
    made = folder / "smoke" / PAPER / "tables"
    short = pd.DataFrame(
        {
            "scenario": ["ours", "the paper's"],
            "system": ["SEED RL", "SEED RL"],
            "latency_ms": [0.1, 0.1],
            "predicted": [4e4, 3e4],
            "published": [float("nan"), 33_000.0],
            "lag": [1.0, 2.0],
            "limit": ["training", "inference"],
        }
    )
    short.to_parquet(made / "extrapolation.parquet")  # the real one takes half a minute: `make report` makes it
    assert main(["table", *OPTIONS, "--name", "validation", "--tables", str(made)]) == 0
    return made


def test_its_files_agree_and_no_published_row_is_forgotten() -> None:
    check_paper(ROOT / PAPER)


def test_its_tables_are_found_by_a_command_whose_own_folder_is_elsewhere(tmp_path: Path) -> None:
    """As `.venv/bin/ddrl`: Python looks for modules beside it, and not in the checkout."""
    code = f"""
from pathlib import Path
from ddrl.papers.own_code import own_function
print(own_function(Path({str(ROOT / PAPER)!r}), "tables.py", "validation").__name__)
"""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.stdout == "validation\n", done.stderr


@pytest.mark.parametrize("scale", SCALES)
def test_both_systems_of_every_pair_differ_in_where_inference_is_and_in_nothing_else(scale: str) -> None:
    runs = expand_unchecked(PAPER, scale, root=ROOT)
    by_name = {(run.experiment, run.variant, run.environment, run.seed): run.config for run in runs}
    pairs = 0
    for (experiment, variant, *rest), config in by_name.items():
        other = by_name.get((experiment, variant.replace("seed", "impala"), *rest))
        if not variant.startswith("seed") or other is None:
            continue
        pairs += 1
        topologies = [dict(values["topology"]) for values in (config, other)]
        assert [topology.pop("inference") for topology in topologies] == ["central", "local"]
        assert topologies[0] == topologies[1]
        assert {**config, "topology": 0} == {**other, "topology": 0}
    assert pairs >= 8


def test_predictions_stand_beside_what_was_measured(tables: Path) -> None:
    found = read(tables, ("validation",))["validation"]
    own = found[found["origin"] == "run"].set_index(["system", "network", "workers"])
    assert set(own.index) == {(system, "shallow", workers) for system in ("IMPALA", "SEED RL") for workers in (1, 2)}
    assert own["measured"]["SEED RL", "shallow", 1] == pytest.approx(3000)
    assert (own["error"] - (own["predicted"] / own["measured"] - 1)).abs().max() < 1e-12
    # Two workers keep both cores busy, and a frame takes as much CPU as with one: what was planted is what is found.
    assert own["predicted"]["IMPALA", "shallow", 2] == pytest.approx(6000, rel=0.05)


def test_service_times_add_up_to_the_cpu_that_was_recorded(tables: Path) -> None:
    runs = read(tables, ("efficiency",))["efficiency"]
    runs = runs[(runs["origin"] == "run") & (runs["variant"] == "seed_shallow_1")]
    times = service_times(runs)
    a_step = times.step_per_env_s + times.inference_per_column_s + times.train_per_column_step_s
    assert a_step == pytest.approx(4e-6 * float(runs["cpu_seconds_per_million_frames"].iloc[0]))
    assert times.loopback_latency_s == pytest.approx(0.0005)
    assert times.request_bytes_per_column == pytest.approx(7200)


def test_without_runs_of_one_worker_nothing_is_predicted(tables: Path, tmp_path: Path) -> None:
    runs = read(tables, ("efficiency",))["efficiency"]
    functions = runpy.run_path(str(ROOT / PAPER / "tables.py"))
    none = runs[runs["num_actors"] > 1]
    for name in ("validation", "extrapolation"):
        assert functions[name](none).empty
        assert list(functions[name](none)) == functions[name.upper()]


def test_each_scenario_is_predicted_with_the_service_times_of_its_own_system(tables: Path) -> None:
    extrapolation = runpy.run_path(str(ROOT / PAPER / "tables.py"))["extrapolation"]
    moved: dict[str, bool] = {}

    def predicted(times: Any, scenarios: Any, **_: Any) -> pd.DataFrame:
        moved.update({system: times[system].parameter_bytes > 0 for system in times})
        names = ("scenario", "system", "frames_per_s", "published_frames_per_s", "lag_mean", "limit")
        return pd.DataFrame({name: [scenario.name for scenario in scenarios] for name in names})

    extrapolation.__globals__["predict_scenarios"] = predicted
    assert len(extrapolation(read(tables, ("efficiency",))["efficiency"])) == len(
        read_scenarios(ROOT / PAPER / "scenarios.yaml")
    )
    assert moved == {"seed": False, "impala": True}


def test_every_assumption_of_every_scenario_is_printed_once(tables: Path) -> None:
    assert main(["table", *OPTIONS, "--name", "assumptions", "--tables", str(tables)]) == 0
    found = read(tables, ("assumptions",))["assumptions"]
    assert not found[["assumption", "value", "why"]].duplicated().any()
    for scenario in read_scenarios(ROOT / PAPER / "scenarios.yaml"):
        name = re.sub(r"_[0-9.]+ms$", "", scenario.name).replace("_", " ")
        own = found[[name in names.split(", ") for names in found["scenarios"]]]
        assert len(own) == len(scenario.assumptions) + len(scenario.assumed_times)


def test_a_wrong_table_is_refused_in_one_line(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", *OPTIONS, "--name", "validatoin", "--tables", str(tables)]) == 2
    assert "did you mean 'validation'?" in capsys.readouterr().err
    assert main(["table", *OPTIONS, "--name", "validation", "--tables", str(tmp_path)]) == 2
    assert "efficiency.parquet: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", [figure.name for figure in FIGURES])
def test_a_figure_is_drawn_from_its_tables_alone_and_nothing_of_it_is_cut(
    tables: Path, tmp_path: Path, name: str
) -> None:
    wanted = next(figure for figure in FIGURES if figure.name == name)
    folder = tmp_path / "tables"
    folder.mkdir()
    for table in wanted.tables:
        (folder / f"{table}.parquet").write_bytes((tables / f"{table}.parquet").read_bytes())
    assert main(["figure", *OPTIONS, "--name", name, "--tables", str(folder), "--output", str(tmp_path / "a")]) == 0
    assert main(["figure", *OPTIONS, "--name", name, "--tables", str(folder), "--output", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a" / f"{name}.svg").read_bytes() == (tmp_path / "b" / f"{name}.svg").read_bytes()
    with plots.style():
        canvas = runpy.run_path(str(ROOT / PAPER / "figures.py"))[name](**read(folder, wanted.tables))
        FigureCanvasAgg(canvas).draw()
    whole = canvas.bbox
    boxes = [axes.get_tightbbox() for axes in canvas.get_axes()]
    for box in boxes:
        assert box.x0 >= -0.5
        assert box.y0 >= -0.5
        assert box.x1 <= whole.x1 + 0.5
        assert box.y1 <= whole.y1 + 0.5
    for a, b in combinations(boxes, 2):
        shared = (min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0))
        assert min(shared) <= 0.5, f"panels of {name} overlap by {shared}"


@pytest.mark.parametrize("name", [figure.name for figure in FIGURES])
def test_figures_without_any_run_say_so(tables: Path, tmp_path: Path, name: str) -> None:
    wanted = next(figure for figure in FIGURES if figure.name == name)
    for table in wanted.tables:
        pd.read_parquet(tables / f"{table}.parquet").iloc[:0].to_parquet(tmp_path / f"{table}.parquet")
    assert main(["figure", *OPTIONS, "--name", name, "--tables", str(tmp_path), "--output", str(tmp_path)]) == 0
    assert "has finished." in (tmp_path / f"{name}.svg").read_text()


def test_a_derived_table_may_not_take_the_name_of_every_papers(tmp_path: Path) -> None:
    text = (ROOT / PAPER / "paper.yaml").read_text()
    copy = tmp_path / PAPER
    copy.mkdir()
    for old, new, says in (
        ("- name: validation", "- name: runs", "is that of a table of every paper"),
        ("tables: [efficiency]", "tables: [efficency]", "did you mean 'efficiency'?"),
        ("tables: [validation, extrapolation]", "tables: [validatoin]", "did you mean 'validation'?"),
    ):
        (copy / "paper.yaml").write_text(text.replace(old, new, 1))
        with pytest.raises(UserError) as refusal:
            load_paper(copy)
        assert says in str(refusal.value)
