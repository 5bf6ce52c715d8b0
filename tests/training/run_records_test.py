"""What a learner of another rank keeps of itself, beside the records of rank 0."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ddrl.inference.endpoint import Endpoint
from ddrl.runtimes.threads import ThreadsRuntime
from ddrl.training.run import Run
from ddrl.training.run_records import RankRecords
from ddrl.types import Episode
from tests.runs import config

CENTRAL = {"runtime": "ray", "inference": "central", "num_actors": 2, "num_learners": 2}
SECOND: Any = SimpleNamespace(rank=1, size=2, sum_=lambda tensors: None)


def second(directory: Path) -> Run:
    """The learner of rank 1 of two, whose actor's environments are elsewhere."""
    endpoint = Endpoint(f"unix:{directory / 'socket'}", "token")
    return Run(
        config(topology=CENTRAL),
        directory,
        make_runtime=ThreadsRuntime,
        reducer=SECOND,
        remote_actors=True,
        endpoint=endpoint,
        forward=lambda episode: None,
    )


def seed_offered(run: Run) -> Any:
    """Return the seed that the first worker of its actor is told."""
    assert run.remote is not None
    return run.remote._offer(1, 0)["seed"]


def test_environments_of_another_rank_play_no_episode_twice_when_the_run_is_continued(tmp_path: Path) -> None:
    seeds, run = [], second(tmp_path)
    for resumes in range(3):
        assert run.resumes == resumes
        seeds.append(seed_offered(run))
        run._save()
        run = second(tmp_path)
        run.resume_at(0)
    assert len(set(seeds)) == 3


def test_another_rank_writes_no_records_and_sends_its_episodes_to_rank_0(tmp_path: Path) -> None:
    run = second(tmp_path)
    run._save()
    run.resume_at(0)
    assert {path.parts[-2:] for path in tmp_path.rglob("*.pt")} == {("rank1", f"{0:012d}.pt")}
    assert not list(tmp_path.glob("*.*"))
    sent: list[Episode] = []
    RankRecords(sent.append).episode(Episode("toy/catch", 1.0, 9))
    assert [episode.length for episode in sent] == [9]


def test_a_checkpoint_of_before_ranks_counted_resumes_is_the_first_one(tmp_path: Path) -> None:
    records = RankRecords(lambda episode: None)
    assert records.load_state_dict({"next_checkpoint": 500}) == 500
    assert records.resumes == 1
