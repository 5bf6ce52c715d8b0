"""One learner joined to its parameters and queue by hand, and unrolls for it, of discrete and of continuous actions."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from ddrl import algorithms
from ddrl.actors.policy import LocalInference
from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.coordinator.shared_parameters import LiveParameters
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import GradientStep, Setting
from ddrl.replay.prioritized import PrioritizedReplay
from ddrl.replay.queue import UnrollQueue
from ddrl.replay.step_storage import History
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.types import EnvSpec, Metrics, Unroll
from tests.runs import DISCRETE as LEARN_DISCRETE
from tests.runs import GRADIENTS, REPLAYING, SHARED

DISCRETE = EnvSpec("test/discrete", (4,), "float32", num_actions=3, frame_skip=4, protocol="test")
CONTINUOUS = EnvSpec("test/continuous", (4,), "float32", num_actions=0, frame_skip=1, protocol="test", action_size=2)
SPECS = {"discrete": DISCRETE, "continuous": CONTINUOUS}

SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"num_epochs": 2, "num_minibatches": 3},
    "impact": {"num_slots": 2, "num_traversals": 2},
    "appo": {"num_epochs": 2, "num_minibatches": 2},
    "gorila": {
        "batch_size": 8,
        "replay_capacity": 400,
        "min_replay_size": 4,
        "head_size": 16,
        "target_update_period": 2,
        "exploration_steps": 100,
    },
    "apex_dqn": {
        "actor_update_period": 6,
        "replay_capacity": 400,
        "min_replay_size": 4,
        "samples_per_insert": 0.5,
        "error_buffer": 2.0,
        "head_size": 16,
        "target_update_period": 2,
    },
    "d4pg": {
        "network": "mlp",
        "policy_layers": [16, 16],
        "critic_layers": [16, 16],
        "v_min": -10.0,
        "v_max": 10.0,
        "actor_update_period": 6,
        "replay_capacity": 400,
        "min_replay_size": 4,
        "samples_per_insert": 0.5,
        "error_buffer": 2.0,
        "target_update_period": 2,
    },
    "r2d2": {
        "actor_update_period": 6,
        "sequence_length": 4,
        "sequence_period": 2,
        "burn_in": 2,
        "n_step": 2,
        "lstm_size": 8,
        "replay_capacity": 400,
        "min_replay_size": 4,
        "samples_per_insert": 0.5,
        "error_buffer": 2.0,
        "head_size": 16,
        "target_update_period": 2,
    },
}
"""What makes an algorithm's own defaults small enough for a test."""


class Recorder:
    """A `GradientStep` that keeps what it was given and what it returned."""

    def __init__(self, gradient: GradientStep) -> None:
        self._gradient = gradient
        self.batches: list[Any] = []
        self.metrics: list[Metrics] = []

    def step(self, loss: Any, batch: Any, **keywords: Any) -> Metrics:
        metrics = self._gradient.step(loss, batch, **keywords)
        self.batches.append(batch)
        self.metrics.append(dict(metrics))
        return metrics

    def total(self, value: float) -> float:
        return self._gradient.total(value)


class Inbox:
    """A replay that is given unrolls as a queue is: an actor's items are made of them. Each begins an episode."""

    def __init__(self, module: Any, config: Any, replay: PrioritizedReplay, network: Any) -> None:
        actor = module.Actor(config, None, None, replay)
        self.replay = replay
        self.items, self._network = actor._items, network

    def insert(self, unroll: Unroll) -> None:
        states = [self._network.initial_state(unroll.batch_size)] * unroll.length
        start = unroll.start.clone()
        start[0] = True  # one does not go on where another has ended
        unroll = replace(unroll, start=start)
        self.replay.insert(self.items.make(unroll, states))


