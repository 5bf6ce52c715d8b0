"""Runtime `ray`: each learner and each actor a process of its own; this one supervises them.

It shows how far the run is, passes an interruption on, replaces an actor that died, begins again from the newest
checkpoint where a learner or the replay died, and raises what a role raised. `ddrl.coordinator.hosts`, `actor_host` and
`ddrl.coordinator.replay_host` are what runs in the processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ddrl.coordinator import replay_host
from ddrl.coordinator.actor_host import ActorHost, MakeActor
from ddrl.coordinator.cluster import log_tail
from ddrl.coordinator.hosts import LearnerHost, MakeLearner
from ddrl.coordinator.ray_errors import first_line, plain, traceback_of
from ddrl.coordinator.roles import MAX_DEATHS
from ddrl.coordinator.room import gpus_per_learner, on_its_node, on_this_node
from ddrl.errors import UserError, crash

POLL_SECONDS = 0.25
ENDING_SECONDS = 20.0
"""For actors to close their environments when the run is over; then they are killed."""
ANSWER_SECONDS = 2.0
"""For a process to say who it is; one that died is known by then."""
PATIENCE_SECONDS = 30.0
"""For processes to start, before the user is told what the run waits for."""


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
    own_cluster: bool
    """All processes are on this machine."""
    make_replay: replay_host.MakeReplay | None = None
    """Where the replay has a process of its own."""


_UNRECORDED: dict[str, Any] = {"enable_task_events": False}
"""Otherwise the cluster keeps a record of each of the many calls, and grows."""


class _Who(NamedTuple):
    """Whose long-running call a reference belongs to."""

    role: str
    number: int


class _Died(Exception):
    """Learners, or the replay, are gone: their processes ended."""

    def __init__(self, reason: str, words: str, gone: list[_Who]) -> None:
        super().__init__(reason)
        self.role = "replay" if {who.role for who in gone} == {"replay"} else "learner"
        self.words = words
        """What is known about it, in several lines."""


class _Interrupted(Exception):
    """The run was interrupted before it began."""


class RayRuntime:
    """Runs a plan on the cluster that this process is connected to."""

    def __init__(
        self,
        plan: Plan,
        *,
        note: Callable[[str], None],
        complain: Callable[[str], None],
        show: Callable[[dict[str, Any]], None],
        accepted: Callable[[], None],
    ) -> None:
        """What the user reads: `note` in passing, `complain` also when nothing else is to be seen.

        `accepted` is called each time the learners are built, before they continue from a checkpoint.
        """
        self._plan = plan
        self._note = note
        self._complain = complain
        self._show = show
        self._accepted = accepted
        self._interrupted = False
        self._updates = -1
        self._actor_restarts = 0

    def interrupt(self) -> None:
        """Asks the learners to save and stop."""
        self._interrupted = True

    def run(self) -> str:
        """Until the run is over; returns the exit reason.

        Raises UserError where the cluster is too small, an actor raised or processes keep dying, and whatever a learner
        raised.
        """
        plan = self._plan
        gpus = gpus_per_learner(
            plan.num_actors, plan.num_learners, plan.learner_threads, plan.device, int(plan.make_replay is not None)
        )
        deaths, reached = 0, -1
        while True:
            crew = _Crew(self._plan, gpus, self._note, self._complain, lambda: self._interrupted)
            try:
                return self._supervise(crew)
            except _Interrupted:
                self._note(f"interrupted before the training began; {self._plan.describe_checkpoint()}")
                return "interrupted"
            except _Died as died:
                deaths = 1 if self._updates > reached else deaths + 1
                reached = max(reached, self._updates)
                give_up = deaths >= MAX_DEATHS and not self._interrupted
                if died.words:
                    (self._complain if give_up else self._note)(died.words)
                if self._interrupted:
                    where = self._plan.describe_checkpoint()
                    self._note(f"the {died.role} died ({died}) while the run was stopping; {where}")
                    return "interrupted"
                if give_up:
                    role = died.role
                    raise UserError(f"the {role} died {deaths} times in a row without an update: {died}") from None
                self._note(f"the {died.role} died ({died}): continuing from the newest checkpoint")
            finally:
                crew.kill()

    def _supervise(self, crew: _Crew) -> str:
        try:
            crew.build()
            self._accepted()
            self._actor_restarts = crew.start(self._actor_restarts)
            told, reasons = False, dict[int, str]()
            while len(reasons) < self._plan.num_learners:
                ended = crew.next_ended(POLL_SECONDS)
                if ended is not None:
                    who, reference = ended
                    result = self._result(crew, who, reference)
                    if who.role == "learner":
                        reasons[who.number] = result
                self._look(crew)
                if self._interrupted and not told:
                    crew.interrupt()
                    told = True
            crew.wait_for_actors()
            return reasons[0]
        except RayTaskError as error:
            if type(error.cause) is ConnectionError:  # it may arrive before the death it speaks of
                gone = crew.gone()
                words = crew.last_words(gone) or traceback_of(error)
                raise _Died(first_line(error.cause), words, gone) from None
            raise self._cause(error) from None
        except RayError as error:
            gone = crew.gone()
            words = f"{crew.last_words(gone)}\n{plain(error)}".strip()
            raise _Died(first_line(error), words, gone) from None

    def _result(self, crew: _Crew, who: _Who, reference: Any) -> Any:
        """What a role returned; an actor that died or lost its learner is replaced."""
        try:
            result = ray.get(reference)
            lost, words = result if who.role == "actor" else None, ""
        except RayTaskError as error:
            if who.role == "actor":
                if not isinstance(error.cause, UserError) or error.cause.is_crash:
                    self._complain(traceback_of(error))
                if isinstance(error.cause, UserError):  # also one that the store of experience raised
                    raise error.cause from None
                name = self._plan.describe_actor(who.number, crew.generation(who.number))
                raise crash(name, error.cause) from None
            raise
        except RayError as error:
            if who.role == "learner":
                raise
            result, lost, words = None, first_line(error), plain(error)
        if lost is not None:
            crew.replace_actor(who.number, lost, words)  # raises what `_supervise` expects if its learner is dead
            self._actor_restarts += 1
            crew.count_restarts(self._actor_restarts)
        return result

    def _look(self, crew: _Crew) -> None:
        status = crew.status(POLL_SECONDS)
        if status is not None:
            self._updates = max(self._updates, status["updates"])
            self._show(status)

    def _cause(self, error: RayTaskError) -> BaseException:
        """What a learner raised in its own process, whose traceback is shown: also that of an evaluation's crash."""
        cause: BaseException = error.cause
        if not isinstance(cause, UserError) or cause.is_crash:
            self._complain(traceback_of(error))
        return cause


