"""One member of a population: a run of its own that is trained in segments. All of its state is in its folder.

checkpoints/   as of any run, marked with the number of the segment that they were made in
curves.jsonl   the member's own records, over all segments
snapshots/     what another member may copy, written at the end of each segment
adopted/       what this member has copied, under the number of the segment that begins with it
member.json    its configuration in its newest segment
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.errors import NonFiniteError, UserError
from ddrl.runtimes.local import local_runtime
from ddrl.system.files import replacing
from ddrl.system.locks import TAKEOVER_SECONDS, locked
from ddrl.system.signals import StopRequest
from ddrl.training.builder import Builder
from ddrl.training.config.population import Population
from ddrl.training.config.run_config import RunConfig, to_json
from ddrl.training.device import resolve_device
from ddrl.training.evaluation import FINAL, EvaluationLog, FinalVersions, Scored, evaluate
from ddrl.training.records import checkpoint
from ddrl.training.records.display import Display
from ddrl.training.records.identity import identity_of
from ddrl.training.records.recorder import Counts, make_recorder, read_records, write_json
from ddrl.training.records.resume import Checkpoints
from ddrl.training.run import Adopt, Run

SEGMENT = "segment"


class SegmentOutcome(NamedTuple):
    """The end of a segment, and the member's counts until then."""

    member: int
    counts: Counts = Counts(0, 0, 0)
    episodes: int = 0
    fitness: float | None = None
    interrupted: bool = False
    """True: the segment must be begun again, from the newest checkpoint, and the counts above mean nothing."""
    diverged: str = ""
    """Which number was not finite, and at which update; empty: the member did not diverge."""


@dataclass(frozen=True)
class Segment:
    """One segment of a member's run: what its processes need to know, and how it begins, pauses and ends.

    On Ray each learner is given it as a `ddrl.runtimes.ray.launch.MemberSegment`.
    """

    config: RunConfig
    """The member's, with its own seed and the hyperparameters of this segment, and no population."""
    rule: Population
    directory: Path
    """The member's folder."""
    identity: str
    """The name that the member's checkpoints must have."""
    member: int
    number: int
    """The segment's number, from 0, which the decision at its end has too."""
    start_frames: int
    """The frames of the member at which the segment begins."""
    end_frames: int
    ready_episodes: int | None
    """Episodes of the member at which the segment ends; None: only frames count."""
    adopts: bool
    """True: it begins with the snapshot that was copied to `adopted/`."""

    def resume(self, run: Run, note: Callable[[str], None], updates: int | None = None) -> int | None:
        """Continue from the member's newest checkpoint and return its updates; None: from the beginning.

        Rank 0 writes the configuration to `member.json`, and decides when the run pauses. Other ranks are given
        `updates`, those of the checkpoint that rank 0 has chosen.
        """
        run.marks = {SEGMENT: self.number}
        if run.rank:
            if updates is not None:
                run.resume_at(updates, self._adoption(run, lambda line: None))  # rank 0 tells the user
            return updates
        write_json(self.directory / "member.json", to_json(self.config))
        run.pause = lambda: (
            run.learner.core.env_frames >= self.end_frames
            or (self.ready_episodes is not None and run.recorder.episodes >= self.ready_episodes)
        )
        refusal = _no_checkpoint(self) if self.start_frames else None
        return run.resume(self._adoption(run, note), refusal=refusal)

    def _adoption(self, run: Run, note: Callable[[str], None]) -> Adopt:
        """Return the function that turns a checkpoint of the segment before into the state that this one begins with.

        It leaves a checkpoint of this segment as it is. Call this before the run is resumed, while its optimizer has
        the hyperparameters of the segment.
        """
        fresh, source = run.learner.state_dict(), None
        if self.adopts:
            try:
                source = checkpoint.load(self.directory / "adopted", self.number)
            except ValueError as error:
                raise UserError(f"{error}; member {self.member} cannot begin its segment {self.number}") from None

        def adopt(state: dict[str, Any]) -> dict[str, Any]:
            if state["marks"][SEGMENT] > self.number:
                raise UserError(
                    f"{self.directory}: its checkpoint is of segment {state['marks'][SEGMENT]}, and lineage.jsonl does "
                    f"not reach the end of segment {self.number}: lines are lost; put them back, or train in another "
                    "directory"
                )
            if state["marks"][SEGMENT] == self.number:
                return state
            _tell_of_loss(self, state, note)
            return begun(state, source, fresh, self.rule.tuned)

        return adopt

    def train(self, run: Run) -> SegmentOutcome | None:
        """Train to the end of the segment and write a snapshot, unless interrupted; return how it ended, at rank 0."""
        interrupted = run.train_segment() == "interrupted"
        if run.rank:
            return None
        if interrupted:
            return SegmentOutcome(self.member, interrupted=True)
        checkpoint.save(self.directory / "snapshots", self.number, snapshot(run))
        counts, curves = run.counts, self.directory / "curves.jsonl"
        fitness = fitness_of(curves, self.rule.fitness, self.start_frames, counts.env_frames)
        return SegmentOutcome(self.member, counts, run.recorder.episodes, fitness)

    def diverged(self, error: NonFiniteError) -> SegmentOutcome:
        """Return the outcome of a segment that ended with `error`: the member stands at its newest checkpoint."""
        state = _newest(self, lambda line: None)
        if state is None:
            return SegmentOutcome(self.member, diverged=str(error))
        counts, episodes = Counts(*state["learner"]["counters"]), int(state["recorder"]["num_episodes"])
        return SegmentOutcome(self.member, counts, episodes, diverged=str(error))


