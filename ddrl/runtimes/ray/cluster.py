"""The Ray cluster of a run: one of its own on this machine, or the one that RAY_ADDRESS names.

An own cluster has no dashboard, listens where only this machine can reach it, asks every connection for a token that
only this process and its children know, keeps its files in a folder that no other user can enter, and ends with the
run. A cluster that was joined goes on.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

import ddrl
from ddrl.errors import TRY_AGAIN, UserError
from ddrl.runtimes.ray.errors import first_line
from ddrl.system.files import read_file
from ddrl.system.private_folders import parent_for
from ddrl.system.signals import STOP, deaf_children
from ddrl.system.temporary import claim, remove_left

VARIABLE = "RAY_ADDRESS"
ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0, all of Ray's processes listen at 127.0.0.1 only, on any system. Otherwise they listen on all interfaces:
Ray replaces `_node_ip_address="127.0.0.1"` by the machine's address."""
CONNECT_SECONDS = 5.0
PULSE_SECONDS = 2.0
"""Between two checks whether the cluster answers."""
ANSWER_SECONDS = 2.0
"""For a process to answer with its process ID; Ray knows by then whether it died."""
START_ATTEMPTS = 2
RAY = "r"
"""The folder that Ray makes within the cluster's own folder; every user may enter it."""
LONGEST_PARENT = 14
"""Bytes: the own folder's name has up to 26, Ray's 1, the rest of a socket's path about 62; a path has at most 107."""

_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS_FRAME = 4


@contextmanager
def cluster(*, num_cpus: int, object_store_bytes: int) -> Iterator[Path | None]:
    """Connect this process to a cluster; on leaving disconnect, and end an own cluster.

    An own cluster has `num_cpus` slots for roles, which may share cores, and `object_store_bytes` of shared memory.
    Yield its folder, which is removed on leaving, or None where a cluster was joined. Raise UserError when RAY_ADDRESS
    cannot be joined, or the own cluster does not start.
    """
    address = os.environ.get(VARIABLE, "")
    own = address in ("", "local")
    if not own:
        check_reachable(address)
    _set_environment(own)
    import ray  # after the environment is set: it is read on import

    before = signal.getsignal(signal.SIGTERM)  # ray.init sets a handler of its own
    started: list[psutil.Process] = []
    with own_folder() if own else nullcontext() as folder:
        try:
            with deaf_children(*STOP):
                if folder is not None:
                    _start(str(folder / RAY), num_cpus, object_store_bytes, started)
                else:
                    _join(address)
                signal.signal(signal.SIGTERM, before)  # before a signal that came meanwhile is handled
            yield folder
        finally:
            with _killed_once_left(started):
                ray.shutdown()
            signal.signal(signal.SIGTERM, before)  # Ray resets the handler of the process without telling Python


