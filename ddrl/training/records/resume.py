"""Resuming a run from its newest checkpoint that is complete, of the same training, and can be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records import checkpoint
from ddrl.training.records.checkpoint_layout import migrated
from ddrl.training.records.identity import Identity

BEFORE = "records-before"
"""The folder of what a run recorded before it had a checkpoint, and then began anew."""


class Checkpoints:
    """The checkpoints in a run's directory; `note` gets a line about each that is passed over."""

    def __init__(self, directory: Path, identity: Identity, num_learners: int, note: Callable[[str], None]) -> None:
        """`num_learners`: those other than the first keep parts of their own."""
        self._folder = directory / "checkpoints"
        self._identity = identity
        self._ranks = [checkpoint.rank_folder(directory, rank) for rank in range(1, num_learners)]
        self._note = note
        self._path = self._folder
        self._other: dict[str, Any] | None = None
        self.refusal: UserError | None = None
        """The error of an environment that could not restore its state."""
        self.reached = 0
        """env_frames of the last yielded state."""
        self.loaded = False
        """True once a state was yielded, and so loaded at least in part."""

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """Yield the states that may be loaded, in the present layout, until one is of another training.

        The caller asks for the next one after calling `unfit` for one that does not load.
        """
        for path, found in checkpoint.whole(self._folder, self._note):
            self._path = path
            try:
                state = migrated(found)
                self.reached = int(state["learner"]["counters"][0])
            except ValueError as error:
                self._pass_over(str(error))
                continue
            except (KeyError, TypeError, IndexError) as error:
                self.unfit(error)
                continue
            if not self._identity.agree(state):
                self._other = state
                return
            parts = [*self._ranks, *(self._folder / name for name in state.get("beside", {}))]
            if missing := checkpoint.without_counterpart(path, state, parts):
                self._pass_over(f"has no whole counterpart in {missing}")
                continue
            self.loaded = True
            yield state | {"config": self._identity.configuration(state)}

    def unfit(self, error: Exception) -> None:
        """Note that the last yielded state did not load."""
        if isinstance(error, UserError):
            self.refusal = error
            self._pass_over(str(error))
            return
        words = f"{type(error).__name__}: {error}".splitlines()
        self._pass_over(f"is of another layout ({words[0]})")

    def _pass_over(self, problem: str) -> None:
        self._note(checkpoint.passed_over(self._path, problem))

    def set_aside(self) -> Path:
        """Move all checkpoints out of the way of new ones, and tell the user.

        Return their folder, to which other files of theirs may be moved; without checkpoints, the path of a new one.
        """
        if self._other is not None:
            aside = checkpoint.set_aside(self._folder, self._other["identity"])
            self._note(f"{self._identity.difference(self._other)}: starting anew; old state in {aside}")
            return aside
        if not any(self._folder.rglob("*.pt")):  # even damaged ones must go: their numbers may exceed new ones
            return checkpoint.free_name(self._folder.with_name(BEFORE))
        aside = checkpoint.set_aside(self._folder, "unusable")
        self._note(f"no checkpoint can be continued: starting anew; old files in {aside}")
        return aside


def check_budget(config: RunConfig, directory: Path, reached: int, before: int) -> None:
    """Raise `UserError` if the budget has become shorter than the frames trained.

    `reached`: env_frames so far, which may slightly exceed the former budget `before`.
    """
    if config.env_frames < min(reached, before):
        raise UserError(
            f"{directory}: {reached:,} frames of the run there are trained, more than env_frames: "
            f"{config.env_frames:,}; set it higher, or train in another directory"
        )


def next_due(config: RunConfig, state: Mapping[str, Any], env_frames: int) -> tuple[int, int | None, int]:
    """Return the frames at which a checkpoint and an evaluation are due, and how many evaluations there were.

    They are those of `state`, taken at `env_frames`; if a period has changed since, its next multiple is due.
    """
    checkpoint_at, evaluation_at, number = state["next"]
    before = state["config"]
    if config.checkpoint.period_frames != before["checkpoint"]["period_frames"]:
        checkpoint_at = _next_multiple(config.checkpoint.period_frames, env_frames)
    period = config.evaluation.period_frames
    if period != before["evaluation"]["period_frames"]:
        evaluation_at = None if period is None else _next_multiple(period, env_frames)
    return checkpoint_at, evaluation_at, number


def _next_multiple(period: int, env_frames: int) -> int:
    return (env_frames // period + 1) * period
