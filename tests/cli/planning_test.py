"""What a scale is expected to take: what follows from the measurements that count for its runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddrl import cli
from ddrl.cli.planning import checkpoint_bytes, estimate, plan, rows, too_long, unmeasured
from ddrl.cli.speeds import ALIKE_CORES, ALIKE_FRAMES, STEPS, Cost, Measured, System, cost_of, system_of
from ddrl.papers.experiments import Resources
from ddrl.slurm.site import load_for
from ddrl.training.config.experiments import PlannedRun, expand
from tests.runs import REPLAYING, base_of, merged, small

ROOT = Path(__file__).parents[2]
CATCH: dict[str, Any] = {"experiments": ["off_policy_correction"], "variants": ["v_trace"]}


def catch(scale: str = "workstation", **filters: Any) -> PlannedRun:
    wanted = CATCH | {"environments": ["toy/catch"], "seeds": [1]} | filters
    (run,) = expand("impala_2018", scale, root=ROOT / "replications", **wanted)
    return run


def costing(run: PlannedRun, core_seconds: float, **changed: Any) -> Measured:
    system = system_of(run.config, gpu=run.resources.gpus > 0)
    cores = run.resources.threads * run.resources.nodes
    return Measured(replace(system, **changed), core_seconds, cores=cores, frames=run.config["env_frames"])


def known(*measurements: Measured) -> Callable[[System], Cost | None]:
    return lambda system: cost_of(system, measurements)


def on(run: PlannedRun, needs: Resources) -> PlannedRun:
    return PlannedRun(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"resources": needs})


def test_a_run_takes_its_frames_at_the_cost_of_one_over_the_cores_of_all_its_nodes() -> None:
    wide = on(catch(), Resources(threads=4, memory_mib=100, gpus=0, nodes=3))
    found = estimate(wide, known(costing(wide, 12.0)))
    hours = wide.config["env_frames"] / 3600
    assert (found.low, found.high) == pytest.approx((hours / STEPS[0].factor, hours * STEPS[0].factor))


def test_sums_add_both_ends_and_say_how_much_was_measured() -> None:
    run = on(catch(), Resources(threads=2, memory_mib=100, gpus=0))
    hours = run.config["env_frames"] / 3600
    close = estimate(run, known(costing(run, 1.0)))
    loose = estimate(run, known(costing(run, 3.0, environment="atari/pong")))
    *_, whole = rows([close, loose])
    low = hours / STEPS[0].factor + 3 * hours / STEPS[3].factor
    high = hours * STEPS[0].factor + 3 * hours * STEPS[3].factor
    assert whole["core hours"] == f"{low:,.0f} to {high:,.0f}"
    assert whole["measured"] == "25 %"
    assert whole["from"] == "same task 1; estimated: other simulator 1"


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ({}, "100 %"),
        ({"frames": None}, "100 %"),
        ({"cores": 2 * ALIKE_CORES}, "100 %"),
        ({"cores": 4 * ALIKE_CORES}, "0 %"),
        ({"frames": int(200_000 / ALIKE_FRAMES)}, "100 %"),
        ({"frames": int(100_000 / ALIKE_FRAMES)}, "0 %"),
    ],
)
def test_only_a_run_alike_in_machine_and_budget_counts_as_measured(changed: dict[str, Any], share: str) -> None:
    run = on(catch(), Resources(threads=2, memory_mib=100, gpus=0))
    assert run.config["env_frames"] == 200_000
    *_, whole = rows([estimate(run, known(replace(costing(run, 1.0), **changed)))])
    said = "same task 1" if share == "100 %" else "estimated: same task 1"
    assert (whole["measured"], whole["from"]) == (share, said)


@pytest.mark.parametrize("changed", [{"gpu": True}, {"layout": "ray 2 x 16"}])
def test_another_device_or_runtime_does_not_count_as_measured(changed: dict[str, Any]) -> None:
    run = on(catch(), Resources(threads=2, memory_mib=100, gpus=0))
    *_, whole = rows([estimate(run, known(costing(run, 1.0, **changed)))])
    assert whole["measured"] == "0 %"


def test_a_run_of_another_algorithm_gives_an_estimate_and_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    run = on(catch(), Resources(threads=2, memory_mib=100, gpus=0))
    other = estimate(run, known(costing(run, 1.0, algorithm="ppo")))
    *_, whole = rows([other, estimate(run, known(costing(run, 1.0)))])
    assert (whole["measured"], whole["from"]) == ("50 %", "same task 1; estimated: other algorithm 1")
    assert cli.main(["plan", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "alike was measured: algorithm, network, simulator, runtime, kind of machine and budget" in said
    assert "Other hours are estimates" in said


def test_runs_of_scale_reference_do_not_count_for_runs_of_another_size() -> None:
    estimates = plan(["impala_2018"], "paper", results=ROOT / "results", root=ROOT / "replications")
    atari = next(row for row in rows(estimates) if row["experiment"] == "atari")
    assert atari["measured"] == "0 %" and "same system" in atari["from"]


def test_what_nothing_is_known_of_is_left_out_counted_and_named_with_what_would_measure_it() -> None:
    run = on(catch(), Resources(threads=2, memory_mib=100, gpus=0))
    one, unknown = estimate(run, known(costing(run, 1.0))), estimate(run, known())
    *_, whole = rows([one, unknown, unknown])
    assert whole["core hours"].endswith(" + 2 runs") and whole["from"] == "same task 1; not measured 2"
    *_, nothing = rows([unknown])
    assert nothing["core hours"] == "not measured" and nothing["measured"] == ""
    (line,) = unmeasured([one, unknown, unknown])
    assert line.startswith("not measured: 2 runs of impala") and "ddrl bench impala toy/catch --network mlp" in line


def test_a_measurement_without_a_gpu_is_marked_where_it_stands_for_a_run_with_one() -> None:
    run = on(catch(), Resources(threads=2, memory_mib=100, gpus=1))
    *_, whole = rows([estimate(run, known(costing(run, 1.0, gpu=False)))])
    assert whole["from"] == "estimated: same task 1; by CPU 1"


def test_small_hours_are_never_printed_as_none() -> None:
    run = on(catch(), Resources(threads=2, memory_mib=100, gpus=0))
    *_, whole = rows([estimate(run, known(costing(run, 1e-12)))])
    assert "0.00 " not in whole["core hours"] and whole["core hours"] != "0 to 0"


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
    config = {**merged(base_of(algorithm), {"env_frames": 4800} | rarely), "hyperparameters": smaller}
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
    text = (ROOT / "docs" / "cluster.md").read_text()
    shown = {" ".join(line.split()) for line in text.splitlines()}
    printed = [line.split() for line in capsys.readouterr().out.splitlines()[:-1]]
    described = [" ".join(row) for row in printed if row[0] in text]  # a paper that was added later may be missing
    assert len(described) > 40 and set(described) <= shown


def test_of_one_paper_a_line_says_why_a_range_is_wide_and_how_to_narrow_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked with all reference runs but the paper's own."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "reference").mkdir()
    for folder in (ROOT / "results" / "reference").iterdir():
        if folder.name != "ddppo_2020":
            (tmp_path / "reference" / folder.name).symlink_to(folder)
    assert cli.main(["plan", "ddppo_2020", "--scale", "workstation", "--results", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wide: ")]
    assert line.startswith(
        "wide: 60 runs of ppo with network mlp + LSTM 128 on pointnav are estimated from runs of the "
    )
    assert (
        "so the ends of a range are up to 46-fold apart; measure one: ddrl bench ppo pointnav/large --network mlp"
        in line
    )
    assert "--set hyperparameters.lstm_size=128 --json" in line


def test_the_command_prints_a_row_for_every_experiment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["plan", "impala_2018", "--scale", "smoke"]) == 0
    printed = capsys.readouterr().out
    assert "off_policy_correction" in printed and "GPU hours" in printed
    assert cli.main(["plan", "--scale", "nightly"]) == 2
    assert "unknown scale 'nightly'" in capsys.readouterr().err
