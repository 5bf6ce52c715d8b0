"""SLURM for the tests of this folder, and checkouts whose workflow they submit to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ddrl.training.records.recorder import TIMING_METRICS
from tests.debian import Unavailable
from tests.slurm import daemons
from tests.slurm.daemons import Slurm

ROOT = Path(__file__).parents[2]
STANDINS = ROOT / "tests" / "standins"
PROFILE = "workflows/profiles/slurm"


SHARED = "DDRL_TEST_SLURM"
"""Names the folder of the SLURM that all processes of one pytest use: a machine has one at most."""
_started = ExitStack()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before `pytest -n` starts its processes, which inherit the variable, SLURM is started for all of them."""
    options = session.config.option
    several = getattr(options, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    if several and options.markexpr == "slurm" and not options.collectonly:
        folder = _started.enter_context(tempfile.TemporaryDirectory(prefix="ddrl-slurm-"))
        with suppress(Unavailable):  # the fixture says why
            os.environ[SHARED] = str(_started.enter_context(daemons.running(Path(folder))).folder)


def pytest_sessionfinish() -> None:
    """Ends what was started for all."""
    _started.close()


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """The nodes of `daemons.PARTITIONS`, with two cores and a GPU each."""
    if SHARED in os.environ:
        yield Slurm(Path(os.environ[SHARED]))
        return
    try:
        with daemons.running(tmp_path_factory.mktemp("slurm")) as started:
            yield started
    except Unavailable as reason:
        if os.environ.get("DDRL_NEEDS_SLURM"):  # set by .ci/run
            raise
        pytest.skip(str(reason))


@dataclass
class Checkout:
    """A copy of what the workflow needs, without results, and a Snakemake at work in it."""

    root: Path
    process: subprocess.Popen[str] | None = None

    def edit(self, paper: str, change: Callable[[Any], None]) -> None:
        """Changes the experiments of a paper."""
        path = self.root / "replications" / paper / "experiments.yaml"
        data = yaml.safe_load(path.read_text())
        change(data["experiments"])
        path.write_text(yaml.safe_dump(data, allow_unicode=True))

    def narrow(self, **settings: Any) -> None:
        """Which runs the workflow has."""
        (self.root / "narrow.yaml").write_text(yaml.safe_dump(settings))

    def site(self, **settings: Any) -> None:
        """What every job asks for."""
        jobs = [{"set": {"partition": "batch", "minutes": 30, **settings}}]
        (self.root / "site.yaml").write_text(yaml.safe_dump({"jobs": jobs, "memory_growth": 2}))

    def start(self, *arguments: str) -> None:
        """Snakemake as a user types it, with its words in snakemake.out."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"XDG_CACHE_HOME": str(self.root / ".cache"), "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{STANDINS}:{environment['PATH']}"
        with (self.root / "snakemake.out").open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", "--configfile", "narrow.yaml", *arguments],
                cwd=self.root,
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def submit(self, *arguments: str) -> None:
        """The same through the profile, asking often how jobs are."""
        often = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5"]
        self.start("--profile", PROFILE, *often, *arguments, "--config", "site=site.yaml")

    def wait(self, seconds: float = 240.0) -> int:
        """Snakemake's exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def until(self, condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
        """Waits for `condition`; fails with Snakemake's last words where it ends, or takes too long."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None and time.monotonic() < end, f"no {what}: {self.said[-3000:]}"
            time.sleep(0.2)

    def stop(self) -> None:
        """Ends Snakemake if it is still there."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    @property
    def said(self) -> str:
        """What Snakemake printed."""
        return (self.root / "snakemake.out").read_text()

    def runs(self) -> Mapping[str, Path]:
        """variant/environment/seed -> its folder."""
        folders = sorted(self.root.glob("results/smoke/*/*/*/*/seed*"))
        return {"/".join(folder.parts[-3:]): folder for folder in folders}


def records(run: Path) -> pd.DataFrame:
    """What a run recorded, but for how long it took."""
    table = pd.read_parquet(run / "curves.parquet").drop(columns="seconds")
    return table[~table["metric"].isin(TIMING_METRICS)].reset_index(drop=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = make_checkout(tmp_path)
    yield made
    made.stop()


def make_checkout(target: Path) -> Checkout:
    """Copies the project, with the scale of its reports cut to what a test can wait for."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pdf", "*.html", "evidence")
    for name in ("ddrl", "replications", "workflows", "reports"):
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    shutil.copy(ROOT / "Snakefile", target)
    made = Checkout(target)
    made.site()
    return made