@contextmanager
def _killed_once_left(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Kill Ray's processes once the block has left the cluster: Ray would wait a second for each after a SIGTERM."""
    import ray

    over = threading.Event()

    def kill() -> None:
        while ray.is_initialized() and not over.wait(0.01):
            pass
        end_family(processes)

    waiting = threading.Thread(target=kill, daemon=True)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()


def end_family(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to these processes and all their descendants."""
    family = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            family += [process, *process.children(recursive=True)]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def what_is_gone() -> str:
    """Return which part of the cluster of this process no longer answers, or "".

    Ray itself reports nothing while it waits for processes to start, or ends this process after a minute.
    """
    import ray

    node = ray._private.worker.global_worker.node
    if node is None:
        return ""
    host, _, port = str(node.gcs_address).rpartition(":")
    if not _answers(socket.AF_UNIX, node.raylet_socket_name):
        return "its raylet on this node"
    if not _answers(socket.AF_INET6 if ":" in host else socket.AF_INET, (host.strip("[]"), int(port))):
        return f"its head (GCS) at {node.gcs_address}"
    return ""


def _answers(family: socket.AddressFamily, address: Any) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.settimeout(CONNECT_SECONDS)
            probe.connect(address)
    except OSError:
        return False
    return True


class Pulse:
    """A periodic check whether the cluster still answers."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._before = ""

    def gone(self) -> str:
        """Return what has not answered twice in a row, or ""."""
        if time.monotonic() - self._looked < PULSE_SECONDS:
            return ""
        before, self._before = self._before, what_is_gone()
        self._looked = time.monotonic()
        return self._before if before == self._before else ""


def gone_error(what: str, where: str) -> UserError:
    """Return the error of a run whose cluster is gone; its exit code is `TRY_AGAIN`.

    `what` is the part that does not answer; `where` says where the next start goes on.
    """
    error = UserError(f"the Ray cluster is gone: {what} does not answer; {where}")
    error.status = TRY_AGAIN
    return error


def last_words(pids: Iterable[Any]) -> str:
    """Return the last lines that processes of this machine, which are gone, wrote to stderr, such as a crash's stack.

    `pids`: references to their answers to `pid`, which they may have died before.
    """
    import ray
    from ray.exceptions import RayError

    words = []
    for pid in pids:
        with suppress(RayError):
            words.append(_log_tail(ray.get(pid, timeout=ANSWER_SECONDS)))
    return "\n".join(filter(None, words))


def _log_tail(pid: int) -> str:
    import ray

    node = ray._private.worker.global_worker.node
    files = Path(node.get_logs_dir_path()).glob(f"worker-*-{pid}.err") if node is not None else ()
    found = [line for file in files for line in read_file(file).decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(line for line in found[-15:] if not line.startswith(":"))  # Ray's own lines begin with a colon


def check_reachable(address: str) -> None:
    """Raise UserError, within seconds, unless a gRPC server answers at an address: Ray itself tries for two minutes."""
    if address == "auto":
        return
    where = f"environment variable {VARIABLE}: '{address}'"
    host, colon, port = address.rpartition(":")
    if "://" in address or not (colon and host and port.isdecimal()):
        raise UserError(
            f"{where} is not allowed; allowed: host:port of a cluster's head, auto, or nothing (own cluster)"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.settimeout(CONNECT_SECONDS)
                connection.sendall(_HTTP2_HELLO)
                answer = connection.recv(9)
                if len(answer) < 9 or answer[3] != _SETTINGS_FRAME:
                    raise UserError(f"{where} answers, but is not the head of a Ray cluster")
    except (OSError, OverflowError) as error:
        raise UserError(f"{where} cannot be reached: {str(error) or type(error).__name__}") from None


def _start(folder: str, num_cpus: int, object_store_bytes: int, started: list[psutil.Process]) -> None:
    """Start an own cluster and add its processes to `started`.

    Try again where it fails: in one of many starts Ray's processes do not find each other.
    """
    import ray

    for attempt in range(1, START_ATTEMPTS + 1):
        before = psutil.Process().children()
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                object_store_memory=object_store_bytes,
                include_dashboard=False,
                _temp_dir=folder,
                _system_config={"enable_metrics_collection": False},
                **_quiet_job(),
            )
            return
        except Exception as error:  # Ray gives its processes 30 s, which a machine that is very busy may need
            if attempt == START_ATTEMPTS:
                raise UserError(f"Ray did not start on this machine: {first_line(error)}") from error
        finally:
            started += [process for process in psutil.Process().children() if process not in before]
        end_family(started)


def _join(address: str) -> None:
    import ray

    try:
        ray.init(address=address, **_quiet_job())
    except Exception as error:  # of many kinds: no raylet on this machine, another version, a wrong token
        reason = first_line(error)
        raise UserError(f"environment variable {VARIABLE}: '{address}' cannot be joined: {reason}") from error


def _quiet_job() -> dict[str, Any]:
    """Return options of `ray.init`: log errors only; let workers import this package from where this process does."""
    import ray

    job = ray.job_config.JobConfig(_py_driver_sys_path=[str(Path(ddrl.__file__).parent.parent)])
    return {"logging_level": logging.ERROR, "log_to_driver": False, "job_config": job}


def _set_environment(own: bool) -> None:
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # learners fail because another has; the supervisor reports that
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns that this will be the default
    }
    if own and "ray" not in sys.modules:
        quiet[ONE_MACHINE] = "0"
        # Ray's default is 15: beside two other trainings on two cores, a run then learned from no batch in 130 s.
        quiet["RAY_worker_niceness"] = "0"
        if "RAY_AUTH_MODE" not in os.environ:
            quiet |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for name, value in quiet.items():
        os.environ.setdefault(name, value)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder for the cluster's files, removed on leaving; remove those that killed processes have left."""
    parent = parent_for(LONGEST_PARENT)
    remove_left(parent, "ddrl-ray-")
    folder = Path(tempfile.mkdtemp(prefix=f"ddrl-ray-{os.getpid()}-", dir=parent))
    try:
        with claim(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
