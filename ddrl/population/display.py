"""What the user sees of a population: frames of all members, the best fitness, a line for each decision."""

from __future__ import annotations

import threading

from ddrl.population.journal import DIVERGED, EVOLVE, Decision
from ddrl.training.records.progress import Progress
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics


class View:
    """Passes to the progress of one run what several members do, whichever thread says it."""

    def __init__(self, size: int, budget_frames: int, *, quiet: bool) -> None:
        self.progress = Progress(size * budget_frames, quiet=quiet)
        self._lock = threading.RLock()
        self._counts = [Counts(0, 0, 0)] * size
        self._fitness: dict[int, float] = {}
        self._running = 0

    def show(self, member: int, counts: Counts, running: int) -> None:
        """Show how far one of so many `running` members is."""
        with self._lock:
            self._counts[member] = counts
            self._running = running
            self.progress.show(self.total, self._latest)

    @property
    def total(self) -> Counts:
        """Counts of all members together."""
        frames, steps, updates = (sum(numbers) for numbers in zip(*map(_numbers, self._counts), strict=True))
        return Counts(frames, steps, updates)

    @property
    def _latest(self) -> Metrics:
        latest: Metrics = {"members_running": float(self._running)}
        return latest | ({"best_fitness": max(self._fitness.values())} if self._fitness else {})

    def decided(self, decision: Decision, *, tell: bool = True) -> None:
        """Take note of a decision, and with `tell` say it in a line."""
        with self._lock:
            self._counts[decision.member] = Counts(decision.env_frames, decision.agent_steps, decision.updates)
            if decision.fitness is not None:
                self._fitness[decision.member] = decision.fitness
            if tell:
                self.note(describe(decision))

    def done(self) -> None:
        """Show the last line."""
        self.progress.done(self.total, self._latest)

    def note(self, line: str) -> None:
        """Show one line."""
        with self._lock:
            self.progress.note(line)

    def complain(self, text: str) -> None:
        """Show a text that the user must read, also where nothing else is to be seen."""
        with self._lock:
            self.progress.complain(text)


def _numbers(counts: Counts) -> tuple[int, int, int]:
    return counts.env_frames, counts.agent_steps, counts.updates


def describe(decision: Decision) -> str:
    """Return a decision in a line."""
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
