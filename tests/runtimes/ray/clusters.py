"""A Ray cluster in a process of its own, for tests that join it, and runs in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from ddrl.runtimes.ray.cluster import ONE_MACHINE
from tests.processes import Ddrl

ROOT = Path(__file__).parents[3]
_HOLD = """
import sys
from pathlib import Path
from ddrl.runtimes.ray.cluster import cluster
from tests.runtimes.ray.prefork import interpreter
with interpreter(Path(sys.argv[1])) as python:
    sys.executable = str(python)
    with cluster(num_cpus=8, object_store_bytes=200 * 2**20):
        import ray
        print(ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def held_cluster() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """A cluster with 8 slots: the process that holds it, and the variables with which others join it."""
    token = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}  # see tests/conftest.py
    variables = token | {"PYTHONPATH": str(ROOT)}
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {ONE_MACHINE: "1"}
    # Of its own, the holder uses no worker: Ray would start one for each slot, which only it might use.
    environment["RAY_prestart_worker_first_driver"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLD, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | variables,
        )
        assert holder.stdin is not None and holder.stdout is not None
        try:
            address = holder.stdout.readline().strip()
            assert address
            yield psutil.Process(holder.pid), variables | {"RAY_ADDRESS": address}
        finally:
            holder.stdin.close()
            holder.wait(30)
            holder.stdout.close()


def workers(parent: psutil.Process, host: str) -> list[psutil.Process]:
    """Worker processes below `parent` that run a method of `host` (LearnerProcess or ActorProcess)."""
    found = []
    for process in parent.children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{host}"):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def services(holder: psutil.Process) -> set[psutil.Process]:
    """The processes of a cluster but for those that work for a run."""
    return {one for one in holder.children(recursive=True) if not one.name().startswith("ray::")}


def own_folders(family: list[psutil.Process]) -> set[Path]:
    """Folders of own clusters that the command lines of `family` name."""
    found = set()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            found |= {Path(match) for match in re.findall(r"/[\w/]+/ddrl-ray-[\w-]+", " ".join(process.cmdline()))}
    return found


def start(config: dict[str, Any], directory: Path, **variables: str) -> Ddrl:
    """`ddrl train` of a configuration, in a process (and a process group) of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    return Ddrl("train", path, "--directory", directory, variables=environment)


def meanwhile(action: Callable[[], None]) -> threading.Thread:
    """Does something while the main thread trains."""
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def wait_for_lines(process: Ddrl, directory: Path, number: int) -> None:
    """Until a run that was started has written more than `number` records; fails with its words if it ends before."""
    wait_until(lambda: lines(directory) > number or process.returncode is not None)
    assert process.returncode is None, process.written()


def wait_until(condition: Callable[[], bool], seconds: float = 150.0) -> None:
    """Polls; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def lines(directory: Path) -> int:
    """Records that a run has written so far."""
    path = directory / "curves.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def frames(directory: Path) -> int:
    """Environment frames of the last record that a run has written so far."""
    return int(json.loads((directory / "curves.jsonl").read_text().splitlines()[-1])["env_frames"])
