"""A learner with the store that it samples from and the parameters that it publishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import nn

from ddrl.coordinator.dynamic_adjustment import DynamicAdjustment, Limit, Limited, LimitedActor
from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.coordinator.shared_parameters import AnyParameters, LiveParameters
from ddrl.coordinator.traffic import Traffic
from ddrl.errors import UserError
from ddrl.inference.central import BatchRule, CentralInference
from ddrl.interfaces import ActingNetwork, Actor, Reducer, Replay, Service, Shards, SharedStore
from ddrl.learners.core import Setting
from ddrl.learners.dropping import Dropping
from ddrl.replay.prefetch import Prefetch
from ddrl.replay.prioritized import PrioritizedReplay
from ddrl.replay.queue import UnrollQueue
from ddrl.replay.replay_config import with_replay
from ddrl.replay.step_storage import History
from ddrl.system.seeding import numpy_generator
from ddrl.system.wait_clock import DutyCycle, SteppingClock
from ddrl.training.builder import Builder
from ddrl.training.config import topology as topologies
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.recorder import Counts
from ddrl.training.records.thread_cpu import cpu_by_role
from ddrl.types import Metrics


class DistantReplay(Replay, Protocol):
    """A replay in a process of its own, as the learner sees it; that process writes its part of checkpoints."""

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited for the learner, over all of them."""

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for batches."""

    def count_in(self, traffic: Traffic) -> None:
        """Count in `traffic` what comes from the replay and goes there."""

    def take_gauges(self) -> Metrics:
        """Return what the replay holds, and what it was sent since the last call."""

    def frozen(self) -> AbstractContextManager[None]:
        """Let nothing be inserted or drawn within the block."""

    def save(self, number: int) -> str:
        """Write the replay's part of checkpoint `number`; return its checksum."""

    def restore(self, number: int) -> None:
        """Continue where that part was written."""

    def counters(self) -> dict[str, Any]:
        """Return its state without its contents."""

    def refill(self, counters: dict[str, Any]) -> int | None:
        """Continue with these; return how many items must be there again before any is drawn."""

    def close(self) -> None:
        """End every wait with `Closed`."""


Store = UnrollQueue | PrioritizedReplay | DistantReplay | Prefetch | LiveParameters
"""The kinds of stores that experience, or a gradient, passes on its way from actors to the learner."""


