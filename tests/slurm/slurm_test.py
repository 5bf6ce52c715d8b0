"""The workflow on a real SLURM: what it gives, and what it survives."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests.slurm.conftest import PROFILE, Checkout, make_checkout, records
from tests.slurm.daemons import NODES, PARTITIONS, Slurm, run
from tests.slurm.network import SUBNET

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

CATCH = {"papers": ["impala_2018"], "experiments": ["off_policy_correction"]}
ONE_RUN = {**CATCH, "variants": ["v_trace"], "seeds": [1]}
FRAMES = 400_000
"""Of a run that is interrupted: some ten seconds of training."""
NEVER = 100 * FRAMES
TRAIN = ("--until", "train_impala_2018_off_policy_correction")


def submit_one(checkout: Checkout, checkpoint: int, partition: str = "batch") -> None:
    """Submits one run on Catch of `FRAMES`, with a checkpoint so often, and waits until it trains."""

    def change(experiments: Any) -> None:
        departure = experiments["off_policy_correction"]["scales"]["smoke"]["departures"][0]
        departure["set"] |= {"env_frames": FRAMES, "checkpoint.period_frames": checkpoint}

    checkout.edit("impala_2018", change)
    checkout.narrow(**ONE_RUN)
    checkout.site(partition=partition)
    checkout.submit(*TRAIN)
    checkout.until(lambda: at_work(checkout), "training")


def at_work(checkout: Checkout) -> bool:
    """Whether every run has written records."""
    files = [folder / "curves.jsonl" for folder in checkout.runs().values()]
    return bool(files) and all(file.exists() and file.read_text().count("\n") > 3 for file in files)


def running_job(slurm: Slurm, checkout: Checkout) -> str:
    """The number of the only job."""
    (number,) = slurm.jobs(checkout.root, "running")
    return number


def one(checkout: Checkout) -> Path:
    """The folder of the only run."""
    (folder,) = checkout.runs().values()
    return folder


def resumed(folder: Path) -> list[int]:
    """Frames at which a run was continued."""
    log = folder / "log.txt"  # Snakemake removes it before each attempt
    said = re.findall(r"resumed at ([\d,]+) frames", log.read_text() if log.exists() else "")
    return [int(frames.replace(",", "")) for frames in said]


def goes_on(slurm: Slurm, checkout: Checkout) -> bool:
    """Whether the run was continued; a job that SLURM has queued again, and would hold for two minutes, starts now."""
    for number in slurm.jobs(checkout.root, "pending"):
        with suppress(subprocess.CalledProcessError):  # it has started in between, or is not to be changed yet
            run("scontrol", "update", f"JobId={number}", "StartTime=now")
    return bool(resumed(one(checkout)))


def assert_no_gap(checkout: Checkout, folder: Path) -> None:
    """The run was continued once, and has the records of one that nothing interrupts, trained in `folder`."""
    continued = one(checkout)
    assert len(resumed(continued)) == 1
    command = [sys.executable, "-m", "ddrl.cli", "train", str(continued / "config.json"), "--directory", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    pd.testing.assert_frame_equal(records(continued), records(folder), check_exact=True)


def test_all_jobs_complete_and_give_what_a_local_run_gives_bit_for_bit(slurm: Slurm, tmp_path: Path) -> None:
    cluster, local = make_checkout(tmp_path / "cluster"), make_checkout(tmp_path / "local")
    for checkout in (cluster, local):
        checkout.narrow(**CATCH, variants=["v_trace", "no_correction"], seeds=[1, 2])
    cluster.submit()
    local.start("--cores", "2", "--until", "train")
    assert local.wait(400) == 0, local.said
    assert cluster.wait(400) == 0, cluster.said
    assert (cluster.root / "reports" / "impala_2018.pdf").stat().st_size > 0
    assert re.search(r"Submitted array job with Snakemake IDs [\d,]+ and SLURM job ID", cluster.said)
    runs, expected = cluster.runs(), local.runs()
    assert runs.keys() == expected.keys() and len(runs) == 4
    for name, folder in runs.items():
        pd.testing.assert_frame_equal(records(folder), records(expected[name]), check_exact=True, obj=name)


def test_a_job_that_is_cancelled_is_submitted_again_and_its_curve_has_no_gap(
    slurm: Slurm, checkout: Checkout, tmp_path: Path
) -> None:
    submit_one(checkout, NEVER)  # no checkpoint but the one that SIGTERM makes
    run("scancel", running_job(slurm, checkout))
    assert checkout.wait() == 0, checkout.said
    assert checkout.said.count("has been submitted with SLURM jobid") == 2
    assert_no_gap(checkout, tmp_path / "local")


def test_a_job_that_is_preempted_goes_on_and_its_curve_has_no_gap(
    slurm: Slurm, checkout: Checkout, tmp_path: Path
) -> None:
    submit_one(checkout, NEVER, partition="preempted")
    run("srun", "--partition=urgent", "--exclusive", "true", timeout=120)  # waits until it has the node
    checkout.until(lambda: goes_on(slurm, checkout), "continued run")
    assert checkout.wait() == 0, checkout.said
    assert_no_gap(checkout, tmp_path / "local")


def test_a_job_that_slurm_requeues_goes_on_under_its_own_number(slurm: Slurm, checkout: Checkout) -> None:
    submit_one(checkout, NEVER)
    run("scontrol", "requeue", running_job(slurm, checkout))
    checkout.until(lambda: goes_on(slurm, checkout), "continued run")
    assert checkout.wait() == 0, checkout.said
    assert checkout.said.count("has been submitted with SLURM jobid") == 1
    assert len(resumed(one(checkout))) == 1


def test_a_run_goes_on_from_its_newest_checkpoint_when_a_node_is_lost(
    slurm: Slurm, checkout: Checkout, tmp_path: Path
) -> None:
    submit_one(checkout, FRAMES // 20, partition="lossy")
    job = running_job(slurm, checkout)
    node = run("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    checkout.until(lambda: list((one(checkout) / "checkpoints").glob("*.sha256")), "checkpoint")
    slurm.kill_node(node)
    for process in [each for step in steps_of(job) for each in (step, *step.children(recursive=True))]:
        with suppress(psutil.NoSuchProcess):  # the machine is gone as a whole, and with it its lock
            process.kill()
    try:
        checkout.until(lambda: goes_on(slurm, checkout), "continued run")
        assert checkout.wait() == 0, checkout.said
    finally:
        slurm.start_node(node)
    assert resumed(one(checkout))[0] % (FRAMES // 20) < FRAMES // 40
    assert_no_gap(checkout, tmp_path / "local")


def test_a_job_of_which_the_tasks_alone_are_signalled_saves_a_checkpoint(
    slurm: Slurm, checkout: Checkout, tmp_path: Path
) -> None:
    submit_one(checkout, NEVER)
    tasks = [task for step in steps_of(running_job(slurm, checkout)) for task in step.children()]
    for task in tasks:  # as a cluster with proctrack/cgroup does
        task.send_signal(signal.SIGTERM)
    assert checkout.wait() == 0, checkout.said
    assert checkout.said.count("has been submitted with SLURM jobid") == 2
    assert_no_gap(checkout, tmp_path / "local")


def steps_of(job: str) -> list[psutil.Process]:
    """What SLURM has running on the nodes for each step of a job."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(f"slurmstepd: [{job}."):
                found.append(process)
    return found


def test_a_job_that_needs_more_memory_gets_it_at_the_retry(slurm: Slurm, checkout: Checkout) -> None:
    checkout.narrow(**ONE_RUN)
    checkout.site(memory_mib=150)  # torch alone needs more, from its import on: SLURM looks once a second
    checkout.submit(*TRAIN)
    assert checkout.wait() == 0, checkout.said
    numbers = re.findall(r"has been submitted with SLURM jobid (\d+)", checkout.said)
    shown = [run("scontrol", "show", "job", number) for number in numbers]
    asked = [int(re.findall(r"MinMemoryNode=(\d+)M", text)[0]) for text in shown]
    assert len(asked) > 1 and asked == [150 * 2**index for index in range(len(asked))]
    assert "JobState=COMPLETED" in shown[-1] and all("JobState=COMPLETED" not in text for text in shown[:-1])


def test_jobs_run_in_the_image_that_is_named(slurm: Slurm, checkout: Checkout) -> None:
    checkout.narrow(**ONE_RUN)
    (checkout.root / "ddrl.sif").touch()
    checkout.submit("--software-deployment-method", "apptainer", *TRAIN)
    assert checkout.wait() == 0, checkout.said
    (call,) = (checkout.root / "apptainer.calls").read_text().splitlines()
    assert re.search(r"^exec --home \S+ ddrl\.sif python -m ddrl\.cli train", call)
    assert (one(checkout) / "run.json").exists()


def test_one_run_spans_two_nodes_with_a_learner_on_each_and_goes_on_there_when_it_is_queued_anew(
    slurm: Slurm, checkout: Checkout
) -> None:
    def change(experiments: Any) -> None:
        experiments["workers"]["variants"]["workers_2"]["set"] |= {"topology.num_learners": 2}
        smoke = experiments["workers"]["scales"]["smoke"]
        smoke["resources"]["variants"] = {"workers_2": {"threads": 2, "memory_mib": 3000, "nodes": 2}}
        smoke["departures"][0]["set"] |= {"env_frames": 60_000, "checkpoint.period_frames": NEVER}

    checkout.edit("impact_2020", change)
    checkout.site(partition="pair")
    checkout.narrow(papers=["impact_2020"], experiments=["workers"], variants=["workers_2"])
    checkout.submit("--until", "train_impact_2020_workers")
    checkout.until(lambda: at_work(checkout), "training")
    job = running_job(slurm, checkout)
    assert run("squeue", "--noheader", f"--jobs={job}", "--format=%D %N").split() == ["2", "n[6-7]"]
    tasks = run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%A %N").splitlines()
    assert any(line.endswith("n[6-7]") for line in tasks)
    (meeting,) = one(checkout).glob("nodes-*.json")
    head = json.loads(meeting.read_text())["address"]
    assert head.startswith(f"{SUBNET}.")  # no node reaches another's loopback device
    own = processes_of(job)
    assert sorted(name for name, _ in own if name in RAY) == ["gcs_server", "raylet", "raylet"]  # a head and two nodes
    assert sorted(node for name, node in own if name.startswith("ray::LearnerProcess")) == ["n6", "n7"]
    run("scontrol", "requeue", job)
    checkout.until(lambda: goes_on(slurm, checkout), "continued run")
    assert checkout.wait() == 0, checkout.said
    assert len(resumed(one(checkout))) == 1
    assert (one(checkout) / "curves.parquet").exists()
    assert not list(one(checkout).glob("nodes-*"))
    assert not processes_of(job)


RAY = ("gcs_server", "raylet")


def processes_of(job: str) -> list[tuple[str, str]]:
    """(name, node) of Ray's processes that a job has started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables = process.environ()
            name = " ".join(process.cmdline()) or process.name()
            name = process.name() if process.name() in RAY else name
            if variables.get("SLURM_JOB_ID") == job and (name in RAY or name.startswith("ray::")):
                found.append((name, variables["SLURMD_NODENAME"]))
    return found


def test_a_partition_that_does_not_exist_is_refused_before_anything_is_submitted(
    slurm: Slurm, checkout: Checkout
) -> None:
    checkout.narrow(**ONE_RUN)
    checkout.site(partition="bach")
    checkout.submit(*TRAIN)
    assert checkout.wait() == 2
    (line,) = [line for line in checkout.said.splitlines() if line.startswith("ddrl:")]
    assert line.endswith(
        f"site.yaml: unknown partition 'bach' (did you mean 'batch'?); allowed: {', '.join(sorted(PARTITIONS))}"
    )
    assert not slurm.jobs(checkout.root)


def test_a_site_file_that_is_not_named_is_missed_before_anything_is_submitted(slurm: Slurm, checkout: Checkout) -> None:
    checkout.narrow(**ONE_RUN)
    checkout.start("--profile", PROFILE, "--until", "train")
    assert checkout.wait() == 2
    (line,) = [line for line in checkout.said.splitlines() if line.startswith("ddrl:")]
    assert line.startswith("ddrl: configuration: site: jobs for SLURM need a site file, and none is named;")
    assert not slurm.jobs(checkout.root)


def test_a_dry_run_needs_no_cluster(checkout: Checkout) -> None:
    checkout.narrow(**CATCH)
    checkout.submit("--dry-run")
    assert checkout.wait() == 0
    assert "train_impala_2018_off_policy_correction" in checkout.said


def test_slurm_is_what_answers_here(slurm: Slurm) -> None:
    assert set(slurm.states()) == set(NODES)
    shown = subprocess.run(["srun", "--gres=gpu:1", "env"], capture_output=True, text=True, timeout=60, check=True)
    assert "CUDA_VISIBLE_DEVICES=0" in shown.stdout
