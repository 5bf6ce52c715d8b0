"""What the jobs of a workflow ask of a cluster: a site file says it, in one place, for every rule and scale.

A site file is a list of entries, each with the jobs that it is about and what it sets for them, as the departures of
`experiments.yaml` are; of entries about the same job, a later one overrides an earlier one, key by key. How many cores,
how much memory and how many GPUs a training run needs stands in `experiments.yaml`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import ROOT, Resources, load_experiments, papers
from ddrl.papers.schema import load_checked

TRAIN = "train"
"""The rule whose jobs are training runs."""
RULES = (TRAIN, "aggregate", "aggregate_suite", "figure", "figures_suite", "report", "report_suite")
"""Those of the workflow, as a site file names them."""
SMALL = Resources(threads=1, memory_mib=2000, gpus=0)
"""What a job of any other rule needs."""
SNAKEMAKE_MIB = 1000
"""A job on a cluster is a Snakemake that runs the rule's command: its own memory, beside the command's."""
ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Job:
    """A job as the entries of a site file see it."""

    rule: str
    scale: str
    paper: str | None = None
    experiment: str | None = None
    needs: Resources = SMALL


@dataclass(frozen=True)
class Entry:
    """Settings for the jobs that every given condition fits (None: any)."""

    settings: Mapping[str, Any]
    rules: tuple[str, ...] | None
    scales: tuple[str, ...] | None
    papers: tuple[str, ...] | None
    experiments: tuple[str, ...] | None
    gpu: bool | None

    def fits(self, job: Job) -> bool:
        """Whether this entry is about a job."""
        lists = ((self.rules, job.rule), (self.scales, job.scale), (self.papers, job.paper))
        chosen = (*lists, (self.experiments, job.experiment))
        return all(names is None or name in names for names, name in chosen) and (
            self.gpu is None or self.gpu == (job.needs.gpus > 0)
        )


@dataclass(frozen=True)
class Request:
    """What a job asks for, on each of its nodes."""

    cpus: int
    memory_mib: int
    gpus: int
    nodes: int
    minutes: int | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    gres: str

    def resources(self, attempt: int, site: Site) -> dict[str, Any]:
        """As the SLURM executor of Snakemake reads them, for attempt 1, 2, ...; what was not set is left out."""
        asked = {
            "mem_mb": round(self.memory_mib * site.memory_growth ** (attempt - 1)),
            "cpus_per_task": self.cpus,
            "runtime": self.minutes and round(self.minutes * site.minutes_growth ** (attempt - 1)),
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "gres": f"{self.gres}:{self.gpus}" if self.gpus else None,
            "nodes": self.nodes if self.nodes > 1 else None,
            "tasks": self.nodes if self.nodes > 1 else None,
            "mpi": "srun" if self.nodes > 1 else None,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Site:
    """A cluster, as its site file describes it; made by `load_site`."""

    path: Path
    entries: tuple[Entry, ...]
    memory_growth: float
    minutes_growth: float

    def request(self, job: Job) -> Request:
        """What a job asks for."""
        found: dict[str, Any] = {}
        for entry in self.entries:
            if entry.fits(job):
                found |= entry.settings
        return Request(
            cpus=found.get("cpus", job.needs.threads),
            memory_mib=found.get("memory_mib", job.needs.memory_mib + SNAKEMAKE_MIB),
            gpus=job.needs.gpus,
            nodes=job.needs.nodes,
            minutes=found.get("minutes"),
            partition=found.get("partition"),
            account=found.get("account"),
            qos=found.get("qos"),
            constraint=found.get("constraint"),
            gres=found.get("gres", "gpu"),
        )


def load_site(path: Path, *, rules: Iterable[str], papers: Mapping[str, Iterable[str]]) -> Site:
    """Reads a site file. `rules`: of the workflow; `papers`: paper -> its experiments.

    Raises: UserError naming file, key and what is allowed, also for a rule, paper or experiment that does not exist.
    """
    data = load_checked(path, "site")
    experiments = {name for names in papers.values() for name in names}
    known = (("rules", set(rules)), ("papers", set(papers)), ("experiments", experiments))
    entries = []
    for index, item in enumerate(data["jobs"]):
        for kind, allowed in known:
            for name in item.get(kind, ()):
                if name not in allowed:
                    raise unknown_name(kind.removesuffix("s"), name, allowed, where=f"{path}: key 'jobs.{index}'")
        lists = {name: tuple(item[name]) if name in item else None for name in ("rules", "scales", "papers")}
        chosen = tuple(item["experiments"]) if "experiments" in item else None
        entries.append(Entry(settings=item["set"], experiments=chosen, gpu=item.get("gpu"), **lists))
    return Site(path, tuple(entries), data.get("memory_growth", 1.5), data.get("minutes_growth", 1.0))


def load_for(path: Path, root: Path = ROOT) -> Site:
    """The site file, for the rules of the workflow and the papers below `root`."""
    return load_site(path, rules=RULES, papers={name: load_experiments(root / name) for name in papers(root)})


def check_partitions(site: Site) -> None:
    """Raises `UserError`, before anything is submitted, for a partition that this cluster does not have."""
    named = {str(entry.settings["partition"]) for entry in site.entries if "partition" in entry.settings}
    if not named:
        return
    try:
        command = ["sinfo", "--noheader", "--format=%R"]
        answer = subprocess.run(
            command, check=True, capture_output=True, encoding="utf-8", errors="replace", timeout=ANSWER_SECONDS
        )
    except FileNotFoundError:
        raise UserError("sinfo: no such command; the profile slurm is for a machine that can submit jobs") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = str(getattr(error, "stderr", "") or error).strip()
        raise UserError(f"SLURM does not answer: {' '.join(said.split())}") from None
    known = answer.stdout.split()
    for names in sorted(named):
        for name in names.split(","):
            if name not in known:
                raise unknown_name("partition", name, known, where=str(site.path))
