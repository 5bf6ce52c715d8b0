"""The processes of one attempt at a run of runtime `ray`: started, built, set to work, replaced, asked, and ended."""

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
from ddrl.runtimes.ray.cluster import Pulse, log_tail
from ddrl.runtimes.ray.learner_process import LearnerProcess, MakeLearner
from ddrl.runtimes.ray.messages import Beside, Place, Status
from ddrl.runtimes.ray.placement import on_its_node, on_this_node
from ddrl.training.records.display import Display

POLL_SECONDS = 0.25
ENDING_SECONDS = 20.0
"""For actors to close their environments when the run is over; then they are killed."""
ANSWER_SECONDS = 2.0
"""For a process to say who it is; one that died is known by then."""
PATIENCE_SECONDS = 30.0
"""For processes to start, before the user is told what the run waits for."""

SHARD = "parameter shard"
"""The role, as the user reads it."""


@dataclass(frozen=True)
class Plan:
    """What to start."""

    num_actors: int
    num_learners: int
    learner_threads: int
    device: str
    """auto, cpu or cuda: of the learners; with auto they use the GPUs there are."""
    make_learner: MakeLearner
    make_actor: MakeActor
    describe_actor: Callable[[int, tuple[int, int]], str]
    """(actor, generation) -> what a message calls it."""
    describe_checkpoint: Callable[[], str]
    """Where the run goes on when it is started again."""
    folder: Path | None
    """Of an own cluster: all processes are on this machine. None: a cluster was joined."""
    make_replay: replay_process.MakeReplay | None = None
    """Where the replay has a process of its own."""
    make_shards: Sequence[tuple[slice, shard_process.MakeShard]] = ()
    """Those of a parameter server that have processes of their own, and which of the parameters they hold."""
    runs_at_once: int = 1
    """For how many such runs the cluster must have room: members of a population."""


_UNRECORDED: dict[str, Any] = {"enable_task_events": False}
"""Otherwise the cluster keeps a record of each of the many calls, and grows."""


class Who(NamedTuple):
    """Whose long-running call a reference belongs to."""

    role: str
    number: int


class Interrupted(Exception):
    """The run was interrupted before it began."""


class ClusterGone(Exception):
    """A part of the cluster does not answer any more; says which."""


