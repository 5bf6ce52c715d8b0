"""A Ray cluster over the nodes of one SLURM job, for one command.

    srun --ntasks-per-node=1 python -m ddrl.slurm.ray_cluster --meet DIRECTORY -- COMMAND ...

Every task starts Ray on its node. The first task's Ray is the head. That task writes its address and a token into
DIRECTORY, which all nodes see; the others prove that they know the token without sending it (`ddrl.slurm.rendezvous`).
Once all have come, the first task runs the command and exits with its code. The others stay while their connection to
the first task is open, so they end whenever and however it ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ddrl.errors import UserError
from ddrl.runtimes.ray.cluster import RAY, VARIABLE, check_reachable, cluster, end_family, own_folder
from ddrl.slurm import rendezvous
from ddrl.system.exit_code import exit_code
from ddrl.system.files import read_file
from ddrl.system.private_folders import check_private
from ddrl.system.signals import STOP, deaf_children
from ddrl.system.temporary import LOCK

START_SECONDS = 300.0
"""Time for all nodes of a job to come: SLURM may start them one after the other."""
ANSWER_SECONDS = 30.0
"""Time for the first task to answer a call."""
FIRST_PORT, LAST_PORT, BLOCK = 20000, 31999, 8
"""Ports below those that Linux assigns by itself (32768 and above), and how many each node of a job takes."""


@dataclass(frozen=True)
class SlurmTask:
    """A task of a SLURM job, from the variables that `srun` sets."""

    job: int
    rank: int
    size: int
    node: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class HeadAddress:
    """The facts that the first task tells the others."""

    address: str
    """host:port of Ray's head."""
    port: int
    """The port on which the first task waits for the others."""
    token: str
    folder: str
    """The first task's private folder; Ray uses its path on every node."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddrl.slurm.ray_cluster", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--meet", type=Path, required=True, metavar="DIRECTORY", help="a folder that all nodes see")
    parser.add_argument("command", nargs="+", help="what to run once all nodes have come")
    parsed = parser.parse_args(arguments)

    def run() -> int:
        task = task_of(os.environ)
        path = parsed.meet / f"nodes-{task.job}.json"
        return run_first_task(task, path, parsed.command) if task.rank == 0 else run_other_task(task, path)

    return exit_code(run)


def task_of(variables: Mapping[str, str]) -> SlurmTask:
    """Read a task's environment variables. Raise `UserError` if `srun` has not set them."""
    try:
        return SlurmTask(
            job=int(variables["SLURM_JOB_ID"]),
            rank=int(variables["SLURM_PROCID"]),
            size=int(variables["SLURM_NTASKS"]),
            node=variables["SLURMD_NODENAME"],
            cpus=int(variables.get("SLURM_CPUS_PER_TASK", 1)),
            gpus=len([name for name in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]),
        )
    except (KeyError, ValueError) as error:
        raise UserError(f"this is not a task that srun has started: {error.args[0]} is missing or wrong") from None


def run_first_task(task: SlurmTask, path: Path, command: Sequence[str]) -> int:
    """Run the first task: start Ray's head, wait for the others, run the command; return the command's exit code.

    `path` is the file by which this job's tasks find each other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Files of killed jobs: only one job at a time works on a run.
    for old in [*path.parent.glob("nodes-*.json"), *path.parent.glob("nodes-*.partial")]:
        old.unlink(missing_ok=True)
    token = secrets.token_hex(32)
    os.environ |= ray_variables(token)
    host, ports = address_of(task.node), free_block(task)
    os.environ[VARIABLE] = f"{host}:{ports[0]}"
    with ExitStack() as stack:
        forwarder = _Forwarder()
        for number in STOP:
            stack.callback(signal.signal, number, signal.signal(number, forwarder.signalled))
        folder = str(stack.enter_context(own_folder()))
        listener = stack.enter_context(socket.create_server((host, ports[-1])))
        head = ["--head", f"--port={ports[0]}", f"--temp-dir={folder}/{RAY}", "--include-dashboard=false"]
        ray = stack.enter_context(ray_node(task, host, ports, head))
        _wait(lambda: _answers(os.environ[VARIABLE]), "Ray's head", ray)
        meeting = HeadAddress(os.environ[VARIABLE], ports[-1], token, folder)
        stack.enter_context(announced(path, meeting))
        for client in rendezvous.accept_all(
            listener, task.size - 1, token, START_SECONDS, lambda: ray.poll() is not None
        ):
            stack.enter_context(client)
        listener.close()
        with cluster(num_cpus=0, object_store_bytes=0):
            from ray import nodes

            _wait(lambda: sum(node["Alive"] for node in nodes()) >= task.size, f"{task.size} nodes", ray)  # type: ignore[no-untyped-call]
        return forwarder.run(command)


def run_other_task(task: SlurmTask, path: Path) -> int:
    """Run another task: join, and stay until the first task is gone; return 0."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)  # the command saves before it ends, and needs this node for that
    meeting, connection = join(path, task.rank)
    os.environ |= ray_variables(meeting.token)
    _make_private(Path(meeting.folder))
    with connection, ray_node(task, address_of(task.node), free_block(task), [f"--address={meeting.address}"]):
        connection.recv(1)  # nothing is ever sent, so this returns when the other side has closed or is gone
    if not (Path(meeting.folder) / LOCK).exists():  # a folder with a lock belongs to the head on this machine
        shutil.rmtree(meeting.folder, ignore_errors=True)
    return 0


