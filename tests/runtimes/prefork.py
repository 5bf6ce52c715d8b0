"""Workers of Ray that are forked from one process, which has imported what they need.

Many live for seconds, and would do little but import torch. Ray starts a worker with the interpreter that it was
started with itself. `interpreter` makes one to put in its place: asked to start a worker, it hands arguments, variables
and output over to `python -m tests.runtimes.prefork`, which forks; all else goes to the interpreter that runs this.
From there on a worker does what any other does.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
IMPORTED = ("ddrl.run", "ddrl.environments.toy")
"""What a worker needs, without Ray itself: it reads the variables, others in each worker, when it is imported."""

_LAUNCH = """
import json, os, socket, sys
python, path, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
if not arguments or os.path.basename(arguments[0]) != "default_worker.py":
    os.execv(python, [python, *arguments])
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    socket.send_fds(connection, [b" "], [1, 2])
    connection.sendall(json.dumps([arguments, dict(os.environ), os.getcwd()]).encode())
"""


class Asked(NamedTuple):
    """What the launcher of a worker sends."""

    arguments: list[str]
    variables: dict[str, str]
    folder: str


@contextmanager
def interpreter(folder: Path) -> Iterator[Path]:
    """To be `sys.executable` while Ray is started; what it needs is in `folder`."""
    path, program, script = folder / "socket", folder / "launch.py", folder / "python"
    program.write_text(_LAUNCH)
    command = shlex.join([sys.executable, "-IS", str(program), sys.executable, str(path)])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.runtimes.prefork", str(path)],
        stdin=subprocess.PIPE,  # ends with this process, and the server with it
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert server.stdin is not None and server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    try:
        yield script
    finally:
        server.stdin.close()
        server.wait(30)
        server.stdout.close()


def forked(listener: socket.socket) -> Asked | None:
    """In each child what it is asked to be; in the server None, once its input has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        with listener.accept()[0] as connection:
            _, output, _, _ = socket.recv_fds(connection, 1, 2)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), *output)):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                with connection.makefile("rb") as file:
                    return Asked(*json.load(file))
            for descriptor in output:
                os.close(descriptor)
    return None


def main() -> None:
    """Forks until its input ends; each child becomes the worker that it is asked to be."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1  # a fork has one thread, whatever the others held
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print("ready", flush=True)
        asked = forked(listener)
    if asked is None:
        return
    os.environ.clear()
    os.environ.update(asked.variables)
    os.chdir(asked.folder)
    sys.argv = asked.arguments
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