class Valuing:
    """A queue that is given unrolls without what its algorithm's actor makes of the values: the network's own."""

    def __init__(self, module: Any, config: Any, queue: UnrollQueue, network: Any) -> None:
        self._module, self._config, self._queue, self._network = module, config, queue, network

    @torch.no_grad()
    def insert(self, unroll: Unroll) -> None:
        inputs = (unroll.observation, unroll.last_action, unroll.last_reward, unroll.start)
        values = list(self._network(*inputs, unroll.initial_state).value)
        if hasattr(self._module, "with_returns"):
            self._queue.insert(self._module.with_returns(unroll, values, self._config))
        else:
            self._queue.insert(self._module.with_values(unroll, values[:-1]))


class Applying:
    """A learner joined to an actor: a step takes the oldest unroll, and computes and applies its gradient."""

    def __init__(
        self, module: Any, config: Any, network: Any, params: LiveParameters, setting: Setting, spec: EnvSpec
    ) -> None:
        own = module.Learner(config, network, params, params, setting)
        self.core, self.state_dict, self.load_state_dict = own.core, own.state_dict, own.load_state_dict
        self._learner, self._params = own, params
        self.inference = LocalInference(copy.deepcopy(network), device=torch.device("cpu"), precision="float32")
        policy = SimpleNamespace(inference=self.inference, sampler=None)
        env = SimpleNamespace(num_envs=4, spec=spec)
        collector: Any = SimpleNamespace(policy=policy, env=env, generator=setting.generator, next_index=0)
        self.actor = module.Actor(config, collector, params, params)
        self._unrolls: deque[Unroll] = deque()

    def insert(self, unroll: Unroll) -> None:
        self._unrolls.append(unroll)

    def ready(self) -> bool:
        return bool(self._unrolls)

    def step(self) -> Metrics:
        self.inference.pull(self._params, 0)
        self._params.apply(self.actor.learn(self._unrolls.popleft()))
        metrics: Metrics = self._learner.step()
        return metrics


def spec_of(algorithm: str) -> EnvSpec:
    """The discrete one, unless the algorithm learns continuous actions alone."""
    return DISCRETE if algorithm in LEARN_DISCRETE else CONTINUOUS


class Rig:
    """A learner of 4 columns of 6 steps, unless `hyperparameters` say otherwise.

    Of the discrete task, or of the continuous one where the algorithm learns no other.
    """

    def __init__(
        self,
        algorithm: str,
        spec: EnvSpec | None = None,
        *,
        seed: int = 0,
        num_threads: int = 1,
        device: str = "cpu",
        **hyperparameters: Any,
    ) -> None:
        spec = self.spec = spec or spec_of(algorithm)
        self.module = algorithms.load(algorithm)
        batch = {} if algorithm in GRADIENTS else {"batch_size": 4}
        small = {"network": "tanh_mlp", "unroll_length": 6, **batch, **SMALL.get(algorithm, {})}
        self.config = self.module.Config(**small | hyperparameters)
        self.module.check(self.config, spec, 1)
        self.network: Any = self.module.make_network(spec, self.config, torch_generator(seed, "network")).to(device)
        columns = self.config.fresh_columns or 4
        setting = Setting(
            frame_skip=spec.frame_skip,
            device=torch.device(device),
            precision="float32",
            num_threads=num_threads,
            generator=numpy_generator(seed, "replay"),
            reducer=SingleLearner(),
        )
        rule = ScheduleRule(None, columns, columns, self.config.first_update)
        self.params: Any = LiveParameters(self.network) if algorithm in SHARED else ParameterServer(self.network, rule)
        if algorithm in GRADIENTS:
            self.learner: Any = Applying(self.module, self.config, self.network, self.params, setting, spec)
            self.queue: Any = self.learner
            return
        self.queue = UnrollQueue(capacity=1000)
        store: Any = self.queue
        if hasattr(self.module, "with_returns") or hasattr(self.module, "with_values"):
            self.queue = Valuing(self.module, self.config, store, self.network)
        if algorithm in REPLAYING:
            store = replay_of(self.config, self.network, spec, columns=4, seed=seed)
            self.queue = Inbox(self.module, self.config, store, self.network)
        self.store = store
        """What the learner draws from, without what stands in for actors."""
        self.learner = self.module.Learner(self.config, self.network, self.params, store, setting)

    def unroll(self, seed: int = 0, *, drift: float = 0.0, columns: int | None = None, ends: bool = True) -> Unroll:
        """An unroll of the network's present policy (see `acted_unroll`), stamped with the newest version."""
        columns = columns or self.config.fresh_columns or 4
        return acted_unroll(
            self.network, self.spec, self.config.unroll_length, columns, seed, drift, ends, self.params.version
        )

    def step(self, seed: int = 0, **keywords: Any) -> Metrics:
        """Fills the queue with fresh unrolls until the learner is ready, then lets it step once."""
        for turn in range(100):
            if self.learner.ready():
                break
            self.queue.insert(self.unroll(seed + 1000 * turn, **keywords))
        metrics: Metrics = self.learner.step()
        return metrics

    def record(self) -> Recorder:
        """Writes down every gradient step from now on."""
        self.learner.core._gradient = recorder = Recorder(self.learner.core._gradient)
        return recorder

    def weights(self) -> torch.Tensor:
        """All parameters of the network in one vector."""
        return torch.cat([parameter.detach().reshape(-1).clone() for parameter in self.network.parameters()])


