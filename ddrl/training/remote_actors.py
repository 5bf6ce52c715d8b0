"""Actors of central inference whose environments are in other processes, and the service that these come to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ddrl.actors.unroll import EpisodeSink, UnrollCollector
from ddrl.coordinator.program import Service
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.remote_env import RemoteEnv
from ddrl.inference.service import InferenceService, Slot
from ddrl.inference.worker_pool import LocalWorkers
from ddrl.training.builder import Generation
from ddrl.training.learner_node import LearnerNode


class RemoteActors:
    """The actors of one learner, on the learner; workers step their environments: its own if none is given."""

    def __init__(
        self,
        learning: LearnerNode,
        endpoint: Endpoint | None,
        on_episode: EpisodeSink,
        *,
        rank: int,
        resumes: Callable[[], int],
        note: Callable[[str], None],
        restarted: Callable[[], None] = lambda: None,
    ) -> None:
        """`restarted` is told of each of the run's own workers that another one takes the place of."""
        self._builder = builder = learning.builder
        topology = builder.config.topology
        self._workers: LocalWorkers | None = None
        if endpoint is None:
            self._workers = LocalWorkers(self._describe, lambda: self.delivered, note, restarted)
            endpoint = self._workers.endpoint
        self._endpoint = endpoint
        self._resumes = resumes
        self._note = note
        self._indices = range(rank, topology.num_actors, topology.num_learners)
        self._envs = [RemoteEnv(builder.spec, topology.envs_per_actor, learning.traffic) for _ in self._indices]
        self.collectors: list[UnrollCollector] = [
            builder.collector(index, on_episode, slot=slot, inference=learning.central, env=env)
            for slot, (index, env) in enumerate(zip(self._indices, self._envs, strict=True))
        ]
        actors = [builder.actor(collector, learning.params, learning.queue) for collector in self.collectors]
        self.actors = learning.limited("actors", actors)
        self._opened = threading.Event()
        self._service: InferenceService | None = None

    def open(self) -> None:
        """Lets workers in. Raises UserError where the endpoint's address cannot be listened at."""
        slots = [Slot(env, self._offer(index)) for index, env in zip(self._indices, self._envs, strict=True)]
        self._service = InferenceService(self._endpoint, slots, self._note)
        self._opened.set()
        if self._workers:
            self._workers.start(len(slots))

    @property
    def services(self) -> dict[str, Service]:
        """Roles beside the actors, by name."""
        return {"workers": self._workers} if self._workers else {}

    def _describe(self, slot: int, restarts: int) -> str:
        return self._builder.describe("actor", self._indices[slot], Generation(self._resumes(), restarts))

    def _offer(self, index: int) -> Callable[[int], dict[str, Any]]:
        builder, topology = self._builder, self._builder.config.topology

        def offer(workers_before: int) -> dict[str, Any]:
            generation = Generation(self._resumes(), workers_before)
            return {
                "environment": builder.config.environment,
                "env_threads": topology.env_threads,
                "first_env": index * topology.envs_per_actor,
                "seed": builder.env_seed("actor", index, generation),
                "name": builder.describe("actor", index, generation),
            }

        return offer

    @property
    def delivered(self) -> list[int]:
        """Unrolls of each actor so far."""
        return [collector.next_index for collector in self.collectors]

    def address(self) -> tuple[str, str | None]:
        """Where workers connect, and their token; waits until the service is open."""
        self._opened.wait()
        assert self._service is not None
        return self._service.address, self._endpoint.token

    def close(self, reason: str) -> None:
        """Sends the workers away; `reason`: finished, or interrupted."""
        if self._service is not None:
            self._service.close(reason)
        if self._workers:
            self._workers.close()
