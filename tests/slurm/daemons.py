"""SLURM on this host alone: munged, slurmctld and a slurmd for each of two nodes, started and stopped by their handles.

The nodes are names for this machine, each with two cores, 8 GB and one GPU that is none. There are no cgroups and no
accounting database, as on many small clusters.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
CONFIGURATION = Path("/etc/slurm")
"""Where SLURM looks by itself. Job steps of Snakemake are started without `SLURM_CONF`, so no other place will do."""
OURS = "# Written by the tests of ddrl; deleted when they end."
NODES = ("n1", "n2")
START_SECONDS = 60.0
STOP_SECONDS = 20.0


class Unavailable(Exception):
    """SLURM cannot be started here; the text says why."""


def install() -> None:
    """Installs Debian's packages where they are missing. Raises `Unavailable` where that cannot be done."""
    if os.geteuid() != 0:
        raise Unavailable("SLURM's daemons are started as root, and this is another user")
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"{', '.join(missing)} not found, and no apt-get that could install them")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", "--quiet", *command], env=environment, capture_output=True, text=True, timeout=600
        )
        said = done.stderr.strip() or done.stdout.strip()
    if any(shutil.which(name) is None for name in missing):
        raise Unavailable(f"apt-get could not install {', '.join(PACKAGES)}: {said[-500:]}")


@dataclass
class Slurm:
    """A running SLURM. `folder` holds its state and its daemons' logs."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_node(self, name: str) -> None:
        """Starts the slurmd of a node, anew where it has died."""
        self._start(name, ["slurmd", "-D", "-N", name])

    def kill_node(self, name: str) -> None:
        """SIGKILL to the slurmd of a node, and to nothing else: its jobs' processes live on."""
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def states(self) -> Mapping[str, str]:
        """Node -> its state, such as idle, mixed, down*."""
        lines = run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self, states: str = "all") -> list[tuple[str, str, str]]:
        """(id, state, comment) of each job; Snakemake's comment names rule and wildcards."""
        lines = run("squeue", "--noheader", f"--states={states}", "--format=%i|%T|%k").splitlines()
        return [(number, state, comment) for number, state, comment in (line.split("|", 2) for line in lines)]

    def log(self, name: str) -> str:
        """What a daemon wrote."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _stop(self) -> None:
        """The nodes first, so that they can still ask the others; whoever does not end in time is killed."""
        for name in reversed(list(self.processes)):
            process = self.processes.pop(name)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """SLURM with its files in `folder`; afterwards no process and no file outside of it is left."""
    install()
    written = CONFIGURATION / "slurm.conf"
    if written.exists() and OURS not in written.read_text():
        raise Unavailable(f"{written} is of a real cluster: its jobs would not be ours to run")
    folder.chmod(0o755)
    slurm = Slurm(folder)
    files = _configuration(folder)
    CONFIGURATION.mkdir(exist_ok=True)
    for name, text in files.items():
        (CONFIGURATION / name).write_text(f"{OURS}\n{text}")
    try:
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        parts = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        options = [f"--{option}={folder / name}" for option, name in parts.items()]
        slurm._start("munged", ["munged", "--foreground", "--force", f"--log-file={folder}/munged.log", *options])
        wait_for(lambda: (folder / "munge.socket").exists(), "munged", slurm)
        slurm._start("slurmctld", ["slurmctld", "-D"])
        for name in NODES:
            slurm.start_node(name)
        wait_for(lambda: set(_or_nothing(slurm.states).values()) == {"idle"}, "idle nodes", slurm)
        yield slurm
    finally:
        if slurm.processes:
            subprocess.run(["scancel", "--signal=KILL", "--user=root"], capture_output=True, timeout=60)
            subprocess.run(["scancel", "--user=root"], capture_output=True, timeout=60)
            _ended(slurm)
        slurm._stop()
        for name in files:
            (CONFIGURATION / name).unlink()


def run(*command: str, timeout: float = 60) -> str:
    """What a command of SLURM printed; raises `CalledProcessError`."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout).stdout


def wait_for(condition: Callable[[], object], what: str, slurm: Slurm, seconds: float = START_SECONDS) -> None:
    """Waits until `condition` holds; `AssertionError` with the daemons' last words where it does not."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            logs = "\n".join(f"-- {name}\n{slurm.log(name)[-1500:]}" for name in slurm.processes)
            raise AssertionError(f"no {what} after {seconds:.0f} s\n{logs}")
        time.sleep(0.2)


def _ended(slurm: Slurm) -> None:
    end = time.monotonic() + STOP_SECONDS
    while time.monotonic() < end and _or_nothing(lambda: {job[0]: job[1] for job in slurm.jobs("running,completing")}):
        time.sleep(0.2)


def _or_nothing(ask: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    try:
        return ask()
    except subprocess.CalledProcessError:  # the controller does not answer yet, or no more
        return {}


def _configuration(folder: Path) -> dict[str, str]:
    """Name -> text of SLURM's files."""
    host = socket.gethostname().partition(".")[0]
    ports = _free_ports(1 + len(NODES))
    for name in ("state", *NODES):
        (folder / name).mkdir()
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=8000 Gres=gpu:fake:1"
        for name, port in zip(NODES, ports[1:], strict=True)
    )
    return {
        "slurm.conf": f"""\
ClusterName=ddrl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
MinJobAge=300
KillWait=15
SlurmdTimeout=15
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=batch Nodes={",".join(NODES)} Default=YES PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes={",".join(NODES)} PriorityTier=10 PreemptMode=OFF
""",
        "gres.conf": f"AutoDetect=off\nNodeName={','.join(NODES)} Name=gpu Type=fake Count=1 File=/dev/null\n",
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
