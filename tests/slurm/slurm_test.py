"""The workflow on a real SLURM: what it gives, and what it survives."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests.slurm.conftest import Checkout, make_checkout, records
from tests.slurm.daemons import Slurm, run

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

CATCH = {"papers": ["impala_2018"], "experiments": ["off_policy_correction"]}
TRAIN = ("--until", "train_impala_2018_off_policy_correction")


def longer(checkout: Checkout, frames: int, checkpoint: int) -> None:
    """Gives every run on Catch this budget, and a checkpoint so often."""

    def change(experiments: Any) -> None:
        departure = experiments["off_policy_correction"]["scales"]["smoke"]["departures"][0]
        departure["set"] |= {"env_frames": frames, "checkpoint.period_frames": checkpoint}

    checkout.edit("impala_2018", change)


def at_work(checkout: Checkout) -> bool:
    """Whether every run has written records."""
    files = [folder / "curves.jsonl" for folder in checkout.runs().values()]
    return bool(files) and all(file.exists() and file.read_text().count("\n") > 3 for file in files)


def one(checkout: Checkout) -> Path:
    """The folder of the only run."""
    (folder,) = checkout.runs().values()
    return folder


def resumed(folder: Path) -> list[int]:
    """Frames at which a run was continued."""
    log = folder / "log.txt"  # Snakemake removes it before each attempt
    said = re.findall(r"resumed at ([\d,]+) frames", log.read_text() if log.exists() else "")
    return [int(frames.replace(",", "")) for frames in said]


def goes_on(slurm: Slurm, folder: Path) -> bool:
    """Whether a run was continued; a job that SLURM has queued again, and would hold for two minutes, starts now."""
    for number, _, _ in slurm.jobs("pending"):
        run("scontrol", "update", f"JobId={number}", "StartTime=now")
    return bool(resumed(folder))


def in_one_piece(run: Path, folder: Path) -> pd.DataFrame:
    """The records of the same configuration, trained on this machine without an interruption."""
    command = [sys.executable, "-m", "ddrl.cli", "train", str(run / "config.json"), "--directory", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return records(folder)


def test_all_jobs_complete_and_give_what_a_local_run_gives_bit_for_bit(slurm: Slurm, tmp_path: Path) -> None:
    cluster, local = make_checkout(tmp_path / "cluster"), make_checkout(tmp_path / "local")
    for checkout in (cluster, local):
        checkout.narrow(**CATCH, variants=["v_trace", "no_correction"], seeds=[1, 2])
    cluster.submit()
    assert cluster.wait(400) == 0, cluster.said
    assert (cluster.root / "reports" / "impala_2018.pdf").stat().st_size > 0
    assert re.search(r"Submitted array job with Snakemake IDs [\d,]+ and SLURM job ID", cluster.said)
    local.start("--cores", "2", "--until", "train")
    assert local.wait() == 0, local.said
    runs, expected = cluster.runs(), local.runs()
    assert runs.keys() == expected.keys() and len(runs) == 4
    for name, folder in runs.items():
        pd.testing.assert_frame_equal(records(folder), records(expected[name]), check_exact=True, obj=name)


def test_a_job_that_is_cancelled_is_submitted_again_and_its_curve_has_no_gap(
    slurm: Slurm, checkout: Checkout, tmp_path: Path
) -> None:
    longer(checkout, 500_000, 10_000_000)  # no checkpoint but the one that SIGTERM makes
    checkout.narrow(**CATCH, variants=["v_trace"], seeds=[1])
    checkout.submit(*TRAIN)
    checkout.until(lambda: at_work(checkout), "training")
    ((job, *_),) = slurm.jobs("running")
    run("scancel", job)
    assert checkout.wait() == 0, checkout.said
    assert checkout.said.count("has been submitted with SLURM jobid") == 2
    assert len(resumed(one(checkout))) == 1
    expected = in_one_piece(one(checkout), tmp_path / "local")
    pd.testing.assert_frame_equal(records(one(checkout)), expected, check_exact=True)


def test_a_job_that_is_preempted_goes_on_and_its_curve_has_no_gap(
    slurm: Slurm, checkout: Checkout, tmp_path: Path
) -> None:
    longer(checkout, 500_000, 10_000_000)
    checkout.narrow(**CATCH, variants=["v_trace"], seeds=[1])
    checkout.submit(*TRAIN)
    checkout.until(lambda: at_work(checkout), "training")
    run("srun", "--partition=urgent", "--nodes=2", "--exclusive", "true", timeout=120)  # waits until it has both nodes
    checkout.until(lambda: goes_on(slurm, one(checkout)), "continued run")
    assert checkout.wait() == 0, checkout.said
    assert len(resumed(one(checkout))) == 1
    expected = in_one_piece(one(checkout), tmp_path / "local")
    pd.testing.assert_frame_equal(records(one(checkout)), expected, check_exact=True)


def test_a_job_that_slurm_requeues_goes_on_under_its_own_number(slurm: Slurm, checkout: Checkout) -> None:
    longer(checkout, 500_000, 10_000_000)
    checkout.narrow(**CATCH, variants=["v_trace"], seeds=[1])
    checkout.submit(*TRAIN)
    checkout.until(lambda: at_work(checkout), "training")
    ((job, *_),) = slurm.jobs("running")
    run("scontrol", "requeue", job)
    checkout.until(lambda: goes_on(slurm, one(checkout)), "continued run")
    assert checkout.wait() == 0, checkout.said
    assert checkout.said.count("has been submitted with SLURM jobid") == 1
    assert len(resumed(one(checkout))) == 1


def test_a_run_goes_on_from_its_newest_checkpoint_when_a_node_is_lost(
    slurm: Slurm, checkout: Checkout, tmp_path: Path
) -> None:
    longer(checkout, 1_500_000, 50_000)
    checkout.narrow(**CATCH, variants=["v_trace"], seeds=[1])
    checkout.submit(*TRAIN)
    checkout.until(lambda: at_work(checkout), "training")
    ((job, *_),) = slurm.jobs("running")
    node = run("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    orphans = [process for process in psutil.process_iter() if _is_step_of(process, job)]
    family = [child for process in orphans for child in (process, *process.children(recursive=True))]
    slurm.kill_node(node)
    try:
        checkout.until(lambda: slurm.states()[node].startswith("down"), "node that is down")
        for process in family:  # now the machine is gone as a whole, and with it its lock
            with suppress(psutil.NoSuchProcess):
                process.kill()
        checkout.until(lambda: goes_on(slurm, one(checkout)), "continued run")
        assert checkout.wait() == 0, checkout.said
    finally:
        slurm.start_node(node)
    assert len(resumed(one(checkout))) == 1
    pd.testing.assert_frame_equal(
        records(one(checkout)), in_one_piece(one(checkout), tmp_path / "local"), check_exact=True
    )


def _is_step_of(process: psutil.Process, job: str) -> bool:
    try:
        return " ".join(process.cmdline()).startswith(f"slurmstepd: [{job}.")
    except psutil.NoSuchProcess:
        return False


def test_a_job_that_needs_more_memory_gets_it_at_the_retry(slurm: Slurm, checkout: Checkout) -> None:
    checkout.narrow(**CATCH, variants=["v_trace"], seeds=[1])
    checkout.site(memory_mib=300)  # torch alone needs more
    checkout.submit(*TRAIN)
    assert checkout.wait() == 0, checkout.said
    numbers = re.findall(r"has been submitted with SLURM jobid (\d+)", checkout.said)
    shown = [run("scontrol", "show", "job", number) for number in numbers]
    asked = [int(re.findall(r"MinMemoryNode=(\d+)M", text)[0]) for text in shown]
    assert len(asked) > 1 and asked == [300 * 2**index for index in range(len(asked))]
    assert "JobState=COMPLETED" in shown[-1] and all("JobState=COMPLETED" not in text for text in shown[:-1])


def test_one_run_spans_two_nodes(slurm: Slurm, checkout: Checkout) -> None:
    def change(experiments: Any) -> None:
        experiments["workers"]["scales"]["smoke"]["resources"] = {
            "threads": 2,
            "memory_mib": 3000,
            "gpus": 0,
            "nodes": 2,
        }

    checkout.edit("impact_2020", change)
    checkout.narrow(papers=["impact_2020"], experiments=["workers"], variants=["workers_2"])
    checkout.submit("--until", "train_impact_2020_workers")
    checkout.until(lambda: at_work(checkout), "training")
    ((job, *_),) = slurm.jobs("running")
    assert run("squeue", "--noheader", f"--jobs={job}", "--format=%D %N").split() == ["2", "n[1-2]"]
    assert len([process for process in psutil.process_iter() if _is_ray_of(process, job)]) == 3  # a head and two nodes
    tasks = run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%A %N").splitlines()
    assert any(line.endswith("n[1-2]") for line in tasks)
    assert checkout.wait() == 0, checkout.said
    assert (one(checkout) / "curves.parquet").exists()
    assert not list(one(checkout).glob("nodes-*"))
    assert not [process for process in psutil.process_iter() if _is_ray_of(process, job)]


def _is_ray_of(process: psutil.Process, job: str) -> bool:
    try:
        return process.name() in ("raylet", "gcs_server") and process.environ().get("SLURM_JOB_ID") == job
    except psutil.Error:
        return False


def test_a_partition_that_does_not_exist_is_refused_before_anything_is_submitted(
    slurm: Slurm, checkout: Checkout
) -> None:
    before = len(slurm.jobs())
    checkout.narrow(**CATCH, variants=["v_trace"], seeds=[1])
    checkout.site(partition="bach")
    checkout.submit(*TRAIN)
    assert checkout.wait() == 2
    (line,) = [line for line in checkout.said.splitlines() if line.startswith("ddrl:")]
    assert line.endswith("site.yaml: unknown partition 'bach' (did you mean 'batch'?); allowed: batch, urgent")
    assert len(slurm.jobs()) == before


def test_a_dry_run_needs_no_cluster(checkout: Checkout) -> None:
    checkout.narrow(**CATCH)
    checkout.submit("--dry-run")
    assert checkout.wait() == 0
    assert "train_impala_2018_off_policy_correction" in checkout.said


def test_slurm_is_what_answers_here(slurm: Slurm) -> None:
    assert set(slurm.states()) == {"n1", "n2"}
    shown = subprocess.run(["srun", "--gres=gpu:1", "env"], capture_output=True, text=True, timeout=60, check=True)
    assert "CUDA_VISIBLE_DEVICES=0" in shown.stdout
