"""A Ray cluster over the nodes of one SLURM job, for one command, started and ended by its own processes.

    srun --ntasks-per-node=1 python -m ddrl.slurm.ray_cluster --meet DIRECTORY -- COMMAND ...

Every task starts Ray on its node. The first task's is the head; it writes into DIRECTORY, which all nodes see, where it
can be reached and with which token, which the others prove to know and never send (`ddrl.slurm.rendezvous`), runs
the command once all have come, and its exit code is the command's. The others stay for as long as their connection to
the first one does, so they leave when it has ended in whatever way.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ddrl.errors import UserError
from ddrl.runtimes.ray.cluster import (
    RAY,
    VARIABLE,
    check_reachable,
    cluster,
    end_family,
    own_folder,
)
from ddrl.slurm import rendezvous
from ddrl.system.exit_code import exit_code
from ddrl.system.files import read_file
from ddrl.system.private_folders import check_private
from ddrl.system.signals import STOP, deaf_children
from ddrl.system.temporary import LOCK

START_SECONDS = 300.0
"""For all nodes of a job to come: SLURM may start them one after the other."""
ANSWER_SECONDS = 30.0
"""For the first task to see who calls."""
FIRST_PORT, LAST_PORT, BLOCK = 20000, 31999, 8
"""Below the ports that Linux gives out by itself (32768 and above); each node of each job has a block of its own."""


@dataclass(frozen=True)
class Place:
    """This task within its job, from the variables that `srun` sets."""

    job: int
    rank: int
    size: int
    node: str
    cpus: int
    gpus: int

    @property
    def meeting(self) -> str:
        """The file in which this job's tasks find each other."""
        return f"nodes-{self.job}.json"


@dataclass(frozen=True)
class Meeting:
    """What the first task tells the others."""

    address: str
    """Of Ray's head, host:port."""
    door: int
    """The port of the first task itself."""
    token: str
    folder: str
    """The first task's own one, whose path Ray takes on every node."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one task; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.slurm.ray_cluster", description=(__doc__ or "")[:80])
    parser.add_argument("--meet", type=Path, required=True, metavar="DIRECTORY", help="a folder that all nodes see")
    parser.add_argument("command", nargs="+", help="what to run once all nodes have come")
    parsed = parser.parse_args(arguments)

    def run() -> int:
        place = place_of(os.environ)
        return lead(place, parsed.meet, parsed.command) if place.rank == 0 else follow(place, parsed.meet)

    return exit_code(run)


def place_of(variables: Any) -> Place:
    """Reads the variables of a task. Raises `UserError` outside of `srun`."""
    try:
        return Place(
            job=int(variables["SLURM_JOB_ID"]),
            rank=int(variables["SLURM_PROCID"]),
            size=int(variables["SLURM_NTASKS"]),
            node=variables["SLURMD_NODENAME"],
            cpus=int(variables.get("SLURM_CPUS_PER_TASK", 1)),
            gpus=len([name for name in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]),
        )
    except (KeyError, ValueError) as error:
        raise UserError(f"this is not a task that srun has started: {error.args[0]} is missing or wrong") from None


def lead(place: Place, directory: Path, command: Sequence[str]) -> int:
    """The first task: head, meeting, command; returns the command's exit code."""
    directory.mkdir(parents=True, exist_ok=True)
    # Of jobs that were killed: whoever is here has the run to itself.
    for old in [*directory.glob("nodes-*.json"), *directory.glob("nodes-*.partial")]:
        old.unlink(missing_ok=True)
    token = secrets.token_hex(32)
    os.environ |= ray_variables(token)
    host, ports = address_of(place.node), free_block(place)
    os.environ[VARIABLE] = f"{host}:{ports[0]}"
    with ExitStack() as stack:
        stop = stack.enter_context(_forwarding())
        folder = str(stack.enter_context(own_folder()))
        door = stack.enter_context(socket.create_server((host, ports[-1])))
        head = ["--head", f"--port={ports[0]}", f"--temp-dir={folder}/{RAY}", "--include-dashboard=false"]
        ray = stack.enter_context(ray_node(place, host, ports, head))
        _wait(lambda: _answers(os.environ[VARIABLE]), "Ray's head", ray)
        meeting = Meeting(os.environ[VARIABLE], ports[-1], token, folder)
        stack.enter_context(announced(directory / place.meeting, meeting))
        for visitor in welcome(door, place.size - 1, token, ray):
            stack.enter_context(visitor)
        door.close()
        with cluster(num_cpus=0, object_store_bytes=0):
            from ray import nodes

            _wait(lambda: sum(node["Alive"] for node in nodes()) >= place.size, f"{place.size} nodes", ray)  # type: ignore[no-untyped-call]
        return stop.run(command)


