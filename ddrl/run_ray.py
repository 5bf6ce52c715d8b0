"""Runs a configuration on Ray: what a learner's and an actor's process is made of, and what the user sees of them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from ddrl import checkpoint
from ddrl.acting import Builder, Generation, act_alone
from ddrl.config import RunConfig
from ddrl.coordinator.cluster import cluster
from ddrl.coordinator.roles import Program, Steps
from ddrl.coordinator.runtime_threads import ThreadsRuntime
from ddrl.coordinator.service import Door
from ddrl.handles import Shards
from ddrl.learners.reduction import DistributedReducer
from ddrl.learning import Learning, StopFlag
from ddrl.locks import take_lock
from ddrl.memory import keep_freed_memory
from ddrl.progress import Progress
from ddrl.record import Counts
from ddrl.replay_side import ReplaySide
from ddrl.run import Run
from ddrl.run_setting import resolve_device, stopping
from ddrl.serving import Serving
from ddrl.shard_side import ShardSide, shard_parts
from ddrl.shared_memory import object_store_bytes
from ddrl.types import Episode, Metrics
from ddrl.worker import work_alone

if TYPE_CHECKING:
    from ddrl.coordinator.actor_host import Beside, Episodes, MakeActor
    from ddrl.coordinator.crew import Plan
    from ddrl.coordinator.hosts import LearnerSide
    from ddrl.coordinator.replay_host import RemoteReplay

LOCK_SECONDS = 30.0
"""How long a learner waits for one of before, whose supervisor was killed, to be gone."""


def train_with_ray(
    config: RunConfig,
    directory: Path,
    *,
    quiet: bool = False,
    accepted: Callable[[], None] = lambda: None,
    watch: Callable[[dict[str, Any]], bool] = lambda status: False,
) -> str:
    """Trains or resumes in `directory` with runtime `ray`; returns the exit reason.

    `accepted` is called whenever the learners are built, so that nothing refuses the run any more, and not yet resumed.
    `watch` is shown every status of the learner that leads, and says whether to end the training early.
    """
    topology = config.topology
    builder, progress = Builder(config, torch.device("cpu")), Progress(config.env_frames, quiet=quiet)
    shards = shard_parts(builder)
    latest: list[tuple[Counts, Metrics]] = []

    def complain(text: str) -> None:
        if quiet:
            print(text, file=sys.stderr, flush=True)
        else:
            progress.note(text)

    def show(status: dict[str, Any]) -> None:
        latest[:] = [(Counts(*status["counts"]), status["latest"])]
        for line in status["notes"]:
            progress.note(line)
        progress.show(*latest[0])
        if watch(status):
            runtime.interrupt()

    with cluster(
        num_cpus=_num_cpus(config) + len(shards),
        object_store_bytes=object_store_bytes(builder),
    ) as folder:
        from ddrl.coordinator.runtime_ray import RayRuntime  # imports Ray, which reads what `cluster` has set

        runtime = RayRuntime(
            _plan(builder, directory, folder, shards),
            note=progress.note,
            complain=complain,
            show=show,
            accepted=accepted,
        )
        with stopping(runtime.interrupt), progress:
            if 0 < len(shards) < topology.parameter_shards:
                progress.note(
                    f"parameter shards: {len(shards)}, not {topology.parameter_shards}; none divides a tensor"
                )
            reason = runtime.run()
    if reason == "budget_reached" and latest:
        progress.done(*latest[0])
    return reason


def _plan(builder: Builder, directory: Path, folder: Path | None, shards: list[slice]) -> Plan:
    """What to start; `folder` is that of an own cluster, `shards` those with processes of their own."""
    from ddrl.coordinator.crew import Plan

    config, topology = builder.config, builder.config.topology
    return Plan(
        num_actors=topology.num_actors,
        num_learners=topology.num_learners,
        learner_threads=_learner_threads(config),
        device=config.device,
        make_learner=partial(make_learner, config, directory.resolve(), folder),
        make_actor=_actor_maker(config),
        describe_actor=lambda index, generation: builder.describe("actor", index, Generation(*generation)),
        describe_checkpoint=partial(describe_checkpoint, directory, topology.num_learners),
        own_cluster=folder is not None,
        make_replay=partial(ReplaySide, config, directory.resolve()) if topology.replay == "own" else None,
        make_shards=[(part, partial(ShardSide, config, part)) for part in shards],
    )


def _actor_maker(config: RunConfig) -> MakeActor:
    """For central inference without the configuration: an algorithm's brings torch into the process that gets it."""
    if config.topology.inference == "central":
        return partial(work_alone, config.topology.num_learners)
    return partial(act_alone, config)


