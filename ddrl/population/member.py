"""One member: a run of its own, trained in segments. What it leaves is in files, so any process may train the next one.

checkpoints/   as of any run, but marked with the segment that they were made in
curves.jsonl   its own records, all its life
snapshots/     what another member would copy: made at the end of each segment
adopted/       what this one has copied, for the segment of that number
member.json    its configuration in its newest segment
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.errors import NonFiniteError, UserError
from ddrl.runtimes.local import local_runtime
from ddrl.system.files import replacing
from ddrl.system.locks import locked
from ddrl.training.builder import Builder
from ddrl.training.config.population import Population, Values, with_values
from ddrl.training.config.run_config import RunConfig, to_json
from ddrl.training.device import resolve_device
from ddrl.training.evaluation import FinalVersions, Scored, evaluate
from ddrl.training.records import checkpoint
from ddrl.training.records.display import Display
from ddrl.training.records.identity import identity_of
from ddrl.training.records.recorder import Counts, make_recorder, read_records, write_json
from ddrl.training.records.resume import Checkpoints
from ddrl.training.run import Adopt, Run

LOCK_SECONDS = 30.0
"""How long a member waits for its process of before, whose supervisor was killed, to be gone."""
SEGMENT = "segment"


@dataclass(frozen=True)
class Job:
    """One segment of one member: all that its process needs to know."""

    config: RunConfig
    """Of the member: with its own seed and the hyperparameters of this segment, and no population."""
    directory: Path
    """The member's."""
    identity: str
    """What its checkpoints must agree with."""
    member: int
    segment: int
    start_frames: int
    """Where the segment begins: in the member's own counts."""
    end_frames: int
    ready_episodes: int | None
    """Episodes, counted by the member, at which the segment ends; None: only frames count."""
    adopts: bool
    """Whether it begins with what was copied to `adopted/`."""
    tuned: tuple[str, ...]
    fitness: str


class Outcome(NamedTuple):
    """How a segment ended."""

    member: int
    interrupted: bool
    env_frames: int
    agent_steps: int
    updates: int
    episodes: int
    fitness: float | None
    diverged: str = ""
    """Which number was not finite any more, and at what update; empty: it ended well, or was interrupted."""


def diverged(job: Job, error: NonFiniteError) -> Outcome:
    """Of a segment that ended so: the member stands at its newest checkpoint, or, without one, where it began."""
    state = _newest(job, lambda line: None)
    if state is None:
        return Outcome(job.member, False, 0, 0, 0, 0, None, str(error))
    counts, episodes = Counts(*state["learner"]["counters"]), int(state["recorder"]["num_episodes"])
    return Outcome(job.member, False, counts.env_frames, counts.agent_steps, counts.updates, episodes, None, str(error))


def interrupted(job: Job) -> Outcome:
    """Of a segment that nobody can say more of; it is begun again, and goes on from the newest checkpoint."""
    return Outcome(job.member, True, job.start_frames, 0, 0, 0, None)


