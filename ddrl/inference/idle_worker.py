"""A worker that steps no environment: `python -m ddrl.inference.idle_worker ADDRESS ENVS`, for `ddrl roundtrip`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from itertools import cycle

import numpy as np

from ddrl.errors import Closed
from ddrl.inference.client import Connection, LearnerLost
from ddrl.inference.endpoint import Endpoint
from ddrl.types import EnvSpec, EnvStep

SPEC = EnvSpec("nothing", (4, 84, 84), "uint8", num_actions=6, frame_skip=4, protocol="nothing")
"""Observations as in an Atari game: four frames, one of them new in each step."""
POOL = 16
"""The number of different frames that a worker sends in turn."""


def work(address: str, envs: int) -> None:
    """Run a worker that sends observations, each with a new frame, until it is told to end."""
    connection = Connection(Endpoint(address))
    pool = np.random.default_rng(0).integers(0, 255, (POOL, envs, *SPEC.observation_shape[1:]), dtype=np.uint8)
    frames = [np.stack([pool[(i + k) % POOL] for k in range(SPEC.observation_shape[0])], axis=1) for i in range(POOL)]
    nothing, all_of = np.zeros(envs, dtype=bool), np.ones(envs, dtype=bool)
    reward = np.zeros(envs, dtype=np.float32)
    first = EnvStep(frames[-1], reward, nothing, nothing, nothing, all_of, all_of)
    steps = cycle([EnvStep(frame, reward, nothing, nothing, nothing, nothing, all_of) for frame in frames])
    with suppress(Closed, LearnerLost):
        connection.join()
        connection.begin(SPEC, envs)
        step, waited = first, 0.0
        while True:
            began = time.perf_counter()
            connection.exchange(step, waited)
            waited = time.perf_counter() - began
            step = next(steps)
    connection.close()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