class LearnerNode:
    """A learner with its queue and its parameters; with several learners, one of them and its share of the actors."""

    def __init__(
        self,
        builder: Builder,
        reducer: Reducer,
        *,
        lent_memory: bool = False,
        distant_replay: DistantReplay | None = None,
        shards: Shards | None = None,
        store: SharedStore | None = None,
    ) -> None:
        """Build the learner with its network's initial parameters.

        Args:
            lent_memory: whether unrolls lie in memory that their sender takes back.
            store: shared by several learners.
            distant_replay, shards: the replay, or the shards of a parameter server, in processes of their own.
        """
        config, topology, hyperparameters = builder.config, builder.config.topology, builder.config.hyperparameters
        network = builder.network()
        self.builder = builder
        self.parameter_count = sum(parameter.numel() for parameter in network.parameters())
        self.params = _parameters(config, network, reducer, shards)
        self.replay: PrioritizedReplay | DistantReplay | None = distant_replay
        if config.system.store == "prioritized" and not distant_replay:
            self.replay = make_replay(builder, network, reducer)
        self._distant_replay, self._reducer = distant_replay, reducer
        self._keeps_contents = config.checkpoint.replay == "saved"
        self.prefetch: Prefetch | None = None
        self.queue = self._store(lent_memory)
        """The store between actors and learner; for gradients, the parameters."""
        self.traffic = Traffic(builder.spec.frame_skip)
        """With actors, or their environments, in other processes; or with a replay in one."""
        if distant_replay:
            distant_replay.count_in(self.traffic)
        self.central = _central_inference(builder, self.params) if topology.inference == "central" else None
        self.stepping_clock = SteppingClock() if self.central and topology.runtime == "threads" else None
        """Counts the time in which environments of this process step."""
        self._began = time.perf_counter()
        self.adjustment: DynamicAdjustment | None = None
        self._limits: dict[str, Limit] = {}
        self.learner = builder.algorithm.Learner(
            hyperparameters,
            network,
            self.params,
            self.queue,
            _setting(builder, reducer, shards, store),
        )
        if topology.adjustment:
            self._adjust(topology.adjustment)

    def _adjust(self, rule: topologies.Adjustment) -> None:
        config, topology = self.builder.config, self.builder.config.topology
        self._limits = {
            "actors": Limit(rule.actors, topology.num_actors),
            "predictors": Limit(rule.predictors, topology.central.num_threads),
            "trainers": Limit(rule.trainers, topology.num_trainers),
        }
        self.adjustment = DynamicAdjustment(
            self._limits,
            lambda: self.learner.core.updates,
            numpy_generator(config.seed, "adjustment"),
            initial_wait=rule.initial_wait_s,
            step_wait=rule.step_wait_s,
        )

    def limited_actors(self, actors: list[Actor]) -> list[Actor]:
        """Return actors such that those above the adjusted number wait; the same actors without adjustment."""
        limit = self._limits.get("actors")
        return [LimitedActor(actor, limit, i) for i, actor in enumerate(actors)] if limit else actors

    def _limited(self, kind: str, services: Sequence[Service], first: int = 0) -> Sequence[Service]:
        limit = self._limits.get(kind)
        return [Limited(one, limit, i) for i, one in enumerate(services, first)] if limit else services

    def _store(self, lent_memory: bool) -> Store:
        if isinstance(self.params, LiveParameters) and self.builder.config.system.moves == "gradients":
            return self.params
        config, share = self.builder.config, self._reducer.size
        topology, hyperparameters = config.topology, config.hyperparameters
        store = self.replay or UnrollQueue(
            capacity=topology.queue_capacity,
            ordered_actors=None if topology.schedule == "asynchronous" else topology.num_actors // share,
            lent_memory=lent_memory,
        )
        if not topology.prefetch:
            return store
        columns = hyperparameters.batch_size if self.replay else hyperparameters.fresh_columns // share
        self.prefetch = Prefetch(
            store,
            columns,
            self.builder.device,
            upload=not hyperparameters.stored_columns,
            update=self.replay.update if self.replay else None,
        )
        return self.prefetch

    @property
    def counts(self) -> Counts:
        """Frames, steps and updates so far, over all learners."""
        return Counts(self.learner.core.env_frames, self.learner.core.agent_steps, self.learner.core.updates)

    @property
    def services(self) -> dict[str, Service]:
        """Roles beside the actors and the learner, by name, where roles run side by side."""
        predictors = self._limited("predictors", self.central.threads if self.central else [])
        other_trainers = self._limited("trainers", self.learner.core.helpers, first=1)
        alone = {"prefetch": self.prefetch, "adjustment": self.adjustment}
        return {
            **{f"inference-{i}": role for i, role in enumerate(predictors)},
            **{f"trainer-{i}": role for i, role in enumerate(other_trainers, 1)},
            **{name: role for name, role in alone.items() if role},
        }

    @property
    def gauges(self) -> list[Callable[[], Metrics]]:
        """Functions that return what was measured beside the training since their last call, for the recorder."""
        gauges = [self.traffic.take]
        if self.replay:
            gauges.append(self.replay.take_gauges)
        if self.central:
            gauges.append(self.central.meter.take)
        if self.adjustment:
            gauges.append(self.adjustment.gauge)
        if self.builder.config.topology.runtime != "serial":  # there nobody waits, roles take turns
            duty = DutyCycle(lambda: self.queue.sample_waited)
            gauges.append(lambda: {"learner_utilisation": duty.take()})
            if self.central:
                busy = DutyCycle(lambda: (self.environments_waited or 0.0) / self._num_actors)
                gauges.append(lambda: {"environment_wait_fraction": 1.0 - busy.take()})
        if self.builder.config.topology.runtime == "threads":
            gauges.append(cpu_by_role)
        return gauges

    @property
    def _num_actors(self) -> int:
        return self.builder.config.topology.num_actors // self._reducer.size

    @property
    def environments_waited(self) -> float | None:
        """Seconds in which no group of an actor's environments stepped, summed over actors; None: not measured.

        It is measured with central inference where roles run side by side. The time is left out in which the actor
        waited for room in the store, or for parameters as the schedule demands.
        """
        if not self.central or self.builder.config.topology.runtime == "serial":
            return None
        if self.traffic.agent_steps or self.stepping_clock is None:  # workers say how long they waited
            waited = self.traffic.seconds_waited
        else:
            waited = (time.perf_counter() - self._began) * self._num_actors - self.stepping_clock.seconds
        return waited - self.queue.insert_waited - self.params.pull_waited

    def close(self) -> None:
        """End every wait of every role with `Closed`."""
        self.queue.close()
        self.params.close()
        if self.central:
            self.central.close()
        if self.adjustment:
            self.adjustment.close()

    def frozen(self) -> AbstractContextManager[None]:
        """Let nothing change within the block that `state_dict` refers to, or has the replay write."""
        if isinstance(self.params, LiveParameters):
            return self.params.frozen()
        return self.replay.frozen() if self.replay else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of learner, parameters and replay, without the unrolls that wait (`waiting`).

        A replay in a process of its own writes its own file first; the state then holds its checksum.
        """
        state = {"learner": self.learner.state_dict(), "params": self.params.state_dict()}
        if self.adjustment:
            state["working"] = self.adjustment.state_dict()
        if self._distant_replay and self._keeps_contents:
            state["beside"] = {"replay": self._distant_replay.save(self.counts.updates)}
        elif self._distant_replay:
            state["replay"] = self._distant_replay.counters()
        elif isinstance(self.replay, PrioritizedReplay):
            state["replay"] = self.replay.state_dict(contents=self._keeps_contents)
        return state

    def waiting(self) -> dict[str, Any]:
        """Return the unrolls that wait; none with a replay or shared parameters, which are saved by themselves."""
        return self.queue.state_dict() if isinstance(self.queue, UnrollQueue) else {}

    def load_waiting(self, state: dict[str, Any]) -> None:
        """Continue with the unrolls that `waiting` has returned."""
        if isinstance(self.queue, UnrollQueue):
            self.queue.load_state_dict(state)
            if self.builder.config.topology.acting == "device":
                self.queue.move(self.builder.device)

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Continue where `state` was taken; return what the user should know of it."""
        self.learner.load_state_dict(state["learner"])
        self.params.load_state_dict(state["params"])
        if self.adjustment:
            self.adjustment.load_state_dict(state["working"])
        wanted = self._load_replay(state)
        if wanted is None:
            return None
        return f"the replay was not saved: it is refilled with {wanted:,} items before the learner goes on"

    def _load_replay(self, state: dict[str, Any]) -> int | None:
        """Return how many items it must be refilled with; None where nothing is missing.

        The checkpoint counts, not what the configuration says now: `checkpoint.replay` may change between two starts.
        """
        if self._distant_replay and "beside" in state:
            self._distant_replay.restore(self.counts.updates)
            return None
        if self._distant_replay:
            return self._distant_replay.refill(state["replay"])
        return self.replay.load_state_dict(state["replay"]) if isinstance(self.replay, PrioritizedReplay) else None


