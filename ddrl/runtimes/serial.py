"""Runtime `serial`: one thread, and a seeded generator that draws the next role. The same seed gives the same bits.

Plain round-robin would keep the lag constant and small. The generator draws among the roles that are ready, so actors
run ahead by varying amounts, as they do in a distributed run, up to what the queue holds.
"""

from __future__ import annotations

import numpy as np

from ddrl.coordinator.program import Program


class SerialRuntime:
    """A runtime that only steps roles which are ready, so none waits."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def run(self, program: Program) -> None:
        """Run until the program is finished or interrupted. Raise RuntimeError where no role is ready."""
        roles = [*program.actors, program.learner]
        while not (program.finished() or program.interrupted()):
            if program.evaluator.ready():  # at the frames stated, before the parameters change
                program.evaluator.step()
                continue
            ready = [role for role in roles if role.ready()]
            if not ready:
                raise RuntimeError("deadlock: every actor waits for parameters or room, and the learner for unrolls")
            ready[int(self.generator.integers(len(ready)))].step()
