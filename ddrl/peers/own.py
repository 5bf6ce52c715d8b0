"""Our own code as a driver: reads a configuration and writes the lines of the drivers' protocol, to be measured alike.

    python -m ddrl.peers.own < config.json

It counts gradient steps and the samples in them as they are made. There is no evaluation and no result.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ddrl.learners.core import GradientStep
from ddrl.runtimes.local import local_runtime
from ddrl.training.config.run_config import parse_run_config
from ddrl.training.records.manifest import provenance
from ddrl.training.records.recorder import Counts
from ddrl.training.run import Run
from ddrl.types import Metrics

LINE_SECONDS = 0.1
"""Least time between two lines."""


class Lines:
    """A display that writes a line of progress after an update."""

    def __init__(self, write: Any) -> None:
        self._write = write
        self._started = time.monotonic()
        self._last = 0.0
        self.gradient_steps, self.samples = 0, 0

    def line(self, kind: str, **values: Any) -> None:
        """Write one line."""
        self._write(json.dumps({"kind": kind, **values}) + "\n")

    def show(self, counts: Counts, latest: Metrics) -> None:
        """Write how far the run is."""
        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        self.line(
            "progress",
            steps=counts.agent_steps,
            updates=counts.updates,
            gradient_steps=self.gradient_steps,
            trained_samples=self.samples,
            seconds=round(now - self._started, 3),
            updated=True,
            metrics={},
            episodes=[],
        )

    def note(self, line: str) -> None:
        """Leave out what is said beside."""

    complain = note


def main() -> None:
    """Train until the process is ended."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = parse_run_config(json.load(sys.stdin))
    lines = Lines(out.write)
    step = GradientStep.step

    def counted(self: GradientStep, *arguments: Any, **keywords: Any) -> Metrics:
        lines.gradient_steps += 1
        lines.samples += int(keywords["valid_steps"])
        return step(self, *arguments, **keywords)

    GradientStep.step = counted  # type: ignore[method-assign]
    torch.set_num_threads(1)
    lines.line("started", pid=os.getpid(), versions=provenance()["packages"])
    with tempfile.TemporaryDirectory() as folder:
        Run(config, Path(folder), make_runtime=local_runtime(config), display=lines).train()


if __name__ == "__main__":
    main()
