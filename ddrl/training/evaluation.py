"""Separate episodes of a run with fixed parameters: of its task, or one after another of the tasks of a suite.

A final score may be spread over several versions of the parameters. One version says little of an agent whose greedy
policy changes from one update to the next: on a T-maze R2D2's last version scored 0.00 where its neighbours scored 0.06
to 0.83 (DECISIONS 50).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ddrl.actors import evaluator
from ddrl.actors.policy import LocalInference
from ddrl.coordinator.parameter_server import copies, load
from ddrl.errors import UserError
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.recorder import Counts, Recorder
from ddrl.types import Episode


class Scored(NamedTuple):
    """Parameters that episodes are played with."""

    updates: int
    """That they had seen."""
    tensors: list[torch.Tensor]
    """As a version consists of them (`ddrl.coordinator.parameter_server.copies`)."""


class Played(NamedTuple):
    """An evaluation."""

    episodes: list[Episode]
    updates: list[int]
    """That the parameters had seen which played the episode; as many as episodes."""


class FinalVersions:
    """Keeps the versions of the parameters, but for the last one, that the final episodes are spread over.

    They are taken after the first update at or beyond each of some numbers of frames, which lie at equal distances over
    the last part of the budget. A budget that was raised when the run was continued has a window of its own: versions
    from before it are dropped.
    """

    def __init__(self, config: RunConfig) -> None:
        """Plan them for the budget of `config`."""
        count, budget = config.evaluation.final_versions, config.env_frames
        window = config.evaluation.final_window_fraction * budget
        self._first = round(budget - window)
        self._due = [round(budget - window * (count - 1 - index) / (count - 1)) for index in range(count - 1)]
        self._kept: list[tuple[int, Scored]] = []

    def are_due(self, env_frames: int) -> bool:
        """Return whether a version is to be kept now."""
        return bool(self._due) and env_frames >= self._due[0]

    def keep(self, env_frames: int, version: Scored) -> None:
        """Keep a copy of this version in the processor's memory."""
        self._due = [frames for frames in self._due if frames > env_frames]
        copied = [tensor.detach().to("cpu", copy=True) for tensor in version.tensors]
        self._kept.append((env_frames, Scored(version.updates, copied)))

    def until(self, last: Scored) -> list[Scored]:
        """Return the versions that share the final episodes, the oldest first; `last` is the newest one."""
        return [*(version for _, version in self._kept if version.updates < last.updates), last]

    def state_dict(self) -> list[list[Any]]:
        """Return the kept versions: frames, updates, tensors."""
        return [[env_frames, version.updates, version.tensors] for env_frames, version in self._kept]

    def load_state_dict(self, state: Sequence[Sequence[Any]], env_frames: int) -> None:
        """Continue with the versions of `state`, taken after `env_frames` frames."""
        self._kept = [(frames, Scored(*version)) for frames, *version in state if frames >= self._first]
        self._due = [frames for frames in self._due if frames > env_frames]


