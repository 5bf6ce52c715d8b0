"""The display of a population: frames of all members, the best fitness, a line for each decision."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ddrl.population.journal import BURN_IN, DIVERGED, EVOLVE, Decision
from ddrl.system.signals import next_start
from ddrl.training.records.progress import Progress
from ddrl.training.records.recorder import COUNTS, Counts
from ddrl.types import Metrics


class View:
    """Shows several members in the progress bar of one run; all threads may use it."""

    def __init__(self, size: int, budget_frames: int, num_running: Callable[[], int], *, quiet: bool) -> None:
        """`budget_frames` is that of one member; `num_running` returns how many members train now."""
        self.progress = Progress(size * budget_frames, quiet=quiet)
        self._lock = threading.RLock()
        self._counts = [Counts(0, 0, 0)] * size
        self._fitness: dict[int, float] = {}
        self._num_running = num_running
        self._running = 0

    def show(self, member: int, counts: Counts) -> None:
        """Show how far a member is."""
        with self._lock:
            self._counts[member] = counts
            self._running = self._num_running()
            self.progress.show(self._total, self._latest)

    @property
    def _total(self) -> Counts:
        return Counts(*(sum(getattr(counts, name) for counts in self._counts) for name in COUNTS))

    @property
    def _latest(self) -> Metrics:
        latest: Metrics = {"members_running": float(self._running)}
        return latest | ({"best_fitness": max(self._fitness.values())} if self._fitness else {})

    def decided(self, decision: Decision, *, tell: bool = True) -> None:
        """Show the counts and the fitness of a decision, and with `tell` a line about it."""
        with self._lock:
            self._counts[decision.member] = Counts(decision.env_frames, decision.agent_steps, decision.updates)
            if decision.fitness is not None:
                self._fitness[decision.member] = decision.fitness
            if tell:
                self.note(describe(decision))

    def done(self) -> None:
        """Show the last line."""
        self.progress.done(self._total, self._latest)

    def stopped(self, newest: Path | None) -> None:
        """Show the last line of a population that was stopped; `newest` is the newest checkpoint of any member."""
        where = "the same command goes on from the members' newest checkpoints" if newest else next_start(None)
        self.note(f"stopped at {self._total.env_frames:,} frames of all members; {where}")

    def note(self, line: str) -> None:
        """Show one line."""
        with self._lock:
            self.progress.note(line)

    def complain(self, text: str) -> None:
        """Show a text that the user must read, even of a run that is told to be quiet."""
        with self._lock:
            self.progress.complain(text)


class MemberDisplay:
    """Shows how far a member is, as a part of its population."""

    def __init__(self, view: View, member: int) -> None:
        self._view = view
        self._member = member

    def show(self, counts: Counts, latest: Metrics) -> None:
        """Show the counts among those of all members."""
        self._view.show(self._member, counts)

    def note(self, line: str) -> None:
        """Show one line, except the one that every resumed segment begins with."""
        if not line.startswith("resumed at "):
            self._view.note(f"member {self._member}: {line}")

    def complain(self, text: str) -> None:
        """Show a text that the user must read, even of a run that is told to be quiet."""
        self._view.complain(f"member {self._member}: {text}")


def describe(decision: Decision) -> str:
    """Return a line about a decision."""
    parts = [f"member {decision.member}: {decision.env_frames:,} frames", f"fitness {_number(decision.fitness)}"]
    if decision.kind in (EVOLVE, DIVERGED):
        other = f"member {decision.compared_with} ({_number(decision.compared_fitness)})"
        keeps = "keeps its own beside" if decision.kind == EVOLVE else "begins anew with values of"
        parts.append(f"{'copies' if decision.copied else keeps} {other}")
        parts += [f"{key} {value:.3g}" for key, value in decision.after.items() if value != decision.before[key]]
    else:
        parts.append("burn-in" if decision.kind == BURN_IN else "its budget is reached")
    return " | ".join(parts)


def _number(fitness: float | None) -> str:
    return "none" if fitness is None else f"{fitness:.3f}"