def replay_of(config: Any, network: Any, spec: EnvSpec, *, columns: int, seed: int) -> PrioritizedReplay:
    """An empty one, for an actor of so many columns."""
    rule = config.replay
    shapes = [tuple(part.shape[1:]) for part in network.initial_state(1)] if rule.state_period else []
    history = History(spec, columns, rule.stream_length(columns, config.unroll_length), shapes, rule.state_period or 1)
    return PrioritizedReplay(rule, history, numpy_generator(seed, "replay"))


@torch.no_grad()
def acted_unroll(
    network: Any,
    spec: EnvSpec,
    length: int,
    columns: int,
    seed: int,
    drift: float = 0.0,
    ends: bool = True,
    version: int = 0,
) -> Unroll:
    """Random observations and rewards; actions of the network's policy, its parameters [.., P] moved by noise x drift.

    `ends` scatters terminations and truncations with their dead steps. Actor 0, environments 0 to columns - 1.
    """
    generator = torch.Generator().manual_seed(seed)
    steps, points = (length, columns), (length + 1, columns)
    observation = torch.randn((*points, *spec.observation_shape), generator=generator)
    action_shape, action_dtype = ((spec.action_size,), torch.float32) if spec.action_size else ((), torch.int64)
    last_action = torch.zeros((*points, *action_shape), dtype=action_dtype)
    terminated, truncated, start = (torch.zeros(shape, dtype=torch.bool) for shape in (steps, steps, points))
    valid = torch.ones(steps, dtype=torch.bool)
    for column in range(columns if ends else 0):
        t = int(torch.randint(0, 3, (), generator=generator))
        while t < length:
            (terminated if torch.rand((), generator=generator) < 0.5 else truncated)[t, column] = True
            if t + 1 < length:
                valid[t + 1, column], start[t + 2, column] = False, True
            t += int(torch.randint(2, 5, (), generator=generator))
    state = network.initial_state(columns)
    output = network(observation, last_action, torch.zeros(points), start, state)
    distribution = output.distribution[:-1]
    distribution = distribution + drift * torch.randn(distribution.shape, generator=generator)
    reward = torch.randn(steps, generator=generator) * valid
    return Unroll(
        observation=observation,
        last_action=last_action,
        last_reward=torch.zeros(points),
        start=start,
        action=action_of(network, distribution, generator),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        distribution=distribution,
        version=torch.full(steps, version),
        actor=torch.zeros(columns, dtype=torch.int64),
        env=torch.arange(columns),
        index=torch.zeros(columns, dtype=torch.int64),
        initial_state=state,
    )


def action_of(network: Any, distribution: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Drawn from a policy's distribution; of a Q-network, now and then any action instead of the best."""
    if hasattr(network, "family"):
        return torch.as_tensor(network.family.sample(distribution, generator))
    explored = torch.randint(distribution.shape[-1], distribution.shape[:-1], generator=generator)
    explores = torch.rand(distribution.shape[:-1], generator=generator) < 0.3
    return torch.where(explores, explored, distribution.argmax(dim=-1))
