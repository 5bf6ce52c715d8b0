"""Evaluations: separate episodes of a run with fixed parameters, of its task or of each task of a suite.

The final score may be spread over several versions of the parameters. One version says little about an agent whose
greedy policy changes from one update to the next: on a T-maze R2D2's last version scored 0.00, and its neighbours 0.06
to 0.83 (DECISIONS 50).
"""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ddrl.actors import evaluator
from ddrl.actors.evaluator import Games
from ddrl.actors.policy import LocalInference
from ddrl.coordinator.parameter_server import copies, load
from ddrl.coordinator.shared_parameters import AnyParameters
from ddrl.errors import UserError
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records import checkpoint
from ddrl.training.records.recorder import Counts, Recorder
from ddrl.types import Episode, Metrics

FINAL = "final_evaluation"
"""The folder, in a run's directory, of a final evaluation that is not over."""
SAVE_SECONDS = 2.0
"""Least time between two savings of an evaluation."""


class Scored(NamedTuple):
    """A version of the parameters that episodes are played with."""

    updates: int
    """Number of updates that led to it."""
    tensors: list[torch.Tensor]
    """The parameters and buffers, as `ddrl.coordinator.parameter_server.copies` returns them."""


class FinalVersions:
    """The versions of the parameters, besides the last one, that share the final episodes.

    They are taken after the first update at or beyond certain numbers of frames, at equal distances over the last part
    of the budget. If the budget is raised when the run is continued, versions from before its new last part are
    dropped.
    """

    def __init__(self, config: RunConfig) -> None:
        """Plan the versions for the budget of `config`."""
        count, budget = config.evaluation.final_versions, config.env_frames
        window = config.evaluation.final_window_fraction * budget
        self._first = round(budget - window)
        self._due = [round(budget - window * (count - 1 - index) / (count - 1)) for index in range(count - 1)]
        self._kept: list[tuple[int, Scored]] = []

    def are_due(self, env_frames: int) -> bool:
        """Return whether a version must be kept now."""
        return bool(self._due) and env_frames >= self._due[0]

    def keep(self, env_frames: int, version: Scored) -> None:
        """Keep a copy of `version` in the CPU's memory."""
        self._due = [frames for frames in self._due if frames > env_frames]
        copied = [tensor.detach().to("cpu", copy=True) for tensor in version.tensors]
        self._kept.append((env_frames, Scored(version.updates, copied)))

    def until(self, last: Scored) -> list[Scored]:
        """Return the versions that share the final episodes, oldest first: those kept before `last`, and `last`."""
        return [*(version for _, version in self._kept if version.updates < last.updates), last]

    def state_dict(self) -> list[list[Any]]:
        """Return frames, updates and tensors of each kept version."""
        return [[env_frames, version.updates, version.tensors] for env_frames, version in self._kept]

    def load_state_dict(self, state: Sequence[Sequence[Any]], env_frames: int) -> None:
        """Continue with the versions of `state`, taken after `env_frames` frames."""
        self._kept = [(frames, Scored(*version)) for frames, *version in state if frames >= self._first]
        self._due = [frames for frames in self._due if frames > env_frames]


