"""Actors of central inference whose environments are in other processes, and the service that these connect to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ddrl.actors.unroll import EpisodeSink, UnrollCollector
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.remote_env import RemoteEnv
from ddrl.inference.service import InferenceService
from ddrl.inference.worker_pool import LocalWorkers
from ddrl.interfaces import Service, SharedStore
from ddrl.training.builder import Generation, group_role
from ddrl.training.learner_node import LearnerNode


class RemoteActors:
    """The actors of one learner, in its process, while workers step their environments in other processes."""

    def __init__(
        self,
        node: LearnerNode,
        endpoint: Endpoint | None,
        on_episode: EpisodeSink,
        *,
        rank: int,
        resumes: Callable[[], int],
        note: Callable[[str], None],
        restarted: Callable[[], None],
        store: SharedStore | None,
    ) -> None:
        """`endpoint` None: the run has workers of its own; `restarted` is called when one of them is replaced.

        `store` is shared by the actors of all learners.
        """
        self._builder = builder = node.builder
        topology = builder.config.topology
        self._workers: LocalWorkers | None = None
        if endpoint is None:
            self._workers = LocalWorkers(self._describe, lambda: self.delivered, note, restarted)
            endpoint = self._workers.endpoint
        self._endpoint = endpoint
        self._resumes = resumes
        self._note = note
        self._indices = range(rank, topology.num_actors, topology.num_learners)
        self._envs = [
            RemoteEnv(
                builder.spec,
                topology.envs_per_actor,
                node.traffic,
                partial(self._offer, index),
                topology.env_groups,
            )
            for index in self._indices
        ]
        self.collectors: list[UnrollCollector] = [
            builder.collector(index, on_episode, slot=slot, inference=node.central, env=env, store=store)
            for slot, (index, env) in enumerate(zip(self._indices, self._envs, strict=True))
        ]
        actors = [builder.actor(collector, node.params, node.queue) for collector in self.collectors]
        self.actors = node.limited_actors(actors)
        self._opened = threading.Event()
        self._service: InferenceService | None = None

    def open(self) -> None:
        """Start the service that workers connect to. Raise UserError if it cannot listen at the endpoint's address."""
        self._service = InferenceService(self._endpoint, self._envs, self._note)
        self._opened.set()
        if self._workers:
            self._workers.start(len(self._envs))

    @property
    def services(self) -> dict[str, Service]:
        """Roles beside the actors, by name."""
        return {"workers": self._workers} if self._workers else {}

    def _describe(self, slot: int, restarts: int) -> str:
        return self._builder.describe("actor", self._indices[slot], Generation(self._resumes(), restarts))

    def _offer(self, index: int, guests: int) -> dict[str, Any]:
        """Return what a worker needs to build the environments of actor `index`, after `guests` earlier workers."""
        builder, config = self._builder, self._builder.config
        generation = Generation(self._resumes(), guests)
        return {
            "environment": config.environment,
            "env_threads": config.topology.env_threads,
            "first_env": index * config.topology.envs_per_actor,
            "seed": builder.env_seed("actor", index, generation),
            "other_seeds": [
                builder.env_seed(group_role(group), index, generation) for group in range(1, config.topology.env_groups)
            ],
            "name": builder.describe("actor", index, generation),
        }

    @property
    def delivered(self) -> list[int]:
        """Number of unrolls of each actor so far."""
        return [collector.next_index for collector in self.collectors]

    def endpoint(self) -> Endpoint:
        """Return where workers connect; wait until the service is open."""
        self._opened.wait()
        assert self._service is not None
        return replace(self._endpoint, address=self._service.address)

    def close(self, reason: str) -> None:
        """Send the workers away; `reason` is finished or interrupted."""
        if self._service is not None:
            self._service.close(reason)
        if self._workers:
            self._workers.close()
