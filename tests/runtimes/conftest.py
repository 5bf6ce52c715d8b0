"""A Ray cluster for the tests of a file, and a check that none of them stays connected."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.runtimes import clusters


@pytest.fixture(scope="module")
def holder() -> Iterator[psutil.Process]:
    """A cluster that the runs of the file join."""
    with clusters.held_cluster() as (process, variables), pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield process


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    """No test leaves this process connected: Ray connects by itself where one of its functions is called too late."""
    yield
    if (ray := sys.modules.get("ray")) is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("the test left this process connected to a Ray cluster")
