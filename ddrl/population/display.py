"""What the user sees of a population: frames of all members, the best fitness, a line for each decision."""

from __future__ import annotations

from ddrl.population.journal import DIVERGED, EVOLVE, Decision
from ddrl.system.notes import say
from ddrl.training.records.progress import Progress
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics


class View:
    """Passes to the progress of one run what several members do."""

    def __init__(self, size: int, budget_frames: int, *, quiet: bool) -> None:
        self.progress = Progress(size * budget_frames, quiet=quiet)
        self._quiet = quiet
        self._counts = [Counts(0, 0, 0)] * size
        self._fitness: dict[int, float] = {}
        self._running = 0

    def show(self, member: int, counts: Counts, running: int) -> None:
        """How far one of so many `running` members is."""
        self._counts[member] = counts
        self._running = running
        self.progress.show(self.total, self._latest)

    @property
    def total(self) -> Counts:
        """Of all members."""
        frames, steps, updates = (sum(numbers) for numbers in zip(*map(_numbers, self._counts), strict=True))
        return Counts(frames, steps, updates)

    @property
    def _latest(self) -> Metrics:
        latest: Metrics = {"members_running": float(self._running)}
        return latest | ({"best_fitness": max(self._fitness.values())} if self._fitness else {})

    def decided(self, decision: Decision, *, tell: bool = True) -> None:
        """Takes note of a decision, and with `tell` says it in a line."""
        self._counts[decision.member] = Counts(decision.env_frames, decision.agent_steps, decision.updates)
        if decision.fitness is not None:
            self._fitness[decision.member] = decision.fitness
        if tell:
            self.note(describe(decision))

    def done(self) -> None:
        """The last line."""
        self.progress.done(self.total, self._latest)

    def note(self, line: str) -> None:
        """One line to the user."""
        self.progress.note(line)

    def complain(self, text: str) -> None:
        """As `note`, also where nothing else is to be seen."""
        if self._quiet:
            say(text)
        else:
            self.note(text)


def _numbers(counts: Counts) -> tuple[int, int, int]:
    return counts.env_frames, counts.agent_steps, counts.updates


def describe(decision: Decision) -> str:
    """A decision in a line."""
    parts = [f"member {decision.member}: {decision.env_frames:,} frames", f"fitness {_number(decision.fitness)}"]
    if decision.kind in (EVOLVE, DIVERGED):
        against = f"member {decision.compared_with} ({_number(decision.compared_fitness)})"
        keeps = (
            f"keeps its own beside {against}" if decision.kind == EVOLVE else f"begins anew with values of {against}"
        )
        parts.append(f"copies {against}" if decision.copied else keeps)
        parts += [f"{key} {value:.3g}" for key, value in decision.after.items() if value != decision.before[key]]
    else:
        parts.append({"burn_in": "burn-in", "final": "its budget is reached"}[decision.kind])
    return " | ".join(parts)


def _number(fitness: float | None) -> str:
    return "none" if fitness is None else f"{fitness:.3f}"
