"""The records of a run: rank 0 keeps them all, learners of other ranks send their episodes there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddrl.actors.unroll import EpisodeSink
from ddrl.coordinator.program import Steps
from ddrl.interfaces import Role
from ddrl.papers.plans import PLANS
from ddrl.system.notes import say
from ddrl.training.builder import Builder
from ddrl.training.evaluation import FINAL, EvaluationLog, Evaluations
from ddrl.training.learner_node import LearnerNode
from ddrl.training.records import finished, manifest
from ddrl.training.records.checkpoint_layout import SCHEMA
from ddrl.training.records.display import Display
from ddrl.training.records.identity import identity_of, read_mapping
from ddrl.training.records.recorder import Counts, Recorder, make_recorder
from ddrl.training.records.resume import next_due
from ddrl.types import Episode, Metrics

if TYPE_CHECKING:
    from ddrl.training.run import Run


class RunRecords:
    """The records of rank 0: curves, evaluations, where the run came from, and what the user sees."""

    def __init__(self, builder: Builder, directory: Path, display: Display, identity: str | None) -> None:
        """`identity`: the name that checkpoints go by where hyperparameters may change; None: the configuration's."""
        config = builder.config
        self._builder, self._directory = builder, directory
        self._display = display
        self.identity = identity_of(config, directory)
        if identity is not None:
            self.identity = replace(self.identity, name=identity, by_name=True)
        self.provenance = manifest.provenance()  # now: the checkout may move on while the run goes on
        here = {name: self.provenance[name] for name in ("git_sha", "hardware")}
        self.history = [here | {"started": manifest.now(), "env_frames": 0}]
        if plans := read_mapping(directory / PLANS):
            self.history[0]["plans"] = plans
        self._counts: Callable[[], Counts] = lambda: Counts(0, 0, 0)

    @cached_property
    def recorder(self) -> Recorder:
        """The writer of the curves; made last, when nothing has refused to be built, since it makes a file."""
        return make_recorder(self._builder.config, self._directory, self._builder.tasks, self._display.complain)

    def follow(self, node: LearnerNode) -> None:
        """Record from now on what this learner does, which has just been made."""
        self._counts = lambda: node.counts
        self.recorder.gauges = node.gauges
        log = EvaluationLog(self._directory / FINAL, self._evaluated)
        self.evaluations = Evaluations(self._builder, node.params, self.recorder, self._counts, self.note, log)

    def _evaluated(self, metrics: Metrics) -> None:
        """Show how far the final evaluation is."""
        self._display.show(self._counts(), self.recorder.latest | metrics)

    @property
    def resumes(self) -> int:
        """The number of times that the run was continued from a checkpoint."""
        return len(self.history) - 1

    def note(self, line: str) -> None:
        """Tell the user of something that happened at this rank."""
        self._display.note(line)

    announce = note
    """Tell the user what every rank would say alike."""

    def begin(self) -> None:
        """Begin to show the curves; the run is built, and stands where it is resumed."""
        self.recorder.begin()

    def episode(self, episode: Episode) -> None:
        """Record a training episode that is over."""
        counts = self._counts()
        if self.recorder.episode(episode, counts.env_frames):
            self._display.show(counts, self.recorder.latest)

    def updated(self, metrics: Metrics) -> None:
        """Record an update."""
        counts = self._counts()
        self.recorder.update(counts, metrics)
        self._display.show(counts, self.recorder.latest)
        self.evaluations.keep_version()

    def evaluator(self, is_over: Callable[[], bool]) -> Role:
        """Return the role that evaluates beside the training; `is_over` says when to stop."""
        return Steps(self.evaluations.is_due, lambda: self.evaluations.step(is_over))

    def flush(self) -> None:
        """Record what was measured since the last record."""
        self.recorder.flush(self._counts())

    def finish(self, interrupted: Callable[[], bool]) -> None:
        """Play and record the final evaluation."""
        self.flush()
        self.evaluations.finish(interrupted)

    def close(self) -> None:
        """Close the files."""
        self.recorder.close()

    def write_results(self, run: Run) -> None:
        """Write the manifest and the curves of a run that has reached its budget."""
        finished.write(run, self)

    def state_dict(self, next_checkpoint: int) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learner; the next one is due at `next_checkpoint` frames."""
        return self.identity.recorded() | {
            "schema": SCHEMA,
            "recorder": self.recorder.state_dict(),
            "next": [next_checkpoint, *self.evaluations.state_dict()],
            "final_versions": self.evaluations.versions.state_dict(),
            "history": self.history,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Continue where `state` was taken, but for the curves; return the frames at which a checkpoint is due."""
        frames = self._counts().env_frames
        next_checkpoint, *evaluations = next_due(self._builder.config, state, frames)
        self.evaluations.load_state_dict(evaluations, state.get("final_versions", []))
        self.history = [*state["history"], self.history[-1] | {"env_frames": frames}]
        return next_checkpoint

    def continue_curves(self, state: Mapping[str, Any]) -> str:
        """Cut the curves back to where `state` was taken; return what is lost of them, in a line, or ""."""
        return self.recorder.load_state_dict(state["recorder"], self._counts().env_frames)

    def start_over(self) -> None:
        """Forget a checkpoint that was loaded in part."""
        self.history = [self.history[-1] | {"env_frames": 0}]


class RankRecords:
    """The records of a learner of another rank: none, but that rank 0 is sent its episodes."""

    def __init__(self, forward: EpisodeSink) -> None:
        """`forward` takes the episodes."""
        self.episode = forward
        self.resumes = 0

    def _leave_it(self, *arguments: Any) -> None:
        """Do nothing: rank 0 does it."""

    follow = announce = begin = updated = flush = finish = close = write_results = _leave_it

    def note(self, line: str) -> None:
        """Write a line to this process's own log."""
        say(line)

    def evaluator(self, is_over: Callable[[], bool]) -> Role:
        """Return a role that never has anything to do."""
        return Steps(lambda: False, lambda: None)

    def state_dict(self, next_checkpoint: int) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learner."""
        return {"next_checkpoint": next_checkpoint, "resumes": self.resumes}

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Count a resume; return the frames at which a checkpoint is due."""
        self.resumes = state.get("resumes", 0) + 1  # former versions did not count here
        return int(state["next_checkpoint"])

    def continue_curves(self, state: Mapping[str, Any]) -> str:
        """Return that nothing is lost."""
        return ""
