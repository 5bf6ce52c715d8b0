"""Trains a population: hands out segments, decides, carries out. Only this process decides, one decision at a time.

A member's segment ends with a checkpoint and a snapshot; its decision is then on the disk before anything follows from
it; what it copies is in its folder before its next segment begins. So a population that is killed at any moment goes
on from its files: a segment that had ended ends again at once, a decision that is not written is made anew from the
same draws, and one that is written is carried out, once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ddrl.errors import UserError
from ddrl.population import exploit_explore, results
from ddrl.population.display import View
from ddrl.population.executors import Executor, MemberDisplay, SerialExecutor
from ddrl.population.exploit_explore import Candidate
from ddrl.population.journal import BURN_IN, DIVERGED, EVOLVE, FILE, FINAL, Decision, Journal, Start
from ddrl.population.member import Job, Outcome, carry_over, evaluate_finally, member_config, ready_at
from ddrl.system.signals import stopping
from ddrl.training.builder import Builder
from ddrl.training.config.population import Population, Values
from ddrl.training.config.run_config import RunConfig, load_run_config
from ddrl.training.records import checkpoint, manifest
from ddrl.training.records.identity import identity_of
from ddrl.training.records.resume import check_budget

MEMBERS = "members"
MAX_DIVERGED = 10
"""How often in a row a member may diverge, though each time it goes on with what another one has."""


def train_population(
    config: RunConfig, directory: Path, *, quiet: bool = False, accepted: Callable[[], None] = lambda: None
) -> str:
    """Trains or resumes the population in `directory`; returns the exit reason, as `ddrl.train.train` does.

    `accepted` is called when nothing refuses the configuration any more, before anything is written.
    """
    controller = Controller(config, directory, quiet=quiet)
    accepted()
    return controller.train()


class Controller:
    """One population in its directory."""

    def __init__(self, config: RunConfig, directory: Path, *, quiet: bool = False) -> None:
        assert config.population is not None
        self.config = config
        self.rule: Population = config.population
        self.directory = directory
        self._provenance = manifest.provenance()  # now: the checkout may move on while the population trains
        self._builder = Builder(config, torch.device("cpu"))
        self._builder.network()
        self._view = View(self.rule.size, config.env_frames, quiet=quiet)
        self._identity = identity_of(config, directory)
        self._journal = Journal(directory)
        self._check_budget()
        self._running: set[int] = set()
        self._diverged: dict[int, Outcome] = {}
        """Members that wait for another one to copy."""
        self._interrupted = False
        self._running_executor: Executor | None = None
        self._began = time.monotonic()
        self._seconds_before = 0.0

    @property
    def seconds(self) -> float:
        """Wall-clock over all starts; what a kill undid does not count."""
        return self._seconds_before + time.monotonic() - self._began

    def interrupt(self) -> None:
        """Ends the training early, with checkpoints of all members."""
        self._interrupted = True
        if self._running_executor:
            self._running_executor.interrupt()

    def train(self) -> str:
        """To the budget of every member, and writes the results; returns the exit reason."""
        self._go_on()
        with stopping(self.interrupt, self.directory), self._view.progress:
            with self._executor() as executor:
                self._running_executor = executor
                if self._interrupted:
                    executor.interrupt()
                self._train(executor)
            self._running_executor = None
            if self._interrupted:
                return "interrupted"
            best = results.best_member(self._journal, self.rule.size)
            if not self._evaluate(best):
                return "interrupted"
        results.write(self.config, self.directory, self._journal, self._provenance, self._builder, self.seconds)
        self._view.done()
        return "budget_reached"

    def _check_budget(self) -> None:
        """Raises `UserError` where the budget has become shorter than what a member has decided after."""
        about = self._journal.about
        if about is None or not self._identity.agree(about):
            return
        for member in range(self.rule.size):
            path, newest = self._folder(member) / "member.json", self._journal.newest(member)
            if newest and path.exists() and self.config.env_frames < newest.env_frames:
                check_budget(self.config, self.directory, newest.env_frames, load_run_config(path).env_frames)

    def _go_on(self) -> None:
        """From what the directory holds. What belongs to another configuration is set aside, and the user told."""
        about, members = self._journal.about, self.directory / MEMBERS
        if self._journal.note:
            self._view.note(self._journal.note)
        if about is not None and not self._identity.agree(about):
            members.mkdir(exist_ok=True)
            aside = checkpoint.set_aside(members, about["identity"])
            self._journal.path.rename(aside / FILE)
            self._view.note(f"{self._identity.difference(about)}: starting anew; old state in {aside}")
            self._journal = Journal(self.directory)
        elif about is None and members.exists():  # killed while they were set aside, or no lineage
            aside = checkpoint.set_aside(members, "unusable")
            self._view.note(f"members without {FILE} cannot be continued: starting anew; old files in {aside}")
        if self._journal.decisions:
            self._seconds_before = self._journal.decisions[-1].seconds
        sha = self._provenance["git_sha"]
        self._journal.begin(self._identity.recorded(), Start(manifest.now(), sha))
        for decision in self._journal.decisions:
            self._view.decided(decision, tell=False)
        for member in range(self.rule.size):
            if newest := self._journal.newest(member):
                self._carry_out(newest)
        if self._journal.decisions:
            self._view.note(f"resumed after {len(self._journal.decisions)} decisions from {self._journal.path}")

    @contextmanager
    def _executor(self) -> Iterator[Executor]:
        """Make what trains the members; Ray is slow to import, so only where it is used."""
        if self.config.topology.runtime == "ray":
            from ddrl.population.ray_executor import ray_executor

            with ray_executor(self.config, self._view) as executor:
                yield executor
        elif self.rule.parallel == 1:
            yield SerialExecutor(self._view)
        else:
            from ddrl.population.process_executor import process_executor

            with process_executor(self.config, self._view) as executor:
                yield executor

    def _train(self, executor: Executor) -> None:
        """Whoever has decided least often is next: in turn, where one trains at a time."""
        while True:
            waiting = [one for one in self._unfinished() if one not in self._running and one not in self._diverged]
            for member in sorted(waiting, key=lambda one: (len(self._journal.of(one)), one)):
                if self._interrupted or not executor.has_room():
                    break
                self._running.add(member)
                executor.begin(self._job(member))
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
            raise self._hopeless(min(self._diverged), "and no other member has a fitness")

    def _replace(self, member: int) -> None:
        """Decides for a member that diverged, once another one has a fitness. Raises `UserError` the tenth time."""
        others = (self._journal.newest(one) for one in range(self.rule.size) if one != member)
        if all(found is None or found.fitness is None for found in others):
            return
        last = self._journal.of(member)[-MAX_DIVERGED + 1 :]
        if len(last) == MAX_DIVERGED - 1 and all(decision.kind == DIVERGED for decision in last):
            raise self._hopeless(member, f"for the {MAX_DIVERGED}th time in a row")
        self._decide(self._diverged.pop(member))

    def _hopeless(self, member: int, why: str) -> UserError:
        tuned = ", ".join(f"population.tuned.{key}" for key in self.rule.tuned)
        return UserError(f"member {member}: {self._diverged[member].diverged}, {why}; it has its values from {tuned}")

    def _unfinished(self) -> list[int]:
        return [member for member in range(self.rule.size) if not self._is_finished(member)]

    def _is_finished(self, member: int) -> bool:
        newest = self._journal.newest(member)
        return newest is not None and newest.env_frames >= self.config.env_frames

    def _values(self, member: int) -> Values:
        """Hyperparameters of the segment that is next or under way."""
        newest = self._journal.newest(member)
        return newest.after if newest else exploit_explore.initial_values(self.rule, self.config.seed, member)

    def _folder(self, member: int) -> Path:
        return self.directory / MEMBERS / str(member)

    def _job(self, member: int) -> Job:
        newest = self._journal.newest(member)
        start, episodes = (newest.env_frames, newest.episodes) if newest else (0, 0)
        seed = exploit_explore.member_seed(self.config.seed, member)
        return Job(
            config=member_config(self.config, seed, self._values(member)),
            directory=self._folder(member).resolve(),
            identity=f"{self._journal.identity}-member{member}",
            member=member,
            segment=newest.decision + 1 if newest else 0,
            start_frames=start,
            end_frames=exploit_explore.segment_end(self.rule, start, self.config.env_frames),
            ready_episodes=ready_at(self.rule, episodes),
            adopts=newest is not None and newest.copied,
            tuned=tuple(self.rule.tuned),
            fitness=self.rule.fitness,
        )

    def _decide(self, outcome: Outcome) -> None:
        """Decides, writes it down, carries it out."""
        decision = self._decision(outcome)
        self._journal.append(decision)
        self._carry_out(decision)
        self._view.decided(decision)

    def _decision(self, outcome: Outcome) -> Decision:
        member, before = outcome.member, self._values(outcome.member)
        number = len(self._journal.of(member))
        kind = DIVERGED if outcome.diverged else FINAL if outcome.env_frames >= self.config.env_frames else EVOLVE
        if kind == EVOLVE and outcome.env_frames < self.rule.burn_in_frames:
            kind = BURN_IN
        kept = Decision(
            member=member,
            decision=number,
            kind=kind,
            env_frames=outcome.env_frames,
            agent_steps=outcome.agent_steps,
            updates=outcome.updates,
            episodes=outcome.episodes,
            fitness=outcome.fitness,
            compared_with=None,
            compared_fitness=None,
            copied=False,
            source_decision=None,
            source_env_frames=None,
            before=before,
            after=before,
            seconds=round(self.seconds, 3),
        )
        if kind not in (EVOLVE, DIVERGED):
            return kept
        newest = {one: found for one in range(self.rule.size) if (found := self._journal.newest(one)) and one != member}
        others = {one: Candidate(found.fitness, found.before) for one, found in newest.items()}
        generator = exploit_explore.decision_generator(self.config.seed, member, number)
        if kind == DIVERGED:
            evolved = exploit_explore.replaced(self.rule, others, generator)
        else:
            evolved = exploit_explore.evolve(self.rule, member, Candidate(outcome.fitness, before), others, generator)
        copied = evolved.copied and outcome.env_frames > 0  # without a checkpoint there is nothing to put weights into
        source = newest[evolved.compared_with] if copied else None
        return dataclasses.replace(
            kept,
            compared_with=evolved.compared_with,
            compared_fitness=evolved.compared_fitness,
            copied=copied,
            source_decision=source.decision if source else None,
            source_env_frames=source.env_frames if source else None,
            after=evolved.values,
        )

    def _carry_out(self, decision: Decision) -> None:
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

    def _evaluate(self, best: int) -> bool:
        """The final evaluation, of the best member only; False where it was interrupted."""
        display = MemberDisplay(self._view, best)
        return evaluate_finally(self._job(best), display, lambda: self._interrupted)
