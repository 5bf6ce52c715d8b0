"""The learner's side of a run: a learner, the queue it samples from, the parameters it publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ddrl.acting import Builder
from ddrl.coordinator.gate import Gate
from ddrl.coordinator.inference import BatchRule, CentralInference
from ddrl.coordinator.parameters import ParameterServer
from ddrl.coordinator.roles import Role
from ddrl.coordinator.traffic import Traffic
from ddrl.errors import UserError
from ddrl.handles import Reducer
from ddrl.learners.core import Setting
from ddrl.record import Counts
from ddrl.replay.prefetch import Prefetch
from ddrl.replay.queue import UnrollQueue
from ddrl.seeding import numpy_generator
from ddrl.types import Metrics
from ddrl.waiting import DutyCycle


class Learning:
    """A learner with its queue and its parameters; with several learners, one of them and its share of the actors."""

    def __init__(self, builder: Builder, reducer: Reducer, *, lent_memory: bool = False) -> None:
        config, topology, hyperparameters = builder.config, builder.config.topology, builder.config.hyperparameters
        network = builder.network()
        self.builder = builder
        self.parameter_count = sum(parameter.numel() for parameter in network.parameters())
        num_actors = topology.num_actors // reducer.size
        max_lag = {"asynchronous": None, "synchronous": 0, "bounded_lag": topology.max_policy_lag}[topology.schedule]
        gate = Gate(
            max_lag,
            num_actors * topology.envs_per_actor,
            hyperparameters.fresh_columns // reducer.size,
            hyperparameters.first_update,
        )
        self.params = ParameterServer(network, gate, delay=topology.parameter_delay)
        queue = UnrollQueue(
            capacity=topology.queue_capacity,
            ordered_actors=None if max_lag is None else num_actors,
            lent_memory=lent_memory,
        )
        columns, upload = hyperparameters.fresh_columns // reducer.size, not hyperparameters.keeps_batches
        self.prefetch = Prefetch(queue, columns, builder.device, upload=upload) if topology.prefetch else None
        self.queue = self.prefetch or queue
        self.traffic = Traffic(builder.spec.frame_skip)
        """With actors, or their environments, in other processes."""
        self.central = _central_inference(builder, self.params) if topology.inference == "central" else None
        self.learner = builder.algorithm.Learner(
            hyperparameters,
            network,
            self.params,
            self.queue,
            Setting(
                frame_skip=builder.spec.frame_skip,
                device=builder.device,
                precision=config.precision,
                num_threads=topology.learner_threads,
                generator=numpy_generator(config.seed, "replay", reducer.rank),
                reducer=reducer,
            ),
        )

    @property
    def counts(self) -> Counts:
        """Frames, steps and updates so far, over all learners."""
        return Counts(self.learner.core.env_frames, self.learner.core.agent_steps, self.learner.core.updates)

    @property
    def services(self) -> list[Role]:
        """Roles beside the actors and the learner, where roles run side by side."""
        return [*(self.central.threads if self.central else []), *([self.prefetch] if self.prefetch else [])]

    @property
    def gauges(self) -> list[Callable[[], Metrics]]:
        """What is measured beside the training, for the recorder: each says what it was since the last call."""
        gauges = [self.traffic.take]
        if self.central:
            gauges.append(self.central.meter.take)
        if self.builder.config.topology.runtime != "serial":  # there nobody waits, roles take turns
            duty = DutyCycle(lambda: self.queue.sample_waited)
            gauges.append(lambda: {"learner_utilisation": duty.take()})
        return gauges

    def close(self) -> None:
        """Ends every wait of every role with `Closed`."""
        self.queue.close()
        self.params.close()
        if self.central:
            self.central.close()

    def state_dict(self) -> dict[str, Any]:
        """Without the unrolls that wait."""
        return {"learner": self.learner.state_dict(), "params": self.params.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.learner.load_state_dict(state["learner"])
        self.params.load_state_dict(state["params"])


def _central_inference(builder: Builder, params: ParameterServer) -> CentralInference:
    topology, central = builder.config.topology, builder.config.topology.central
    columns = topology.num_actors * topology.envs_per_actor // topology.num_learners
    rule = BatchRule(central.min_columns, central.max_columns or columns, central.max_wait_ms / 1000)
    device = builder.device if central.device == "learner" else _named_device(central.device)
    networks = [builder.inference(device) for _ in range(central.num_threads)]
    return CentralInference(networks, params, None if topology.runtime == "serial" else rule)


def _named_device(name: str) -> torch.device:
    """Raises `UserError` where there is no such GPU."""
    device, gpus = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        there = f"{gpus} GPUs" if gpus > 1 else "one GPU" if gpus else "no GPU"
        raise UserError(f"key 'topology.central.device': {name} was asked for, but torch finds {there}")
    return device


class StopFlag:
    """Whether to stop early: asked of one learner, decided by all of them before the same update."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._asked = False

    def ask(self) -> None:
        """From any thread or signal handler."""
        self._asked = True

    def decide(self) -> bool:
        """Whether any learner was asked; every learner calls it before each update."""
        asked = torch.tensor([float(self._asked)])
        self._reducer.sum_([asked])
        return bool(asked)
