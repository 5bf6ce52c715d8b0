"""What a scale is expected to take: which measurement counts for a run, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddrl import cli
from ddrl.cli.planning import Measured, checkpoint_bytes, measured, plan, rows, seconds_of, too_long
from ddrl.papers.experiments import Resources
from ddrl.slurm.site import load_for
from ddrl.training.config.experiments import PlannedRun, expand
from tests.runs import BASE, REPLAYING, merged, small

ROOT = Path(__file__).parents[2]
CATCH: dict[str, Any] = {"experiments": ["off_policy_correction"], "variants": ["v_trace"]}


def catch(scale: str = "workstation", **filters: Any) -> PlannedRun:
    wanted = CATCH | {"environments": ["toy/catch"], "seeds": [1]} | filters
    (run,) = expand("impala_2018", scale, root=ROOT / "replications", **wanted)
    return run


def speed(frames_per_second: float, **more: Any) -> Measured:
    network = str(catch().config["hyperparameters"]["network"])
    given = {"algorithm": "impala", "environment": "toy/chain", "network": network, "cores": 1, "gpu": False}
    return Measured(**given | {"frames_per_second": frames_per_second} | more)


def test_a_run_takes_what_its_own_kind_took_at_this_scale() -> None:
    run = catch()
    own = {"scale": "workstation", "experiment": "off_policy_correction", "variant": "v_trace"}
    known = [speed(1000.0), speed(2000.0, **own), speed(4000.0, **own | {"variant": "no_correction"})]
    assert seconds_of(run, known) == (run.config["env_frames"] / 2000, "same")


def test_otherwise_core_seconds_per_frame_are_spread_over_its_cores() -> None:
    run = catch()
    cores = run.resources.threads
    assert seconds_of(run, [speed(500.0, cores=2)]) == (run.config["env_frames"] * 2 / 500 / cores, "scaled")
    assert seconds_of(run, [speed(500.0, algorithm="ppo")]) == (0.0, "none")
    assert seconds_of(run, [speed(500.0, environment="atari/pong")]) == (0.0, "none")


def test_short_runs_and_other_hardware_count_only_where_there_is_nothing_better() -> None:
    run = catch()
    short, gpu, long = speed(1.0, scale="smoke"), speed(3.0, gpu=True), speed(2.0)
    assert seconds_of(run, [short, gpu, long]) == seconds_of(run, [long])
    assert seconds_of(run, [short, gpu]) == seconds_of(run, [gpu])
    assert seconds_of(run, [short]) == seconds_of(run, [speed(1.0)])


def test_several_nodes_count_as_their_cores_together() -> None:
    run = catch()
    values = {name: getattr(run, name) for name in run.__dataclass_fields__}
    wide = PlannedRun(**values | {"resources": Resources(threads=4, memory_mib=100, gpus=0, nodes=3)})
    assert seconds_of(wide, [speed(1.0)])[0] == pytest.approx(run.config["env_frames"] / 12)


def test_measurements_are_runs_and_benchmarks_and_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    config = {
        "algorithm": "impala",
        "environment": {"name": "toy/catch"},
        "hyperparameters": {"network": "mlp"},
        "topology": {"runtime": "threads"},
    }
    run = tmp_path / "smoke" / "impala_2018" / "exp" / "var" / "toy-catch" / "seed1"
    damaged = run.with_name("seed2")
    bench = tmp_path / "reference" / "bench"
    for folder in (run, damaged, bench):
        folder.mkdir(parents=True)
    hardware = {"cores": 8, "gpu": "H200"}
    (run / "run.json").write_text(
        json.dumps({"config": config, "hardware": hardware, "env_frames": 300, "seconds": 2.0})
    )
    (damaged / "run.json").write_text('{"config": ')
    (bench / "a.json").write_text(
        json.dumps(
            {"hardware": hardware, "measurements": [{"config": config, "median_training_frames_per_second": 7.0}]}
        )
    )
    common = {"algorithm": "impala", "environment": "toy/catch", "network": "mlp", "cores": 8, "gpu": True}
    assert measured(tmp_path) == [
        Measured(**common, frames_per_second=150.0, scale="smoke", experiment="exp", variant="var"),
        Measured(**common, frames_per_second=7.0),
    ]


def saved_bytes(config: Mapping[str, Any], folder: Path) -> int:
    """Of the checkpoint of a run."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    assert cli.main(["train", str(path), "--quiet"]) == 0
    (saved,) = (folder / "checkpoints").glob("*.pt")
    return saved.stat().st_size


def test_a_checkpoint_is_about_as_large_as_it_is_planned(tmp_path: Path) -> None:
    config = {**catch("smoke").config, "env_frames": 20_000}
    assert checkpoint_bytes(json.dumps(config)) / saved_bytes(config, tmp_path) == pytest.approx(1.0, abs=0.9)


@pytest.mark.parametrize("algorithm", REPLAYING)
def test_with_its_replay_where_that_is_saved(tmp_path: Path, algorithm: str) -> None:
    smaller = small(algorithm) | {"replay_capacity": 4000, "samples_per_insert": 0.1, "error_buffer": 100.0}
    rarely = {"checkpoint": {"period_frames": 10**6}, "evaluation": {"period_frames": None}}
    config = {**merged(BASE, {"algorithm": algorithm, "env_frames": 4800} | rarely), "hyperparameters": smaller}
    planned = checkpoint_bytes(json.dumps(config))
    assert planned / saved_bytes(config, tmp_path) == pytest.approx(1.0, abs=0.25)
    refilled = merged(config, {"checkpoint": {"replay": "refilled"}, "topology": {"runtime": "threads"}})
    assert checkpoint_bytes(json.dumps(refilled)) < planned / 5


def test_a_plan_has_every_run_once_and_its_sums_are_those_of_its_lines() -> None:
    papers = ["impact_2020", "impala_2018"]
    estimates = plan(papers, "smoke", results=ROOT / "results", root=ROOT / "replications")
    runs = [run for paper in papers for run in expand(paper, "smoke", root=ROOT / "replications")]
    assert [one.run.key for one in estimates] == [run.key for run in runs]
    members = [(run.config.get("population") or {"size": 1})["size"] for run in runs]
    frames = [number * run.config["env_frames"] for number, run in zip(members, runs, strict=True)]
    *_, whole = rows(estimates)
    assert whole["runs"] == str(len(runs))
    assert whole["frames"] == f"{sum(frames):.3g}"
    assert [row["experiment"] for row in rows(estimates)].count("all") == len(papers)


def test_runs_that_outlast_the_wall_time_of_the_site_are_named(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("jobs: [{set: {minutes: 1}}]")
    site = load_for(path, ROOT / "replications")
    lines = plan(["impala_2018"], "workstation", results=ROOT / "results", root=ROOT / "replications")
    (complaint,) = [text for text in too_long(lines, site, "workstation") if "off_policy_correction" in text]
    assert "gives it 1;" in complaint
    path.write_text("jobs: [{set: {minutes: 1000000}}]")
    assert too_long(lines, load_for(path, ROOT / "replications"), "workstation") == []


def test_the_docs_show_what_a_fresh_clone_prints_for_scale_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    assert cli.main(["plan", "--scale", "paper", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out in (ROOT / "docs" / "cluster.md").read_text()


def test_the_command_prints_a_row_for_every_experiment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["plan", "impala_2018", "--scale", "smoke"]) == 0
    printed = capsys.readouterr().out
    assert "off_policy_correction" in printed and "GPU hours" in printed
    assert cli.main(["plan", "--scale", "nightly"]) == 2
    assert "unknown scale 'nightly'" in capsys.readouterr().err