class Evaluations:
    """The evaluations of a run: now and then beside the training, and at its end."""

    def __init__(
        self,
        builder: Builder,
        params: Any,
        recorder: Recorder,
        counts: Callable[[], Counts],
        note: Callable[[str], None],
    ) -> None:
        """`params`: where the newest ones are. `counts`: how far the training is. `note` takes lines for the user."""
        self.versions = FinalVersions(builder.config)
        self._builder, self._params, self._recorder = builder, params, recorder
        self._counts, self._note = counts, note
        self._setting = builder.config.evaluation
        self._next = self._setting.period_frames
        self._number = 0

    def is_due(self) -> bool:
        """Return whether the learner has consumed the frames after which the next one beside the training comes."""
        return self._next is not None and self._counts().env_frames >= self._next

    def step(self, should_stop: Callable[[], bool]) -> None:
        """Evaluate the newest parameters, unless the training is over: the end has an evaluation of its own.

        One that is stopped stays due, so that a run that is continued plays it.
        """
        assert self._next is not None and self._setting.period_frames is not None
        if should_stop():
            return
        inference = self._builder.inference()
        if self._play(inference, self._setting.episodes, [self._newest(inference)], should_stop):
            self._next += self._setting.period_frames

    def keep_version(self) -> None:
        """Keep the newest parameters for the final evaluation where they are to have a share of it."""
        counts = self._counts()
        if self.versions.are_due(counts.env_frames):
            self.versions.keep(counts.env_frames, self._newest(self._builder.inference()))

    def finish(self, should_stop: Callable[[], bool]) -> None:
        """Play the final episodes."""
        inference = self._builder.inference()
        versions = self.versions.until(self._newest(inference))
        self._play(inference, self._setting.final_episodes, versions, should_stop)

    def _newest(self, inference: LocalInference) -> Scored:
        """Return the newest parameters, which are then in the network of `inference` too."""
        updates = self._counts().updates
        self._params.pull_newest(inference.network)
        return Scored(updates, copies(inference.network))

    def _play(
        self, inference: LocalInference, episodes: int, versions: list[Scored], should_stop: Callable[[], bool]
    ) -> bool:
        """Return whether it was not stopped."""
        counts, number = self._counts(), self._number
        played = evaluate(
            self._builder, inference, number, episodes, versions, should_stop=should_stop, note=self._note
        )
        if played is None:
            return False
        self._number += 1
        by_task = len(self._builder.evaluated_tasks) > 1
        self._recorder.evaluation(counts, played.episodes, played.updates, by_task=by_task)
        return True

    def state_dict(self) -> list[int | None]:
        """Return the frames of the next one and how many there were."""
        return [self._next, self._number]

    def load_state_dict(self, state: Sequence[Any], versions: Sequence[Sequence[Any]]) -> None:
        """Continue where `state` was taken, and the `versions` that were kept until then."""
        self._next, self._number = state
        self.versions.load_state_dict(versions, self._counts().env_frames)


def evaluate(
    builder: Builder,
    inference: LocalInference,
    index: int,
    episodes: int,
    versions: Sequence[Scored],
    *,
    should_stop: Callable[[], bool],
    note: Callable[[str], None],
) -> Played | None:
    """Play `episodes` episodes of each task, on the seeds of evaluation `index`; return None where it was stopped.

    Each of the `versions` plays as many; where that leaves some over, the newest play one more. They are loaded into
    the network of `inference` one after another. Of several tasks, one that fails is left out and `note` is told why.
    Raises UserError where the only one fails.
    """
    tasks, played = builder.evaluated_tasks, Played([], [])
    shares = _shares(episodes, len(versions))
    for number, task in enumerate(tasks, index * len(tasks)):
        try:
            own = _play(builder, inference, task, number, list(zip(versions, shares, strict=True)), should_stop)
        except UserError as error:
            if len(tasks) == 1:
                raise
            note(f"{error}; the other tasks are evaluated")
            continue
        if len(own.episodes) < episodes:
            return None
        played.episodes.extend(own.episodes)
        played.updates.extend(own.updates)
    return played


def _shares(episodes: int, versions: int) -> list[int]:
    """Return how many episodes each version plays, the oldest first."""
    each, more = divmod(episodes, versions)
    return [each + (index >= versions - more) for index in range(versions)]


def _play(
    builder: Builder,
    inference: LocalInference,
    task: str,
    number: int,
    shares: Sequence[tuple[Scored, int]],
    should_stop: Callable[[], bool],
) -> Played:
    columns = evaluator.num_envs(max(share for _, share in shares))
    policy = builder.policy("evaluation", number, columns, inference)
    env = builder.evaluation_env(task, number, columns)
    played = Played([], [])
    try:
        for version, share in shares:
            load(inference.network, version.tensors)
            own = evaluator.play(env, policy, share, should_stop=should_stop) if share else []
            played.episodes.extend(own)
            played.updates.extend([version.updates] * len(own))
        return played
    finally:
        env.close()
