"""Simulates synchronous workers: how many frames per second they have, with unequal work and with preemption.

A round: every worker collects an unroll; the worker with which a share of all is done raises a flag; those that have a
least part of their unroll and see it after a step end theirs; all learn, and add up their gradients. Between two steps
nothing happens, so a round is computed from the times of all steps at once, without a queue of events.
What it knows nothing of: start-up, the variance of learning, other load, memory, and workers that share a core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddrl.analysis.ring import Ring

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """Measured seconds of the parts of a round."""

    step: float
    """Of a step of one worker's environments with the choice of actions."""
    learning: float
    """Of all epochs over one worker's unroll, without the sums of gradients."""
    ring: Ring
    """Sends the parts of a gradient."""
    sums: int
    """Sums of gradients in a round."""


@dataclass(frozen=True)
class Work:
    """The layout of a simulation."""

    workers: int
    envs: int
    """Environments of one worker."""
    length: int
    """Steps of an unroll."""
    pause: float
    """Mean seconds that a step takes on top of `Times.step`."""
    spread: float
    """Standard deviation of the logarithm of `pause` between scenes (`ddrl.environments.worlds.scene_pace`)."""
    scene_steps: int
    threshold: float | None = None
    """Share of the workers with which an unroll ends; None: all unrolls are whole."""
    least_fraction: float = 0.25


def frames_per_second(times: Times, work: Work, *, rounds: int = 200, seed: int = 0) -> float:
    """Return the frames per second of `rounds` rounds; the same arguments give the same number."""
    frames = seconds = 0.0
    paces = _paces(work, np.random.Generator(np.random.PCG64(seed)))
    position = np.zeros(work.workers, dtype=np.int64)
    current = next(paces)
    for _ in range(rounds):
        following = next(paces)
        ends = _ends_of_steps(times, work, position, current, following)
        steps, last = _collected(work, ends)
        changed = position + steps >= work.scene_steps
        current = np.where(changed, following, current)
        position = (position + steps) % work.scene_steps
        frames += work.envs * float(steps.sum())
        seconds += last + times.learning + times.sums * times.ring.seconds(work.workers)
    return frames / seconds


def _paces(work: Work, generator: np.random.Generator) -> Iterator[Values]:
    """Yield the pauses [N] of each worker's next scene."""
    while True:
        deviations = work.spread * generator.standard_normal(work.workers)
        yield work.pause * np.exp(deviations - work.spread**2 / 2)


def _ends_of_steps(times: Times, work: Work, position: NDArray[np.int64], current: Values, following: Values) -> Values:
    """Return when each worker's steps end [T, N], in seconds of the round, given the pauses of two scenes.

    An unroll is no longer than a scene, so it has parts of two at most.
    """
    in_current = np.arange(work.length)[:, None] < work.scene_steps - position
    pauses = np.where(in_current, current, following)
    return np.cumsum(times.step + pauses, axis=0)


def _collected(work: Work, ends: Values) -> tuple[NDArray[np.int64], float]:
    """Return how many steps each worker has [N], and when the last one is done."""
    whole = ends[-1]
    if work.threshold is None:
        return np.full(work.workers, work.length), float(whole.max())
    needed = math.ceil(work.threshold * work.workers - 1e-9)
    flag = float(np.sort(whole)[needed - 1])
    least = math.ceil(work.least_fraction * work.length)
    seen = ends >= flag
    seen[: least - 1] = False
    seen[-1] = True
    last_step = seen.argmax(axis=0)
    return last_step + 1, float(ends[last_step, np.arange(work.workers)].max())
