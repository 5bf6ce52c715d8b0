"""IMPACT: importance weighted asynchronous architectures with clipped target networks (Luo et al. 2020, 1912.00167).

IMPACT has IMPALA's actors (`UnrollActor`, lines 1 to 3) and PPO's clipped surrogate, and adds a target network that the
surrogate is clipped around, a circular store of N batches that are each traversed K times, and truncated importance
sampling. "RLlib" below is ray-project/ray, rllib, which contains the authors' implementation (APPO); its comments and
examples quote the paper's settings, whose tables could not be read directly.
"""

from __future__ import annotations

import copy
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.policy import from_distribution
from ddrl.actors.unroll import UnrollActor
from ddrl.interfaces import Parameters, Queue, Reducer, System, TaskKind
from ddrl.learners.batch_values import evaluate, explained_variance, normalised, output_of
from ddrl.learners.core import LearnerCore, Setting
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import AdamByDefault, AdamConfig
from ddrl.losses.actor_critic import masked_sum, value_loss
from ddrl.losses.advantages import vtrace_gae
from ddrl.losses.surrogate import adapted_kl_cost, clip_fraction, clipped_surrogate, importance_ratio
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation
from ddrl.replay.circular_buffer import CircularStore, first_use
from ddrl.system.config_types import STRICT, Probability, check_penalty, check_read
from ddrl.types import EnvSpec, Metrics, Unroll

VERSION = 2

