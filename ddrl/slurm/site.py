"""The requests of a workflow's jobs to a SLURM cluster, as one site file says for every rule and scale.

A site file is a list of entries: which jobs an entry is about, and what it sets for them. Of the entries about one job,
later ones override earlier ones, key by key. Cores, memory and GPUs of a training run stand in `experiments.yaml`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import ROOT, Resources, Roots, folder_of, load_experiments, papers
from ddrl.papers.schema import load_checked

TRAIN = "train"
"""The rule whose jobs are training runs."""
RULES = (TRAIN, "aggregate", "aggregate_suite", "figure", "figures_suite", "report", "report_suite", "report_index")
"""The rules of the workflow, as a site file names them."""
SMALL = Resources(threads=1, memory_mib=2000, gpus=0)
"""The needs of the jobs of all other rules."""
SNAKEMAKE_MIB = 1000
"""Memory of the Snakemake process that runs a job's command, added to the command's."""
ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Job:
    """A job, with the properties that the entries of a site file select by."""

    rule: str
    scale: str
    paper: str | None = None
    experiment: str | None = None
    needs: Resources = SMALL

    def fits(self, entry: Mapping[str, Any]) -> bool:
        """Return whether an entry of a site file is about this job."""
        conditions = {
            "rules": self.rule,
            "scales": self.scale,
            "papers": self.paper,
            "experiments": self.experiment,
        }
        gpu = self.needs.gpus > 0
        named = all(value in entry[name] for name, value in conditions.items() if name in entry)
        return named and entry.get("gpu", gpu) == gpu


@dataclass(frozen=True)
class JobRequest:
    """The request of a job for each of its nodes: its needs, and what the site file sets (None: not set)."""

    needs: Resources
    cpus: int | None = None
    memory_mib: int | None = None
    minutes: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str = "gpu"

    def resources(self, attempt: int, site: Site) -> dict[str, Any]:
        """Return the resources for Snakemake's SLURM executor at attempt 1, 2, ..., without those that are not set."""
        memory = self.memory_mib or self.needs.memory_mib + SNAKEMAKE_MIB
        nodes = self.needs.nodes if self.needs.nodes > 1 else None
        asked = {
            "mem_mb": round(memory * site.memory_growth ** (attempt - 1)),
            "cpus_per_task": self.cpus or self.needs.threads,
            "runtime": self.minutes and round(self.minutes * site.minutes_growth ** (attempt - 1)),
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "gres": f"{self.gres}:{self.needs.gpus}" if self.needs.gpus else None,
            "nodes": nodes,
            "tasks": nodes,
            "mpi": "srun" if nodes else None,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Site:
    """A cluster, as a site file (`workflows/schemas/site.schema.yaml`) describes it."""

    path: Path
    entries: Sequence[Mapping[str, Any]]
    memory_growth: float
    minutes_growth: float

    def request(self, job: Job) -> JobRequest:
        """Return what a job asks for."""
        settings: dict[str, Any] = {}
        for entry in self.entries:
            if job.fits(entry):
                settings |= entry["set"]
        return JobRequest(job.needs, **settings)


def load_for(path: Path, root: Roots = ROOT) -> Site:
    """Read a site file, for the rules of the workflow and the papers below `root`.

    Raise `UserError` naming file, key and what is allowed, also for a rule, paper or experiment that does not exist.
    """
    data = load_checked(path, "site")
    experiments = {name for paper in papers(root) for name in load_experiments(folder_of(paper, root))}
    known = {"rules": RULES, "papers": papers(root), "experiments": experiments}
    for index, entry in enumerate(data["jobs"]):
        for kind, allowed in known.items():
            for name in entry.get(kind, ()):
                if name not in allowed:
                    raise unknown_name(kind.removesuffix("s"), name, allowed, where=f"{path}: key 'jobs.{index}'")
    return Site(path, data["jobs"], data.get("memory_growth", 1.5), data.get("minutes_growth", 1.0))


def check_partitions(site: Site) -> None:
    """Raise `UserError`, before anything is submitted, if the cluster does not have a partition of the site file."""
    named = {str(entry["set"]["partition"]) for entry in site.entries if "partition" in entry["set"]}
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
