"""Workers of Ray that are forked from one process, which has imported what they need.

Many live for seconds, and would do little but import torch. Ray starts a worker with the interpreter that it was
started with itself. `interpreter` makes one to put in its place: asked to start a worker, it hands arguments, variables
and output over to `python -m tests.runtimes.ray.prefork`, which forks; all else goes to the interpreter that runs this.
From there on a worker does what any other does. `tests/workflow/jobs.py` does the same for jobs of Snakemake.
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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
IMPORTED = (
    "ddrl.training.run",
    "ddrl.environments.toy",
    "ddrl.training.records.progress",
    *("filelock", "google.protobuf.json_format", "jsonschema", "msgpack", "packaging.version", "pyarrow", "requests"),
)
"""What a worker needs, without Ray itself: it reads the variables, others in each worker, when it is imported. Of what
Ray imports, the packages that it declares are here: they take half of that time."""

_LAUNCH = """
import json, os, re, socket, sys
python, path, asked, arguments = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
if not re.match(asked, " ".join(arguments)):
    os.execv(python, [python, *arguments])
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    socket.send_fds(connection, [b" "], [1, 2])
    connection.sendall(json.dumps([arguments, dict(os.environ), os.getcwd()]).encode() + b"\\n")
    sys.exit(int(connection.makefile().readline()))  # which its child tells
"""


class Asked(NamedTuple):
    """What the launcher of a worker sends."""

    arguments: list[str]
    variables: dict[str, str]
    folder: str
    connection: socket.socket
    """To the launcher, which waits for an exit code."""


@contextmanager
def interpreter(
    folder: Path, module: str = "tests.runtimes.ray.prefork", asked: str = r"\S+/default_worker\.py "
) -> Iterator[Path]:
    """To be `sys.executable` while Ray is started; what it needs is in `folder`.

    Commands whose arguments begin with `asked` are handed over to `module`.
    """
    path, program, script = folder / "socket", folder / "launch.py", folder / "python"
    program.write_text(_LAUNCH)
    command = shlex.join([sys.executable, "-IS", str(program), sys.executable, str(path), asked])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, "-m", module, str(path)],
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
        connection, _ = listener.accept()
        _, output, _, _ = socket.recv_fds(connection, 1, 2)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), *output)):
                os.dup2(descriptor, number)
                os.close(descriptor)
            with connection.makefile("rb") as file:
                return Asked(*json.loads(file.readline()), connection)
        for descriptor in (connection.detach(), *output):
            os.close(descriptor)
    return None


def serve(path: str, imported: Iterable[str]) -> Asked | None:
    """Imports, and forks until its input ends; in each child what it is asked to be, with its variables and folder."""
    for name in imported:
        importlib.import_module(name)
    importlib.import_module("tests.frozen")
    threads = set(Path("/proc/self/task").iterdir()) - {Path("/proc/self/task") / str(os.getpid())}
    names = {(thread / "comm").read_text() for thread in threads}
    assert names <= {"jemalloc_bg_thd\n"}  # a fork has one thread, whatever the others held; jemalloc sees to its own
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        asked = forked(listener)
    if asked is not None:
        os.environ.clear()
        os.environ.update(asked.variables)
        os.chdir(asked.folder)
    return asked


def main() -> None:
    """Each child becomes the worker that it is asked to be; its launcher ends at once, as Ray's own does."""
    if (asked := serve(sys.argv[1], IMPORTED)) is None:
        return
    os.setpgid(0, 0)  # as Ray's own have it: a raylet whose driver was killed ends the groups of its workers
    with asked.connection:
        asked.connection.sendall(b"0\n")
    sys.argv = asked.arguments
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
