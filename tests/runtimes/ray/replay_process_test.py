"""Runtime ray with the replay in a process of its own: the same replay, whichever process it is in."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
import torch
from ray.exceptions import RayError

from ddrl.api.launch import train
from ddrl.errors import Closed, UserError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.runtimes.ray import replay_process
from ddrl.runtimes.ray.cluster import cluster
from ddrl.runtimes.ray.replay_process import RemoteReplay, ReplayLink, ReplayProcess, answer
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.learner_node import LearnerNode, make_replay
from ddrl.training.records import checkpoint
from ddrl.types import Experience
from tests.runs import REPLAYING, base_of, curves, merged
from tests.runtimes.ray import clusters

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # in processes of a run, too
OWN = {"runtime": "ray", "replay": "own"}
LIMITS = ("samples_per_insert", "error_buffer")
QUIET = {"evaluation": {"period_frames": None, "final_episodes": 4}, "recording": {"period_frames": 100}}


def chosen(algorithm: str = "apex_dqn", **changes: Any) -> RunConfig:
    """A small run of `algorithm` whose replay has a process of its own."""
    return parse_run_config(merged(merged(base_of(algorithm), QUIET | {"topology": OWN}), changes))


def parts(directory: Path) -> list[Path]:
    """Finished parts of checkpoints that the replay has written, the newest last."""
    return sorted(checkpoint.replay_folder(directory).glob("*.sha256"))


# Whole runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "prefetch"), [(REPLAYING[0], False), (REPLAYING[1], True)])
def test_actors_fill_a_replay_in_a_process_of_its_own(
    tmp_path: Path, holder: psutil.Process, algorithm: str, prefetch: bool
) -> None:
    found: set[str] = set()

    def look() -> None:
        clusters.wait_until(lambda: clusters.lines(tmp_path) > 3)
        for host in ("ReplayProcess", "LearnerProcess", "ActorProcess"):
            found.update(f"{host} {one.pid}" for one in clusters.workers(holder, host))

    watcher = clusters.meanwhile(look)
    config = chosen(algorithm, env_frames=3000, topology={"prefetch": prefetch})
    assert train(config, tmp_path, quiet=True) == "budget_reached"
    watcher.join()
    assert len({name.split()[1] for name in found}) == 4  # two actors
    assert sum(name.startswith("ReplayProcess") for name in found) == 1
    table = curves(tmp_path)
    assert table.env_frames.max() >= 3000
    last = table[table.updates == table.updates.max()].set_index("metric").value
    assert last["replay_samples_per_insert"] == pytest.approx(1.0, rel=0.1)
    assert 16 <= last["replay_items"] <= last["replay_steps"] <= 800
    assert last["episodes"] > 100
    clusters.wait_until(lambda: not clusters.workers(holder, "ReplayProcess"))


@pytest.mark.system
def test_a_replay_that_is_killed_goes_on_from_the_checkpoint_of_both(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: len(parts(tmp_path)) >= 2)
        clusters.workers(holder, "ReplayProcess")[0].send_signal(signal.SIGKILL)

    killer = clusters.meanwhile(kill)
    assert train(chosen(env_frames=3500), tmp_path) == "budget_reached"
    killer.join()
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["resumes"] == 1 and run["history"][1]["env_frames"] >= 300
    table = curves(tmp_path)
    frames = table[table.metric == "episodes"].env_frames
    assert frames.is_monotonic_increasing and not frames.duplicated().any() and frames.iloc[-1] >= 3500
    assert (table[table.metric == "replay_items"].value >= 16).all()  # never refilled
    shown = capfd.readouterr().err
    assert len(re.findall(r"the replay died \(.*\): continuing from the newest checkpoint", shown)) == 1
    assert "the learner died" not in shown and "resumed at" in shown and "refilled" not in shown


@pytest.mark.system
def test_one_that_is_not_saved_is_refilled(tmp_path: Path, holder: psutil.Process) -> None:
    config = chosen(env_frames=1500, checkpoint={"replay": "refilled"})
    train(config, tmp_path, quiet=True)
    assert not checkpoint.replay_folder(tmp_path).exists()
    state, _ = checkpoint.load_newest(tmp_path / "checkpoints")
    assert state is not None and "history" not in state["replay"] and state["replay"]["steps"] >= 375
    longer = chosen(env_frames=2500, checkpoint={"replay": "refilled"})
    assert train(longer, tmp_path, quiet=True) == "budget_reached"
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1


class SpoiledReplay(ReplayProcess):
    """It gets a bad priority with the tenth unroll."""

    def build(self) -> None:
        super().build()
        insert, count = self._replay.insert, iter(range(10**9))

        def spoiled(experience: Experience) -> None:
            if next(count) == 10:
                experience = experience.__class__(**vars(experience) | {"priority": experience.priority * torch.nan})
            insert(experience)

        self._replay.insert = spoiled  # type: ignore[method-assign]


@pytest.mark.system
@pytest.mark.parametrize(
    ("spoil", "changes", "message"),
    [
        (True, {}, r"^replay: an actor gave the priority nan; allowed: 0 and above, and finite$"),
        (False, {"hyperparameters": {"min_replay_size": 800}}, r"^the replay is full with \d+ items in 800 steps"),
    ],
    ids=["NaN", "never full enough"],
)
def test_what_the_replay_refuses_ends_the_run_with_its_line(
    tmp_path: Path,
    holder: psutil.Process,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    spoil: bool,
    changes: dict[str, Any],
    message: str,
) -> None:
    if spoil:
        monkeypatch.setattr(replay_process, "ReplayProcess", SpoiledReplay)
    with pytest.raises(UserError, match=message):
        train(chosen(env_frames=2**40, **changes), tmp_path)
    assert "Traceback" not in capfd.readouterr().err


# The process alone ----------------------------------------------------------------------------------------------------


class Pair:
    """A replay's process, and the learner's view of it."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        self.host = replay_process.start_process(config, directory, 2)
        ray.get(self.host.build.remote())
        self.replay = RemoteReplay(self.host)

    def link(self, actor: int) -> ReplayLink:
        """Of an actor that has begun."""
        link = ReplayLink(self.host, actor, 0)
        link.begin()
        return link


