"""Makes the steps of a light environment last as long as those of a heavy simulator, of some scenes longer than others.

Ranks of synchronous training have unequal work where their scenes differ in what a step costs (Wijmans et al. 2020).
Mazes on a grid cost the same, so what a scene costs is time in which its process sleeps: nothing else changes.
"""

from __future__ import annotations

import math
import time

from ddrl.system.seeding import numpy_generator

SCENE_STEPS = 128
"""Steps after which a process has another scene, those of an unroll of DD-PPO."""


class ScenePace:
    """The time that a process's steps take, on top of what they cost."""

    def __init__(self, seed: int, milliseconds: float, spread: float) -> None:
        """`milliseconds`: mean over scenes of a step's time; `spread`: standard deviation of its logarithm."""
        self._generator = numpy_generator(seed, "scene-pace")
        self._milliseconds, self._spread = milliseconds, spread
        self._steps = 0
        self.seconds = 0.0
        """Of a step of the present scene."""

    def wait(self) -> None:
        """Let one step pass. Which scenes come follows from the seed; they begin anew with the process."""
        if not self._milliseconds:
            return
        if self._steps % SCENE_STEPS == 0:
            deviation = self._spread * float(self._generator.standard_normal())
            self.seconds = self._milliseconds / 1000 * math.exp(deviation - self._spread**2 / 2)
        self._steps += 1
        time.sleep(self.seconds)
