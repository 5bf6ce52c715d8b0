"""IMPALA: importance weighted actor-learner architecture with V-trace (Espeholt et al. 2018, arXiv 1802.01561).

Actors send unrolls with their behaviour policy (`UnrollActor`, lines 1 to 3); the learner corrects for the policy lag.
Numbered lines: section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.policy import from_distribution
from ddrl.actors.unroll import UnrollActor
from ddrl.errors import UserError
from ddrl.interfaces import Parameters, Queue, System, TaskKind
from ddrl.learners.core import LearnerCore, Setting, each_batch_once
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import RMSPropByDefault, RMSPropConfig
from ddrl.losses.actor_critic import masked_sum, policy_gradient_loss, value_loss
from ddrl.losses.vtrace import corrected_targets
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation
from ddrl.replay.uniform import UniformReplay
from ddrl.system.config_types import STRICT, Fraction, Probability, check_read
from ddrl.types import EnvSpec, Metrics, Unroll, concatenate

VERSION = 1

SYSTEM = System(
    name="IMPALA",
    moves="unrolls",
    store="queue",
    replay_share="replay_fraction",
    schedules=("asynchronous", "synchronous", "bounded_lag"),
    central_name="SEED RL (V-trace)",  # Espeholt et al. 2020
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "vectors": {
        "unroll_length": 16,
        "batch_size": 16,
        "network": "tanh_mlp",
        "separate_value_network": True,
        "optimizer": {"name": "adam", "learning_rate": 3e-4},
    },
    "continuous actions": {
        "unroll_length": 64,
        "batch_size": 16,
        "network": "tanh_mlp",
        "separate_value_network": True,
        "observation_normalisation": True,
        "reward_clipping": "none",
        "optimizer": {"name": "adam"},
    },
}
"""For continuous actions those of `replications/impact_2020`, with smaller batches. Vectors: ours, after these; with
one network for both, and faster, the errors of large values drive the policy to a single action."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Table G.1 (Atari) unless a line says otherwise."""

    unroll_length: PositiveInt = 20  # T, agent steps
    batch_size: PositiveInt = 32  # B, unrolls
    discount: Probability = 0.99
    correction: Literal["v_trace", "one_step_is", "epsilon_correction", "no_correction"] = "v_trace"  # section 5.2.2
    rho_bar: PositiveFloat = 1.0  # section 4.1; 1 worked best of 1, 10, 100
    c_bar: PositiveFloat = 1.0  # section 4.1
    pg_rho_bar: PositiveFloat = 1.0  # section 4.2; a key of its own in the authors' code
    lambda_: Probability = 1.0  # remark 2
    correction_epsilon: float = 1e-6  # section 5.2.2, epsilon correction
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    loss_reduction: Literal["sum", "mean"] = "sum"  # over T and B (caption of Table D.1): it scales the learning rate
    reward_clipping: RewardClipping = "abs_one"
    max_grad_norm: PositiveFloat = 40.0
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "shallow"  # Mnih et al. 2016
    scaled_pixels: bool = True  # as the authors' code; false: 0 to 255, as RLlib's networks see them
    lstm_size: NonNegativeInt = 0  # 0: feed-forward, as the paper's Atari agents (section 5.3.2)
    feed_last_action_and_reward: bool = False  # Figure 3 feeds them to the LSTM
    optimizer: RMSPropByDefault = RMSPropConfig()
    replay_fraction: Fraction = 0.0  # of a batch; 0.5 in Table 2
    replay_capacity: PositiveInt = 10_000  # unrolls; section 5.2.2
    # Not in the paper, which has no continuous task; the baseline of Luo et al. 2020 (IMPACT) sets them.
    separate_value_network: bool = False
    initialisation: Initialisation | None = None  # null: the authors' code's; on `tanh_mlp` orthogonal, as PPO's
    initial_log_std: float = 0.0
    observation_normalisation: bool = False
    normalised_observation_clip: PositiveFloat | None = 10.0  # Huang et al. 2022, as PPO's
    observation_warm_up: NonNegativeInt = 0  # as PPO's
    reward_normalisation: bool = False
    normalised_reward_clip: PositiveFloat | None = 10.0  # Huang et al. 2022, as PPO's

    @property
    def fresh_columns(self) -> int:
        """Columns of a batch that come from the queue; the rest comes from the replay."""
        return self.batch_size - round(self.batch_size * self.replay_fraction)

    @property
    def stored_columns(self) -> int:
        """Columns of unrolls that stay in main memory to be learned from again: those of the replay."""
        return self.replay_capacity if self.replay_fraction > 0 else 0

    first_update = each_batch_once


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if the algorithm cannot learn this environment, or if a key would have no effect."""
    if spec.action_size and config.correction == "epsilon_correction":
        raise UserError(
            f"key 'hyperparameters.correction': epsilon_correction adds to probabilities, and '{spec.name}' has "
            "continuous actions; allowed: v_trace, one_step_is, no_correction"
        )
    unread = unread_keys(spec, config)
    if config.correction != "v_trace":
        unread |= {"rho_bar": "correction: v_trace", "c_bar": "correction: v_trace"}
    if config.correction not in ("v_trace", "one_step_is"):
        unread["pg_rho_bar"] = "correction: v_trace or one_step_is"
    if config.correction != "epsilon_correction":
        unread["correction_epsilon"] = "correction: epsilon_correction"
    if not config.replay_fraction:
        unread["replay_capacity"] = "a replay_fraction above 0"
    check_read(config, unread)


def impala_loss(network: ActorCritic, batch: Unroll, config: Config, weight: float) -> tuple[Tensor, Metrics]:
    """Return the loss of section 4.2, times `weight`, and the sums over time and columns that it is made of.

    It consists of the policy gradient with V-trace advantages, the squared error of V(x_s) to v_s, and the entropy.
    """
    output = network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    pi, values, bootstrap_value = output.distribution[:-1], output.value[:-1], output.value[-1]
    rewards = clipped_rewards(batch.reward, config.reward_clipping)
    discounts = config.discount * (~batch.terminated).float()
    log_pi = network.family.log_probability(pi, batch.action)
    log_mu = network.family.log_probability(batch.distribution, batch.action)
    with torch.no_grad():
        targets = corrected_targets(
            config.correction,
            values,
            bootstrap_value,
            network.normalised_reward(rewards),
            discounts,
            log_pi - log_mu,
            valid=batch.valid,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.lambda_,
        )
    epsilon = config.correction_epsilon if config.correction == "epsilon_correction" else 0.0
    policy = masked_sum(policy_gradient_loss(log_pi, targets.pg_advantages, epsilon=epsilon), batch.valid)
    value = masked_sum(value_loss(values, targets.vs), batch.valid)
    bonus = masked_sum(network.family.entropy(pi), batch.valid)
    loss = weight * (policy + config.value_cost * value - config.entropy_cost * bonus)
    return loss, {"policy_loss": policy.item(), "value_loss": value.item(), "entropy": bonus.item()}


Actor = UnrollActor
make_network = make_actor_critic
make_sampler = from_distribution


class Learner:
    """One call of `step` makes one update from `batch_size` unrolls."""

    def __init__(
        self, config: Config, network: ActorCritic, params: Parameters, queue: Queue, setting: Setting
    ) -> None:
        self.config = config
        self.core = LearnerCore(config, network, params, queue, setting, warm_up=config.observation_warm_up)
        self.ready = self.core.can_take
        self._replay = UniformReplay(config.replay_capacity, setting.generator)
        self._replayed = config.batch_size // setting.reducer.size - self.core.fresh_columns

    def step(self) -> Metrics:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        return self.core.step(self._learn)  # 4, 6  B unrolls; a new version for the actors

    def _learn(self, fresh: Unroll) -> Metrics:
        if not self._replayed:
            return self.update(fresh)
        self._replay.insert(fresh)  # section 5.2.2: a part of the batch comes from a uniform replay of fresh ones
        return self.update(concatenate([fresh, self._replay.sample(self._replayed)]))

    def update(self, batch: Unroll) -> Metrics:
        """Make one gradient step on a batch."""
        return self.core.update(  # 5  eq. 1
            lambda network, part, weight: impala_loss(network, part, self.config, weight),
            batch,
            mean=self.config.loss_reduction == "mean",
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the core and of the replay."""
        return self.core.state_dict() | {"replay": self._replay.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.core.load_state_dict(state)
        self._replay.load_state_dict(state["replay"])
