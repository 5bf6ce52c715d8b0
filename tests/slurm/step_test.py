"""A job step goes on while everything around it gets signals, and its exit code is what comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

STEP = (sys.executable, "-m", "ddrl.slurm.step")


@pytest.mark.parametrize(
    ("command", "code"),
    [(["true"], 0), (["sh", "-c", "exit 75"], 75), (["sh", "-c", "kill -9 $$"], 137), (["no-such-program"], 127)],
)
def test_the_exit_code_is_the_commands(command: list[str], code: int) -> None:
    assert subprocess.run([*STEP, *command], timeout=60).returncode == code


def test_no_signal_to_what_descends_from_the_caller_reaches_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = subprocess.Popen([*STEP, "sh", "-c", f"echo $$ > {ready}; sleep 2; exit 5"], start_new_session=True)
    while not (ready.exists() and ready.read_text().strip()):
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    assert int(ready.read_text()) not in [child.pid for child in family]
    for one in [psutil.Process(process.pid), *family]:
        one.send_signal(signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 5
