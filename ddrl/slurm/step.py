"""Runs a SLURM job step so that its tasks have time to save after SIGTERM.

    python -m ddrl.slurm.step srun ... COMMAND

When a job is to end (preemption, end of its wall time, scancel), SLURM sends SIGTERM to the tasks of its steps, and the
job has until `KillWait` is over. Of the batch step some clusters signal all processes, others only the script, which
then ends with all its children. A task of a step of its own gets the signal on every cluster. But if srun gets it too,
srun has the tasks killed at once; so srun runs in a session of its own, which signals to the batch step do not reach.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from ddrl.system.notes import say
from ddrl.system.signals import STOP

NOT_FOUND = 127


def main(command: Sequence[str]) -> int:
    """Run a command to its end, whatever signals come; return its exit code, or 1 if that is lost."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    answer, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:  # its parent exits, so this process is no descendant of the batch step any more
            os.write(tell, bytes([_run(command)]))
        os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    code = os.read(answer, 1)
    return code[0] if code else 1


def _run(command: Sequence[str]) -> int:
    try:
        code = subprocess.call(command)
    except OSError as error:
        say(f"ddrl: {command[0]}: {error.strerror}")
        return NOT_FOUND
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