SYSTEM = System(
    name="IMPACT",
    moves="unrolls",
    store="circular",
    store_sizes=(("N", "num_slots"), ("K", "num_traversals")),
    schedules=("asynchronous", "synchronous", "bounded_lag"),
    learned=("network", "optimizer", "target_network", "kl_cost", "kls"),
)
_SMALL_BATCHES: Mapping[str, Any] = {
    "unroll_length": 64,
    "batch_size": 8,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "num_slots": 4,
    "num_traversals": 8,
}
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "vectors": _SMALL_BATCHES,
    "continuous actions": {**_SMALL_BATCHES, "initial_log_std": -1.0, "reward_normalisation": True},
    "images": {
        "unroll_length": 50,
        "batch_size": 15,
        "num_slots": 4,
        "num_traversals": 2,
        "network": "nature",
        "separate_value_network": False,
        "observation_normalisation": False,
        "reward_normalisation": False,
        "reward_clipping": "abs_one",
    },
}
"""Batches, N and K as in `replications/impact_2020` at scale workstation: of the paper's batches, of 32,768 steps, a
million frames hold thirty. Continuous actions: all as there. Images: the rest as RLlib has it for Atari."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: continuous control, as RLlib's HalfCheetah example quotes the paper, unless a line says otherwise."""

    unroll_length: PositiveInt = 1024  # T, agent steps
    batch_size: PositiveInt = 32  # B, unrolls: 32,768 steps a batch
    discount: Probability = 0.995
    gae_lambda: Probability = 0.995
    ratio: Literal["target_worker_clipping", "target", "worker"] = "target_worker_clipping"  # section 3.1: R3, R2, R1
    rho: PositiveFloat = 2.0  # section 3.1: cap of pi_worker / pi_target
    clip_epsilon: PositiveFloat = 0.4
    rho_bar: PositiveFloat = 1.0  # V-trace's bounds; RLlib's defaults
    c_bar: PositiveFloat = 1.0  # RLlib's default
    num_slots: PositiveInt = 16  # N; 4 on Atari
    num_traversals: PositiveInt = 20  # K; 32 on HalfCheetah, 2 on Atari
    target_update_period: PositiveInt | None = None  # n, in updates; null: N x K (section 4.1)
    value_cost: NonNegativeFloat = 0.5
    entropy_cost: NonNegativeFloat = 0.0
    kl_cost: NonNegativeFloat = 1.0  # of KL(pi_target || pi)
    kl_target: PositiveFloat | None = 0.04  # adapts `kl_cost` at each target update, by the last lap's KL; null: fixed
    normalise_advantages: bool = False  # RLlib standardises them for PPO, not for IMPACT
    max_grad_norm: PositiveFloat | None = 0.5  # by norm, as in the first author's fork (michaelzhiluo/ray 41fb2398)
    reward_clipping: RewardClipping = "none"  # RLlib's default (`clip_rewards: None`): on Atari alone
    optimizer: AdamByDefault = AdamConfig()  # its learning rate is quoted; epsilon: see there
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "tanh_mlp"  # RLlib's default: 256, 256
    scaled_pixels: bool = True  # as IMPALA (Espeholt et al. 2018); false: 0 to 255, as RLlib's networks see them
    lstm_size: NonNegativeInt = 0  # RLlib's default (`use_lstm: False`)
    feed_last_action_and_reward: bool = False  # RLlib's default (`lstm_use_prev_action_reward: False`)
    separate_value_network: bool = True  # RLlib's default for PPO (`vf_share_layers: False`); the author's fork shares
    initialisation: Initialisation | None = None  # as PPO (Huang et al. 2022, core detail 2)
    initial_log_std: float = 0.0  # as PPO (Huang et al. 2022, continuous detail 2); RLlib's is an output of the network
    observation_normalisation: bool = True  # RLlib: MeanStdFilter
    normalised_observation_clip: PositiveFloat | None = 10.0  # RLlib's filter has 10 too; null: no bound
    observation_warm_up: NonNegativeInt = 0  # not there; agent steps before learning, as Burda et al. 2018, section 2.4
    reward_normalisation: bool = False  # RLlib filters observations alone
    normalised_reward_clip: PositiveFloat | None = 10.0  # as PPO (Huang et al. 2022, continuous detail 9)

    @property
    def fresh_columns(self) -> int:
        """Columns of one fresh batch."""
        return self.batch_size

    @property
    def stored_columns(self) -> int:
        """Columns of unrolls that stay in main memory to be learned from again: those of the circular store."""
        return self.num_slots * self.batch_size

    def first_update(self, batch: int) -> int:
        """Return the update that first uses fresh batch number `batch`, by the order of the circular store."""
        return first_use(batch, self.num_slots, self.num_traversals)


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if a key would have no effect; IMPACT learns discrete and continuous tasks."""
    check_penalty(config.kl_cost, config.kl_target)
    unread = unread_keys(spec, config)
    if config.ratio != "target_worker_clipping":
        unread["rho"] = "ratio: target_worker_clipping"
    check_read(config, unread)


@plain_dataclass(frozen=True)
class Traversal:
    """A batch [T+1, B], with the tensors that stay fixed during one traversal of it."""

    unroll: Unroll
    target: Tensor  # [T, B, P]: the target network's distributions
    advantages: Tensor  # [T, B]
    value_targets: Tensor  # [T, B]

    @property
    def batch_size(self) -> int:
        return self.unroll.batch_size

    def columns(self, start: int, stop: int) -> Self:
        """Return columns start..stop-1 as views."""
        parts = (tensor[:, start:stop] for tensor in (self.target, self.advantages, self.value_targets))
        return type(self)(self.unroll.columns(start, stop), *parts)


def prepare(
    network: ActorCritic,
    target_network: ActorCritic,
    batch: Unroll,
    config: Config,
    reducer: Reducer,
    precision: str = "float32",
) -> tuple[Traversal, Tensor]:
    """Compute V-trace GAE-lambda (section 3.1) with weights pi_target / pi_worker and the values of `network`.

    Returns the inputs of the loss, and those values [T, B].
    """
    output = evaluate(network, batch, precision)
    target = evaluate(target_network, batch, precision).distribution[:-1]
    log_probability = network.family.log_probability
    rewards = clipped_rewards(batch.reward, config.reward_clipping)
    values = output.value[:-1]
    advantages, value_targets = vtrace_gae(
        values,
        output.value[-1],
        network.normalised_reward(rewards),
        config.discount * (~batch.terminated).float(),
        log_probability(target, batch.action) - log_probability(batch.distribution, batch.action),
        valid=batch.valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        gae_lambda=config.gae_lambda,
    )
    if config.normalise_advantages:
        advantages = normalised(advantages, reducer, batch.valid)
    return Traversal(batch, target, advantages, value_targets), values


def impact_loss(
    network: ActorCritic, part: Traversal, config: Config, kl_cost: float, weight: float
) -> tuple[Tensor, Metrics]:
    """Return the loss of section 3.1, times `weight`, and the sums over time and columns that it is made of.

    It consists of the surrogate clipped around the target policy, value error, entropy and KL(pi_target || pi).
    """
    batch, family = part.unroll, network.family
    output = output_of(network, batch)
    pi, values = output.distribution[:-1], output.value[:-1]
    log_pi, log_worker, log_target = (
        family.log_probability(distribution, batch.action) for distribution in (pi, batch.distribution, part.target)
    )
    ratio = importance_ratio(config.ratio, log_pi, log_worker, log_target, config.rho)
    policy = masked_sum(clipped_surrogate(ratio, part.advantages, config.clip_epsilon), batch.valid)
    value = masked_sum(value_loss(values, part.value_targets), batch.valid)
    bonus = masked_sum(family.entropy(pi), batch.valid)
    kl = masked_sum(family.kl(part.target, pi), batch.valid)
    loss = weight * (policy + config.value_cost * value - config.entropy_cost * bonus + kl_cost * kl)
    return loss, {
        "policy_loss": policy.item(),
        "value_loss": value.item(),
        "entropy": bonus.item(),
        "kl": kl.item(),
        "clip_fraction": masked_sum(clip_fraction(ratio, config.clip_epsilon), batch.valid).item(),
    }


Actor = UnrollActor
make_network = make_actor_critic
make_sampler = from_distribution


class Learner:
    """One call of `step` makes one traversal of one batch of the circular store, and a new version."""

    def __init__(
        self, config: Config, network: ActorCritic, params: Parameters, queue: Queue, setting: Setting
    ) -> None:
        pieces = max(1, network.piece_steps // config.unroll_length)
        self.config = config
        self.core = LearnerCore(
            config, network, params, queue, setting, piece_columns=pieces, warm_up=config.observation_warm_up
        )
        self.target_network = copy.deepcopy(network).requires_grad_(False)
        # Both normalise observations by the newest statistics: only the policy of the target network lags.
        self.target_network.observation_normaliser = network.observation_normaliser
        self._target_update_period = config.target_update_period or config.num_slots * config.num_traversals
        self._target_updates = 0
        self._store = CircularStore(config.num_slots, config.num_traversals)
        self._kl_cost = config.kl_cost
        # Of the newest pass over the slots, as in RLlib: earlier in a period the policy is still close to the target.
        self._kls: deque[float] = deque(maxlen=config.num_slots)

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""
        return not self._store.needs_batch or self.core.can_take()

    def step(self) -> Metrics:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        if self.core.warms_up:
            return self.core.step(self.update)
        fresh = self.core.take() if self._store.needs_batch else None
        if fresh is not None:
            self._store.insert(fresh)  # 4  a fresh batch replaces an expired one
        metrics = self.update(self._store.sample())  # 5  traverse the next batch of the store
        if fresh is not None:
            self.core.observe(fresh)
            metrics |= self.core.count(fresh)
        if self.core.updates % self._target_update_period == 0:
            self._update_target()  # 7  pi_target <- pi
        self.core.publish()  # 8  a new version for the actors
        return metrics | {
            "traversals_mean": self._store.sampled / self._store.inserted,
            "batches_inserted": float(self._store.inserted),
            "batches_expired": float(self._store.expired),
            "target_updates": float(self._target_updates),
        }

    def update(self, batch: Unroll) -> Metrics:
        """Make one gradient step on a batch."""
        core, setting = self.core, self.core.setting
        batch = batch.to(setting.device)
        traversal, values = prepare(
            core.network, self.target_network, batch, self.config, setting.reducer, setting.precision
        )
        metrics = core.descend(  # 6  the clipped surrogate
            lambda network, part, weight: impact_loss(network, part, self.config, self._kl_cost, weight),
            traversal,
            int(batch.valid.sum()),
        )
        metrics["explained_variance"] = explained_variance(values, traversal.value_targets, batch.valid)
        self._kls.append(metrics["kl"])
        core.updates += 1
        return metrics | {"kl_cost": self._kl_cost} | core.policy_lag(batch.version)

    def _update_target(self) -> None:
        self.target_network.load_state_dict(self.core.network.state_dict())
        self._target_updates += 1
        if self.config.kl_target is not None:
            self._kl_cost = adapted_kl_cost(self._kl_cost, statistics.fmean(self._kls), self.config.kl_target)
        self._kls.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of core, target network, coefficient of the penalty and circular store."""
        return self.core.state_dict() | {
            "target_network": self.target_network.state_dict(),
            "target_updates": self._target_updates,
            "kl_cost": self._kl_cost,
            "kls": list(self._kls),
            "store": self._store.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.core.load_state_dict(state)
        self.target_network.load_state_dict(state["target_network"])
        self._target_updates = state["target_updates"]
        self._kl_cost = state["kl_cost"]
        self._kls = deque(state["kls"], maxlen=self.config.num_slots)
        self._store.load_state_dict(state["store"])