def _num_cpus(config: RunConfig) -> int:
    """Of all processes but shards."""
    topology = config.topology
    return topology.num_actors + topology.num_learners * _learner_threads(config) + (topology.replay == "own")


def _learner_threads(config: RunConfig) -> int:
    """That compute: of training, and of central inference."""
    topology = config.topology
    return topology.learner_threads + (topology.central.num_threads if topology.inference == "central" else 0)


def describe_checkpoint(directory: Path, num_learners: int) -> str:
    """Where a run goes on when it is started again: at the newest checkpoint that learners and replay all have."""
    folders = [checkpoint.rank_folder(directory, rank) for rank in range(1, num_learners)]
    folders += [folder for folder in [checkpoint.replay_folder(directory)] if folder.exists()]
    for path in sorted((directory / "checkpoints").glob("*.sha256"), reverse=True):
        if all((folder / path.name).exists() for folder in folders):
            return f"the next start goes on from {path.with_suffix('.pt')}"
    return "there is no checkpoint, the next start begins anew"


class Relay:
    """A display that keeps what it is told until the supervisor asks."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """Nothing to tidy up."""

    def show(self, counts: Counts, latest: Metrics) -> None:
        """The supervisor asks by itself."""

    def done(self, counts: Counts, latest: Metrics) -> None:
        """As `show`."""

    def note(self, line: str) -> None:
        """One line to the user."""
        self._notes.append(line)

    def take_notes(self) -> list[str]:
        """Lines since the last call."""
        notes, self._notes = self._notes, []
        return notes


class Lead:
    """The learner that leads: a `Run` whose actors are elsewhere."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        reducer: DistributedReducer | None,
        door: Door | None,
        replay: RemoteReplay | None = None,
        shards: Shards | None = None,
    ) -> None:
        self._lock = (directory / "learner.lock").open("w")
        take_lock(self._lock, directory, LOCK_SECONDS)
        self._relay = Relay()
        self._run = Run(
            config,
            directory,
            display=self._relay,
            reducer=reducer,
            remote_actors=True,
            door=door,
            replay=replay,
            shards=shards,
        )
        self.params, self.queue, self.serving = self._run.params, self._run.queue, self._run.serving
        self.traffic = self._run.learning.traffic
        self.train = self._run.train
        self.interrupt = self._run.interrupt

    @property
    def actor_restarts(self) -> int:
        """Actors that died and were replaced, over all resumes."""
        return self._run.actor_restarts

    @actor_restarts.setter
    def actor_restarts(self, number: int) -> None:
        self._run.actor_restarts = number

    @property
    def resumes(self) -> int:
        """How often the run was continued from a checkpoint."""
        return self._run.resumes

    def resume(self, updates: int | None) -> int | None:
        """Continues from the newest checkpoint that all ranks have."""
        return self._run.resume()

    def tell_of_episodes(self, tell: Callable[[Episodes], None]) -> None:
        """It records them itself."""

    def record_episodes(self, episodes: Episodes) -> None:
        """Of the actors of all ranks."""
        for episode in episodes:
            self._run.recorder.episode(episode)

    def status(self) -> dict[str, Any]:
        """Counts, the newest metrics, lines for the user, seconds that actors and learner waited for each other."""
        return _status(self._run.learning) | {
            "latest": dict(self._run.recorder.latest),
            "notes": self._relay.take_notes(),
            "actor_restarts": self._run.actor_restarts,
        }