@pytest.fixture
def connected(holder: psutil.Process) -> Iterator[None]:
    """To the cluster."""
    with cluster(num_cpus=0, object_store_bytes=0):
        yield


def made(algorithm: str, number: int, actor: int = 0) -> list[Experience]:
    """What an actor makes of its first unrolls."""
    builder = Builder(free(algorithm), torch.device("cpu"))
    found: list[Experience] = []
    queue = SimpleNamespace(insert=found.append, can_insert=lambda: True)
    one = builder.actor(builder.collector(actor, lambda *_: None), LearnerNode(builder, SingleLearner()).params, queue)
    for _ in range(number):
        one.step()
    return found


def free(algorithm: str) -> RunConfig:
    """Whose actors and learner never wait for each other."""
    base = merged(base_of(algorithm), QUIET | {"topology": OWN})
    hyperparameters = {key: value for key, value in base["hyperparameters"].items() if key not in LIMITS}
    return parse_run_config(base | {"hyperparameters": hyperparameters | {"samples_per_insert": None}})


def assert_same(one: Any, other: Any) -> None:
    """Bit by bit."""
    for left, right in zip(one.tensors, other.tensors, strict=True):
        assert torch.equal(left, right)
    assert one.drawn.inserted_steps == other.drawn.inserted_steps


@pytest.mark.parametrize("algorithm", REPLAYING)
def test_what_is_drawn_is_what_was_inserted_also_after_it_was_saved_and_restored(
    tmp_path: Path, connected: None, algorithm: str
) -> None:
    pair, builder = Pair(tmp_path, free(algorithm)), Builder(free(algorithm), torch.device("cpu"))
    here = make_replay(builder, builder.network(), SingleLearner())
    links = [pair.link(actor) for actor in range(2)]
    for experience in (one for both in zip(made(algorithm, 9), made(algorithm, 9, 1), strict=True) for one in both):
        actor = int(experience.unroll.actor[0])
        links[actor].insert(experience)
        assert answer(links[actor]._sent)  # in this order
        here.insert(experience)
    assert pair.replay.take_gauges().items() >= here.take_gauges().items()
    first = pair.replay.sample(8)
    assert_same(first, here.sample(8))
    ray.wait([pair.replay._ahead])  # drawn before the priorities come
    ahead = here.sample(8)
    new = torch.linspace(0, 2, 8)
    for replay in (pair.replay, here):
        replay.update(first.drawn, new)
    assert_same(pair.replay.sample(8), ahead)
    ray.wait([pair.replay._ahead])
    here.sample(8)  # the one that is drawn ahead and lost
    with pair.replay.frozen():
        checksum = pair.replay.save(7)
    assert checksum == checkpoint.checksum(parts(tmp_path)[0].with_suffix(".pt"))
    ray.kill(pair.host)
    again = Pair(tmp_path, free(algorithm))
    again.replay.restore(7)
    for _ in range(3):
        ray.wait([again.replay._ahead] if again.replay._ahead else [again.host.pid.remote()])
        assert_same(again.replay.sample(8), here.sample(8))
    assert [again.replay.take_gauges()[name] for name in ("replay_items", "replay_steps")] == [
        here.take_gauges()[name] for name in ("replay_items", "replay_steps")
    ]
    ray.kill(again.host)