def _make_private(folder: Path) -> None:
    """Make the folder private before Ray makes it open to all. Raise UserError if another user has made it."""
    with suppress(FileExistsError):  # made by another task on the same machine
        folder.mkdir(mode=0o700)
    check_private(folder)


def join(path: Path, rank: int) -> tuple[HeadAddress, socket.socket]:
    """Return what the first task has written to `path`, and an accepted connection to it. Raise UserError without one.

    A job that SLURM has killed and queued again may read its old file; nobody there knows the token, so it tries again.
    """
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            if path.lstat().st_uid != os.geteuid():  # another user could make this node join theirs
                raise OSError(errno.EPERM, "belongs to another user", str(path))
            meeting = HeadAddress(**json.loads(read_file(path).decode()))
            address = (meeting.address.rpartition(":")[0], meeting.port)
            return meeting, rendezvous.call(address, rank, meeting.token, ANSWER_SECONDS)
        time.sleep(0.2)
    raise UserError(f"{path}: the job's first task is not there")


def ray_variables(token: str) -> dict[str, str]:
    """Return the environment variables that Ray reads when it is imported."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_worker_niceness": "0"}


def address_of(node: str) -> str:
    """Return a node's address from SLURM, or from Ray if SLURM has none but the loopback device's."""
    try:
        command = ["scontrol", "--oneliner", "show", "node", node]
        shown = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=60).stdout
        named = dict(part.partition("=")[::2] for part in shown.split() if "=" in part).get("NodeAddr", node)
        address = socket.gethostbyname(named)
    except (OSError, subprocess.SubprocessError):
        address = "127.0.0.1"
    if not address.startswith("127."):
        return address
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())  # type: ignore[no-untyped-call]


def free_block(task: SlurmTask) -> list[int]:
    """Return a free block of ports for this node, beginning the search at a place that follows from job and rank."""
    blocks = (LAST_PORT + 1 - FIRST_PORT) // BLOCK
    first = (task.job * task.size + task.rank) % blocks
    for index in range(blocks):
        start = FIRST_PORT + (first + index) % blocks * BLOCK
        ports = list(range(start, start + BLOCK))
        with suppress(OSError), ExitStack() as probes:
            for port in ports:
                probes.enter_context(socket.socket()).bind(("", port))
            return ports
    raise UserError(f"no {BLOCK} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


@contextmanager
def ray_node(
    task: SlurmTask, host: str, ports: Sequence[int], more: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Ray on this node while the block runs; then end all of its processes."""
    names = ("object-manager", "node-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent")
    own = [f"--{name}-port={port}" for name, port in zip(names, ports[1:], strict=False)]
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", *more, "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={host}", f"--num-cpus={task.cpus}", f"--num-gpus={task.gpus}", *own),
        *(f"--metrics-export-port={ports[6]}", "--min-worker-port=0", "--max-worker-port=0"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with deaf_children(*STOP):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            end_family([psutil.Process(process.pid)])
        process.wait()


@contextmanager
def announced(path: Path, meeting: HeadAddress) -> Iterator[None]:
    """Keep `meeting` in a file that only this user can read while the block runs."""
    partial = path.with_suffix(f".{secrets.token_hex(8)}.partial")  # an unpredictable name, for which none set a trap
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(partial, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(meeting), file)
    partial.rename(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _answers(address: str) -> bool:
    try:
        check_reachable(address)
    except UserError:
        return False
    return True


def _wait(condition: Callable[[], bool], what: str, ray: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > end or ray.poll() is not None:
            raise UserError(f"no {what} on {socket.gethostname()}")
        time.sleep(0.2)


class _Forwarder:
    """Runs the command and forwards this process's signals to it."""

    def __init__(self) -> None:
        self._command: subprocess.Popen[bytes] | None = None
        self._early: int | None = None

    def signalled(self, number: int, _: Any) -> None:
        """Handle a signal of `STOP`: forward it, or keep the command from starting."""
        if self._command is None:
            self._early = number
        else:
            self._command.send_signal(number)

    def run(self, command: Sequence[str]) -> int:
        """Run the command; return its exit code, or 128 + the number of the signal that killed or prevented it."""
        if self._early is not None:
            return 128 + self._early
        self._command = subprocess.Popen(command, start_new_session=True)
        code = self._command.wait()
        return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
