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
        seeds = [offer.seed, *offer.other_seeds]
        size = offer.num_envs // len(seeds)
        self._envs = [
            make_env(
                offer.environment,
                size,
                seed,
                num_threads=offer.env_threads,
                name=offer.name if not group else f"{offer.name}, group {group} with environment seed {seed}",
                first_env=offer.first_env + group * size,
            )
            for group, seed in enumerate(seeds)
        ]
        connection.begin(self._envs[0].spec, size, len(seeds))
        self._unsent = {group: env.reset() for group, env in enumerate(self._envs)}
        self._waited = 0.0

    def step(self) -> None:
        """Send new observations, wait for actions, step that group. Raise as `Connection.receive`, or as they do.

        At first each group's observations are sent; then, while the learner infers for one, another one steps.
        """
        for group, step in self._unsent.items():
            self._connection.send(step, self._waited, group)
        began = time.perf_counter()
        group, actions = self._connection.receive()
        self._waited = time.perf_counter() - began
        self._unsent = {group: self._envs[group].step(actions)}

    def close(self) -> None:
        """Leave the learner and free the environments."""
        self._connection.close()
        for env in self._envs:
            env.close()


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
