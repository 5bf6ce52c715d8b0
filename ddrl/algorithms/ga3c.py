"""GA3C: A3C with one network, in the learner's process (Babaeizadeh et al. 2017, arXiv 1611.06256).

Agents have no network: they ask predictors for policy and value (`topology.inference: central`, whose `num_threads` are
the predictors), compute n-step returns from the values that they were given, and queue what they have for trainers
(`topology.num_trainers`), which update the one network beside each other. Numbered lines: section 4.1, agents 1 to 4,
trainers 5 to 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from ddrl.actors.exploration import from_distribution
from ddrl.actors.unroll import UnrollCollector
from ddrl.errors import UserError
from ddrl.interfaces import Queue, SharedParameters, System
from ddrl.learners.core import Setting
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.learners.shared_updates import SharedUpdates
from ddrl.learners.trainers import Trainer
from ddrl.losses.policy import entropy_with_epsilon, policy_gradient_loss
from ddrl.losses.returns import n_step_returns
from ddrl.losses.value import masked_sum, value_loss
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic
from ddrl.networks.initialisation import Initialisation
from ddrl.system.config_types import STRICT, Probability
from ddrl.types import EnvSpec, Metrics, Unroll

VERSION = 1
"""Raised when behaviour changes: results of older versions are then trained anew."""

SYSTEM = System(
    name="GA3C",
    moves="unrolls",
    store="queue",
    schedules=("asynchronous",),
    parameters="shared",
)


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Babaeizadeh et al. 2017, and its code (NVlabs/GA3C, Config.py), unless a line says otherwise."""

    unroll_length: PositiveInt = 5  # t_max, agent steps
    batch_size: PositiveInt = 1  # unrolls that a trainer joins: TRAINING_MIN_BATCH_SIZE 0
    discount: Probability = 0.99
    value_cost: float = 1.0  # of half the squared error, as its code; 2.0 would be eq. 5, which has the whole
    entropy_cost: float = 0.01  # beta
    log_epsilon: NonNegativeFloat = 1e-6  # added in the logarithms of policy and entropy (section 5.3)
    reward_clipping: RewardClipping = "abs_one"
    max_grad_norm: PositiveFloat | None = None  # USE_GRAD_CLIP False; 40 there otherwise
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "shallow"  # section 3.2
    initialisation: Initialisation | None = None  # null: truncated normal (Espeholt et al. 2018's code); uniform there
    optimizer: RMSPropConfig = RMSPropConfig(  # TensorFlow's
        learning_rate=3e-4, epsilon=0.1, epsilon_inside_sqrt=True, initial_mean_square=1.0, decay_frames=None
    )

    @property
    def fresh_columns(self) -> int:
        """Columns that an update takes from the queue: all of them."""
        return self.batch_size

    @property
    def stored_columns(self) -> int:
        """Columns of unrolls that stay in main memory, to be learned from again: none."""
        return 0

    def first_update(self, batch: int) -> int:
        """Which update first uses fresh batch number `batch`: each is learned from once, in order."""
        return batch


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raises `UserError` where the algorithm cannot learn this environment."""
    if spec.action_size:
        raise UserError(
            f"algorithm ga3c adds an epsilon to probabilities, and '{spec.name}' has continuous actions; allowed: "
            "tasks with discrete actions"
        )


def make_network(spec: EnvSpec, config: Config, generator: torch.Generator) -> ActorCritic:
    """The actor-critic network for an environment."""
    return make_actor_critic(spec, network=config.network, initialisation=config.initialisation, generator=generator)


class Actor:
    """One call of `step` = one unroll of an agent (or of several that step together)."""

    def __init__(self, config: Config, collector: UnrollCollector, params: SharedParameters, queue: Queue) -> None:
        self._config = config
        self._collector = collector
        self._params = params
        self._queue = queue

    def ready(self) -> bool:
        """Whether `step` would not wait."""
        return self._queue.can_insert()

    def step(self) -> None:
        """Acts for t_max steps with whatever parameters there are at each of them."""
        self._collector.policy.pull(self._params, self._collector.next_index)
        values: list[torch.Tensor] = []
        unroll = self._collector.collect(self._config.unroll_length, values=values)  # 1-2  predictions, actions
        self._queue.insert(with_returns(unroll, values, self._config))  # 3-4  returns; to the training queue

    def state_dict(self) -> dict[str, Any]:
        """Nothing: all there is belongs to the collector."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


def with_returns(unroll: Unroll, values: list[torch.Tensor], config: Config) -> Unroll:
    """The unroll with its returns, from T + 1 values [B] of the time of acting: they are older than what learns."""
    predicted = torch.stack(values).cpu()
    rewards = clipped_rewards(unroll.reward, config.reward_clipping)
    discounts = config.discount * (~unroll.terminated).float()
    return replace(unroll, returns=(n_step_returns(predicted[:-1], predicted[-1], rewards, discounts, unroll.valid),))


def ga3c_loss(network: Any, batch: Unroll, config: Config, weight: float) -> tuple[torch.Tensor, Metrics]:
    """A3C's loss with epsilon in its logarithms (section 5.3); R_t are the actor's, V and pi those of `network` now."""
    network_inputs = (batch.observation, batch.last_action, batch.last_reward, batch.start)
    output = network(*(part[:-1] for part in network_inputs), batch.initial_state)
    (returns,) = batch.returns
    log_pi = network.family.log_probability(output.distribution, batch.action)
    policy_steps = policy_gradient_loss(log_pi, returns - output.value, epsilon=config.log_epsilon)
    policy = masked_sum(policy_steps, batch.valid)
    value = masked_sum(value_loss(output.value, returns), batch.valid)
    bonus = masked_sum(entropy_with_epsilon(output.distribution, config.log_epsilon), batch.valid)
    loss = weight * (policy + config.value_cost * value - config.entropy_cost * bonus)
    return loss, {"policy_loss": policy.item(), "value_loss": value.item(), "entropy": bonus.item()}


make_sampler = from_distribution


class Learner:
    """Trainers that share one network; one call of `step` = one update by the first of them."""

    def __init__(
        self, config: Config, network: ActorCritic, params: SharedParameters, queue: Queue, setting: Setting
    ) -> None:
        self.core = SharedUpdates(config, network, params, setting)
        self._params = params
        self.trainers = [
            Trainer(config, network, params, queue, setting, loss=ga3c_loss) for _ in range(setting.num_trainers)
        ]
        """Roles; `step` is that of the first."""

    def ready(self) -> bool:
        """Whether `step` would not wait."""
        return self.trainers[0].ready()

    def step(self) -> Metrics:
        """Raises `NonFiniteError` when a loss or the gradient is NaN or infinite.

        Returns means over the updates of all trainers since the last call.
        """
        self.trainers[0].step()
        return self._params.take()

    def update(self, batch: Unroll) -> Metrics:
        """One update from a batch."""
        self.trainers[0].update(batch)
        return self._params.take()

    def state_dict(self) -> dict[str, Any]:
        """The core's."""
        return self.core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.core.load_state_dict(state)
