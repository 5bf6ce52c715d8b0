"""Evaluations: separate episodes of a run with fixed parameters, of its task or of each task of a suite.

The final score may be spread over several versions of the parameters. One version says little about an agent whose
greedy policy changes from one update to the next: on a T-maze R2D2's last version scored 0.00, and its neighbours 0.06
to 0.83 (DECISIONS 50).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch

from ddrl.actors import evaluator
from ddrl.actors.policy import LocalInference
from ddrl.coordinator.parameter_server import copies, load
from ddrl.coordinator.shared_parameters import AnyParameters
from ddrl.errors import UserError
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.recorder import Counts, Recorder
from ddrl.types import Episode


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


class Evaluations:
    """The evaluations of a run: one every `period_frames` beside the training, and one at its end."""

    def __init__(
        self,
        builder: Builder,
        params: AnyParameters,
        recorder: Recorder,
        counts: Callable[[], Counts],
        note: Callable[[str], None],
    ) -> None:
        """`params` has the newest parameters; `counts` returns how far the run is; `note` shows a line to the user."""
        self.versions = FinalVersions(builder.config)
        self._builder, self._params, self._recorder = builder, params, recorder
        self._counts, self._note = counts, note
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
        self._play(inference, self._setting.final_episodes, versions, should_stop)

    def _newest(self, inference: LocalInference) -> Scored:
        """Load the newest parameters into the network of `inference`, and return them."""
        updates = self._counts().updates
        self._params.pull_newest(inference.network)
        return Scored(updates, copies(inference.network))

    def _play(
        self, inference: LocalInference, episodes: int, versions: list[Scored], should_stop: Callable[[], bool]
    ) -> bool:
        """Play and record an evaluation; return whether it was not stopped."""
        counts = self._counts()
        played = evaluate(self._builder, inference, self._number, episodes, versions, should_stop, self._note)
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
) -> list[tuple[Episode, int]] | None:
    """Play `episodes` episodes of each task, with the seeds of evaluation `index`; return None if it was stopped.

    Return each episode with the number of updates that led to the parameters that played it.

    The `versions` are loaded into the network of `inference` one after another. Each plays the same number of episodes;
    the newest ones play one more where the division leaves a remainder. If one of several tasks fails, it is left out
    and `note` is told why. If the only task fails, its UserError is raised.
    """
    tasks, played = builder.evaluated_tasks, []
    each, remainder = divmod(episodes, len(versions))
    newest = len(versions) - remainder
    shares = [(version, each + (index >= newest)) for index, version in enumerate(versions)]
    for number, task in enumerate(tasks, index * len(tasks)):
        try:
            own = _play(builder, inference, task, number, shares, should_stop)
        except UserError as error:
            if len(tasks) == 1:
                raise
            note(f"{error}; the other tasks are evaluated")
            continue
        if len(own) < episodes:
            return None
        played += own
    return played


def _play(
    builder: Builder,
    inference: LocalInference,
    task: str,
    number: int,
    shares: Sequence[tuple[Scored, int]],
    should_stop: Callable[[], bool],
) -> list[tuple[Episode, int]]:
    """Play the episodes of one task; `shares` says how many are played with each version."""
    columns = evaluator.num_envs(max(share for _, share in shares))
    policy = builder.policy("evaluation", number, columns, inference)
    played = []
    with closing(builder.evaluation_env(task, number, columns)) as env:
        for version, share in shares:
            load(inference.network, version.tensors)
            own = evaluator.play(env, policy, share, should_stop=should_stop) if share else []
            played += [(episode, version.updates) for episode in own]
    return played