class Segment:
    """What makes a segment of a member's run, wherever its learners are: how it begins, pauses and ends.

    On Ray each learner is told of it, as a `ddrl.runtimes.ray.launch.Part`.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.name = str(job.member)
        self.identity = job.identity

    def prepare(self, run: Run) -> None:
        """Set where the run pauses, and write to `member.json` what it trains with."""
        job = self._job
        run.marks = {SEGMENT: job.segment}
        if run.rank:
            return
        write_json(job.directory / "member.json", to_json(job.config))
        run.pause = lambda: (
            run.learner.core.env_frames >= job.end_frames
            or (job.ready_episodes is not None and run.recorder.episodes >= job.ready_episodes)
        )

    def resume(self, run: Run, note: Callable[[str], None], updates: int | None = None) -> int | None:
        """Continue where the member's newest checkpoint left it; adopted, where the segment begins with that.

        `updates`: of the checkpoint that rank 0 has chosen; asked of other ranks. Return those that were chosen.
        """
        job = self._job
        if not run.rank:
            refusal = nothing_to_continue(job) if job.start_frames else None
            return run.resume(self._adoption(run, note), refusal=refusal)
        if updates is not None:
            run.resume_at(updates, self._adoption(run, lambda line: None))  # rank 0 says it
        return updates

    def _adoption(self, run: Run, note: Callable[[str], None]) -> Adopt:
        """Return what makes of a checkpoint what the segment begins with; one that was made in it stays as it is.

        To be called before the run is resumed, while its optimizer has the hyperparameters of the segment.
        """
        job, fresh = self._job, run.learner.state_dict()
        source = _load_adopted(job) if job.adopts else None

        def adopt(state: dict[str, Any]) -> dict[str, Any]:
            if state["marks"][SEGMENT] > job.segment:
                raise UserError(
                    f"{job.directory}: its checkpoint is of segment {state['marks'][SEGMENT]}, and lineage.jsonl does "
                    f"not reach the end of segment {job.segment}: lines are lost; put them back, or train in another "
                    "directory"
                )
            if state["marks"][SEGMENT] == job.segment:
                return state
            _tell_of_loss(job, state, note)
            return begun(state, source, fresh, job.tuned)

        return adopt

    def train(self, run: Run) -> Outcome | None:
        """Train to the end of the segment, with a snapshot, unless it is interrupted; return how it ended at rank 0."""
        job = self._job
        interrupted = run.train_segment() == "interrupted"
        if run.rank:
            return None
        if not interrupted:
            checkpoint.save(job.directory / "snapshots", job.segment, snapshot(run))
        curves = job.directory / "curves.jsonl"
        counts = run.counts
        fitness = None if interrupted else fitness_of(curves, job.fitness, job.start_frames, counts.env_frames)
        return Outcome(
            job.member,
            interrupted,
            counts.env_frames,
            counts.agent_steps,
            counts.updates,
            run.recorder.episodes,
            fitness,
        )


class LocalSegment:
    """A segment of a member, in this process."""

    def __init__(self, job: Job, display: Display) -> None:
        self._job = job
        self._display = display
        self._run: Run | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        """Ends the segment early, with a checkpoint; it goes on when it is begun again."""
        self._interrupted = True
        if self._run:
            self._run.interrupt()

    def train(self) -> Outcome:
        """From the member's newest checkpoint to the end of the segment, or until its numbers are not finite.

        Raises what a run raises besides.
        """
        job = self._job
        job.directory.mkdir(parents=True, exist_ok=True)
        with locked(job.directory, LOCK_SECONDS):
            segment = Segment(job)
            run = self._run = Run(
                job.config,
                job.directory,
                make_runtime=local_runtime(job.config),
                display=self._display,
                identity=job.identity,
            )
            segment.prepare(run)
            segment.resume(run, self._display.note)
            if self._interrupted:
                run.interrupt()
            try:
                outcome = segment.train(run)
            except NonFiniteError as error:
                run.close()
                return diverged(job, error)
            assert outcome is not None
            return outcome


def evaluate_finally(job: Job, display: Display, should_stop: Callable[[], bool]) -> bool:
    """The final evaluation of a member whose segments are over, into its curves; returns whether it was not stopped.

    From its newest checkpoint alone, which has the parameters: neither learners nor actors are needed.
    """
    config = job.config
    builder = Builder(config, resolve_device(config.device))
    state = _newest(job, display.note)
    if state is None:
        raise nothing_to_continue(job)
    _tell_of_loss(job, state, display.note)
    inference, (_, _, number) = builder.inference(), state["next"]
    counts, versions = Counts(*state["learner"]["counters"]), FinalVersions(config)
    versions.load_state_dict(state.get("final_versions", []), counts.env_frames)
    scored = versions.until(Scored(counts.updates, state["params"]["history"][-1][1]))
    episodes = config.evaluation.final_episodes
    played = evaluate(builder, inference, number, episodes, scored, should_stop=should_stop, note=display.note)
    if played is None or should_stop():
        return False
    recorder = make_recorder(config, job.directory, builder.tasks)
    recorder.load_state_dict(state["recorder"], int(state["learner"]["counters"][0]))
    recorder.evaluation(counts, played.episodes, played.updates, by_task=len(builder.evaluated_tasks) > 1)
    recorder.close()
    return True


def _newest(job: Job, note: Callable[[str], None]) -> dict[str, Any] | None:
    """The state of a member's newest checkpoint; None where it has none."""
    identity = replace(identity_of(job.config, job.directory), name=job.identity, by_name=True)
    return next(Checkpoints(job.directory, identity, 1, note).newest_first(), None)