class Follower:
    """A learner of another rank: takes its share of every batch, and saves when the lead does."""

    def __init__(self, config: RunConfig, directory: Path, reducer: DistributedReducer, door: Door | None) -> None:
        self._config = config
        self._folder = checkpoint.rank_folder(directory, reducer.rank)
        self._stop = StopFlag(reducer)
        self._interrupted = False
        self._learning = Learning(Builder(config, resolve_device(config.device)), reducer, lent_memory=True)
        self._next_checkpoint = config.checkpoint.period_frames
        self.params, self.queue, self.traffic = self._learning.params, self._learning.queue, self._learning.traffic
        self.actor_restarts = 0
        self.resumes = 0
        self._tell: Callable[[Episodes], None] = lambda episodes: None
        self.serving = self._serving(door, reducer.rank) if door else None

    def _serving(self, door: Door, rank: int) -> Serving:
        def on_episode(episode: Episode) -> None:
            self._tell([episode])

        return Serving(
            self._learning,
            door,
            on_episode,
            rank=rank,
            resumes=lambda: self.resumes,
            note=lambda line: print(line, file=sys.stderr, flush=True),
        )

    def tell_of_episodes(self, tell: Callable[[Episodes], None]) -> None:
        """Its own actors' go to the lead."""
        self._tell = tell

    def resume(self, updates: int | None) -> int | None:
        """Continues from the checkpoint that the lead has chosen."""
        if updates is not None:
            state = checkpoint.load(self._folder, updates)
            self._learning.load_state_dict(state)
            self._next_checkpoint = state["next_checkpoint"]
            self.params.restart_rounds()
        return updates

    def train(self) -> str:
        """Until the lead's training ends: they decide together."""
        learner = self._learning.learner

        def learn() -> None:
            if self._stop.decide():
                self._interrupted = True
                return
            learner.step()
            if learner.core.env_frames >= self._next_checkpoint:
                self._next_checkpoint += self._config.checkpoint.period_frames
                self._save()

        if self.serving:
            self.serving.open()
        ThreadsRuntime().run(
            Program(
                actors=self.serving.actors if self.serving else [],
                learner=Steps(learner.ready, learn),
                evaluator=Steps(lambda: False, lambda: None),
                finished=lambda: learner.core.env_frames >= self._config.env_frames,
                interrupted=lambda: self._interrupted,
                close=self._close,
                services=self._learning.services,
            )
        )
        self._save()
        learner.core.close()
        return "interrupted" if self._interrupted else "budget_reached"

    def _close(self) -> None:
        self._learning.close()
        if self.serving:
            self.serving.close("interrupted" if self._interrupted else "finished")

    def _save(self) -> None:
        state = self._learning.state_dict() | {"next_checkpoint": self._next_checkpoint}
        checkpoint.save(self._folder, self._learning.counts.updates, state)

    def interrupt(self) -> None:
        """Asks all to stop."""
        self._stop.ask()

    def record_episodes(self, episodes: Episodes) -> None:
        """The lead records those of all ranks."""

    def status(self) -> dict[str, Any]:
        """Counts, and seconds waited."""
        return _status(self._learning)


def make_learner(
    config: RunConfig,
    directory: Path,
    folder: Path | None,
    rank: int,
    store: TCPStore | None,
    beside: Beside | None = None,
) -> LearnerSide:
    """In a learner's process; `beside`: hosts of what else has processes of its own, of which there is one learner."""
    keep_freed_memory()
    door = own_door(folder, rank) if config.topology.inference == "central" else None
    if beside is not None and beside.replay is not None:
        from ddrl.coordinator.replay_host import RemoteReplay

        return Lead(config, directory, None, door, replay=RemoteReplay(beside.replay))
    if beside is not None and beside.shards:
        from ddrl.coordinator.shard_host import RemoteShards

        return Lead(config, directory, None, door, shards=RemoteShards(beside.shards))
    if store is None:
        return Lead(config, directory, None, door)
    device = resolve_device(config.device) if _has_own_gpu() else torch.device("cpu")
    reducer = DistributedReducer(store, rank, config.topology.num_learners, device)
    return Follower(config, directory, reducer, door) if rank else Lead(config, directory, reducer, door)


def own_door(folder: Path | None, rank: int) -> Door:
    """Where a learner's inference service listens: on a Unix socket in the folder of an own cluster, or at its node.

    It wants a token that only the learner's own workers are told.
    """
    token = secrets.token_hex(16)
    if folder is None:
        import ray

        return Door(f"{ray.util.get_node_ip_address()}:0", token)  # type: ignore[no-untyped-call]
    private = folder / "inference"  # Ray lets everybody into its own folder
    private.mkdir(mode=0o700, exist_ok=True)
    return Door(f"unix:{private / str(rank)}", token)


def _has_own_gpu() -> bool:
    """Whether this process shares its GPU with nobody, as NCCL demands; the answer of all learners is the same."""
    import ray

    resources = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    return bool(resources.get("GPU", 0) >= 1)


def _status(learning: Learning) -> dict[str, Any]:
    counts, queue = learning.counts, learning.queue
    return {
        "counts": (counts.env_frames, counts.agent_steps, counts.updates),
        "updates": counts.updates,
        "insert_waited": queue.insert_waited,
        "pull_waited": learning.params.pull_waited,
        "sample_waited": queue.sample_waited,
    }
