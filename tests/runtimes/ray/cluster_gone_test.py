"""Runtime ray: a cluster that dies ends the run with a line and the code that says: type the same command again."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from ddrl.cli.commands import INTERRUPTED
from tests.runs import BASE, merged
from tests.runtimes.ray import clusters


@pytest.mark.system
def test_a_run_whose_cluster_loses_its_head_says_so_within_a_minute_and_where_the_next_start_goes_on(
    tmp_path: Path,
) -> None:
    """A raylet that is killed is found in the same way (`ray_test.py` has what follows from either)."""
    changes = {"env_frames": 10**8, "topology": {"runtime": "ray"}, "evaluation": {"period_frames": None}}
    values = merged(BASE, changes)
    process = clusters.start(values, tmp_path, RAY_ADDRESS="")
    clusters.wait_for_lines(process, tmp_path, 3)
    clusters.wait_until(lambda: any((tmp_path / "checkpoints").glob("*.sha256")))
    family = psutil.Process(process.pid).children(recursive=True)
    family = [one for one in family if "Agent" not in one.cmdline()[0]]  # they take a minute to notice
    (killed,) = [one for one in family if one.name() == "gcs_server"]
    killed.send_signal(signal.SIGKILL)
    error = process.ended(60)
    assert process.returncode == INTERRUPTED, error
    last = error.splitlines()[-1]
    assert last.startswith("ddrl: the Ray cluster is gone: its head (GCS)") and "the same command goes on from" in last
    assert psutil.wait_procs(family, timeout=30)[1] == []
