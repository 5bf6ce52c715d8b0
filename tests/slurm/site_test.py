"""Site files: which entry sets what for which job, what a job then asks for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ddrl.errors import UserError
from ddrl.papers.experiments import Resources
from ddrl.slurm.site import SNAKEMAKE_MIB, Job, Site, check_partitions, load_for

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "workflows" / "profiles" / "slurm" / "site.example.yaml"
GPU = Resources(threads=16, memory_mib=16000, gpus=2)
NO_GPU = Resources(threads=2, memory_mib=3000, gpus=0)


def site(tmp_path: Path, *jobs: dict[str, object], **rest: object) -> Site:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({"jobs": list(jobs), **rest}))
    return load_for(path, ROOT / "replications")


def training(scale: str = "paper", needs: Resources = NO_GPU, experiment: str = "workers") -> Job:
    return Job("train", scale, "impact_2020", experiment, needs)


def test_a_later_entry_overrides_an_earlier_one_key_by_key(tmp_path: Path) -> None:
    given = site(
        tmp_path,
        {"set": {"partition": "cpu", "minutes": 60, "account": "lab"}},
        {"rules": ["train"], "set": {"minutes": 600}},
        {"rules": ["train"], "scales": ["paper"], "set": {"minutes": 2880}},
        {"gpu": True, "set": {"partition": "gpu", "gres": "gpu:a100"}},
    )
    assert given.request(Job("aggregate", "paper")).minutes == 60
    assert given.request(training("smoke")).minutes == 600
    asked = given.request(training(needs=GPU))
    assert (asked.partition, asked.minutes, asked.account) == ("gpu", 2880, "lab")
    assert asked.resources(1, given)["gres"] == "gpu:a100:2"
    assert "gres" not in given.request(training()).resources(1, given)


def test_entries_for_papers_and_experiments_are_about_training_alone(tmp_path: Path) -> None:
    given = site(
        tmp_path,
        {"set": {"minutes": 1}},
        {"papers": ["impact_2020"], "set": {"minutes": 2}},
        {"experiments": ["continuous"], "set": {"minutes": 3}},
    )
    assert given.request(training()).minutes == 2
    assert given.request(training(experiment="continuous")).minutes == 3
    assert given.request(Job("aggregate", "smoke")).minutes == 1


def test_what_nobody_sets_is_not_asked_for_and_the_rest_follows_from_the_run(tmp_path: Path) -> None:
    given = site(tmp_path, {"set": {"minutes": 30}})
    asked = given.request(training()).resources(1, given)
    assert asked == {"mem_mb": 3000 + SNAKEMAKE_MIB, "cpus_per_task": 2, "runtime": 30}


def test_every_retry_asks_for_more(tmp_path: Path) -> None:
    given = site(tmp_path, {"set": {"memory_mib": 1000, "minutes": 10, "cpus": 4}}, memory_growth=2, minutes_growth=1.5)
    asked = [given.request(training()).resources(attempt, given) for attempt in (1, 2, 3)]
    assert [(one["mem_mb"], one["runtime"], one["cpus_per_task"]) for one in asked] == [
        (1000, 10, 4),
        (2000, 15, 4),
        (4000, 22, 4),
    ]


def test_a_run_over_several_nodes_asks_for_one_task_on_each(tmp_path: Path) -> None:
    given = site(tmp_path, {"set": {"minutes": 30}})
    needs = Resources(threads=2, memory_mib=3000, gpus=0, nodes=3)
    asked = given.request(training(needs=needs)).resources(1, given)
    assert (asked["nodes"], asked["tasks"], asked["mpi"]) == (3, 3, "srun")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"set": {"partiton": "cpu"}}, "did you mean 'partition'?"),
        ({"set": {"partition": "cpu; rm -r"}}, "jobs.0.set.partition"),
        ({"set": {"gres": "fpga:1"}}, "jobs.0.set.gres"),
        ({"set": {"minutes": 0}}, "jobs.0.set.minutes"),
        ({"set": {}}, "jobs.0.set"),
        ({"scales": ["nightly"], "set": {"minutes": 1}}, "allowed: paper, smoke, workstation"),
        ({"rules": ["trian"], "set": {"minutes": 1}}, "did you mean 'train'?"),
        ({"papers": ["impala"], "set": {"minutes": 1}}, "did you mean 'impala_2018'?"),
        ({"experiments": ["worker"], "set": {"minutes": 1}}, "did you mean 'workers'?"),
    ],
)
def test_what_is_not_allowed_is_named_with_its_file(tmp_path: Path, entry: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=r"site\.yaml") as caught:
        site(tmp_path, entry)
    assert says in str(caught.value)


def test_the_example_is_a_site_file() -> None:
    given = load_for(EXAMPLE, ROOT / "replications")
    assert given.request(training(needs=GPU)).partition == "gpu"
    assert given.request(training("workstation")).minutes == 720


def sinfo(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that answers `sinfo` so."""
    command = folder / "bin" / "sinfo"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent))


def test_a_partition_that_the_cluster_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinfo(tmp_path, "echo cpu; echo gpu_long", monkeypatch)
    check_partitions(site(tmp_path, {"set": {"partition": "cpu"}}, {"gpu": True, "set": {"partition": "cpu,gpu_long"}}))
    check_partitions(site(tmp_path, {"set": {"minutes": 5}}))
    with pytest.raises(
        UserError, match=r"unknown partition 'gpu_lng' \(did you mean 'gpu_long'\?\); allowed: cpu, gpu"
    ):
        check_partitions(site(tmp_path, {"set": {"partition": "cpu,gpu_lng"}}))


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = site(tmp_path, {"set": {"partition": "cpu"}})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="sinfo: no such command"):
        check_partitions(given)
    sinfo(tmp_path, "echo 'Unable to contact slurm controller' >&2; exit 1", monkeypatch)
    with pytest.raises(UserError, match="SLURM does not answer: Unable to contact slurm controller"):
        check_partitions(given)
