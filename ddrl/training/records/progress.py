"""The progress display of a run: a bar in a terminal, else a line every `LINE_SECONDS`."""

from __future__ import annotations

import time
from typing import IO, Self, cast

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ddrl.system.notes import SafeStandardError, say
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics

LINE_SECONDS = 15.0
BAR_SECONDS = 0.25
SHOWN = {
    "episode_return": "return {:.2f}",
    "evaluation_return": "evaluation {:.2f}",
    "best_fitness": "best fitness {:.3f}",
    "members_running": "{:.0f} members train",
    "policy_lag_mean": "lag {:.1f}",
}
"""Metric -> how it is shown."""


class Progress:
    """A display of frames, frames/s, the metrics of `SHOWN`, and the time left."""

    def __init__(self, budget_frames: int, *, quiet: bool = False) -> None:
        self._budget = budget_frames
        self._quiet = quiet
        self._console = Console(file=cast(IO[str], SafeStandardError()))
        self._in_terminal = self._console.is_terminal and not quiet
        self._bar = Bar(
            TextColumn("{task.completed:,.0f} / {task.total:,.0f} frames"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=budget_frames)
        self._shown, self._has_returns = 0.0, False
        self._first: tuple[float, int] | None = None
        self._evaluating: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        if self._in_terminal:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._in_terminal:
            self._bar.stop()

    def show(self, counts: Counts, latest: Metrics) -> None:
        """Update the display if it is due; call this often, such as after every update."""
        now = time.monotonic()
        is_due = now - self._shown >= (BAR_SECONDS if self._in_terminal else LINE_SECONDS)
        if self._first is None or counts.env_frames < self._first[1]:  # the run has gone back to a checkpoint
            self._first = (now, counts.env_frames)
            self._shown, is_due = now, False
        is_first_return = not self._has_returns and "episode_return" in latest
        if self._quiet or not (is_due or is_first_return):
            return
        self._has_returns |= is_first_return
        self._shown = now
        if "to_evaluate" in latest:
            self._show_evaluation(now, latest)
            return
        seconds, frames = now - self._first[0], counts.env_frames - self._first[1]
        speed = frames / max(seconds, 1e-9)
        text = _describe(latest, speed)
        if self._in_terminal:
            self._bar.update(self._task, completed=counts.env_frames, description=text)
        else:
            left = f" | {max(0, self._budget - counts.env_frames) / speed:,.0f} s left" if frames else ""
            self.note(f"{counts.env_frames:,} / {self._budget:,} frames | {text}{left}")

    def _show_evaluation(self, now: float, latest: Metrics) -> None:
        """Show how far the final evaluation is, and the time left by the pace since the first of these calls."""
        played, planned = int(latest["evaluated"]), int(latest["to_evaluate"])
        self._evaluating = self._evaluating or (now, played)
        seconds, since = now - self._evaluating[0], played - self._evaluating[1]
        left = f" | {(planned - played) * seconds / since:,.0f} s left" if since else ""
        text = f"final evaluation: {played:,} / {planned:,} episodes | return {latest['evaluation_return']:.2f}{left}"
        if self._in_terminal:
            self._bar.update(self._task, description=text)
        else:
            self.note(text)

    def done(self, counts: Counts, latest: Metrics) -> None:
        """Show the last line of a run."""
        if self._first is None:  # it was resumed at its budget
            self.note(f"done: {counts.env_frames:,} frames")
            return
        seconds, frames = self._first
        speed = (counts.env_frames - frames) / max(time.monotonic() - seconds, 1e-9)
        self.note(f"done: {counts.env_frames:,} frames | {_describe(latest, speed)}")

    def note(self, line: str) -> None:
        """Show a line to the user, without markup, since tracebacks have brackets."""
        if self._quiet:
            return
        if self._in_terminal:
            self._console.print(line, markup=False, highlight=False)
        else:
            say(line)

    def complain(self, text: str) -> None:
        """Show a text that the user must read, also where nothing else is to be seen."""
        if self._quiet:
            say(text)
        else:
            self.note(text)


def _describe(latest: Metrics, speed: float) -> str:
    metrics = [text.format(latest[name]) for name, text in SHOWN.items() if name in latest]
    return " | ".join([f"{speed:,.0f} frames/s", *metrics])
