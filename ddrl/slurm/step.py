"""Runs a job step of SLURM, and lets it answer SIGTERM in its own time.

    python -m ddrl.slurm.step srun ... COMMAND

What ends a job (preemption, the end of its wall time, scancel) sends SIGTERM to the tasks of its steps, and the job has
until `KillWait` is over. Of the batch step, some clusters signal all processes, others the script alone, which
then ends and takes the rest with it. Training that is a task of a step of its own hears the signal everywhere. But
srun, where it hears it too, has the tasks killed at once: it runs where signals to the batch step do not reach it.
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
    """Runs the command to its end, whatever signals come; returns its exit code, 1 where that is lost."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    answer, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:  # its parent ends: nothing leads from the batch step to this process
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
