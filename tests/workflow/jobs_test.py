"""Jobs of the tests' workflows are forked, and are otherwise what their interpreter would have started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

TOLD = """
import os, sys
print(os.getcwd(), sys.argv, sys.path[0], __name__, os.environ["TOLD"], sys.stdin.read(), flush=True)
print("said aside", file=sys.stderr)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
sys.exit(int(sys.argv[1]))
"""
HANGS = """
import os, pathlib, time
pathlib.Path("begun").write_text(str(os.getpid()))
pathlib.Path("begun").rename("pid")
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has a `ddrl` of its own."""
    (tmp_path / "ddrl").mkdir()
    for name, text in {"__init__": "", "told": TOLD, "hangs": HANGS}.items():
        (tmp_path / "ddrl" / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize("ends", ["0", "3", "killed"])
def test_a_job_has_folder_arguments_variables_output_and_exit_code_of_its_own(
    python: Path, folder: Path, ends: str
) -> None:
    def run(interpreter: Path | str) -> tuple[int, str, str]:
        done = subprocess.run(
            [interpreter, "-m", "ddrl.told", ends, "a b", ""],
            cwd=folder,
            env={"TOLD": "this"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return done.returncode % 256, done.stdout, done.stderr  # a signal, too, is told as a code

    assert run(python) == run(sys.executable)


def test_a_job_ends_with_what_asked_for_it(python: Path, folder: Path) -> None:
    asking = subprocess.Popen([python, "-m", "ddrl.hangs"], cwd=folder)
    end = time.monotonic() + 60
    while not (folder / "pid").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    job = psutil.Process(int((folder / "pid").read_text()))
    assert job.pid != asking.pid
    asking.kill()
    asking.wait()
    psutil.wait_procs([job], timeout=60)
    assert not job.is_running()
