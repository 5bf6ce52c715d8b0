"""The builder of what acts in a run: environments, policies, collectors, actors. It knows no coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ddrl import algorithms
from ddrl.actors.device_unroll import DeviceCollector
from ddrl.actors.env_groups import GroupedEnvs, SteppingThread
from ddrl.actors.policy import LocalInference, Policy, Sampler
from ddrl.actors.preemption import Preemption
from ddrl.actors.unroll import EpisodeSink, UnrollCollector
from ddrl.environments.base import registry
from ddrl.environments.base.task_suites import common_spec
from ddrl.environments.tools.named import NamedEnv, make_env, spec_of
from ddrl.environments.tools.on_device import make_device_env
from ddrl.errors import UserError
from ddrl.interfaces import Actor, Inference, Parameters, Queue, Replay, SharedParameters, SharedStore
from ddrl.networks.distributions import CATEGORICAL, GAUSSIAN
from ddrl.system.seeding import numpy_generator, seed_for, torch_generator
from ddrl.system.wait_clock import SteppingClock
from ddrl.training.config.run_config import RunConfig
from ddrl.types import Episode

if TYPE_CHECKING:  # an actor with a network of its own connects to no service
    from ddrl.inference.endpoint import Endpoint
    from ddrl.inference.remote_env import RemoteEnv


AnyCollector = UnrollCollector | DeviceCollector


@dataclass(frozen=True)
class Generation:
    """The restarts of a run and of an actor in it; random streams differ by them, so no episode is played twice."""

    resumes: int = 0
    restarts: int = 0

    def stream(self, role: str) -> str:
        """Return the name of a role's random stream."""
        return role if self == Generation() else f"{role}-{self.resumes}-{self.restarts}"


class Link(Parameters, Queue, Protocol):
    """A learner's parameters and queue, as an actor in another process sees them."""

    def on_episode(self, episode: Episode) -> None:
        """Record an episode that is over."""

    def endpoint(self) -> Endpoint:
        """Return where the learner's inference service listens, with what workers need."""

    def store(self) -> SharedStore:
        """Return the store that all learners and actors of the run share."""


