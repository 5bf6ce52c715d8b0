"""SLURM on this host alone: munged, slurmctld and a slurmd for each node, started here and ended by their own numbers.

The nodes are names for this machine, each with two cores, 8 GB and one GPU that is none; those of partition `pair` are
hosts of their own in a network. Tests that take a node away from others, or kill it, have nodes of their own. There
are no cgroups and no accounting database, as on many small clusters.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import debian
from tests.debian import Unavailable
from tests.slurm import network

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip")
CONFIGURATION = Path("/etc/slurm")
"""Where SLURM looks by itself. Job steps of Snakemake are started without `SLURM_CONF`, so no other place will do."""
OURS = "# Written by the tests of ddrl; deleted when they end."
PARTITIONS = {
    "batch": ("n1", "n2"),
    "preempted": ("n3",),
    "urgent": ("n3",),
    "lossy": ("n4", "n5"),
    "pair": ("n6", "n7"),
}
HOSTS = PARTITIONS["pair"]
NODES = tuple(sorted({node for nodes in PARTITIONS.values() for node in nodes}))
START_SECONDS = 60.0
STOP_SECONDS = 20.0


def install() -> None:
    """Installs Debian's packages where they are missing. Raises `Unavailable` where that cannot be done."""
    if os.geteuid() != 0:
        raise Unavailable("SLURM's daemons are started as root, and this is another user")
    debian.install(PROGRAMS, PACKAGES)


@dataclass(frozen=True)
class Slurm:
    """A running SLURM. `folder` holds its state, and a log and a process number for each daemon."""

    folder: Path

    def start_node(self, name: str) -> None:
        """Starts the slurmd of a node, anew where it has died."""
        host = network.enter(name) if name in HOSTS else []
        self.start(name, [*host, "slurmd", "-D", "-N", name])

    def kill_node(self, name: str) -> None:
        """SIGKILL to the slurmd of a node, and to nothing else: its jobs' processes live on."""
        daemon = self.process(name)
        daemon.kill()
        (self.folder / f"{name}.number").unlink()
        with suppress(psutil.NoSuchProcess):
            while daemon.status() != psutil.STATUS_ZOMBIE:  # until the process that started it asks after it
                time.sleep(0.05)

    def states(self) -> Mapping[str, str]:
        """Node -> its state, such as idle, mixed, down*."""
        lines = run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self, checkout: Path, states: str = "all") -> list[str]:
        """The numbers of the jobs that were submitted from a folder."""
        lines = run("squeue", "--noheader", f"--states={states}", "--format=%A|%Z").splitlines()
        return [number for number, _, folder in (line.partition("|") for line in lines) if folder == str(checkout)]

    def log(self, name: str) -> str:
        """What a daemon wrote."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def daemons(self) -> list[str]:
        """Those at work, the last one started first."""
        numbers = sorted(self.folder.glob("*.number"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return [path.stem for path in numbers]

    def process(self, name: str) -> psutil.Process:
        """A daemon's. Raises `NoSuchProcess` where it has ended."""
        return psutil.Process(int((self.folder / f"{name}.number").read_text()))

    def start(self, name: str, command: list[str]) -> None:
        """Starts a daemon."""
        with (self.folder / f"{name}.log").open("ab") as log:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        (self.folder / f"{name}.number").write_text(str(daemon.pid))

    def stop(self) -> None:
        """Ends all jobs, then the daemons, nodes first, so that they can still ask the others."""
        if self.daemons():
            for signal in (["--signal=KILL"], []):
                subprocess.run(["scancel", *signal, "--user=root"], capture_output=True, timeout=60)
            _ended()
        for name in self.daemons():
            with suppress(psutil.NoSuchProcess):
                daemon = self.process(name)
                daemon.terminate()
                try:
                    daemon.wait(STOP_SECONDS)
                except psutil.TimeoutExpired:
                    daemon.kill()
                    daemon.wait(STOP_SECONDS)


@contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """SLURM with its files in `folder`; afterwards no process and no file outside of it is left."""
    install()
    written = CONFIGURATION / "slurm.conf"
    if written.exists() and OURS not in written.read_text():
        raise Unavailable(f"{written} is of a real cluster: its jobs would not be ours to run")
    folder.chmod(0o755)
    slurm = Slurm(folder)
    with ExitStack() as stack:
        try:
            addresses = stack.enter_context(network.hosts(HOSTS))
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"no hosts in a network of their own: {' '.join(error.cmd)}: {error.stderr}") from error
        files = _configuration(folder, addresses)
        CONFIGURATION.mkdir(exist_ok=True)
        for name, text in files.items():
            stack.callback((CONFIGURATION / name).unlink)
            (CONFIGURATION / name).write_text(f"{OURS}\n{text}")
        stack.callback(slurm.stop)
        _start_all(slurm)
        yield slurm


def _start_all(slurm: Slurm) -> None:
    folder = slurm.folder
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    parts = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "munge.seed"}
    options = [f"--{option}={folder / name}" for option, name in parts.items()]
    slurm.start("munged", ["munged", "--foreground", "--force", f"--log-file={folder}/munged.log", *options])
    wait_for(lambda: (folder / "munge.socket").exists(), "munged", slurm)
    slurm.start("slurmctld", ["slurmctld", "-D"])
    for name in NODES:
        slurm.start_node(name)
    wait_for(lambda: set(_or_nothing(slurm.states).values()) == {"idle"}, "idle nodes", slurm)


def run(*command: str, timeout: float = 60) -> str:
    """What a command of SLURM printed; raises `CalledProcessError`."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout).stdout


def wait_for(condition: Callable[[], object], what: str, slurm: Slurm, seconds: float = START_SECONDS) -> None:
    """Waits until `condition` holds; `AssertionError` with the daemons' last words where it does not."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            logs = "\n".join(f"-- {name}\n{slurm.log(name)[-1500:]}" for name in slurm.daemons())
            raise AssertionError(f"no {what} after {seconds:.0f} s\n{logs}")
        time.sleep(0.2)


def _ended() -> None:
    end = time.monotonic() + STOP_SECONDS
    while time.monotonic() < end and _or_nothing(_at_work):
        time.sleep(0.2)


def _at_work() -> Mapping[str, str]:
    lines = run("squeue", "--noheader", "--states=running,completing", "--format=%i %T").splitlines()
    return dict(line.split() for line in lines)


def _or_nothing(ask: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    try:
        return ask()
    except subprocess.CalledProcessError:  # the controller does not answer yet, or no more
        return {}


def _configuration(folder: Path, addresses: Mapping[str, str]) -> dict[str, str]:
    """Name -> text of SLURM's files. `addresses` are those of the nodes with one of their own."""
    host = socket.gethostname().partition(".")[0]
    ports = _free_ports(1 + len(NODES))
    for name in ("state", *NODES):
        (folder / name).mkdir()
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr={addresses.get(name, '127.0.0.1')} Port={port} CPUs=2"
        " RealMemory=8000 Gres=gpu:fake:1"
        for name, port in zip(NODES, ports[1:], strict=True)
    )
    preemption = {"batch": "Default=YES", "preempted": "PriorityTier=1 GraceTime=30"}
    preemption |= {"urgent": "PriorityTier=10 PreemptMode=OFF"}
    partitions = "\n".join(
        f"PartitionName={name} Nodes={','.join(members)} {preemption.get(name, '')}"
        for name, members in PARTITIONS.items()
    )
    return {
        "slurm.conf": f"""\
ClusterName=ddrl
SlurmctldHost={host}({network.HERE})
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
KillWait=30
SlurmdTimeout=15
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{partitions}
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
