"""Runtime `serial`: one thread, roles interleaved by a seeded generator. Oracle and debugger: same seed, same bits.

Plain round-robin would keep the lag constant and small; drawing the next role at random among those that are ready
makes the actors run ahead by varying amounts, as they do in a distributed run, up to what the queue holds.
"""

from __future__ import annotations

import json

import numpy as np

from ddrl.coordinator.program import Program


class SerialRuntime:
    """Never waits: only roles that are ready are stepped."""

    saves_roles = True

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def run(self, program: Program) -> None:
        """Until the program is finished or interrupted. Raises RuntimeError where no role can move."""
        roles = [*program.actors, program.learner]
        while not (program.finished() or program.interrupted()):
            if program.evaluator.ready():  # at the frames stated, before the parameters move on
                program.evaluator.step()
                continue
            ready = [role for role in roles if role.ready()]
            if not ready:
                raise RuntimeError("deadlock: every actor waits for parameters or room, and the learner for unrolls")
            ready[int(self._generator.integers(len(ready)))].step()

    def state_dict(self) -> dict[str, str]:
        """The generator."""
        return {"generator": json.dumps(self._generator.bit_generator.state)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Continues where `state` was taken."""
        self._generator.bit_generator.state = json.loads(state["generator"])
