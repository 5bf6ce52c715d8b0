"""The processes of one attempt at a run of runtime `ray`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayError

from ddrl.coordinator.restarts import RestartPolicy, gives_up
from ddrl.errors import UserError
from ddrl.runtimes.ray import replay_process, shard_process
from ddrl.runtimes.ray.actor_process import ActorProcess, MakeActor
from ddrl.runtimes.ray.cluster import ANSWER_SECONDS, Pulse, last_words
from ddrl.runtimes.ray.learner_process import LearnerProcess, MakeLearner
from ddrl.runtimes.ray.messages import Beside, Shard, Status
from ddrl.runtimes.ray.placement import on_its_node, on_this_node
from ddrl.runtimes.ray.rendezvous import Rendezvous
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.display import Display

POLL_SECONDS = 0.25
ENDING_SECONDS = 20.0
"""Actors have this time to close their environments when the run is over; then they are killed."""
PATIENCE_SECONDS = 30.0
"""Until the user is told that the run waits for processes to start."""

SHARD = "parameter shard"
"""The name of the role, also in messages."""


@dataclass(frozen=True)
class Plan:
    """The processes to start, and what they are made of."""

    num_actors: int
    num_learners: int
    learner_threads: int
    device: str  # of the learners: auto, cpu or cuda; with auto they use the GPUs there are
    make_learner: MakeLearner
    make_actor: MakeActor
    describe_actor: Callable[[int, tuple[int, int]], str]  # (actor, generation) -> its name in messages
    newest_checkpoint: Callable[[], Path | None]  # that all learners and the replay have, None: there is none yet
    folder: Path | None  # of an own cluster: all processes are on this machine. None: a cluster was joined
    replay: tuple[RunConfig, Path] | None = None  # configuration and directory, for a replay in a process of its own
    shards: Sequence[tuple[RunConfig, slice]] = ()
    """For parameter shards in processes of their own; each slice says which of the parameters a shard holds."""
    runs_at_once: int = 1  # how many such runs must have room on the cluster: members of a population


_UNRECORDED: dict[str, Any] = {"enable_task_events": False}
"""Otherwise the cluster keeps a record of each of the many calls, and its memory grows."""


class Who(NamedTuple):
    """The role and number of a process; the same for a process that replaces it."""

    role: str
    number: int


RANK0 = Who("learner", 0)


class Interrupted(Exception):
    """The run was interrupted before the training began."""


class ClusterGone(Exception):
    """A part of the cluster, which the message names, no longer answers."""


class ProcessGroup:
    """The processes of one attempt."""

    def __init__(self, plan: Plan, gpus: float, display: Display, interrupted: Callable[[], bool]) -> None:
        """Start all processes of an own cluster; on a joined one, those that must be on this node."""
        self._plan = plan
        self._display = display
        self._interrupted = interrupted
        groups = {"exchange": 2 * plan.num_actors + 2}
        self._learner_class: Any = ray.remote(  # type: ignore[call-overload]  # Ray's own stubs know no concurrency groups
            num_cpus=plan.learner_threads, num_gpus=gpus, max_concurrency=4, concurrency_groups=groups, **_UNRECORDED
        )(LearnerProcess)
        self._actor_class: Any = ray.remote(num_cpus=1, **_UNRECORDED)(ActorProcess)
        self._processes: dict[Who, Any] = {}
        self._pids: dict[Who, Any] = {}
        self._resumes = 0
        self._restarts = [0] * plan.num_actors
        self._policy = RestartPolicy()
        self._running: dict[Any, Who] = {}
        self._status: Any = None
        self._meeting: Rendezvous | None = None
        self._add_learner(0, on_this_node())  # only here is the run directory sure to be
        if plan.replay:
            options = {"scheduling_strategy": on_this_node()} | _UNRECORDED  # it writes the run directory, too
            self._add("replay", 0, replay_process.start_process(*plan.replay, plan.num_actors, **options))
        if plan.folder:
            self._start_others()

    def _add(self, role: str, number: int, process: Any) -> None:
        self._processes[Who(role, number)] = process
        self._pids[Who(role, number)] = process.pid.remote()

    def _add_learner(self, rank: int, strategy: Any) -> None:
        actors = self._plan.num_actors // self._plan.num_learners
        made = self._learner_class.options(scheduling_strategy=strategy).remote(rank, actors, self._plan.make_learner)
        self._add("learner", rank, made)

    def _start_others(self) -> None:
        for rank in range(1, self._plan.num_learners):
            self._add_learner(rank, on_its_node(rank))
        for index, shard in enumerate(self._plan.shards):
            self._add(SHARD, index, shard_process.start_process(*shard, **_UNRECORDED))
        for index in range(self._plan.num_actors):
            self._add("actor", index, self._actor_class.remote(self._plan.make_actor))

    def _of(self, *roles: str) -> list[Any]:
        return [process for who, process in self._processes.items() if who.role in roles]

    def build(self) -> None:
        """Build the learners, the replay and the shards."""
        if not self._plan.folder:  # rank 0 must be on this node, so it starts before those that can be anywhere
            self._get(list(self._pids.values()))
            self._start_others()
        learners = self._of("learner")
        rank0 = learners[0]
        if len(learners) > 1:
            self._meeting = self._get([rank0.open_meeting.remote(self._plan.folder)])[0]
        building = [learner.build.remote(self._meeting, rank0, self._beside) for learner in learners]
        self._get([*building, *(process.build.remote() for process in self._of("replay", SHARD))])

    @property
    def _beside(self) -> Beside:
        parts = [part for _, part in self._plan.shards]
        return Beside(self._processes.get(Who("replay", 0)), list(map(Shard, parts, self._of(SHARD))), self._meeting)

    def start(self, actor_restarts: int) -> int:
        """Continue from a checkpoint and set all learners and actors to work.

        `actor_restarts` is the number so far, as far as this process knows; return that of all attempts.
        """
        rank0, *others = self._of("learner")
        ((updates, self._resumes, restarts),) = self._get([rank0.resume.remote(None, actor_restarts)])
        self._get([learner.resume.remote(updates, 0) for learner in others])
        for rank, learner in enumerate([rank0, *others]):
            self._running[learner.learn.remote()] = Who("learner", rank)
        for index in range(self._plan.num_actors):
            self._set_to_work(index)
        return int(restarts)

    def _set_to_work(self, index: int) -> None:
        who, (slot, rank) = Who("actor", index), divmod(index, self._plan.num_learners)
        learner = self._processes[Who("learner", rank)]
        work = self._processes[who].act.remote(index, self.generation(index), learner, slot, self._beside)
        self._running[work] = who

    def generation(self, index: int) -> tuple[int, int]:
        """Return the resumes of the run, and the restarts of an actor."""
        return self._resumes, self._restarts[index]

    def next_ended(self, seconds: float) -> tuple[Who, Any] | None:
        """Return a process whose work has ended within `seconds`, learners first, and a reference to the result."""
        ended, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        if not ended and self._running:
            ended, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if not ended:
            return None
        reference = min(ended, key=lambda one: self._running[one].role == "actor")
        return self._running.pop(reference), reference

    def status(self, seconds: float) -> Status | None:
        """Return the status of rank 0 if it answers in time; else the next call goes on waiting for the same answer."""
        self._status = self._status or self._processes[RANK0].status.remote()
        answered, _ = ray.wait([self._status], timeout=seconds)
        if not answered:
            return None
        status: Status = ray.get(self._status)
        self._status = None
        return status

    def interrupt(self) -> None:
        """Ask every learner to save and stop."""
        for learner in self._of("learner"):
            learner.interrupt.remote()

    def count_restarts(self, number: int) -> None:
        """Tell rank 0, which saves and reports it, how many actors all attempts have replaced."""
        self._processes[RANK0].count_restarts.remote(number)

    def replace_actor(self, index: int, reason: str, words: str) -> None:
        """Start a new process for an actor. Raise UserError after several in a row without an unroll.

        Also when interrupted: learners that decide together to stop first finish the batch they wait for.
        """
        who, (slot, rank) = Who("actor", index), divmod(index, self._plan.num_learners)
        counting = [self._processes[Who("learner", rank)], *self._of("replay")]
        delivered = [ray.get(process.delivered.remote(slot)) for process in counting]
        ray.get([process.pid.remote() for process in self._of(SHARD)])  # raises where one of them has died
        deaths = self._policy.died(index, delivered)
        name = self._plan.describe_actor(index, self.generation(index))
        words = f"{self.last_words([who])}\n{words}".strip()
        if words:
            (self._display.complain if gives_up(deaths) else self._display.note)(words)
        if gives_up(deaths):
            raise UserError(f"{name}: its process died {deaths} times in a row without an unroll ({reason})")
        self._display.note(f"{name}: its process died ({reason}); a new one takes its place")
        ray.kill(self._processes[who], no_restart=True)  # one that only lost its learner still holds a slot
        self._restarts[index] += 1
        self._add(*who, self._actor_class.remote(self._plan.make_actor))
        self._set_to_work(index)

    def gone(self) -> list[Who]:
        """Return the learners, the replay and the shards whose processes have ended."""
        gone = []
        for who, process in self._processes.items():
            if who.role == "actor":
                continue
            try:
                ray.get(process.pid.remote(), timeout=ANSWER_SECONDS)
            except GetTimeoutError:  # busy
                continue
            except RayError:
                gone.append(who)
        return gone

    def last_words(self, gone: list[Who]) -> str:
        """Return the last lines that these processes, which are gone, wrote to stderr."""
        return last_words(self._pids[who] for who in gone)

    def wait_for_actors(self) -> None:
        """Give those that still work the time to close their environments."""
        if self._running:
            ray.wait(list(self._running), num_returns=len(self._running), timeout=ENDING_SECONDS)

    def _get(self, references: list[Any]) -> list[Any]:
        """Return the results of calls before the training; tell the user where the cluster has no room yet.

        Raise `Interrupted`, `ClusterGone`, and the first failure while others wait: they may wait for what has failed.
        """
        pulse = Pulse()
        begun, said, waiting = time.monotonic(), False, references
        while waiting:
            ended, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
            ray.get(ended)
            if waiting and self._interrupted():
                raise Interrupted
            if waiting and (gone := pulse.gone()):
                raise ClusterGone(gone)
            if not said and time.monotonic() - begun > PATIENCE_SECONDS:
                self._display.note("waiting for the Ray cluster to start processes")
                said = True
        results: list[Any] = ray.get(references)
        return results

    def kill(self) -> None:
        """End all processes of this attempt."""
        for process in self._processes.values():
            ray.kill(process, no_restart=True)
