"""What every test shares: one thread per process, repeatable property tests, and no run that passes without testing."""

from __future__ import annotations

import os
import secrets
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from tests.time_limit import (  # noqa: F401  hooks of pytest
    pytest_runtest_call,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_unconfigure,
)

# Test modules import NumPy and torch only after this: many threads on a few busy cores are slower than one.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# gymnasium sets it when it is imported; a process that is forked with it gets this environment instead.
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")
os.fsync = lambda fd: None  # tests end processes, never the machine; to wait for a disk took a tenth of their time
# Ray reads its token once a process: every cluster that the tests start or join must have the same.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

settings.register_profile(
    "ddrl",
    deadline=None,  # a busy machine is not a failure
    derandomize=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ddrl")

_MUST_RUN = ("learning", "regression", "system and not learning")
"""`pytest -m <one of these>` fails when nothing passed, be it that no test has the mark or that all were skipped."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files with many slow tests first, so that no process is left alone with one; skips `gpu` without CUDA.

    A test that joins a Ray cluster is slow: each process of a run imports torch.
    """
    for item in items:
        if "holder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    slow = Counter(item.path for item in items if any(map(item.get_closest_marker, ("slow", "system"))))
    items.sort(key=lambda item: -slow[item.path])
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turns an empty learning or regression run into a failure that says so."""
    mark = session.config.option.markexpr
    if mark not in _MUST_RUN or session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not reporter.stats.get("passed") and exitstatus in (0, 5):
        reporter.write_line(f"\n{mark}: nothing was tested: no test marked '{mark}' ran to its end", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
