"""A Ray cluster for tests, and a check that none of them stays connected."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import PYTHON
from tests.runtimes.ray import clusters
from tests.runtimes.ray.prefork import interpreter


@pytest.fixture(scope="session")
def held() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """A cluster for all files of this test process."""
    with clusters.held_cluster() as both:
        yield both


@pytest.fixture(scope="module")
def holder(held: tuple[psutil.Process, dict[str, str]]) -> Iterator[psutil.Process]:
    """A cluster that the runs of the file join."""
    process, variables = held
    roles = ("LearnerProcess", "ActorProcess", "ReplayProcess", "ShardProcess")
    clusters.wait_until(lambda: not any(clusters.workers(process, role) for role in roles))  # of another file
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield process


@pytest.fixture(scope="session")
def forking() -> Iterator[dict[str, str]]:
    """Variables with which a `ddrl` has the workers of its own cluster forked, instead of importing torch in each."""
    with tempfile.TemporaryDirectory() as folder, interpreter(Path(folder)) as python:
        yield {PYTHON: str(python), "RAY_ADDRESS": ""}


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    """No test leaves this process connected: Ray connects by itself where one of its functions is called too late."""
    yield
    if (ray := sys.modules.get("ray")) is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("the test left this process connected to a Ray cluster")
