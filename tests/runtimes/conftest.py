"""A Ray cluster for the tests of a file."""

from __future__ import annotations

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