def train_locally(segment: Segment, display: Display, request: StopRequest) -> SegmentOutcome:
    """Train a segment in this process, until its end or a number that is not finite; return how it ended.

    After `request` the segment ends early, with a checkpoint. Raise what the run raises.
    """
    config, directory = segment.config, segment.directory
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, TAKEOVER_SECONDS):
        make_runtime = local_runtime(config)
        run = Run(config, directory, make_runtime=make_runtime, display=display, identity=segment.identity)
        segment.resume(run, display.note)
        request.answer(run.interrupt)
        try:
            outcome = segment.train(run)
        except NonFiniteError as error:
            run.close()
            return segment.diverged(error)
        finally:
            request.answer(lambda: None)  # keeps the run in memory no longer
        assert outcome is not None
        return outcome


def evaluate_finally(segment: Segment, display: Display, should_stop: Callable[[], bool]) -> bool:
    """Play the final evaluation of a member whose last segment is `segment`; return whether it was not stopped.

    Only the parameters in its newest checkpoint are needed, no learner and no actors. The results go to its curves.
    """
    config = segment.config
    builder = Builder(config, resolve_device(config.device))
    state = _newest(segment, display.note)
    if state is None:
        raise _no_checkpoint(segment)
    _tell_of_loss(segment, state, display.note)
    inference, (_, _, number) = builder.inference(), state["next"]
    counts, versions = Counts(*state["learner"]["counters"]), FinalVersions(config)
    versions.load_state_dict(state.get("final_versions", []), counts.env_frames)
    scored = versions.until(Scored(counts.updates, state["params"]["history"][-1][1]))
    episodes = config.evaluation.final_episodes
    log = EvaluationLog(segment.directory / FINAL, lambda metrics: display.show(counts, metrics))
    played = evaluate(builder, inference, number, episodes, scored, should_stop, display.note, log)
    if played is None or should_stop():
        return False
    recorder = make_recorder(config, segment.directory, builder.tasks)
    recorder.load_state_dict(state["recorder"], counts.env_frames)
    recorder.evaluation(counts, played, by_task=len(builder.evaluated_tasks) > 1)
    recorder.close()
    log.remove()
    return True


