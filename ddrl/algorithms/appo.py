"""APPO: asynchronous proximal policy optimization (Petrenko et al. 2020, Sample Factory, arXiv 2006.11751).

IMPALA's actors (`UnrollActor`, lines 1 to 3) never wait for the learner. Against the policy lag there are PPO's clipped
surrogate, V-trace if wanted, and a bound on the age of the steps that are learned from. "Sample Factory" below is
alex-petrenko/sample-factory, version 2.1.1: its default configuration (cfg.py) and its learner (learner.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.policy import from_distribution
from ddrl.actors.unroll import Collector, UnrollActor
from ddrl.errors import UserError
from ddrl.interfaces import Parameters, Queue, System, TaskKind
from ddrl.learners.batch_values import TimeLimits, discounts, evaluate, explained_variance, normalised
from ddrl.learners.core import LearnerCore, Setting, each_batch_once
from ddrl.learners.minibatches import Order
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import AdamByDefault, AdamConfig, check_finite
from ddrl.learners.samples import Columns, Samples, outputs_once, steps_of
from ddrl.losses.actor_critic import symmetric_kl_to_uniform
from ddrl.losses.advantages import vtrace_gae
from ddrl.losses.surrogate import (
    ClipBounds,
    bounded_ratio,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    importance_ratio,
)
from ddrl.losses.vtrace import corrected_targets
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation, Orthogonal
from ddrl.system.config_types import STRICT, Probability, check_read
from ddrl.system.notes import StreakNote
from ddrl.system.precision import autocast
from ddrl.system.seeding import generator_state, set_generator_state
from ddrl.types import EnvSpec, Metrics, NetworkOutput, Unroll

VERSION = 1

SYSTEM = System(name="APPO", moves="unrolls", store="queue", schedules=("asynchronous", "synchronous", "bounded_lag"))
STALE = "nothing is learned: in {} batches every step was older, in updates, than hyperparameters.max_policy_lag, {}"
STALE_BATCHES = 20
"""After so many batches in a row without a step to learn from, the run says `STALE`, once."""
MOST_KL = 30.0
"""Bound of the symmetric KL divergence of a step, in nats; Sample Factory bounds the mean of a minibatch."""
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "images": {
        "reward_clipping": "abs_one",
        "exploration": "symmetric_kl",
        "entropy_cost": 0.001,
        "value_clip_epsilon": 0.2,
    },
    "vectors": {
        "unroll_length": 16,
        "batch_size": 16,
        "num_epochs": 2,
        "num_minibatches": 2,
        "network": "tanh_mlp",
        "initialisation": None,
        "separate_value_network": True,
        "optimizer": {"name": "adam", "learning_rate": 3e-4},
    },
    "continuous actions": {
        "unroll_length": 64,
        "batch_size": 16,
        "num_epochs": 2,
        "num_minibatches": 4,
        "clip_epsilon": 0.2,
        "entropy_cost": 0.0,
        "max_grad_norm": 3.5,
        "network": "tanh_mlp",
        "initialisation": None,
        "separate_value_network": True,
        "observation_normalisation": True,
        "reward_normalisation": True,
        "optimizer": {"name": "adam", "learning_rate": 3e-4},
    },
}
"""Images: Sample Factory's VizDoom settings, which the paper's runs had; rewards as IMPALA has them. Continuous
actions: epochs, minibatches, bounds and costs of its MuJoCo settings; networks, normalisation and learning rate as
PPO's (Schulman et al. 2017). Vectors: ours."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Sample Factory (Petrenko et al. 2020), version 2.1.1, unless a line says otherwise."""

    unroll_length: PositiveInt = 32  # T, agent steps ("rollout")
    batch_size: PositiveInt = 32  # B, unrolls: 1,024 steps there, of all minibatches here
    discount: Probability = 0.99
    vtrace: bool = False  # true: the targets are V-trace's, anew in each minibatch; false: GAE, once a batch
    gae_lambda: Probability = 0.95
    rho_bar: PositiveFloat = 1.0  # of V-trace ("vtrace_rho")
    c_bar: PositiveFloat = 1.0  # of V-trace ("vtrace_c")
    values_at: Literal["collection", "update"] = "collection"  # authors' code; update: anew before an update, as PPO
    num_epochs: PositiveInt = 1
    num_minibatches: PositiveInt = 1  # of steps, or of whole unrolls with V-trace or an LSTM; always in a new order
    clip_epsilon: PositiveFloat = 0.1
    clip_bounds: ClipBounds = "reciprocal"  # authors' code: [1 / (1 + epsilon), 1 + epsilon]; symmetric: as PPO
    max_ratio: PositiveFloat | None = 20.0  # authors' code: ratios are first bounded to [1/20, 20]; null: not
    value_clip_epsilon: PositiveFloat | None = 1.0  # null: values are not clipped, as when it is very large there
    value_cost: NonNegativeFloat = 1.0  # of half the squared error; Sample Factory has 0.5 of the whole
    exploration: Literal["entropy", "symmetric_kl"] = "entropy"  # symmetric_kl: to the uniform policy
    entropy_cost: NonNegativeFloat = 0.003  # of the term that `exploration` names
    max_policy_lag: NonNegativeInt | None = 1000  # in updates: older steps are left out; null: none is
    max_grad_norm: PositiveFloat | None = 4.0
    reward_clipping: RewardClipping = "none"  # Sample Factory bounds to +-1000
    optimizer: AdamByDefault = AdamConfig(learning_rate=1e-4, epsilon=1e-6)
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "nature"  # Sample Factory: 128 at last
    mlp_size: PositiveInt | None = None  # as PPO's (Schulman et al. 2017); null: 64 of `mlp`, 256 of `tanh_mlp`
    scaled_pixels: bool = True  # authors' code for VizDoom and Atari: divided by 255
    lstm_size: NonNegativeInt = 0  # as Sample Factory on Atari; its default is a GRU of 512 units
    feed_last_action_and_reward: bool = False  # not there; Espeholt et al. 2018, Figure 3
    separate_value_network: bool = False  # "actor_critic_share_weights" there
    initialisation: Initialisation | None = Orthogonal(hidden_gain=1.0, policy_gain=1.0, value_gain=1.0)
    initial_log_std: float = 0.0  # a deviation of 1 there ("initial_stddev")
    observation_normalisation: bool = False  # not in Petrenko et al. 2020; Sample Factory 2 has it on
    normalised_observation_clip: PositiveFloat | None = 10.0  # Huang et al. 2022, as PPO's; Sample Factory has 5
    observation_warm_up: NonNegativeInt = 0  # as PPO's (Burda et al. 2018, section 2.4)
    reward_normalisation: bool = False  # not in Petrenko et al. 2020; Sample Factory 2: of targets
    normalised_reward_clip: PositiveFloat | None = 10.0  # Huang et al. 2022, as PPO's
    time_limits: TimeLimits = "bootstrap"  # Pardo et al. 2018; Sample Factory has "terminal" (value_bootstrap)

    @property
    def fresh_columns(self) -> int:
        """Columns of a batch that come from the queue: all of them."""
        return self.batch_size

    @property
    def whole_unrolls(self) -> bool:
        """Return whether minibatches hold unrolls: V-trace and recurrent networks need the steps in their order."""
        return self.vtrace or self.lstm_size > 0 or self.feed_last_action_and_reward

    stored_columns = 0
    first_update = each_batch_once  # an update is all epochs over one batch


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if a minibatch could be empty, a bound ends all learning, or a key would have no effect."""
    if config.max_ratio is not None and config.max_ratio <= 1 + config.clip_epsilon:
        allowed = f"allowed: null, or above 1 + clip_epsilon, {1 + config.clip_epsilon:g} (got {config.max_ratio:g})"
        raise UserError(f"key 'hyperparameters.max_ratio' would bound ratios before clip_epsilon does; {allowed}")
    most = config.batch_size * (1 if config.whole_unrolls else max(1, config.unroll_length // 2))
    if config.num_minibatches > most:
        what = "unrolls" if config.whole_unrolls else "steps, as every other step of an unroll may be dead"
        raise UserError(
            f"key 'hyperparameters.num_minibatches': {config.num_minibatches} for {config.batch_size} unrolls of "
            f"{config.unroll_length} steps; allowed: 1 to {most} {what}"
        )
    if spec.action_size and config.exploration == "symmetric_kl":
        raise UserError(
            f"key 'hyperparameters.exploration': symmetric_kl is to the uniform policy, and '{spec.name}' has "
            "continuous actions without bounds; allowed: entropy"
        )
    unread = unread_keys(spec, config)
    if config.vtrace:
        unread["gae_lambda"] = "vtrace: false"
    else:
        unread |= {"rho_bar": "vtrace: true", "c_bar": "vtrace: true"}
    if config.vtrace and config.value_clip_epsilon is None:
        unread["values_at"] = "vtrace: false, or a value_clip_epsilon"
    check_read(config, unread, TASK_DEFAULTS)


def with_values(unroll: Unroll, values: list[Tensor]) -> Unroll:
    """Return the unroll with the T values [B] that were predicted while acting, where the unroll is."""
    return replace(unroll, values=(torch.stack(values).to(unroll.reward.device),))


def prepare(
    network: ActorCritic, batch: Unroll, learned: Tensor, config: Config, precision: str = "float32"
) -> Samples | Columns:
    """Compute GAE advantages and value targets (Schulman et al. 2017, eq. 11) of a batch.

    `learned` [T, B] bool says which steps are learned from; steps that are too old still take part in the estimates of
    others. With V-trace, advantages and targets are only room for those of each minibatch (`corrected`).
    """
    log_mu = network.family.log_probability(batch.distribution, batch.action)
    if config.vtrace:
        empty = torch.zeros_like(log_mu)
        values = batch.values[0] if config.values_at == "collection" else evaluate(network, batch, precision).value[:-1]
        return Columns(batch, learned, log_mu, values, empty, empty)
    values, bootstrap_value = _values(network, batch, config, precision)
    estimates = vtrace_gae(
        values,
        bootstrap_value,
        network.normalised_reward(clipped_rewards(batch.reward, config.reward_clipping)),
        discounts(batch, config.discount, config.time_limits),
        torch.zeros_like(batch.reward),  # not corrected for the lag: GAE
        valid=batch.valid,
        gae_lambda=config.gae_lambda,
    )
    if config.whole_unrolls:
        return Columns(batch, learned, log_mu, values, *estimates)
    seen = network.normalised_observation(batch.observation[:-1])
    per_step = (seen, batch.action, batch.distribution, log_mu, values, *estimates)
    return Samples(*(tensor[learned] for tensor in per_step))


@torch.no_grad()
def _values(network: ActorCritic, batch: Unroll, config: Config, precision: str) -> tuple[Tensor, Tensor]:
    """Return V(x_t) [T, B], at collection or of the network now, and V(x_T) [B] of the network now."""
    if config.values_at == "collection" and network.sees_steps_alone:
        with autocast(batch.reward.device, precision):
            return batch.values[0], network.of_steps(batch.observation[-1])[1]
    now = evaluate(network, batch, precision).value
    return (batch.values[0] if config.values_at == "collection" else now[:-1]), now[-1]


@torch.no_grad()
def corrected(network: ActorCritic, part: Columns, output: NetworkOutput, config: Config) -> Columns:
    """Return unrolls with V-trace's targets and advantages, by what the network now puts out on them."""
    batch = part.unroll
    log_rhos = network.family.log_probability(output.distribution[:-1], batch.action) - part.log_mu
    if config.max_ratio is not None:
        log_rhos = log_rhos.clamp(-math.log(config.max_ratio), math.log(config.max_ratio))
    targets = corrected_targets(
        "v_trace",
        output.value[:-1],
        output.value[-1],
        network.normalised_reward(clipped_rewards(batch.reward, config.reward_clipping)),
        discounts(batch, config.discount, config.time_limits),
        log_rhos,
        valid=batch.valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        pg_rho_bar=config.rho_bar,
    )
    return replace(part, advantages=targets.pg_advantages, value_targets=targets.vs)


