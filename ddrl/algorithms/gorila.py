"""GORILA: general reinforcement learning architecture, with DQN (Nair et al. 2015, arXiv 1507.04296).

Each bundle has its own actor, replay and learner: it acts, draws from its replay, computes a gradient of the DQN loss,
sends it to the shards of a parameter server, and gets the new parameters back. The paper's text could not be read: the
architecture is that of its abstract and of related work (Mnih et al. 2016, section 2), the agent is DQN (Mnih et al.
2015). Numbered lines: Algorithm 1 of Mnih et al. 2015, for one bundle.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.adders import TransitionItems
from ddrl.actors.exploration import EpsilonGreedy
from ddrl.actors.policy import LocalInference, Sampler
from ddrl.actors.unroll import UnrollCollector
from ddrl.errors import UserError
from ddrl.interfaces import SharedParameters, System, TaskKind
from ddrl.learners.core import no_fresh_batch
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.learners.replay_learner import no_actions
from ddrl.learners.shared_updates import GradientLearner, gradient_of
from ddrl.losses.q_learning import half_square, taken
from ddrl.networks.actor_critic import unread_keys
from ddrl.networks.q_network import QNetwork, make_q_network
from ddrl.replay.items import TransitionCut, Transitions
from ddrl.replay.prioritized import PrioritizedReplay
from ddrl.replay.replay_config import ReplayRule
from ddrl.replay.step_storage import History
from ddrl.system.config_types import STRICT, Probability, check_read
from ddrl.types import EnvSpec, Gradients, Metrics, Unroll

VERSION = 2

SYSTEM = System(
    name="GORILA",
    moves="gradients",
    store="local replay",
    schedules=("asynchronous",),
    parameters="sharded",
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "vectors": {
        "network": "mlp",
        "exploration_steps": 10_000,
        "replay_capacity": 10_000,
        "min_replay_size": 500,
        "target_update_period": 250,
        "optimizer": {"learning_rate": 5e-4},
    },
}
"""Ours: a small task is over before the paper's replay would be ready, its exploration over or its target renewed."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Mnih et al. 2015, Extended Data Table 1, unless a line says otherwise. A replay is an actor's own."""

    unroll_length: PositiveInt = 4  # actions between two updates
    batch_size: PositiveInt = 32  # transitions
    discount: Probability = 0.99
    target_update_period: PositiveInt = 10_000  # updates of the server
    initial_epsilon: Probability = 1.0
    final_epsilon: Probability = 0.1
    exploration_steps: NonNegativeInt = 1_000_000  # of an actor, dead ones too, over which epsilon falls
    evaluation_epsilon: Probability = 0.05  # Mnih et al. 2015, Methods
    replay_capacity: PositiveInt = 1_000_000  # steps of each actor
    min_replay_size: PositiveInt = 50_000  # transitions before an actor's first gradient
    error_clipping: PositiveFloat | None = 1.0  # Mnih et al. 2015, Methods: the error's gradient within [-1, 1]
    reward_clipping: RewardClipping = "abs_one"  # Mnih et al. 2015, Methods
    max_grad_norm: PositiveFloat | None = None  # not in Mnih et al. 2015
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "nature"
    scaled_pixels: bool = True  # the authors' code of Mnih et al. 2015; false: 0 to 255
    head_size: PositiveInt = 512  # hidden units behind the convolutions (Mnih et al. 2015, Methods)
    optimizer: RMSPropConfig = RMSPropConfig(
        learning_rate=0.00025,
        decay=0.95,
        epsilon=0.01,
        epsilon_inside_sqrt=True,
        centered=True,
        decay_frames=None,
    )

    fresh_columns = 0  # no batch is fresh
    stored_columns = 0
    first_update = no_fresh_batch

    @property
    def local_replay(self) -> ReplayRule:
        """Rule of each actor's replay: transitions of one step, drawn uniformly."""
        return ReplayRule(
            cut=TransitionCut(1),
            capacity=self.replay_capacity,
            min_size=self.min_replay_size,
            batch_size=self.batch_size,
            samples_per_insert=None,
            error_buffer=0.0,
            priority_exponent=0.0,
            importance_exponent=0.0,
            delay=1,
            state_period=None,
        )


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if the algorithm cannot learn this environment, or not with these settings."""
    check_read(config, unread_keys(spec, config))
    if spec.action_size:
        raise UserError(f"'{spec.name}' has continuous actions; Q-learning needs discrete ones")
    if config.min_replay_size > config.replay_capacity:
        raise UserError(
            f"key 'hyperparameters.min_replay_size' must be at most replay_capacity, {config.replay_capacity:,}: so "
            f"many items would never be there (got {config.min_replay_size:,})"
        )


make_network = make_q_network


def make_sampler(config: Config, network: Any, envs: Sequence[int] | None, num_envs: int) -> Sampler:
    """Return an epsilon-greedy sampler, whose epsilon the actor lowers; that of an evaluation is fixed."""
    if envs is None:
        return EpsilonGreedy([config.evaluation_epsilon])
    return EpsilonGreedy([config.final_epsilon] * len(envs), config.initial_epsilon)


def dqn_loss(network: QNetwork, target_network: QNetwork, part: Transitions, config: Config) -> tuple[Tensor, Metrics]:
    """Return the sum over items of (r + discount max_a' Q-(s', a') - Q(s, a))^2 / 2, and metrics.

    Beyond `error_clipping` it is linear, with the slope that it has there (Mnih et al. 2015, eq. 2 and Methods). The
    sum fits RMSProp's epsilon of 0.01. PFRL sums as well; DQN Zoo takes the mean with an epsilon of 0.01 / 32**2, which
    makes the same steps. With the mean and 0.01 they are up to 32 times smaller.
    """
    blank = no_actions(part.batch_size, part.action.device)
    value = taken(network(part.observation[None], *blank, ()).distribution[0], part.action)
    with torch.no_grad():
        next_value = target_network(part.next_observation[None], *blank, ()).value[0]
        reward = clipped_rewards(part.reward[0], config.reward_clipping)
        target = reward + (config.discount * next_value).masked_fill(part.terminated, 0.0)  # 11  y_j
    error = target - value
    loss = half_square(error, config.error_clipping).sum()
    return loss, {
        "loss": loss.item(),
        "td_error": error.detach().abs().sum().item(),
        "q_mean": value.detach().sum().item(),
    }


class Actor:
    """Actor, replay and learner of one bundle; two calls of `step` make one pass, as in A3C."""

    def __init__(self, config: Config, collector: UnrollCollector, params: SharedParameters, _: object) -> None:
        self._config = config
        self._collector = collector
        self._params = params
        self._inference = cast(LocalInference, collector.policy.inference)
        self._network: QNetwork = self._inference.network
        self._network.requires_grad_(True)
        self.target_network = copy.deepcopy(self._network).requires_grad_(False)
        self._targets = -1
        columns, spec = collector.env.num_envs, collector.env.spec
        history = History(spec, columns, config.local_replay.stream_length(columns, config.unroll_length), (), 1)
        assert collector.generator is not None
        self.replay = PrioritizedReplay(config.local_replay, history, collector.generator)
        self._items = TransitionItems(1, lambda q, action, *_: torch.ones(action.shape))  # equal priorities
        self._fresh_steps = 0
        self._gradients: Gradients | None = None

    def ready(self) -> bool:
        """Return True: `step` never waits."""
        return True

    def step(self) -> None:
        """Compute or apply a gradient. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        if self._gradients is not None:
            gradients, self._gradients = self._gradients, None
            self._params.apply(gradients)  # 13  to the parameter server
            return
        collector, config = self._collector, self._config
        collector.policy.pull(self._params, collector.next_index)
        self._refresh_target()
        acted = collector.next_index * config.unroll_length * collector.env.num_envs
        cast(EpsilonGreedy, collector.policy.sampler).fall(acted, config.exploration_steps)
        self._gradients = self.learn(collector.collect(config.unroll_length))  # 6-8  act epsilon-greedily

    def learn(self, unroll: Unroll) -> Gradients | None:
        """Store an unroll; return the gradient of a batch from the replay, or None if that holds too few items."""
        self._fresh_steps += int(unroll.valid.sum())
        own = replace(unroll, actor=torch.zeros_like(unroll.actor))  # the only actor of this replay
        self.replay.insert(self._items.make(own, []))  # 9
        if not self.replay.can_sample(self._config.batch_size):
            return None
        batch: Any = self.replay.sample(self._config.batch_size).to(self._inference.device)  # 10-12
        gradients = gradient_of(
            lambda network: dqn_loss(network, self.target_network, batch, self._config),
            self._network,
            self._inference.autocast(),
            self._config.max_grad_norm,
            version=int(self._inference.version),
            items=batch.batch_size,
            steps=self._fresh_steps,
        )
        self._fresh_steps = 0
        return gradients

    def _refresh_target(self) -> None:
        """Copy the parameters whenever the server has made another `target_update_period` updates."""
        number = int(self._inference.version) // self._config.target_update_period
        if number != self._targets:
            self.target_network.load_state_dict(self._network.state_dict())  # 14  theta- <- theta
            self._targets = number

    def state_dict(self) -> dict[str, Any]:
        """Return the state of replay and target network, the gradient to be applied, and counters."""
        return {
            "gradients": self._gradients and self._gradients.as_dict(),
            "replay": self.replay.state_dict(),
            "items": self._items.state_dict(),
            "target_network": self.target_network.state_dict(),
            "numbers": [self._targets, self._fresh_steps],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._gradients = state["gradients"] and Gradients(**state["gradients"])
        self.replay.load_state_dict(state["replay"])
        self._items.load_state_dict(state["items"])
        self.target_network.load_state_dict(state["target_network"])
        self._targets, self._fresh_steps = state["numbers"]


Learner = GradientLearner
