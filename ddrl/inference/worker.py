"""An environment worker: steps environments with the actions that a learner's inference service sends. No network.

Runtime ray starts one for each actor of central inference; `ddrl worker` is one started by hand, on any machine.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from ddrl.environments.tools.named import make_env
from ddrl.errors import TRY_AGAIN, Closed, UserError
from ddrl.inference.client import Connection, LearnerLost
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.service import BUILD_SECONDS
from ddrl.system.calls import EnvironmentCall
from ddrl.system.notes import say

if TYPE_CHECKING:  # a worker needs no torch
    from ddrl.training.builder import Link

SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds between tries to reach a learner; doubled each time."""
HANGING = 3
"""Exit status of a worker whose environments do not answer."""


class Worker:
    """One actor's environments, joined to a learner."""

    def __init__(self, connection: Connection, *, place: int = -1, generation: int = 0, environment: str = "") -> None:
        """Raise as `Connection.join` does, and UserError if the learner trains on another environment than that."""
        self._connection = connection
        self.offer = offer = connection.join(place, generation)
        name = str(offer.environment.get("name"))
        if environment not in ("", name):
            raise UserError(f"--environment {environment}: the learner trains on {name}")
        self._env = make_env(
            offer.environment,
            offer.num_envs,
            offer.seed,
            num_threads=offer.env_threads,
            name=offer.name,
            first_env=offer.first_env,
        )
        connection.begin(self._env.spec, offer.num_envs)
        self._step = self._env.reset()
        self._waited = 0.0

    def step(self) -> None:
        """Send observations, wait for actions, step all environments. Raise as `Connection.exchange`, or as they do."""
        began = time.perf_counter()
        actions = self._connection.exchange(self._step, self._waited)
        self._waited = time.perf_counter() - began
        self._step = self._env.step(actions)

    def close(self) -> None:
        """Leave the learner and free the environments."""
        self._connection.close()
        self._env.close()


def give_up(call: EnvironmentCall) -> None:
    """End this process if its environments have not answered for longer than any learner waits for a worker.

    The learner has ended the stream by then, and another worker has the slot or will get it.
    """
    if call.seconds >= BUILD_SECONDS:
        say(f"ddrl: {call}: this worker ends")
        os._exit(HANGING)


def work_alone(num_learners: int, index: int, generation: tuple[int, int], first_index: int, link: Link) -> Worker:
    """Make the worker of actor `index` of a run on Ray; `generation` is (resumes, restarts), as in `act_alone`."""
    return Worker(Connection(link.endpoint()), place=index // num_learners, generation=generation[1])


def work(endpoint: Endpoint, *, environment: str, note: Callable[[str], None], patience: float) -> None:
    """Work for the learner at an endpoint until its run is over; if it is lost, try again for `patience` seconds.

    Raise UserError if no learner has been there for so long, if it refuses this worker, or if an environment fails.
    """
    pause, said, lost_since = SHORTEST_PAUSE, "", time.monotonic()
    while True:
        connection = Connection(endpoint)
        try:
            with closing(connection), closing(Worker(connection, environment=environment)) as worker:
                note(f"place {worker.offer.place} of the learner at {endpoint.address}: {worker.offer.name}")
                pause, said = SHORTEST_PAUSE, ""
                while True:
                    worker.step()
                    lost_since = time.monotonic()
        except Closed:
            note("the run is over")
            return
        except LearnerLost as lost:
            if str(lost) != said:
                note(f"{lost}; trying again for up to {patience:g} s")
                said = str(lost)
        if time.monotonic() - lost_since > patience:
            error = UserError(f"no learner at {endpoint.address} for {patience:g} s ({said}); --wait says how long")
            error.status = TRY_AGAIN
            raise error
        time.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))  # so that many workers do not come at once
        pause = min(2 * pause, LONGEST_PAUSE)