def _setting(builder: Builder, reducer: Reducer, shards: Shards | None, store: SharedStore | None) -> Setting:
    """Return the resources of the learner; the parameters are those of `LearnerNode`."""
    config, topology = builder.config, builder.config.topology
    return Setting(
        frame_skip=builder.spec.frame_skip,
        device=builder.device,
        precision=config.precision,
        num_threads=topology.learner_threads,
        num_trainers=topology.num_trainers,
        parameter_shards=topology.parameter_shards if config.system.parameters == "sharded" else None,
        shards=shards,
        generator=numpy_generator(config.seed, "replay", reducer.rank),
        reducer=reducer,
        dropping=Dropping.of(store, topology.required_gradients, reducer.size),
        preemption=topology.preemption is not None,
    )


def _parameters(config: RunConfig, network: nn.Module, reducer: Reducer, shards: Shards | None) -> AnyParameters:
    """Return shared ones where several threads update them, else versions that the learner publishes."""
    if config.system.parameters != "versions":
        return LiveParameters(network, shards)
    topology, hyperparameters = config.topology, config.hyperparameters
    max_lag = {"asynchronous": None, "synchronous": 0, "bounded_lag": topology.max_policy_lag}[topology.schedule]
    schedule = ScheduleRule(
        max_lag,
        topology.num_actors // reducer.size * topology.envs_per_actor,
        max(1, hyperparameters.fresh_columns // reducer.size),
        hyperparameters.first_update,
    )
    return ParameterServer(network, schedule, delay=topology.parameter_delay)


def make_replay(builder: Builder, network: nn.Module, reducer: Reducer) -> PrioritizedReplay:
    """Return an empty replay. Raise UserError where it would be too small."""
    history = make_history(builder, [part.shape[1:] for part in cast(ActingNetwork, network).initial_state(1)])
    generator = numpy_generator(builder.config.seed, "replay", reducer.rank)
    return PrioritizedReplay(with_replay(builder.config.hyperparameters).replay, history, generator)


def make_history(builder: Builder, state_shapes: Sequence[tuple[int, ...]]) -> History:
    """Return what a replay holds steps in; `state_shapes`: of the network's recurrent state."""
    rule = with_replay(builder.config.hyperparameters).replay
    topology = builder.config.topology
    num_streams = topology.num_actors * topology.envs_per_actor
    length = rule.stream_length(num_streams, builder.config.hyperparameters.unroll_length)
    return History(builder.spec, num_streams, length, state_shapes if rule.state_period else (), rule.state_period or 1)


def _central_inference(builder: Builder, params: AnyParameters) -> CentralInference:
    topology, central = builder.config.topology, builder.config.topology.central
    columns = topology.num_actors * topology.envs_per_actor // topology.num_learners
    rule = BatchRule(central.min_columns, central.max_columns or columns, central.max_wait_ms / 1000)
    device = builder.device if central.device == "learner" else _named_device(central.device)
    networks = [builder.inference(device) for _ in range(central.num_threads)]
    if isinstance(params, LiveParameters) and device == builder.device:
        for one in networks:
            params.lend(one.network)
    return CentralInference(networks, params, None if topology.runtime == "serial" else rule)


def _named_device(name: str) -> torch.device:
    """Return a device. Raise UserError where there is no such GPU."""
    device, gpus = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        there = f"{gpus} GPUs" if gpus > 1 else "one GPU" if gpus else "no GPU"
        raise UserError(f"key 'topology.central.device': {name} was asked for, but torch finds {there}")
    return device


class StopDecision(NamedTuple):
    """A decision of all learners before the same update."""

    interrupted: bool
    """They stop early."""
    segment_over: bool
    """They end a segment of the training."""


class StopFlag:
    """Stops several learners before the same update, whichever of them was asked."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._asked = False

    def ask(self) -> None:
        """Ask for a stop; from any thread or signal handler."""
        self._asked = True

    def decide(self, segment_over: bool = False) -> StopDecision:
        """Return what any learner was asked, or says of the segment; every learner calls it before each update."""
        if self._reducer.size == 1:
            return StopDecision(self._asked, segment_over)
        said = torch.tensor([float(self._asked), float(segment_over)])
        self._reducer.sum_([said])
        interrupted, over = said.tolist()
        return StopDecision(bool(interrupted), bool(over))