def _tell_of_loss(job: Job, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Where the newest checkpoint was damaged."""
    reached = int(state["learner"]["counters"][0])
    if reached < job.start_frames:
        note(f"begins {job.start_frames - reached:,} frames before its last decision")


def nothing_to_continue(job: Job) -> UserError:
    """A member has no checkpoint."""
    return UserError(
        f"{job.directory}: no checkpoint can be continued, though lineage.jsonl has decisions of this member; "
        "put the checkpoints back, or train in another directory"
    )


def begun(
    state: Mapping[str, Any], source: Mapping[str, Any] | None, fresh: Mapping[str, Any], tuned: tuple[str, ...]
) -> dict[str, Any]:
    """What a segment begins with: `state` of the end of the one before, with the hyperparameters of this one.

    With a `source`, a snapshot of another member, its weights, target network, optimizer and adapted coefficients take
    the place of the own ones, also those that actors act with. Nothing else changes: counters, environments, waiting
    unrolls and replay are the member's own. Versions of the parameters keep their numbers.

    Args:
        state: of the learner that leads, or of one that follows, which has no record and no environments.
        fresh: the learner's state as its hyperparameters make it, whose optimizer groups hold them.
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


def _acting_with(network: Any, collector: Mapping[str, Any]) -> dict[str, Any]:
    policy = dict(collector["policy"])
    if "network" in policy:  # with central inference it has none of its own
        policy["network"] = network
    return dict(collector) | {"policy": policy}


def snapshot(run: Run) -> dict[str, Any]:
    """What another member may copy of a run: the learned parts of its learner, and the parameters it has published."""
    learner = run.learner.state_dict()
    return {
        "learner": {key: learner[key] for key in run.builder.algorithm.SYSTEM.learned},
        "tensors": run.params.state_dict()["history"][-1][1],
        "final_versions": run.evaluations.versions.state_dict(),
    }


def carry_over(source: Path, decision: int, target: Path, segment: int) -> None:
    """Copies the snapshot of a member's decision to where another's segment finds it; once, however often called."""
    folder = target / "adopted"
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{segment:012d}{suffix}" for suffix in (".pt", ".sha256")]
    for name, suffix in zip(names, (".pt", ".sha256"), strict=True):  # the checksum last
        if not (folder / names[1]).exists():
            with replacing(folder / name) as temporary:
                shutil.copyfile(source / "snapshots" / f"{decision:012d}{suffix}", temporary)
    for old in folder.glob("*.*"):
        if old.name not in names:
            old.unlink(missing_ok=True)


def _load_adopted(job: Job) -> dict[str, Any]:
    try:
        return checkpoint.load(job.directory / "adopted", job.segment)
    except ValueError as error:
        raise UserError(f"{error}; member {job.member} cannot begin its segment {job.segment}") from None


def fitness_of(curves: Path, metric: str, after: int, up_to: int) -> float | None:
    """Mean of a metric over the episodes that ended in after < env_frames <= up_to; None where none has.

    Each record counts with the episodes that it is of; an evaluation's lines, of which the curves have every episode,
    with theirs. Raises `UserError` where there are records of episodes and none has such a metric.
    """
    total = weight = 0.0
    before = 0.0
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


def member_config(config: RunConfig, seed: int, values: Values) -> RunConfig:
    """Of a member with these hyperparameters."""
    hyperparameters = with_values(config.hyperparameters, values)
    return dataclasses.replace(config, seed=seed, hyperparameters=hyperparameters, population=None)


def ready_at(rule: Population, episodes: int) -> int | None:
    """The number of episodes at which a member decides that had `episodes` when it last did; None: frames count."""
    return None if rule.period_frames else episodes + rule.ready_episodes