def learned_steps(batch: Unroll, version: int, oldest: float) -> Tensor:
    """Return which steps are learned from, [T, B] bool: valid ones whose policy is at most `oldest` updates old."""
    return batch.valid & (version - batch.version <= oldest)


def appo_loss(
    network: ActorCritic, part: Samples | Columns, config: Config, weight: float, output: NetworkOutput | None = None
) -> tuple[Tensor, Metrics]:
    """Return the loss, times `weight`, and the sums over steps that it is made of.

    It consists of the surrogate with clipped ratios, the error of clipped values, and the exploration term: the entropy
    (a bonus), or the symmetric KL divergence to the uniform policy (a penalty). `output`: of the network on unrolls.
    """
    family, steps = network.family, steps_of(network, part, output)
    log_pi = family.log_probability(steps.pi, steps.action)
    ratio = bounded_ratio(importance_ratio("worker", log_pi, steps.log_mu, steps.log_mu, 1.0), config.max_ratio)
    policy = clipped_surrogate(ratio, steps.advantage, config.clip_epsilon, config.clip_bounds).sum()
    value = clipped_value_loss(steps.value, steps.old_value, steps.value_target, config.value_clip_epsilon).sum()
    by_entropy = config.exploration == "entropy"
    entropy = family.entropy(steps.pi if by_entropy and config.entropy_cost else steps.pi.detach()).sum()
    kl = family.kl(steps.distribution, steps.pi.detach()).sum()
    loss = policy + config.value_cost * value
    metrics = {"policy_loss": policy.item(), "value_loss": value.item(), "entropy": entropy.item(), "kl": kl.item()}
    if config.entropy_cost and by_entropy:
        loss = loss - config.entropy_cost * entropy
    if not by_entropy:
        from_uniform = symmetric_kl_to_uniform(steps.pi, MOST_KL).sum()
        loss = loss + config.entropy_cost * from_uniform
        metrics["kl_to_uniform"] = from_uniform.item()
    metrics["clip_fraction"] = clip_fraction(ratio, config.clip_epsilon, config.clip_bounds).sum().item()
    return weight * loss, metrics