def _newest(segment: Segment, note: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the state of the member's newest checkpoint; None where it has none."""
    identity = dataclasses.replace(identity_of(segment.config, segment.directory), name=segment.identity, by_name=True)
    return next(Checkpoints(segment.directory, identity, 1, note).newest_first(), None)


def _tell_of_loss(segment: Segment, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Tell the user how many frames are lost where the newest checkpoint was damaged."""
    reached = int(state["learner"]["counters"][0])
    if reached < segment.start_frames:
        note(f"begins {segment.start_frames - reached:,} frames before its last decision")


def _no_checkpoint(segment: Segment) -> UserError:
    return UserError(
        f"{segment.directory}: no checkpoint can be continued, though lineage.jsonl has decisions of this member; "
        "put the checkpoints back, or train in another directory"
    )


def begun(
    state: Mapping[str, Any], source: Mapping[str, Any] | None, fresh: Mapping[str, Any], tuned: Iterable[str]
) -> dict[str, Any]:
    """Return the state that a segment begins with: `state`, saved at the end of the segment before, with new settings.

    The hyperparameters are those of `fresh`. With a `source`, a snapshot of another member, its weights, target
    network, optimizer and adapted coefficients replace the member's own, also in the actors. Nothing else changes:
    counters, environments, waiting unrolls, the replay and the numbers of the parameters' versions stay the member's.

    Args:
        state: of any rank; those other than 0 have no recorder and no environments.
        fresh: the state of a learner that was just built with the hyperparameters of this segment.
        tuned: keys of the hyperparameters that the population tunes.
    """
    learner = dict(state["learner"])
    result = dict(state) | {"learner": learner}
    if source is not None:
        learner |= source["learner"]
        if "recorder" in state:
            result["final_versions"] = source.get("final_versions", [])
            result["recorder"] = dict(state["recorder"]) | {"task_scores": {}}  # what other weights have scored
        history = [[number, source["tensors"]] for number, _ in state["params"]["history"]]
        result["params"] = dict(state["params"]) | {"history": history}
        if "collectors" in state:
            network = source["learner"]["network"]
            result["collectors"] = [_acting_with(network, collector) for collector in state["collectors"]]
    learner["optimizer"] = dict(learner["optimizer"]) | {"param_groups": fresh["optimizer"]["param_groups"]}
    learner |= {key: fresh[key] for key in tuned if key in fresh}  # adapted ones, such as kl_cost
    return result


def _acting_with(network: Any, collector: dict[str, Any]) -> dict[str, Any]:
    policy = collector["policy"]
    if "network" not in policy:  # with central inference
        return collector
    return collector | {"policy": policy | {"network": network}}


def snapshot(run: Run) -> dict[str, Any]:
    """Return what another member may copy of a run: what its learner has learned, and its newest parameters."""
    learner = run.learner.state_dict()
    return {
        "learner": {key: learner[key] for key in run.builder.algorithm.SYSTEM.learned},
        "tensors": run.params.state_dict()["history"][-1][1],
        "final_versions": run.evaluations.versions.state_dict(),
    }


def carry_over(source: Path, decision: int, target: Path, segment: int) -> None:
    """Copy the snapshot of a decision of the member in `source` to where `segment` of the one in `target` looks for it.

    A copy that is already complete is kept. Older copies are removed.
    """
    folder = target / "adopted"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{segment:012d}"
    for suffix in (".pt", ".sha256"):  # the checksum last
        if not (folder / f"{name}.sha256").exists():
            with replacing(folder / f"{name}{suffix}") as temporary:
                shutil.copyfile(source / "snapshots" / f"{decision:012d}{suffix}", temporary)
    for old in folder.glob("*.*"):
        if old.stem != name:
            old.unlink(missing_ok=True)


def fitness_of(curves: Path, metric: str, after: int, up_to: int) -> float | None:
    """Return the mean of a metric over the episodes that ended in after < env_frames <= up_to; None if none did.

    A record of the training counts as often as the episodes that it is the mean of. The curves hold each episode of an
    evaluation by itself, so these count once. Raise UserError if there are records of episodes and none has the metric.
    """
    total = weight = before = 0.0
    names: set[str] = set()
    for record in read_records(curves):
        metrics: dict[str, list[float]] = record["metrics"]
        episodes = metrics["episodes"][0] if "episodes" in metrics else None
        if after < record["env_frames"] <= up_to:
            names |= set(metrics)
            values = metrics.get(metric, [])
            each = (episodes - before) / len(values) if episodes is not None and values else 1.0
            total += each * sum(values)
            weight += each * len(values)
        before = episodes if episodes is not None else before
    if metric not in names and "episode_return" in names:
        raise UserError(
            f"key 'population.fitness': {curves} has no metric '{metric}'; it has: {', '.join(sorted(names))}"
        )
    return total / weight if weight else None