class _Crew:
    """The processes of one attempt."""

    def __init__(
        self,
        plan: Plan,
        gpus: float,
        note: Callable[[str], None],
        complain: Callable[[str], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._note = note
        self._complain = complain
        self._interrupted = interrupted
        self._per_learner = plan.num_actors // plan.num_learners
        groups = {"exchange": 2 * plan.num_actors + 2}
        self._learner: Any = ray.remote(  # type: ignore[call-overload]  # Ray's own stubs know no concurrency groups
            num_cpus=plan.learner_threads, num_gpus=gpus, max_concurrency=4, concurrency_groups=groups, **_UNRECORDED
        )(LearnerHost)
        self._actor: Any = ray.remote(num_cpus=1, **_UNRECORDED)(ActorHost)
        self._learners: list[Any] = []
        self._actors: list[Any] = []
        self._replays: list[Any] = []
        self._pids: dict[_Who, Any] = {}
        self._hire_learner(scheduling_strategy=on_this_node())  # only here is the run directory sure to be
        if plan.make_replay:
            here = {"scheduling_strategy": on_this_node()}  # it writes there, too
            self._replays = [replay_host.hire(plan.make_replay, plan.num_actors, **here, **_UNRECORDED)]
            self._pids[_Who("replay", 0)] = self._replays[0].pid.remote()
        if plan.own_cluster:
            self._hire_others()
        self._resumes = 0
        self._restarts = [0] * plan.num_actors
        self._deaths: list[tuple[int, list[int]]] = [(0, [])] * plan.num_actors
        self._running: dict[Any, _Who] = {}
        self._status: Any = None

    def _hire_learner(self, **options: Any) -> None:
        rank = len(self._learners)
        host = self._learner.options(**options).remote(rank, self._per_learner, self._plan.make_learner)
        self._learners.append(host)
        self._pids[_Who("learner", rank)] = host.pid.remote()

    def _hire_others(self) -> None:
        for rank in range(1, self._plan.num_learners):
            self._hire_learner(scheduling_strategy=on_its_node(rank))
        self._actors = [self._actor.remote(self._plan.make_actor) for _ in range(self._plan.num_actors)]

    def build(self) -> None:
        """Builds the learners, and the replay."""
        lead = self._learners[0]
        if not self._actors:  # they can be anywhere: the lead, which cannot, takes its place before them
            self._get(list(self._pids.values()))
            self._hire_others()
        several = len(self._learners) > 1
        meeting = self._get([lead.open_meeting.remote(self._plan.own_cluster)])[0] if several else None
        replay = self._replays[0] if self._replays else None
        building = [learner.build.remote(meeting, lead, replay) for learner in self._learners]
        self._get([*building, *(replay.build.remote() for replay in self._replays)])

    def start(self, actor_restarts: int) -> int:
        """Continues from a checkpoint, sets everyone to work.

        `actor_restarts` is the number so far, as far as this process knows; returns it with those of before.
        """
        ((updates, self._resumes, restarts),) = self._get([self._learners[0].resume.remote(None, actor_restarts)])
        self._get([learner.resume.remote(updates, 0) for learner in self._learners[1:]])
        for rank, learner in enumerate(self._learners):
            self._running[learner.learn.remote()] = _Who("learner", rank)
        for index in range(self._plan.num_actors):
            self._set_to_work(index)
        return int(restarts)

    def _set_to_work(self, index: int) -> None:
        host, (slot, rank) = self._actors[index], divmod(index, self._plan.num_learners)
        self._pids[_Who("actor", index)] = host.pid.remote()
        work = host.act.remote(index, self.generation(index), self._learners[rank], slot, *self._replays)
        self._running[work] = _Who("actor", index)

    def generation(self, index: int) -> tuple[int, int]:
        """Resumes of the run, restarts of the actor."""
        return self._resumes, self._restarts[index]

    def next_ended(self, seconds: float) -> tuple[_Who, Any] | None:
        """A call that ended within `seconds`, learners first."""
        ended, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        if not ended and self._running:
            ended, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if not ended:
            return None
        reference = min(ended, key=lambda one: self._running[one].role == "actor")
        return self._running.pop(reference), reference

    def status(self, seconds: float) -> dict[str, Any] | None:
        """The lead's, if it answers in time; otherwise the next call goes on waiting for the same answer."""
        self._status = self._status or self._learners[0].status.remote()
        answered, _ = ray.wait([self._status], timeout=seconds)
        if not answered:
            return None
        status: dict[str, Any] = ray.get(self._status)
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
        deaths, before = self._deaths[index]
        deaths = deaths + 1 if delivered == before else 1
        self._deaths[index] = (deaths, delivered)
        name = self._plan.describe_actor(index, self.generation(index))
        words = f"{self._last_words(_Who('actor', index))}\n{words}".strip()
        if words:
            (self._complain if deaths >= MAX_DEATHS else self._note)(words)
        if deaths >= MAX_DEATHS:
            raise UserError(f"{name}: its process died {deaths} times in a row without an unroll ({reason})")
        self._note(f"{name}: its process died ({reason}); a new one takes its place")
        ray.kill(self._actors[index], no_restart=True)  # one that only lost its learner still holds a slot
        self._restarts[index] += 1
        self._actors[index] = self._actor.remote(self._plan.make_actor)
        self._set_to_work(index)

    def gone(self) -> list[_Who]:
        """Learners, and the replay, whose processes have ended."""
        gone, asked = [], {"learner": self._learners, "replay": self._replays}
        for who, host in [(_Who(role, number), host) for role in asked for number, host in enumerate(asked[role])]:
            try:
                ray.get(host.pid.remote(), timeout=ANSWER_SECONDS)
            except GetTimeoutError:  # busy
                continue
            except RayError:
                gone.append(who)
        return gone

    def last_words(self, gone: list[_Who]) -> str:
        """What processes that are gone wrote last."""
        return "\n".join(filter(None, map(self._last_words, gone)))

    def _last_words(self, who: _Who) -> str:
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

        Raises `_Interrupted`, and the first failure while others still wait: it may be what they wait for.
        """
        begun, said, waiting = time.monotonic(), False, references
        while waiting:
            ended, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
            ray.get(ended)
            if waiting and self._interrupted():
                raise _Interrupted
            if not said and time.monotonic() - begun > PATIENCE_SECONDS:
                self._note("waiting for the Ray cluster to start processes")
                said = True
        results: list[Any] = ray.get(references)
        return results

    def kill(self) -> None:
        """Ends all processes of this attempt."""
        for host in [*self._learners, *self._replays, *self._actors]:
            ray.kill(host, no_restart=True)