def follow(place: Place, directory: Path) -> int:
    """Another task: joins, and stays until the first one is gone."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)  # the first task's command ends in its own time, and needs this node
    meeting, door = join(directory / place.meeting, place.rank)
    os.environ |= ray_variables(meeting.token)
    _make_private(Path(meeting.folder))
    with door, ray_node(place, address_of(place.node), free_block(place), [f"--address={meeting.address}"]):
        door.recv(1)  # nothing is ever sent: returns when the other side has closed, or is gone
    if not (Path(meeting.folder) / LOCK).exists():  # on the head's machine it is the head's
        shutil.rmtree(meeting.folder, ignore_errors=True)
    return 0


def _make_private(folder: Path) -> None:
    """Ray lets everybody into what it makes there. Raises UserError where somebody else has made the folder."""
    with suppress(FileExistsError):  # by the first task, or another one on the same machine
        folder.mkdir(mode=0o700)
    check_private(folder)


def join(path: Path, rank: int) -> tuple[Meeting, socket.socket]:
    """What the first task has written to `path`, and a connection to it that it has accepted.

    A job that SLURM has killed and queued anew may find its old file: that leads to nobody who knows the token.
    """
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            if path.lstat().st_uid != os.geteuid():  # of somebody who wants this node
                raise OSError(errno.EPERM, "belongs to another user", str(path))
            meeting = Meeting(**json.loads(read_file(path).decode()))
            address = (meeting.address.rpartition(":")[0], meeting.door)
            return meeting, rendezvous.call(address, rank, meeting.token, ANSWER_SECONDS)
        time.sleep(0.2)
    raise UserError(f"{path}: the job's first task is not there")


def ray_variables(token: str) -> dict[str, str]:
    """What Ray reads, once, when it is imported."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_worker_niceness": "0"}


def address_of(node: str) -> str:
    """A node's address as SLURM knows it, or as Ray does where SLURM has the loopback device or nothing."""
    try:
        shown = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", node],
            check=True,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        ).stdout
        named = dict(part.partition("=")[::2] for part in shown.split() if "=" in part).get("NodeAddr", node)
        address = socket.gethostbyname(named)
    except (OSError, subprocess.SubprocessError):
        address = "127.0.0.1"
    if not address.startswith("127."):
        return address
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())  # type: ignore[no-untyped-call]


def free_block(place: Place) -> list[int]:
    """The block of ports of this node: the job's number says which, the next free one where it is taken."""
    blocks = (LAST_PORT + 1 - FIRST_PORT) // BLOCK
    first = (place.job * place.size + place.rank) % blocks
    for index in range(blocks):
        start = FIRST_PORT + (first + index) % blocks * BLOCK
        ports = list(range(start, start + BLOCK))
        if all(map(_is_free, ports)):
            return ports
    raise UserError(f"no {BLOCK} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


@contextmanager
def ray_node(place: Place, host: str, ports: Sequence[int], more: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Ray on this node; on leaving every process of it is ended, by its own id."""
    names = ("object-manager", "node-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent")
    own = [f"--{name}-port={port}" for name, port in zip(names, ports[1:], strict=False)]
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", *more, "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={host}", f"--num-cpus={place.cpus}", f"--num-gpus={place.gpus}", *own),
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
def announced(path: Path, meeting: Meeting) -> Iterator[None]:
    """`path` says where to meet, to this user alone, within the block."""
    partial = path.with_suffix(f".{secrets.token_hex(8)}.partial")  # a name that nobody could know has no link or file
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(partial, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(meeting), file)
    partial.rename(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def welcome(door: socket.socket, number: int, token: str, ray: subprocess.Popen[bytes]) -> list[socket.socket]:
    """Connections of the other tasks. Raises UserError where they do not come, or Ray has ended here."""
    try:
        return rendezvous.welcome(door, number, token, START_SECONDS, lambda: ray.poll() is not None)
    except rendezvous.Missing as missing:
        raise UserError(f"{missing.number} of the job's nodes did not come within {START_SECONDS:.0f} s") from None


def _answers(address: str) -> bool:
    try:
        check_reachable(address)
    except UserError:
        return False
    return True


def _wait(condition: Any, what: str, ray: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > end or (ray is not None and ray.poll() is not None):
            raise UserError(f"no {what} on {socket.gethostname()}")
        time.sleep(0.2)


class _Forwarder:
    """Runs the command, and passes on to it, once each, the signals that this process gets."""

    def __init__(self) -> None:
        self._command: subprocess.Popen[bytes] | None = None
        self._early: int | None = None

    def signalled(self, number: int, _: Any) -> None:
        """One of those that stop a run; one that comes before the command is all that is needed to not start it."""
        if self._command is None:
            self._early = number
        else:
            self._command.send_signal(number)

    def run(self, command: Sequence[str]) -> int:
        """The command's exit code; 128 and the signal's number where it was killed by one, or never began."""
        if self._early is not None:
            return 128 + self._early
        self._command = subprocess.Popen(command, start_new_session=True)
        code = self._command.wait()
        return code if code >= 0 else 128 - code


@contextmanager
def _forwarding() -> Iterator[_Forwarder]:
    forwarder = _Forwarder()
    before = {number: signal.signal(number, forwarder.signalled) for number in STOP}
    try:
        yield forwarder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