class ProcessGroup:
    """The processes of one attempt."""

    def __init__(
        self,
        plan: Plan,
        gpus: float,
        display: Display,
        interrupted: Callable[[], bool],
    ) -> None:
        """Start the processes that need no other one to be placed."""
        self._plan = plan
        self._display = display
        self._interrupted = interrupted
        self._per_learner = plan.num_actors // plan.num_learners
        groups = {"exchange": 2 * plan.num_actors + 2}
        self._learner: Any = ray.remote(  # type: ignore[call-overload]  # Ray's own stubs know no concurrency groups
            num_cpus=plan.learner_threads, num_gpus=gpus, max_concurrency=4, concurrency_groups=groups, **_UNRECORDED
        )(LearnerProcess)
        self._actor: Any = ray.remote(num_cpus=1, **_UNRECORDED)(ActorProcess)
        self._learners: list[Any] = []
        self._actors: list[Any] = []
        self._replays: list[Any] = []
        self._shards: list[Place] = []
        self._pids: dict[Who, Any] = {}
        self._start_learner(scheduling_strategy=on_this_node())  # only here is the run directory sure to be
        if plan.make_replay:
            here = {"scheduling_strategy": on_this_node()}  # it writes there, too
            self._replays = [replay_process.start_process(plan.make_replay, plan.num_actors, **here, **_UNRECORDED)]
            self._pids[Who("replay", 0)] = self._replays[0].pid.remote()
        if plan.folder:
            self._start_others()
        self._resumes = 0
        self._restarts = [0] * plan.num_actors
        self._policy = RestartPolicy()
        self._running: dict[Any, Who] = {}
        self._status: Any = None

    def _start_learner(self, **options: Any) -> None:
        rank = len(self._learners)
        host = self._learner.options(**options).remote(rank, self._per_learner, self._plan.make_learner)
        self._learners.append(host)
        self._pids[Who("learner", rank)] = host.pid.remote()

    def _start_others(self) -> None:
        for rank in range(1, self._plan.num_learners):
            self._start_learner(scheduling_strategy=on_its_node(rank))
        for index, (part, make) in enumerate(self._plan.make_shards):
            self._shards.append(Place(part, shard_process.start_process(make, **_UNRECORDED)))
            self._pids[Who(SHARD, index)] = self._shards[-1].host.pid.remote()
        self._actors = [self._actor.remote(self._plan.make_actor) for _ in range(self._plan.num_actors)]

    def build(self) -> None:
        """Builds the learners, the replay, and the shards."""
        lead = self._learners[0]
        if not self._actors:  # they can be anywhere: the lead, which cannot, takes its place before them
            self._get(list(self._pids.values()))
            self._start_others()
        several = len(self._learners) > 1
        meeting = self._get([lead.open_meeting.remote(self._plan.folder)])[0] if several else None
        building = [learner.build.remote(meeting, lead, self._beside) for learner in self._learners]
        others = [*self._replays, *(place.host for place in self._shards)]
        self._get([*building, *(host.build.remote() for host in others)])

    @property
    def _beside(self) -> Beside:
        return Beside(self._replays[0] if self._replays else None, self._shards)

    def start(self, actor_restarts: int) -> int:
        """Continues from a checkpoint, sets everyone to work.

        `actor_restarts` is the number so far, as far as this process knows; returns it with those of before.
        """
        ((updates, self._resumes, restarts),) = self._get([self._learners[0].resume.remote(None, actor_restarts)])
        self._get([learner.resume.remote(updates, 0) for learner in self._learners[1:]])
        for rank, learner in enumerate(self._learners):
            self._running[learner.learn.remote()] = Who("learner", rank)
        for index in range(self._plan.num_actors):
            self._set_to_work(index)
        return int(restarts)

    def _set_to_work(self, index: int) -> None:
        host, (slot, rank) = self._actors[index], divmod(index, self._plan.num_learners)
        self._pids[Who("actor", index)] = host.pid.remote()
        work = host.act.remote(index, self.generation(index), self._learners[rank], slot, self._beside)
        self._running[work] = Who("actor", index)

    def generation(self, index: int) -> tuple[int, int]:
        """Resumes of the run, restarts of the actor."""
        return self._resumes, self._restarts[index]

    def next_ended(self, seconds: float) -> tuple[Who, Any] | None:
        """A call that ended within `seconds`, learners first."""
        ended, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        if not ended and self._running:
            ended, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if not ended:
            return None
        reference = min(ended, key=lambda one: self._running[one].role == "actor")
        return self._running.pop(reference), reference

    def status(self, seconds: float) -> Status | None:
        """Return the status of rank 0 if it answers in time; else the next call goes on waiting for the same answer."""
        self._status = self._status or self._learners[0].status.remote()
        answered, _ = ray.wait([self._status], timeout=seconds)
        if not answered:
            return None
        status: Status = ray.get(self._status)
        self._status = None
        return status

    def interrupt(self) -> None:
        """Asks every learner to save and stop."""
        for learner in self._learners:
            learner.interrupt.remote()

    def count_restarts(self, number: int) -> None:
        """Of all actors, by all attempts: the lead saves and reports it."""
        self._learners[0].count_restarts.remote(number)

    def replace_actor(self, index: int, reason: str, words: str) -> None:
        """Starts a new process for an actor. Raises UserError after several in a row without an unroll.

        Also when interrupted: learners that decide together to stop first finish the batch they wait for.
        """
        slot, rank = divmod(index, self._plan.num_learners)
        delivered = [ray.get(host.delivered.remote(slot)) for host in [self._learners[rank], *self._replays]]
        ray.get([place.host.pid.remote() for place in self._shards])  # raises where it is one of them that died
        deaths = self._policy.died(index, delivered)
        name = self._plan.describe_actor(index, self.generation(index))
        words = f"{self._last_words(Who('actor', index))}\n{words}".strip()
        if words:
            (self._display.complain if gives_up(deaths) else self._display.note)(words)
        if gives_up(deaths):
            raise UserError(f"{name}: its process died {deaths} times in a row without an unroll ({reason})")
        self._display.note(f"{name}: its process died ({reason}); a new one takes its place")
        ray.kill(self._actors[index], no_restart=True)  # one that only lost its learner still holds a slot
        self._restarts[index] += 1
        self._actors[index] = self._actor.remote(self._plan.make_actor)
        self._set_to_work(index)

    def gone(self) -> list[Who]:
        """Learners, the replay and shards whose processes have ended."""
        shards = [place.host for place in self._shards]
        gone, asked = [], {"learner": self._learners, "replay": self._replays, SHARD: shards}
        for who, host in [(Who(role, number), host) for role in asked for number, host in enumerate(asked[role])]:
            try:
                ray.get(host.pid.remote(), timeout=ANSWER_SECONDS)
            except GetTimeoutError:  # busy
                continue
            except RayError:
                gone.append(who)
        return gone

    def last_words(self, gone: list[Who]) -> str:
        """What processes that are gone wrote last."""
        return "\n".join(filter(None, map(self._last_words, gone)))

    def _last_words(self, who: Who) -> str:
        try:
            return log_tail(ray.get(self._pids[who], timeout=ANSWER_SECONDS))
        except RayError:  # it died before it said who it is
            return ""

    def wait_for_actors(self) -> None:
        """Gives those that still work the time to close their environments."""
        if self._running:
            ray.wait(list(self._running), num_returns=len(self._running), timeout=ENDING_SECONDS)

    def _get(self, references: list[Any]) -> list[Any]:
        """The results of what precedes the training; says so where a busy cluster has no room yet.

        Raises `Interrupted`, `ClusterGone`, and the first failure while others wait: it may be what they wait for.
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
        """Ends all processes of this attempt."""
        for host in [*self._learners, *self._replays, *(place.host for place in self._shards), *self._actors]:
            ray.kill(host, no_restart=True)