class EvaluationLog:
    """What an evaluation has played. With a folder it is saved there every few seconds, and goes on after a kill."""

    def __init__(self, folder: Path | None = None, show: Callable[[Metrics], None] = lambda metrics: None) -> None:
        """`show` is called with how many episodes are played, how many are planned and their mean return."""
        self.played: list[tuple[Episode, int]] = []
        self.task, self.share = 0, 0
        """The task and the version that are playing, or play next."""
        self._folder, self._show = folder, show
        self._name, self._planned = "", 0
        self._task_began = 0
        self._games: dict[str, Any] | None = None
        """The state of games that a killed process was playing."""
        self._current: Games | None = None
        """The games that are being played."""
        self._saved = time.monotonic()

    def begin(self, name: str, planned: int) -> None:
        """Continue what the folder has of the evaluation called `name`, which plays `planned` episodes."""
        self._name, self._planned = name, planned
        state = checkpoint.load_newest(self._folder)[0] if self._folder else None
        if state is None or state.get("name") != name:
            return
        self.played = [(Episode(*episode), updates) for episode, updates in state["played"]]
        self.task, self.share, self._task_began = state["place"]
        self._games = state["games"]

    def enter(self, task: int) -> None:
        """Begin a task, unless it had begun."""
        if task != self.task:
            self.task, self.share = task, 0
        if not self.share and self._games is None:
            self._task_began = len(self.played)

    def leave_out(self) -> None:
        """Forget the episodes of a task that failed."""
        del self.played[self._task_began :]
        self.share, self._games = 0, None

    def enter_share(self, place: int) -> dict[str, Any] | None:
        """Begin a version; return the state of the games that a killed process was playing with it, if any."""
        self.share, self._current = place, None
        state, self._games = self._games, None
        return state

    def note_progress(self, games: Games, updates: int) -> None:
        """Show how far the evaluation is, and save it where that is due."""
        self._current = games
        self._tell([*self.played, *((episode, updates) for episode in games.finished)])
        if self._folder and time.monotonic() >= self._saved + SAVE_SECONDS and not games.are_over:
            self._save(games.state_dict(), len(self.played) + len(games.finished))

    def stop(self) -> None:
        """Save where the games stand, since the process is about to end."""
        if self._folder and self._current is not None:
            self._save(self._current.state_dict(), len(self.played) + len(self._current.finished))

    def end_share(self, episodes: Sequence[Episode], updates: int) -> None:
        """Add the episodes of one version, which are all over.

        Nothing is saved here: the games of the next version go on with the same environments and random numbers.
        """
        self.played += [(episode, updates) for episode in episodes]
        self.share, self._current = self.share + 1, None

    def end_task(self) -> None:
        """Save that a task is over; the next one has environments of its own."""
        self.task, self.share, self._task_began = self.task + 1, 0, len(self.played)
        if self._folder and self._planned > len(self.played):
            self._save(None, len(self.played))

    def remove(self) -> None:
        """Remove what was saved, once the episodes are recorded."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, played: Sequence[tuple[Episode, int]]) -> None:
        mean = sum(episode.episode_return for episode, _ in played) / len(played)
        self._show({"evaluated": len(played), "to_evaluate": self._planned, "evaluation_return": mean})

    def _save(self, games: dict[str, Any] | None, number: int) -> None:
        assert self._folder is not None
        self._saved = time.monotonic()
        state = {
            "name": self._name,
            "played": [[list(episode), updates] for episode, updates in self.played],
            "place": [self.task, self.share, self._task_began],
            "games": games,
        }
        checkpoint.save(self._folder, number, state)


class Evaluations:
    """The evaluations of a run: one every `period_frames` beside the training, and one at its end."""

    def __init__(
        self,
        builder: Builder,
        params: AnyParameters,
        recorder: Recorder,
        counts: Callable[[], Counts],
        note: Callable[[str], None],
        final_log: EvaluationLog,
    ) -> None:
        """`params` has the newest parameters; `counts` returns how far the run is; `note` shows a line to the user."""
        self.versions = FinalVersions(builder.config)
        self._builder, self._params, self._recorder = builder, params, recorder
        self._counts, self._note, self._final_log = counts, note, final_log
        self._setting = builder.config.evaluation
        self._next = self._setting.period_frames
        self._number = 0

    def is_due(self) -> bool:
        """Return whether an evaluation beside the training is due."""
        return self._next is not None and self._counts().env_frames >= self._next

    def step(self, should_stop: Callable[[], bool]) -> None:
        """Evaluate the newest parameters, unless the training is over: its end has an evaluation of its own.

        An evaluation that is stopped stays due, so it is played when the run is continued.
        """
        assert self._next is not None and self._setting.period_frames is not None
        if should_stop():
            return
        inference = self._builder.inference()
        if self._play(inference, self._setting.episodes, [self._newest(inference)], should_stop):
            self._next += self._setting.period_frames

    def keep_version(self) -> None:
        """Keep the newest parameters if they are to share the final episodes."""
        counts = self._counts()
        if self.versions.are_due(counts.env_frames):
            self.versions.keep(counts.env_frames, self._newest(self._builder.inference()))

    def finish(self, should_stop: Callable[[], bool]) -> None:
        """Play the final episodes."""
        inference = self._builder.inference()
        versions = self.versions.until(self._newest(inference))
        if self._play(inference, self._setting.final_episodes, versions, should_stop, self._final_log):
            self._final_log.remove()

    def _newest(self, inference: LocalInference) -> Scored:
        """Load the newest parameters into the network of `inference`, and return them."""
        updates = self._counts().updates
        self._params.pull_newest(inference.network)
        return Scored(updates, copies(inference.network))

    def _play(
        self,
        inference: LocalInference,
        episodes: int,
        versions: list[Scored],
        should_stop: Callable[[], bool],
        log: EvaluationLog | None = None,
    ) -> bool:
        """Play and record an evaluation; return whether it was not stopped."""
        counts = self._counts()
        played = evaluate(self._builder, inference, self._number, episodes, versions, should_stop, self._note, log)
        if played is None:
            return False
        self._number += 1
        by_task = len(self._builder.evaluated_tasks) > 1
        self._recorder.evaluation(counts, played, by_task=by_task)
        return True

    def state_dict(self) -> list[int | None]:
        """Return the frames at which the next evaluation is due, and the number of evaluations so far."""
        return [self._next, self._number]

    def load_state_dict(self, state: Sequence[Any], versions: Sequence[Sequence[Any]]) -> None:
        """Continue where `state` was taken, with the `versions` that were kept until then."""
        self._next, self._number = state
        self.versions.load_state_dict(versions, self._counts().env_frames)


def evaluate(
    builder: Builder,
    inference: LocalInference,
    index: int,
    episodes: int,
    versions: Sequence[Scored],
    should_stop: Callable[[], bool],
    note: Callable[[str], None],
    log: EvaluationLog | None = None,
) -> list[tuple[Episode, int]] | None:
    """Play `episodes` episodes of each task, with the seeds of evaluation `index`; return None if it was stopped.

    Return each episode with the number of updates that led to the parameters that played it.

    The `versions` are loaded into the network of `inference` one after another. Each plays the same number of episodes;
    the newest ones play one more where the division leaves a remainder. If one of several tasks fails, it is left out
    and `note` is told why. If the only task fails, its UserError is raised. What `log` has of this evaluation is not
    played again.
    """
    tasks = builder.evaluated_tasks
    each, remainder = divmod(episodes, len(versions))
    newest = len(versions) - remainder
    shares = [(version, each + (index >= newest)) for index, version in enumerate(versions)]
    log = EvaluationLog() if log is None else log
    log.begin(f"{index} {episodes} {_checksum(versions)}", episodes * len(tasks))
    for number, task in enumerate(tasks):
        if number < log.task:
            continue
        log.enter(number)
        try:
            if not _play(builder, inference, task, index * len(tasks) + number, shares, should_stop, log):
                return None
            log.end_task()
        except UserError as error:
            if len(tasks) == 1:
                raise
            log.leave_out()
            note(f"{error}; the other tasks are evaluated")
    return log.played


def _play(
    builder: Builder,
    inference: LocalInference,
    task: str,
    number: int,
    shares: Sequence[tuple[Scored, int]],
    should_stop: Callable[[], bool],
    log: EvaluationLog,
) -> bool:
    """Play the episodes of one task into `log`; return whether it was not stopped.

    `shares` says how many are played with each version.
    """
    columns = evaluator.num_envs(max(share for _, share in shares))
    policy = builder.policy("evaluation", number, columns, inference)
    with closing(builder.evaluation_env(task, number, columns)) as env:
        for place, (version, share) in enumerate(shares):
            if place < log.share or not share:
                continue
            load(inference.network, version.tensors)
            state, after = log.enter_share(place), partial(log.note_progress, updates=version.updates)
            own = evaluator.play(env, policy, share, should_stop=should_stop, state=state, after=after)
            if len(own) < share:
                log.stop()
                return False
            log.end_share(own, version.updates)
    return True


def _checksum(versions: Sequence[Scored]) -> int:
    """Return a checksum of all parameters that are played with."""
    found = 0
    for version in versions:
        for tensor in version.tensors:
            found = zlib.crc32(tensor.detach().cpu().numpy().tobytes(), found)
    return found