def test_nothing_is_inserted_or_drawn_while_both_halves_are_saved(tmp_path: Path, connected: None) -> None:
    pair, experiences = Pair(tmp_path, free("apex_dqn")), made("apex_dqn", 5)
    link = pair.link(0)
    for experience in experiences[:4]:
        link.insert(experience)
    assert answer(link._sent)
    pair.replay.sample(8)
    with pair.replay.frozen():
        before = pair.replay.counters()
        link.insert(experiences[4])
        drawing = pair.host.draw.remote(8)
        ended, _ = ray.wait([link._sent, drawing], timeout=0.5)
        assert not ended and str(pair.replay.counters()) == str(before)
    assert answer(link._sent) and answer(drawing) is not None
    assert pair.replay.counters()["steps"] > before["steps"]
    ray.kill(pair.host)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0])
def test_a_wrong_priority_of_the_learner_is_said_with_the_next_ones_or_before_a_save(
    tmp_path: Path, connected: None, wrong: float
) -> None:
    pair = Pair(tmp_path, free("apex_dqn"))
    link = pair.link(0)
    for experience in made("apex_dqn", 4):
        link.insert(experience)
    drawn = pair.replay.sample(8).drawn
    for then in (lambda: pair.replay.update(drawn, torch.ones(8)), lambda: pair.replay.frozen().__enter__()):
        pair.replay.update(drawn, torch.full((8,), wrong))
        with pytest.raises(UserError, match=f"^replay: the learner gave the priority {wrong}"):
            then()
        pair.replay._updating = None
    ray.kill(pair.host)


def test_whoever_waits_for_the_replay_is_told_when_it_closes_or_dies(tmp_path: Path, connected: None) -> None:
    for end, told_actor, told_learner in (
        (lambda pair: pair.replay.close(), Closed, Closed),
        (lambda pair: os.kill(ray.get(pair.host.pid.remote()), signal.SIGKILL), RayError, ConnectionError),
    ):
        pair = Pair(tmp_path, chosen())
        link, experiences = pair.link(0), made("apex_dqn", 6)
        learner = pair.replay._process.draw.remote(10**6)
        caught: list[type] = []

        def act(link: ReplayLink = link, experiences: list[Experience] = experiences, caught: Any = caught) -> None:
            try:
                for experience in experiences:
                    link.insert(experience)
            except (Closed, RayError) as error:
                caught.append(type(error))

        actor = clusters.meanwhile(act)
        assert not ray.wait([learner], timeout=1.0)[0]
        end(pair)
        actor.join(20)
        assert len(caught) == 1 and issubclass(caught[0], told_actor)
        with pytest.raises(told_learner):
            pair.replay.sample(8)
        ray.kill(pair.host)


def test_another_process_takes_the_place_of_an_actor(tmp_path: Path, connected: None) -> None:
    pair, experiences = Pair(tmp_path, free("apex_dqn")), made("apex_dqn", 4)
    old = pair.link(0)
    old.insert(experiences[0])
    assert answer(old._sent)
    new = ReplayLink(pair.host, 0, 1)
    assert new.begin() == 1
    old.insert(experiences[1])
    with pytest.raises(Closed):
        old.insert(experiences[2])
    assert new.begin() == 1 and pair.replay.counters()["steps"] == int(experiences[0].unroll.valid.sum())
    ray.kill(pair.host)
