"""A copy of the project whose trainer is `fake_trainer.py`, so that the whole workflow runs in seconds."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from tests import processes
from tests.workflow import jobs, typed

ROOT = Path(__file__).parents[2]
CORES = ("--cores", "2")
NARROW = """\
experiments: [off_policy_correction]
variants: [v_trace, no_correction]
environments: [toy/catch]
seeds: [11, 12]
"""


@dataclass(frozen=True)
class Project:
    """The copy, and how to run its workflow."""

    root: Path
    python: Path = Path(sys.executable)
    """The interpreter of its jobs."""

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Snakemake as a user types it, in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *CORES, *arguments],
            cwd=self.root,
            env=self.variables(environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def snakemake(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit code and everything it printed."""
        output = self.root / "printed.txt"
        typed_in = (self.root, [*CORES, *arguments], self.variables(environment), output)
        process = processes.start(typed.snakemake, self.python, *typed_in)
        code = processes.finish(process, 120)
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError(output.read_text())
        return code, output.read_text()

    def variables(self, more: dict[str, str]) -> dict[str, str]:
        """Of the processes of this project."""
        return {**os.environ, "XDG_CACHE_HOME": str(self.root / ".cache"), **more}

    def make(self) -> str:
        """The narrowed report, made."""
        code, output = self.snakemake("--configfile", "narrow.yaml")
        assert code == 0, output
        return output

    def copy(self, target: Path) -> "Project":
        """The same project with its results and what Snakemake remembers of them."""
        return Project(Path(shutil.copytree(self.root, target)), self.python)

    def results(self) -> dict[Path, int]:
        """Result and report files with the times they were written at."""
        files = [*(self.root / "results").rglob("*"), *(self.root / "reports").iterdir()]
        return {file: file.stat().st_mtime_ns for file in files if file.is_file()}


def copy_project(target: Path, python: Path) -> Project:
    """Copies what the workflow needs, without results."""
    ignore = shutil.ignore_patterns("*.pdf", "*.html", "evidence")
    for name in ("ddrl", "replications", "workflows", "reports"):
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    shutil.copy(ROOT / "Snakefile", target)
    shutil.copy(Path(__file__).with_name("fake_trainer.py"), target / "ddrl" / "cli" / "__main__.py")
    (target / "narrow.yaml").write_text(NARROW)
    for paper in target.glob("replications/*/paper.yaml"):
        facts = yaml.safe_load(paper.read_text())
        made = [one for one in facts["figures"] if "off_policy_correction" in one["experiments"]]
        facts["figures"] = (made or facts["figures"])[-2:]  # the tests of the analysis draw all of them
        paper.write_text(yaml.safe_dump(facts))
    return Project(target, python)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter by which jobs start warm."""
    with jobs.interpreter(tmp_path_factory.mktemp("python")) as path:
        yield path


@pytest.fixture
def project(tmp_path: Path, python: Path) -> Project:
    return copy_project(tmp_path, python)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Project:
    """A project whose narrowed report was made once; tests leave it as it is.

    The first test process that needs it makes it, and each has a copy of its own.
    """
    own = tmp_path_factory.mktemp("made")
    among = tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else own
    whole = among / "whole"
    with FileLock(among / "whole.lock"):
        if not whole.exists():
            project = copy_project(own / "first", python)
            project.make()
            project.copy(among / "begun").root.rename(whole)
    return Project(whole, python).copy(own / "project")
