"""Members that are runs on Ray with two learners each: decisions, copies into both learners, resumes, refusals."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ddrl.api.launch import train
from ddrl.errors import UserError
from ddrl.population import controller, member
from ddrl.population.display import MemberDisplay
from ddrl.population.journal import Journal
from ddrl.training.config.run_config import RunConfig, parse_run_config, to_json
from ddrl.training.records import checkpoint
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics
from tests.population.population_test import lineage, small, summary
from tests.runs import merged
from tests.runs import small as tiny
from tests.runtimes.conftest import disconnected, forking, held, holder
from tests.runtimes.ray.clusters import meanwhile, start, wait_until, workers

__all__ = ["disconnected", "forking", "held", "holder"]

TWO_LEARNERS = {"runtime": "ray", "num_learners": 2, "num_actors": 2, "envs_per_actor": 4}
SELDOM = {"period_frames": 1000}
"""To write a checkpoint to the disk takes as long as to train some hundred frames."""
DECISIVE = {"size": 2, "burn_in_frames": 0, "period_frames": 600, "perturb_probability": 1.0}


def members(changes: dict[str, Any] | None = None, **overrides: Any) -> RunConfig:
    """Two members of two learners and two actors each, three decisions each."""
    topology = TWO_LEARNERS | overrides.pop("topology", {})
    return small(DECISIVE | (changes or {}), topology=topology, **{"env_frames": 1800} | overrides)


def ranks_of(directory: Path, number: int) -> list[dict[str, Any]]:
    """The newest checkpoint of each of a member's two learners."""
    folder = directory / "members" / str(number) / "checkpoints"
    (lead, _), (follower, _) = checkpoint.load_newest(folder), checkpoint.load_newest(folder / "rank1")
    assert lead is not None and follower is not None
    return [lead, follower]


def assert_ranks_are_equal(directory: Path, number: int) -> None:
    """Bit for bit: networks, what the optimizer has gathered and goes by, what actors act with, counters."""
    lead, follower = ranks_of(directory, number)
    for part in ("network", "optimizer", "counters"):
        torch.testing.assert_close(lead["learner"][part], follower["learner"][part], rtol=0, atol=0)
    torch.testing.assert_close(lead["params"]["history"], follower["params"]["history"], rtol=0, atol=0)
    assert lead["marks"] == follower["marks"]


def whole(directory: Path, size: int = 2) -> None:
    """All members reached the budget, no decision is lost or made twice, and learners agree."""
    table = lineage(directory)
    assert list(table.groupby("member").kind.last()) == ["final"] * size
    for number, own in table.groupby("member"):
        assert list(own.decision) == list(range(len(own)))
        assert own.env_frames.is_monotonic_increasing
        assert_ranks_are_equal(directory, int(str(number)))