def Actor(config: Config, collector: Collector, params: Parameters, queue: Queue) -> UnrollActor:
    """Make an actor that sends unrolls, with the values that it predicted where the learner reads them."""
    process = with_values if config.values_at == "collection" else None
    return UnrollActor(config, collector, params, queue, process, last_value=False)


make_network = make_actor_critic
make_sampler = from_distribution


class Learner:
    """One call of `step` makes all epochs over one batch of `batch_size` unrolls, and one new version."""

    def __init__(
        self, config: Config, network: ActorCritic, params: Parameters, queue: Queue, setting: Setting
    ) -> None:
        self.config = config
        pieces = max(1, network.piece_steps // (config.unroll_length if config.whole_unrolls else 1))
        self.core = LearnerCore(
            config, network, params, queue, setting, piece_columns=pieces, warm_up=config.observation_warm_up
        )
        self.ready = self.core.can_take
        self._params = params
        self._oldest = math.inf if config.max_policy_lag is None else config.max_policy_lag
        self._stale = StreakNote(STALE_BATCHES, STALE.format(STALE_BATCHES, self._oldest))

    def step(self) -> Metrics:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        return self.core.step(self.update)  # 4, 8  B unrolls; a new version for the actors

    def update(self, batch: Unroll) -> Metrics:
        """Make all epochs over a batch; return means of the metrics over its gradient steps."""
        core, setting, config = self.core, self.core.setting, self.config
        lag = core.policy_lag(batch.version)
        learned = learned_steps(batch, self._params.version, self._oldest)  # 5  steps that are not too old
        order = Order.of(batch, learned, config.whole_unrolls, setting.reducer)
        share = core.total(float(learned.sum())) / max(1.0, core.total(float(batch.valid.sum())))
        self._stale.note(not order.total)
        if not order.total:
            core.updates += 1
            return lag | {"stale_fraction": 1.0}
        part = prepare(  # 6  advantages
            core.network, batch.to(setting.device), learned.to(setting.device), config, setting.precision
        )
        check_finite(
            {"policy_loss (advantages)": part.advantages, "value_loss (targets)": part.value_targets},
            where=core.this_update(),
        )
        steps = []
        for _ in range(config.num_epochs):  # 7  K epochs, each over every step or unroll of all learners
            for minibatch in order.epoch(part, config.num_minibatches, setting):
                steps.append(self._descend(minibatch, share))
        metrics = {name: statistics.fmean(step[name] for step in steps) for name in steps[0]}
        core.updates += 1
        return metrics | lag | {"stale_fraction": 1.0 - share}

    def _descend(self, minibatch: Samples | Columns, share: float) -> Metrics:
        """Make one gradient step. As in Sample Factory, a `share` of steps that are not too old scales its length."""
        core, kept = self.core, None
        if isinstance(minibatch, Columns) and self.config.vtrace:
            output, kept = outputs_once(core, minibatch)
            minibatch = corrected(core.network, minibatch, output, self.config)
        found = explained_variance(minibatch.values, minibatch.value_targets, minibatch.mask)
        advantages = normalised(minibatch.advantages, core.setting.reducer, minibatch.mask)
        metrics = core.descend(
            lambda network, part, weight, *known: appo_loss(network, part, self.config, weight, *known),
            replace(minibatch, advantages=advantages),
            minibatch.num_steps,
            rate_factor=share,
            kept=kept,
        )
        return metrics | {"explained_variance": found}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the core, and the generator that orders minibatches."""
        return self.core.state_dict() | {"generator": generator_state(self.core.setting.generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.core.load_state_dict(state)
        set_generator_state(self.core.setting.generator, state["generator"])