class Builder:
    """Makes the acting parts of one configuration, each from a random stream of its own."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.algorithm = algorithms.load(config.algorithm)
        self.spec = spec_of(config.environment)
        self.tasks = registry.tasks_of(config.environment["name"])
        self._evaluated = evaluated_environment(config)
        self.evaluated_tasks = registry.tasks_of(self._evaluated["name"], where="evaluation.environment.name")
        self._check_tasks()
        self.algorithm.check(config.hyperparameters, self.spec, config.topology.num_learners)

    def _check_tasks(self) -> None:
        """Raise UserError if tasks would differ in their number of environments, or evaluations in kind."""
        topology, name = self.config.topology, self.config.environment["name"]
        columns = topology.num_actors * topology.envs_per_actor
        if columns % len(self.tasks):
            raise UserError(
                f"key 'topology.envs_per_actor': num_actors x envs_per_actor must be a multiple of the "
                f"{len(self.tasks)} tasks of '{name}', so that each has as many environments as another (got "
                f"{topology.num_actors} x {topology.envs_per_actor})"
            )
        if self._evaluated != self.config.environment:
            given, where = self.config.evaluation.environment, "evaluation.environment"
            common_spec(where, [self.spec, spec_of(self._evaluated, given=given, where=where)])

    def network(self) -> nn.Module:
        """Make the network with its initial parameters."""
        generator = torch_generator(self.config.seed, "network")
        return self.algorithm.make_network(self.spec, self.config.hyperparameters, generator).to(self.device)

    def actor_env(self, index: int, generation: Generation = Generation(), group: int = 0) -> NamedEnv:
        """Make a group of an actor's environments, seeded by its number. Raise UserError if they cannot be made."""
        topology, role = self.config.topology, group_role(group)
        num_envs = topology.envs_per_actor // topology.env_groups
        return make_env(
            self.config.environment,
            num_envs,
            self.env_seed(role, index, generation),
            num_threads=topology.env_threads,
            name=self.describe(role, index, generation),
            first_env=index * topology.envs_per_actor + group * num_envs,
        )

    def grouped_envs(self, index: int, generation: Generation, clock: SteppingClock | None) -> GroupedEnvs:
        """Make the environments of an actor in groups; where roles run side by side they step in a thread of their own.

        `clock` counts the time in which they step.
        """
        topology, groups = self.config.topology, range(self.config.topology.env_groups)
        aside = len(groups) > 1 and topology.runtime != "serial"
        thread = SteppingThread(f"actor-{index}-environments") if aside else None
        return GroupedEnvs([self.actor_env(index, generation, group) for group in groups], thread, clock)

    def evaluation_env(self, task: str, index: int, num_envs: int) -> NamedEnv:
        """Make environments of one task for evaluation `index`. Raise UserError if they cannot be made."""
        environment = self._evaluated | {"name": task}
        seed = self.env_seed("evaluation", index)
        name = f"evaluation {index}, environment {task}, environment seed {seed}"
        return make_env(environment, num_envs, seed, num_threads=1, name=name)

    def env_seed(self, role: str, index: int, generation: Generation = Generation()) -> int:
        """Return the seed of the environments of an actor, or of an evaluation."""
        return seed_for(self.config.seed, f"{generation.stream(role)}-environment", index)

    def inference(self, device: torch.device | None = None, *, stays: bool = False) -> LocalInference:
        """Make local inference with a network of its own; `stays`: its answers stay on the device."""
        device = device or self.device
        return LocalInference(self.network(), device=device, precision=self.config.precision, stays=stays)

    def policy(
        self,
        role: str,
        index: int,
        batch_size: int,
        inference: Inference | None = None,
        envs: Sequence[int] | None = None,
        device: torch.device | None = None,
    ) -> Policy:
        """Make a policy with a network of its own, unless another `inference` is given.

        `envs`: numbers of the environments, among those of all actors, that it acts for; None: it evaluates. `device`:
        where actions are sampled; None: on the CPU.
        """
        generator = torch_generator(self.config.seed, f"{role}-policy", index, device)
        inference = inference or self.inference()
        return Policy(inference, batch_size, generator, self.sampler(inference.network, envs))

    def sampler(self, network: nn.Module, envs: Sequence[int] | None) -> Sampler:
        """Make what samples actions from the outputs of `network`; `envs` as in `policy`."""
        if envs is None and self.config.evaluation.deterministic:
            return (GAUSSIAN if self.spec.action_size else CATEGORICAL).mode
        topology = self.config.topology
        num_envs = topology.num_actors * topology.envs_per_actor
        return self.algorithm.make_sampler(self.config.hyperparameters, network, envs, num_envs)

    def collector(
        self,
        index: int,
        on_episode: EpisodeSink,
        *,
        slot: int | None = None,
        generation: Generation = Generation(),
        first_index: int = 0,
        inference: Inference | None = None,
        env: RemoteEnv | None = None,
        clock: SteppingClock | None = None,
        store: SharedStore | None = None,
    ) -> UnrollCollector:
        """Make the collector of an actor, with environments and inference of its own unless others are given.

        `slot` is the actor's number among those of its learner; None: `index`. `clock` counts the time in which
        environments of this process step. `store` is shared by the actors of all learners, for preemption.
        """
        topology, role = self.config.topology, generation.stream("actor")
        first, columns = index * topology.envs_per_actor, topology.envs_per_actor
        envs: RemoteEnv | GroupedEnvs = env or self.grouped_envs(index, generation, clock)
        size = columns // topology.env_groups
        policies = [
            self.policy(generation.stream(group_role(group)), index, size, inference, range(start, start + size))
            for group, start in enumerate(range(first, first + columns, size))
        ]
        return UnrollCollector(
            envs,
            policies[0],
            actor=index if slot is None else slot,
            on_episode=on_episode,
            tasks=registry.column_tasks(self.config.environment["name"], first, columns),
            first_index=first_index,
            generator=numpy_generator(self.config.seed, f"{role}-replay", index),
            groups=list(zip(envs.groups, policies, strict=True)),
            preemption=self._preemption(store),
        )

    def device_collector(
        self, index: int, on_episode: EpisodeSink, *, generation: Generation = Generation()
    ) -> DeviceCollector:
        """Make the collector of an actor that acts on the run's device, with environments and inference of its own."""
        topology, role, device = self.config.topology, generation.stream("actor"), self.device
        first, columns = index * topology.envs_per_actor, topology.envs_per_actor
        env = make_device_env(
            self.config.environment,
            columns,
            self.env_seed("actor", index, generation),
            device=device,
            num_threads=topology.env_threads,
            name=self.describe("actor", index, generation),
            first_env=first,
        )
        inference = self.inference(stays=True)
        return DeviceCollector(
            env,
            self.policy(role, index, columns, inference, range(first, first + columns), device),
            device=device,
            actor=index,
            on_episode=on_episode,
            tasks=registry.column_tasks(self.config.environment["name"], first, columns),
            check=env.check,
        )

    def _preemption(self, store: SharedStore | None) -> Preemption | None:
        rule, num_actors = self.config.topology.preemption, self.config.topology.num_actors
        if rule is None or store is None:
            return None
        return Preemption(store, num_actors, threshold=rule.threshold, least_fraction=rule.least_fraction)

    def actor(self, collector: AnyCollector, params: Parameters, queue: Queue | Replay | SharedParameters) -> Actor:
        """Make the algorithm's actor."""
        return self.algorithm.Actor(self.config.hyperparameters, collector, params, queue)

    def describe(self, role: str, index: int, generation: Generation = Generation()) -> str:
        """Return a line that says how to play the episodes of an actor, or of an evaluation, again."""
        seed = self.env_seed(role, index, generation)
        return f"{role} {index}, environment {self.config.environment['name']}, environment seed {seed}"


def group_role(group: int) -> str:
    """Return the role whose random streams a group of an actor's environments has."""
    return f"actor-group-{group}" if group else "actor"


def evaluated_environment(config: RunConfig) -> dict[str, Any]:
    """Return name and options of the environment that evaluations play."""
    return config.environment | (config.evaluation.environment or {})


class LoneActor:
    """An actor alone in its process."""

    def __init__(self, actor: Actor, collector: UnrollCollector) -> None:
        self.step = actor.step
        self.close = collector.env.close


def act_alone(config: RunConfig, index: int, generation: tuple[int, int], first_index: int, link: Link) -> LoneActor:
    """Build actor `index` on the CPU, for process `generation` (resumes, restarts), from unroll `first_index` on."""
    builder = Builder(config, torch.device("cpu"))
    collector = builder.collector(
        index,
        link.on_episode,
        slot=index // config.topology.num_learners,
        generation=Generation(*generation),
        first_index=first_index,
        store=link.store() if config.topology.preemption else None,
    )
    return LoneActor(builder.actor(collector, link, link), collector)
