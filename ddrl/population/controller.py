"""The controller of a population: it starts segments of the members, decides after each, and carries decisions out.

Only this process decides, one decision at a time. A segment ends with a checkpoint and a snapshot. Then its decision is
written to the disk, and what the member copies is put into its folder before its next segment begins. A population that
is killed continues from these files: a segment that had ended ends again at once, a decision that was not written is
made again with the same random draws, and a decision that was written is carried out once.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from ddrl.errors import UserError
from ddrl.population import exploit_explore, results
from ddrl.population.display import MemberDisplay, View
from ddrl.population.executors import Executor, SerialExecutor, executor_on_ray
from ddrl.population.exploit_explore import Candidate
from ddrl.population.journal import BURN_IN, DIVERGED, EVOLVE, FINAL, Decision, Journal, Start
from ddrl.population.member import Segment, SegmentOutcome, carry_over, evaluate_finally
from ddrl.system.signals import StopRequest, newest_checkpoint, stopping
from ddrl.training.builder import Builder
from ddrl.training.config.population import Population, Values, with_values
from ddrl.training.config.run_config import RunConfig, load_run_config
from ddrl.training.records import checkpoint, manifest
from ddrl.training.records.finished import DECISIONS
from ddrl.training.records.identity import identity_of
from ddrl.training.records.resume import check_budget

MAX_DIVERGED = 10
"""The divergences of a member in a row with which the population ends with an error."""


class Controller:
    """A population in its directory, which this process trains."""

    def __init__(self, config: RunConfig, directory: Path, *, quiet: bool = False) -> None:
        assert config.population is not None
        self.config = config
        self.rule: Population = config.population
        self.directory = directory
        self._provenance = manifest.provenance()  # now: the checkout may move on while the population trains
        self._builder = Builder(config, torch.device("cpu"))
        self._builder.network()  # refuses what no network can be made of
        self._view = View(self.rule.size, config.env_frames, lambda: len(self._running), quiet=quiet)
        self._identity = identity_of(config, directory)
        self._journal = Journal(directory)
        self._check_budget()
        self._running: set[int] = set()
        self._diverged: dict[int, SegmentOutcome] = {}
        """Member that diverged, and waits until another one has a fitness -> how its segment ended."""
        self._interrupted = False
        self._request = StopRequest()
        self._began = time.monotonic()
        self._seconds_before = 0.0

    @property
    def seconds(self) -> float:
        """Wall-clock seconds over all starts, without what a start did after its last decision when it was killed."""
        return self._seconds_before + time.monotonic() - self._began

    def interrupt(self) -> None:
        """End the training early, with checkpoints of all members."""
        self._interrupted = True
        self._request.ask()

    def train(self) -> str:
        """Train all members to their budget and write the results; return the exit reason of `ddrl.api.launch`."""
        self._resume()
        with stopping(self.interrupt, self.directory), self._view.progress:
            with self._executor() as executor:
                self._request.answer(executor.interrupt)
                self._train(executor)
            if self._interrupted:
                return self._stopped()
            best = results.best_member(self._journal, self.rule.size)
            display = MemberDisplay(self._view, best)
            if not evaluate_finally(self._segment(best), display, lambda: self._interrupted):
                return self._stopped()
        results.write(self._builder, self.directory, self._journal, self._provenance, self.seconds)
        self._view.done()
        return "budget_reached"

    def _stopped(self) -> str:
        self._view.stopped(newest_checkpoint(self.directory))
        return "interrupted"

    def _check_budget(self) -> None:
        """Raise UserError if the budget is now shorter than what a member had trained at its newest decision."""
        about = self._journal.about
        if about is None or not self._identity.agree(about):
            return
        for member in range(self.rule.size):
            path, newest = self._folder(member) / "member.json", self._journal.newest(member)
            if newest and path.exists() and self.config.env_frames < newest.env_frames:
                check_budget(self.config, self.directory, newest.env_frames, load_run_config(path).env_frames)

    def _resume(self) -> None:
        """Continue from what is in the directory; set aside what another configuration left there, and say so."""
        about, members = self._journal.about, self.directory / "members"
        if self._journal.note:
            self._view.note(self._journal.note)
        if about is not None and not self._identity.agree(about):
            members.mkdir(exist_ok=True)
            aside = checkpoint.set_aside(members, about["identity"])
            self._journal.path.rename(aside / DECISIONS)
            self._view.note(f"{self._identity.difference(about)}: starting anew; old state in {aside}")
            self._journal = Journal(self.directory)
        elif about is None and members.exists():  # killed while they were set aside, or the lineage was removed
            aside = checkpoint.set_aside(members, "unusable")
            self._view.note(f"members without {DECISIONS} cannot be continued: starting anew; old files in {aside}")
        if self._journal.decisions:
            self._seconds_before = self._journal.decisions[-1].seconds
        self._journal.begin(self._identity.recorded(), Start(manifest.now(), self._provenance["git_sha"]))
        for decision in self._journal.decisions:
            self._view.decided(decision, tell=False)
        for member in range(self.rule.size):
            if newest := self._journal.newest(member):
                self._carry_out(newest)
        if self._journal.decisions:
            self._view.note(f"resumed after {len(self._journal.decisions)} decisions from {self._journal.path}")

    def _executor(self) -> AbstractContextManager[Executor]:
        """Make the executor that trains the members."""
        if self.config.topology.runtime == "ray" or self.rule.parallel > 1:
            return executor_on_ray(self.config, self._view)
        return nullcontext(SerialExecutor(self._view))

    def _train(self, executor: Executor) -> None:
        """Train all members to their budget, beginning with those that have made the fewest decisions."""
        while True:
            busy = self._running | self._diverged.keys()
            waiting = [one for one in range(self.rule.size) if one not in busy and not self._is_finished(one)]
            for member in sorted(waiting, key=lambda one: (len(self._journal.of(one)), one)):
                if self._interrupted or not executor.has_room():
                    break
                self._running.add(member)
                executor.begin(self._segment(member))
            if not self._running:
                break
            if (outcome := executor.next_ended()) is not None:
                self._running.discard(outcome.member)
                if outcome.diverged:
                    self._view.note(f"member {outcome.member}: {outcome.diverged}")
                    self._diverged[outcome.member] = outcome
                elif not outcome.interrupted:
                    self._decide(outcome)
                for member in sorted(self._diverged):
                    self._replace(member)
        if self._diverged and not self._interrupted:
            raise self._divergence(min(self._diverged), "and no other member has a fitness")

    def _replace(self, member: int) -> None:
        """Decide for a member that diverged, once another one has a fitness.

        Raise UserError if it is the `MAX_DIVERGED`th time in a row.
        """
        others = (self._journal.newest(one) for one in range(self.rule.size) if one != member)
        if all(found is None or found.fitness is None for found in others):
            return
        last = self._journal.of(member)[-MAX_DIVERGED + 1 :]
        if len(last) == MAX_DIVERGED - 1 and all(decision.kind == DIVERGED for decision in last):
            raise self._divergence(member, f"for the {MAX_DIVERGED}th time in a row")
        self._decide(self._diverged.pop(member))

    def _divergence(self, member: int, why: str) -> UserError:
        tuned = ", ".join(f"population.tuned.{key}" for key in self.rule.tuned)
        return UserError(f"member {member}: {self._diverged[member].diverged}, {why}; it has its values from {tuned}")

    def _is_finished(self, member: int) -> bool:
        newest = self._journal.newest(member)
        return newest is not None and newest.env_frames >= self.config.env_frames

    def _values(self, member: int) -> Values:
        """Return a member's hyperparameters in its present or next segment."""
        newest = self._journal.newest(member)
        return newest.after if newest else exploit_explore.initial_values(self.rule, self.config.seed, member)

    def _folder(self, member: int) -> Path:
        return self.directory / "members" / str(member)

    def _segment(self, member: int) -> Segment:
        """Return the segment of a member that follows its newest decision."""
        newest = self._journal.newest(member)
        start, episodes = (newest.env_frames, newest.episodes) if newest else (0, 0)
        config = dataclasses.replace(
            self.config,
            seed=exploit_explore.member_seed(self.config.seed, member),
            hyperparameters=with_values(self.config.hyperparameters, self._values(member)),
            population=None,
        )
        return Segment(
            config=config,
            rule=self.rule,
            directory=self._folder(member).resolve(),
            identity=f"{self._journal.identity}-member{member}",
            member=member,
            number=newest.decision + 1 if newest else 0,
            start_frames=start,
            end_frames=exploit_explore.segment_end(self.rule, start, self.config.env_frames),
            ready_episodes=None if self.rule.period_frames else episodes + self.rule.ready_episodes,
            adopts=newest is not None and newest.copied,
        )

    def _decide(self, outcome: SegmentOutcome) -> None:
        """Make the decision that follows from `outcome`, write it down, and carry it out."""
        decision = self._decision(outcome)
        self._journal.append(decision)
        self._carry_out(decision)
        self._view.decided(decision)

    def _decision(self, outcome: SegmentOutcome) -> Decision:
        member, before, env_frames = outcome.member, self._values(outcome.member), outcome.counts.env_frames
        number = len(self._journal.of(member))
        kind = DIVERGED if outcome.diverged else FINAL if env_frames >= self.config.env_frames else EVOLVE
        if kind == EVOLVE and env_frames < self.rule.burn_in_frames:
            kind = BURN_IN
        newest = {one: found for one in range(self.rule.size) if (found := self._journal.newest(one)) and one != member}
        others = {one: Candidate(found.fitness, found.before) for one, found in newest.items()}
        generator = exploit_explore.decision_generator(self.config.seed, member, number)
        evolved = None
        if kind == DIVERGED:
            evolved = exploit_explore.replaced(self.rule, others, generator)
        elif kind == EVOLVE:
            evolved = exploit_explore.evolve(self.rule, member, Candidate(outcome.fitness, before), others, generator)
        # without a checkpoint there is nothing to put weights into
        source = newest[evolved.compared_with] if evolved and evolved.copied and env_frames > 0 else None
        return Decision(
            member=member,
            decision=number,
            kind=kind,
            **outcome.counts.__dict__,
            episodes=outcome.episodes,
            fitness=outcome.fitness,
            compared_with=evolved.compared_with if evolved else None,
            compared_fitness=evolved.compared_fitness if evolved else None,
            copied=source is not None,
            source_decision=source.decision if source else None,
            source_env_frames=source.env_frames if source else None,
            before=before,
            after=evolved.values if evolved else before,
            seconds=round(self.seconds, 3),
        )

    def _carry_out(self, decision: Decision) -> None:
        """Put what `decision` copies into the member's folder. Raise UserError if a file to copy is missing."""
        if not decision.copied:
            return
        assert decision.compared_with is not None and decision.source_decision is not None
        source, target = self._folder(decision.compared_with), self._folder(decision.member)
        try:
            carry_over(source, decision.source_decision, target, decision.decision + 1)
        except FileNotFoundError as error:
            raise UserError(
                f"{error.filename}: is missing, and member {decision.member} has decided to copy it; put it back, or "
                "train in another directory"
            ) from None
