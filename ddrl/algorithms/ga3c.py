"""GA3C: A3C with one network, in the learner's process (Babaeizadeh et al. 2017, arXiv 1611.06256).

Agents have no network: they ask predictors for policy and value (`topology.inference: central`, whose `num_threads` are
the predictors), compute n-step returns from those values, and queue their unrolls for trainers
(`topology.num_trainers`), which update the one network in parallel. Numbered lines: section 4.1, 1 to 4 of agents, 5 to
7 of trainers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.policy import from_distribution
from ddrl.actors.unroll import UnrollActor, UnrollCollector
from ddrl.errors import UserError
from ddrl.interfaces import Queue, SharedParameters, System, TaskKind
from ddrl.learners.core import Setting, each_batch_once
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.learners.shared_updates import SharedUpdates, gradient_of
from ddrl.losses.actor_critic import entropy_with_epsilon, masked_sum, policy_gradient_loss, value_loss
from ddrl.losses.returns import n_step_returns
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation
from ddrl.system.config_types import STRICT, Probability, check_read
from ddrl.types import EnvSpec, Metrics, Unroll

VERSION = 1

SYSTEM = System(
    name="GA3C",
    moves="unrolls",
    store="queue",
    schedules=("asynchronous",),
    parameters="shared",
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {"vectors": {"network": "mlp"}}
"""Ours: the paper has images alone."""


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
    scaled_pixels: bool = True  # pixels / 255, as IMPALA (Espeholt et al. 2018); / 128 - 1 there; false: 0 to 255
    initialisation: Initialisation | None = None  # null: truncated normal (Espeholt et al. 2018's code); uniform there
    optimizer: RMSPropConfig = RMSPropConfig(  # TensorFlow's
        learning_rate=3e-4, epsilon=0.1, epsilon_inside_sqrt=True, initial_mean_square=1.0, decay_frames=None
    )

    @property
    def fresh_columns(self) -> int:
        """Columns of a batch that come from the queue: all of them."""
        return self.batch_size

    stored_columns = 0
    first_update = each_batch_once


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if the algorithm cannot learn this environment."""
    check_read(config, unread_keys(spec, config))
    if spec.action_size:
        raise UserError(
            f"algorithm ga3c adds an epsilon to probabilities, and '{spec.name}' has continuous actions; allowed: "
            "tasks with discrete actions"
        )


def Actor(config: Config, collector: UnrollCollector, params: SharedParameters, queue: Queue) -> UnrollActor:
    """Return an actor of which one call of `step` makes one unroll of an agent (or of several that step together).

    Each of the unroll's steps uses the parameters of that time. The returns are computed from the values predicted
    then, before the unroll goes to the training queue.
    """
    # 1-2, 4  ask a predictor at every step; queue the unroll for the trainers
    return UnrollActor(config, collector, params, queue, lambda unroll, values: with_returns(unroll, values, config))


def with_returns(unroll: Unroll, values: list[Tensor], config: Config) -> Unroll:
    """Return the unroll with its returns, computed from the T + 1 values [B] that were predicted while acting."""
    predicted = torch.stack(values).cpu()
    rewards = clipped_rewards(unroll.reward, config.reward_clipping)
    discounts = config.discount * (~unroll.terminated).float()
    returns = n_step_returns(predicted[:-1], predicted[-1], rewards, discounts, unroll.valid)  # 3
    return replace(unroll, returns=(returns,))


def ga3c_loss(network: ActorCritic, batch: Unroll, config: Config, weight: float) -> tuple[Tensor, Metrics]:
    """Return A3C's loss with epsilon in its logarithms (section 5.3), times `weight`, and the sums that it is made of.

    The returns R_t are the actor's; V and pi are those of `network` now.
    """
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


make_network = make_actor_critic
make_sampler = from_distribution


class Trainer:
    """A role of which several run at the same time; each has its own gradients, but all share the parameters."""

    def __init__(
        self, config: Config, network: ActorCritic, params: SharedParameters, queue: Queue, setting: Setting
    ) -> None:
        self._config = config
        self._network = copy.deepcopy(network)
        params.lend(self._network)
        self._params = params
        self._queue = queue
        self._setting = setting

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""
        return self._queue.can_sample(self._config.batch_size)

    def step(self) -> None:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is not finite, `Closed` after the run."""
        self.update(self._queue.sample(self._config.batch_size))  # 5  the training queue

    def update(self, batch: Unroll) -> None:
        """Make one update from a batch."""
        batch = batch.to(self._setting.device)
        gradients = gradient_of(
            lambda network: ga3c_loss(network, batch, self._config, 1.0),  # 6  policy and value anew
            self._network,
            self._setting.autocast(),
            self._config.max_grad_norm,
            version=self._params.version,
            items=int(batch.valid.sum()),
        )
        version = batch.version[batch.valid].float() if gradients.items else batch.version.float()
        acted = replace(gradients, version=float(version.mean()), oldest_version=int(version.min()))
        self._params.apply(acted)  # 7  beside the other trainers


class Learner:
    """Trainers that share one network; one call of `step` makes one update by the first of them."""

    def __init__(
        self, config: Config, network: ActorCritic, params: SharedParameters, queue: Queue, setting: Setting
    ) -> None:
        self.core = SharedUpdates(config, network, params, setting)
        self.state_dict, self.load_state_dict = self.core.state_dict, self.core.load_state_dict
        self._params = params
        self.trainers = [Trainer(config, network, params, queue, setting) for _ in range(setting.num_trainers)]
        """Roles; `step` of the learner is that of the first."""
        self.core.helpers = self.trainers[1:]
        self.ready = self.trainers[0].ready

    def step(self) -> Metrics:
        """Make one update; return means over the updates of all trainers since the last call.

        Raises `NonFiniteError` if a loss or the gradient is NaN or infinite.
        """
        self.trainers[0].step()
        return self._params.take()

    def update(self, batch: Unroll) -> Metrics:
        """Make one update from a batch."""
        self.trainers[0].update(batch)
        return self._params.take()