@pytest.mark.system
@pytest.mark.usefixtures("holder")
def test_members_with_two_learners_copy_and_perturb_in_both(tmp_path: Path) -> None:
    assert train(members(), tmp_path, quiet=True) == "budget_reached"
    whole(tmp_path)
    table = lineage(tmp_path)
    assert list(table.member) == [0, 1, 0, 1, 0, 1]
    assert table.copied.any()
    evolved = table[(table.kind == "evolve")]
    assert (evolved["optimizer.learning_rate_before"] != evolved["optimizer.learning_rate_after"]).all()
    assert summary(tmp_path)["copies"] == table.copied.sum()
    for number in range(2):
        final = table[table.member == number].iloc[-1]
        for one in ranks_of(tmp_path, number):
            (group,) = one["learner"]["optimizer"]["param_groups"]
            assert group["lr"] == pytest.approx(final["optimizer.learning_rate_before"])
    evaluations = [
        line
        for path in tmp_path.glob("members/*/curves.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
        if "evaluation_return" in line["metrics"]
    ]
    assert [len(line["metrics"]["evaluation_return"]) for line in evaluations] == [5]


@pytest.mark.system
@pytest.mark.usefixtures("holder")
def test_a_population_interrupted_within_a_turn_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = members({"period_frames": 4000}, env_frames=12_000, checkpoint=SELDOM)
    led = controller.Controller(config, tmp_path, quiet=True)
    show = MemberDisplay.show

    def interrupting(self: MemberDisplay, counts: Counts, latest: Metrics) -> None:
        show(self, counts, latest)
        newest = led._journal.newest(self._member)
        if newest is not None and newest.decision == 0 and counts.env_frames > newest.env_frames:
            led.interrupt()

    monkeypatch.setattr(MemberDisplay, "show", interrupting)
    assert led.train() == "interrupted"
    monkeypatch.setattr(MemberDisplay, "show", show)
    assert not (tmp_path / "run.json").exists()
    before = Journal(tmp_path).decisions
    assert len(before) == 2
    lead, follower = ranks_of(tmp_path, 0)
    assert lead["marks"] == follower["marks"] == {"segment": 1}
    assert lead["learner"]["counters"][0] > before[0].env_frames
    assert_ranks_are_equal(tmp_path, 0)
    assert train(config, tmp_path, quiet=True) == "budget_reached"
    assert Journal(tmp_path).decisions[:2] == before
    whole(tmp_path)


@pytest.mark.system
@pytest.mark.usefixtures("holder")
def test_two_members_at_once_end_their_segments_after_so_many_episodes(tmp_path: Path) -> None:
    changes = {"parallel": 2, "period_frames": None, "ready_episodes": 60}
    assert train(members(changes, topology={"num_learners": 2}), tmp_path, quiet=True) == "budget_reached"
    whole(tmp_path)
    table = lineage(tmp_path)
    for _, own in table.groupby("member"):
        counted = own.episodes.diff().fillna(own.episodes.iloc[0])[own.kind != "final"]
        assert len(counted) >= 1
        assert (counted >= 60).all()


@pytest.mark.system
def test_a_population_that_is_killed_within_a_turn_loses_no_decision(tmp_path: Path, forking: dict[str, str]) -> None:
    """kill -9, in a cluster of its own, which then is gone as well."""
    config = to_json(members(env_frames=2400))
    for decisions in (1, 3):
        process = start(config, tmp_path, **forking)
        wait_until(lambda least=decisions: made(tmp_path) >= least or process.returncode is not None)  # type: ignore[misc]
        newest = set(tmp_path.glob("members/*/checkpoints/*.sha256"))
        wait_until(lambda known=newest: bool(set(tmp_path.glob("members/*/checkpoints/*.sha256")) - known))  # type: ignore[misc]
        assert process.returncode is None, process.written()
        process.send_signal(signal.SIGKILL)
        process.ended(60)
    before = Journal(tmp_path).decisions
    again = start(config, tmp_path, **forking)
    said = again.ended(240)
    assert again.returncode == 0, said
    assert Journal(tmp_path).decisions[: len(before)] == before
    whole(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 2


@pytest.mark.system
def test_sigterm_stops_members_with_checkpoints(tmp_path: Path, forking: dict[str, str]) -> None:
    process = start(to_json(members({"period_frames": 40_000, "parallel": 2}, env_frames=80_000)), tmp_path, **forking)
    wait_until(lambda: len(list(tmp_path.glob("members/*/checkpoints/rank1/*.sha256"))) >= 2)
    process.send_signal(signal.SIGTERM)
    said = process.ended(90)
    assert process.returncode == 75, said
    assert "Traceback" not in said
    for number in range(2):
        assert_ranks_are_equal(tmp_path, number)


@pytest.mark.system
def test_inference_services_of_members_at_once_are_apart(tmp_path: Path, forking: dict[str, str]) -> None:
    """In a cluster of its own, where they are sockets in one folder."""
    process = start(to_json(members({"parallel": 2}, topology={"inference": "central"})), tmp_path, **forking)
    said = process.ended(150)
    assert process.returncode == 0, said
    whole(tmp_path)


@pytest.mark.system
def test_a_learner_that_dies_is_replaced_and_its_turn_goes_on(
    tmp_path: Path, holder: psutil.Process, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill_one() -> None:
        wait_until(lambda: any(tmp_path.glob("members/1/checkpoints/rank1/*.sha256")))
        workers(holder, "LearnerProcess")[0].kill()

    killing = meanwhile(kill_one)
    try:
        assert train(members({"period_frames": 4000}, env_frames=8000, checkpoint=SELDOM), tmp_path) == "budget_reached"
    finally:
        killing.join()
    assert "member 1: the learner died" in capsys.readouterr().err
    whole(tmp_path)


@pytest.mark.system
@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        ("apex_dqn", {"num_learners": 1, "replay": "own"}),
        ("ppo", {"schedule": "synchronous"}),
    ],
)
def test_members_on_ray_may_be_any_run_with_versions(tmp_path: Path, algorithm: str, topology: dict[str, Any]) -> None:
    """Two at once where eight slots suffice."""
    tuned = {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2}}
    values = merged(to_json(members(env_frames=1200)), {"algorithm": algorithm, "topology": topology})
    values["hyperparameters"] = tiny(algorithm)
    values["population"] |= {"tuned": tuned, "parallel": 2}
    assert train(parse_run_config(values), tmp_path, quiet=True) == "budget_reached"
    assert list(lineage(tmp_path).groupby("member").kind.last()) == ["final"] * 2
    if topology.get("num_learners") != 1:
        whole(tmp_path)


def made(directory: Path) -> int:
    """Decisions so far."""
    path = directory / "lineage.jsonl"
    return path.read_text().count('"decision"') if path.exists() else 0


def test_a_cluster_without_room_for_all_members_at_once_is_said_in_a_line(
    tmp_path: Path, holder: psutil.Process
) -> None:
    words = (
        r"^the Ray cluster has 8 CPUs; 3 members at once, each with 2 actors .* need 12 \(keys .*population.parallel\)"
    )
    with pytest.raises(UserError, match=words):
        train(members({"size": 3, "parallel": 3}), tmp_path, quiet=True)
    wait_until(lambda: not workers(holder, "LearnerProcess"))


def test_a_learner_that_follows_begins_a_segment_as_the_lead_does() -> None:
    def learner(value: float, epsilon: float) -> dict[str, Any]:
        optimizer = {"state": {0: value}, "param_groups": [{"epsilon": epsilon}]}
        return {"network": value, "optimizer": optimizer, "counters": [int(value), 1, 2]}

    own = {"learner": learner(1.0, 0.1), "params": {"history": [[7, [1.0]]]}, "next_checkpoint": 9, "marks": {}}
    theirs = {"learner": {key: learner(9.0, 0.9)[key] for key in ("network", "optimizer")}, "tensors": ["theirs"]}
    state = member.begun(own, theirs, learner(0.0, 0.5), ())
    assert state == {
        "learner": learner(9.0, 0.5) | {"counters": [1, 1, 2]},
        "params": {"history": [[7, ["theirs"]]]},
        "next_checkpoint": 9,
        "marks": {},
    }
