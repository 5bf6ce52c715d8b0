"""Workers of the tests' cluster are forked, and are otherwise what Ray would have started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import ray

from ddrl.runtimes.ray.cluster import cluster
from tests.runtimes.ray.prefork import interpreter


class Worker:
    """Tells what it is."""

    def parent(self) -> list[str]:
        """The command of the process that it was forked from."""
        return psutil.Process(os.getppid()).cmdline()

    def variables(self) -> dict[str, str]:
        """Its own."""
        return dict(os.environ)

    def job(self) -> str:
        """That Ray knows it by."""
        return ray.get_runtime_context().get_job_id()

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()


def test_a_worker_is_forked_and_has_variables_and_a_process_of_its_own(holder: psutil.Process) -> None:
    with cluster(num_cpus=0, object_store_bytes=0):
        several = [ray.remote(Worker).options(num_cpus=1).remote() for _ in range(2)]
        for one in several:
            assert "tests.runtimes.ray.prefork" in ray.get(one.parent.remote())
            assert ray.get(one.variables.remote())["RAY_JOB_ID"] == ray.get(one.job.remote())
        pids = {ray.get(one.pid.remote()) for one in several}
        assert len(pids) == 2 and holder.pid not in pids
        assert pids <= {child.pid for child in holder.children(recursive=True)}


def test_all_but_a_worker_is_the_interpreter_itself_and_nothing_stays(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with interpreter(tmp_path) as python:
        said = subprocess.run(
            [python, "-c", "import sys; print(sys.executable, sys.argv[1:])", "a b", ""], capture_output=True
        )
        assert said.stdout.decode() == f"{sys.executable} ['a b', '']\n"
    assert set(psutil.Process().children(recursive=True)) <= before
