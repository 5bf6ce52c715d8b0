"""Importing dm_control leaves the process as it was."""

from __future__ import annotations

import subprocess
import sys

IMPORT = """
import logging, os
from ddrl.environments import dm_control
assert logging.root.handlers == [], logging.root.handlers
assert "MUJOCO_GL" not in os.environ
"""


def test_the_root_logger_gets_no_handler_so_that_messages_are_printed_once() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, encoding="utf-8", timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
