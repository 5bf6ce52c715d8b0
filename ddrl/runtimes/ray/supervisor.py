"""The supervisor of runtime `ray`, where each learner and each actor has a process of its own.

It shows the progress of the run, passes an interruption on, replaces an actor that died, begins again from the newest
checkpoint where a learner, the replay or a shard died, and raises what a role raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ddrl.coordinator.program import STOPPING_SECONDS
from ddrl.coordinator.restarts import RestartPolicy, gives_up
from ddrl.errors import NonFiniteError, UserError, crash
from ddrl.runtimes.ray.cluster import Pulse, gone_error, what_is_gone
from ddrl.runtimes.ray.errors import cause_of, first_line, plain, traceback_of
from ddrl.runtimes.ray.messages import Status
from ddrl.runtimes.ray.placement import gpus_per_learner
from ddrl.runtimes.ray.process_group import POLL_SECONDS, ClusterGone, Interrupted, Plan, ProcessGroup, Who
from ddrl.system.signals import next_start, stopped
from ddrl.training.records.display import Display

SAVING_SECONDS = 30.0
"""Learners have this time to save and stop where the head of the cluster is gone: after a minute Ray ends them."""


class _Died(Exception):
    """The processes of learners, the replay or shards ended."""

    def __init__(self, reason: str, words: str, gone: list[Who]) -> None:
        super().__init__(reason)
        roles = {who.role for who in gone} or {"learner"}
        self.role = roles.pop() if len(roles) == 1 else "learner"
        self.words = words
        """Lines with what is known about it."""


class RayRuntime:
    """Runs a plan on the cluster that this process is connected to."""

    def __init__(
        self,
        plan: Plan,
        display: Display,
        *,
        accepted: Callable[[], None] = lambda: None,
        watch: Callable[[Status], bool] = lambda status: False,
    ) -> None:
        """Start nothing yet.

        `accepted` is called each time the learners are built, before they continue from a checkpoint: nothing refuses
        the run any more. `watch` is called with every status of rank 0, and returns whether to end the training early.
        """
        self._plan = plan
        self._display = display
        self._accepted = accepted
        self._watch = watch
        self.last_status: Status | None = None
        self._interrupted = False
        self._updates = -1
        self._actor_restarts = 0

    def interrupt(self) -> None:
        """Ask the learners to save and stop."""
        self._interrupted = True

    def run(self) -> Any:
        """Run until the run is over; return the result of rank 0, or "interrupted" where it has none.

        Raise UserError where the cluster is too small, an actor raised or processes keep dying, and whatever a learner
        raised.
        """
        gpus, policy, where = gpus_per_learner(self._plan), RestartPolicy(), self._where
        while True:
            group = ProcessGroup(self._plan, gpus, self._display, lambda: self._interrupted)
            try:
                return self._supervise(group)
            except Interrupted:
                self._display.note(f"interrupted before the training began; {where()}")
                return "interrupted"
            except ClusterGone as gone:
                raise gone_error(str(gone), where()) from None
            except _Died as died:
                if what := what_is_gone():
                    raise gone_error(what, where()) from None
                deaths = policy.died("learners", self._updates)  # the most that any attempt has reached
                give_up = gives_up(deaths) and not self._interrupted
                if died.words:
                    (self._display.complain if give_up else self._display.note)(died.words)
                if self._interrupted:
                    self._display.note(f"the {died.role} died ({died}) while the run was stopping; {where()}")
                    return "interrupted"
                if give_up:
                    words = f"the {died.role} died {deaths} times in a row without an update: {died}"
                    raise UserError(words) from None
                saved = self._plan.newest_checkpoint() is not None
                going = "continuing from the newest checkpoint" if saved else "no checkpoint yet, beginning anew"
                self._display.note(f"the {died.role} died ({died}): {going}")
            finally:
                if not what_is_gone():  # Ray would wait for it
                    group.kill()

    def _where(self) -> str:
        """Say from where the next start goes on."""
        return next_start(self._plan.newest_checkpoint())

    def _supervise(self, group: ProcessGroup) -> Any:
        try:
            group.build()
            self._accepted()
            self._actor_restarts = group.start(self._actor_restarts)
            pulse, lost, told, reasons = Pulse(), "", 0.0, dict[int, Any]()
            while len(reasons) < self._plan.num_learners:
                if ended := group.next_ended(POLL_SECONDS):
                    who, reference = ended
                    result = self._result(group, who, reference)
                    if who.role == "learner":
                        reasons[who.number] = result
                self._look(group)
                lost = lost or pulse.gone()
                if (self._interrupted or lost) and not told:
                    group.interrupt()
                    told = time.monotonic()
                if told and time.monotonic() - told > (SAVING_SECONDS if lost else STOPPING_SECONDS):
                    if lost:
                        break
                    late = f"the learners have not stopped within {STOPPING_SECONDS:.0f} s"
                    self._display.complain(f"{late}; {self._where()}")
                    return "interrupted"
            if lost:
                raise ClusterGone(lost)
            group.wait_for_actors()
            self._look(group)  # an answer that was under way above is of before the end
            if reasons[0] == "interrupted" and self.last_status:
                frames = self.last_status.counts.env_frames
                self._display.note(stopped(frames, self._plan.newest_checkpoint()))
            return reasons[0]
        except RayTaskError as error:
            if type(error.cause) is not ConnectionError:
                raise cause_of(error, self._display.complain) from None
            gone = group.gone()  # the error may arrive before the death that has caused it
            words = group.last_words(gone) or traceback_of(error)
            raise _Died(first_line(error.cause), words, gone) from None
        except RayError as error:
            gone = group.gone()
            words = f"{group.last_words(gone)}\n{plain(error)}".strip()
            raise _Died(first_line(error), words, gone) from None

    def _result(self, group: ProcessGroup, who: Who, reference: Any) -> Any:
        """Return the result of a role; replace an actor that died or lost its learner."""
        try:
            result = ray.get(reference)
            lost, words = result if who.role == "actor" else None, ""
        except RayTaskError as error:
            if who.role == "actor" and not isinstance(error.cause, NonFiniteError):
                cause = cause_of(error, self._display.complain)
                if isinstance(cause, UserError):  # also where the store of experience raised it
                    raise cause from None
                name = self._plan.describe_actor(who.number, group.generation(who.number))
                raise crash(name, cause) from None
            raise
        except RayError as error:
            if who.role == "learner":
                raise
            result, lost, words = None, first_line(error), plain(error)
        if lost is not None:
            group.replace_actor(who.number, lost, words)  # if the learner is dead this raises what `_supervise` handles
            self._actor_restarts += 1
            group.count_restarts(self._actor_restarts)
        return result

    def _look(self, group: ProcessGroup) -> None:
        """Show the status of rank 0 to the user and to `watch`."""
        status = group.status(POLL_SECONDS)
        if status is None:
            return
        self.last_status = status
        self._updates = max(self._updates, status.counts.updates)
        for line in status.notes:
            self._display.note(line)
        self._display.show(status.counts, status.latest)
        if self._watch(status):
            self.interrupt()
