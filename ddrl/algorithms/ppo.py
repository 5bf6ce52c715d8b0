"""PPO: proximal policy optimization with the clipped surrogate (Schulman et al. 2017, arXiv 1707.06347), synchronous.

The baseline of Luo et al. 2020 (IMPACT). Actors collect one batch with the newest parameters, then wait (`UnrollActor`,
lines 1 to 3) while the learner goes over it several times. "Huang" below is Huang et al. 2022, "The 37 implementation
details of proximal policy optimization", which lists what the authors' code (openai/baselines, ppo2) does beyond the
paper; "RLlib" is ray-project/rl-experiments, halfcheetah-ppo, by authors of IMPACT.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from typing import Any, Literal, Self

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.policy import from_distribution
from ddrl.actors.unroll import UnrollActor
from ddrl.errors import UserError
from ddrl.interfaces import Parameters, Queue, System, TaskKind
from ddrl.learners.batch_values import TimeLimits, discounts, evaluate, explained_variance, normalised
from ddrl.learners.core import LearnerCore, Setting, each_batch_once
from ddrl.learners.minibatches import sample_numbers, shared_minibatches
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import AdamByDefault, AdamConfig, check_finite
from ddrl.losses.advantages import vtrace_gae
from ddrl.losses.surrogate import (
    adapted_kl_cost,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    importance_ratio,
)
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation
from ddrl.system.config_types import STRICT, Probability, check_penalty, check_read
from ddrl.system.seeding import generator_state, set_generator_state
from ddrl.types import EnvSpec, Metrics, Unroll

VERSION = 1

SYSTEM = System(
    name="PPO",
    moves="unrolls",
    store="queue",
    schedules=("synchronous",),  # on policy: nothing corrects for a lag
    learned=("network", "optimizer", "kl_cost"),
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "images": {
        "unroll_length": 128,
        "batch_size": 8,
        "num_epochs": 3,
        "num_minibatches": 4,
        "clip_epsilon": 0.1,
        "value_cost": 1.0,
        "entropy_cost": 0.01,
        "reward_clipping": "abs_one",
        "network": "nature",
        "separate_value_network": False,
        "observation_normalisation": False,
        "reward_normalisation": False,
    },
}
"""Schulman et al. 2017, Table 5 (Atari), with a constant learning rate and clipping; minibatches of 32 x 8 steps."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Schulman et al. 2017, Table 3 (MuJoCo), unless a line says otherwise."""

    unroll_length: PositiveInt = 2048  # T, agent steps ("horizon")
    batch_size: PositiveInt = 1  # B, unrolls: a batch has T x B steps; ppo2 has one environment on MuJoCo
    discount: Probability = 0.99
    gae_lambda: Probability = 0.95
    num_epochs: PositiveInt = 10
    num_minibatches: PositiveInt = 32  # 64 steps each; every epoch shuffles anew (Huang, core detail 6)
    clip_epsilon: PositiveFloat = 0.2  # section 6.1
    value_clip_epsilon: PositiveFloat | None = None  # Huang, core detail 9: the authors' code clips by 0.2, to no gain
    value_cost: NonNegativeFloat = 0.5  # Huang, core detail 10: c_1 of eq. 9, in ppo2
    entropy_cost: NonNegativeFloat = 0.0  # Huang, continuous detail list: ppo2 on MuJoCo; 0.01 on Atari (Table 5)
    kl_cost: NonNegativeFloat = 0.0  # section 4: beta of the penalty, off beside clipping
    kl_target: PositiveFloat | None = None  # section 4: adapts `kl_cost` after each batch; null: fixed
    normalise_advantages: bool = True  # Huang, core detail 7
    normalise_advantages_over: Literal["minibatch", "batch"] = "minibatch"  # Huang, core detail 7; "batch": as RLlib
    max_grad_norm: PositiveFloat | None = 0.5  # Huang, core detail 11
    reward_clipping: RewardClipping = "none"  # abs_one on Atari (Huang, Atari detail 6)
    optimizer: AdamByDefault = AdamConfig()  # Huang, core details 3 and 4: epsilon 1e-5, linear decay as a key
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "tanh_mlp"  # section 6.1
    mlp_size: PositiveInt | None = None  # units of its layers, 64 in section 6.1; null: 64 of `mlp`, 256 of `tanh_mlp`
    scaled_pixels: bool = True  # Huang, Atari detail 9; false: 0 to 255, as RLlib's networks see them
    separate_value_network: bool = True  # section 6.1: "we don't share parameters"; Huang, core detail 13
    initialisation: Initialisation | None = None  # Huang, core detail 2: orthogonal; null: so on `tanh_mlp` alone
    initial_log_std: float = 0.0  # Huang, continuous detail 2: state-independent, starts at 0
    observation_normalisation: bool = True  # Huang, continuous detail 6; off for images
    normalised_observation_clip: PositiveFloat | None = 10.0  # Huang, continuous detail 7; null: no bound
    observation_warm_up: NonNegativeInt = 0  # not there; agent steps before learning, as Burda et al. 2018, section 2.4
    reward_normalisation: bool = True  # Huang, continuous detail 8; off on Atari
    normalised_reward_clip: PositiveFloat | None = 10.0  # Huang, continuous detail 9; null: no bound
    return_scaling: bool = False  # not there; true: as Weng et al. 2022's code, values in the deviation of returns
    time_limits: TimeLimits = "bootstrap"  # Pardo et al. 2018; the authors' code has "terminal"
    recompute_advantages: bool = False  # before every epoch (Andrychowicz et al. 2021, section 3.5)

    @property
    def fresh_columns(self) -> int:
        """Columns of a batch that come from the queue: all of them."""
        return self.batch_size

    stored_columns = 0
    first_update = each_batch_once  # an update is all epochs over one batch


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if a minibatch could be empty, or a key would have no effect.

    PPO learns discrete and continuous tasks. Every other step may be dead (see `ddrl.types`), and dead steps are left
    out. The number of learners does not matter, because they share minibatches.
    """
    valid = config.unroll_length // 2 * config.batch_size
    if config.num_minibatches > valid:
        raise UserError(
            f"key 'hyperparameters.num_minibatches': {config.num_minibatches} for {config.unroll_length} x "
            f"{config.batch_size} steps; allowed: 1 to {valid}, as every other step of an unroll may be dead"
        )
    check_penalty(config.kl_cost, config.kl_target)
    unread = unread_keys(spec, config)
    if not config.normalise_advantages:
        unread["normalise_advantages_over"] = "normalise_advantages: true"
    check_read(config, unread)


@plain_dataclass(frozen=True)
class Samples:
    """N valid steps, with the quantities that stay fixed during an epoch; tensors [N, ...]."""

    observation: Tensor  # normalised, if the network keeps statistics: they change after all epochs only
    action: Tensor
    distribution: Tensor  # of the behaviour policy
    log_mu: Tensor  # of the action under it
    values: Tensor  # V(x) before the first gradient step, or with `recompute_advantages` before the epoch's
    advantages: Tensor
    value_targets: Tensor

    @property
    def batch_size(self) -> int:
        return len(self.advantages)

    @property
    def per_step(self) -> list[Tensor]:
        """All tensors but the observations, in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)[1:]]

    def columns(self, start: int, stop: int) -> Self:
        """Return samples start..stop-1 as views."""
        return type(self)(self.observation[start:stop], *(tensor[start:stop] for tensor in self.per_step))

    def minibatches(self, indices: Sequence[Tensor]) -> Iterator[Self]:
        """Yield copies of the samples with the indices of each minibatch.

        All that is small is copied at once, which takes fewer operations; observations may be images.
        """
        order, sizes = torch.cat([*indices]), [len(one) for one in indices]
        small = [torch.split(tensor[order], sizes) for tensor in self.per_step]
        for chosen, *tensors in zip(indices, *small, strict=True):
            yield type(self)(self.observation[chosen], *tensors)


def prepare(network: ActorCritic, batch: Unroll, config: Config, precision: str = "float32") -> Samples:
    """Compute GAE advantages (eq. 11) and value targets with the present parameters; dead steps are left out.

    If the network measures values in a deviation of returns, advantages are not divided by it, and targets are.
    """
    output = evaluate(network, batch, precision)
    values = network.value_of_task(output.value)
    rewards = clipped_rewards(batch.reward, config.reward_clipping)
    estimates = vtrace_gae(
        values[:-1],
        values[-1],
        network.normalised_reward(rewards),
        discounts(batch, config.discount, config.time_limits),
        torch.zeros_like(batch.reward),  # on policy: GAE
        valid=batch.valid,
        gae_lambda=config.gae_lambda,
    )
    log_mu = network.family.log_probability(batch.distribution, batch.action)
    seen = network.normalised_observation(batch.observation[:-1])
    targets = network.value_target(estimates.value_targets)
    per_step = (seen, batch.action, batch.distribution, log_mu, output.value[:-1], estimates.advantages, targets)
    return Samples(*(tensor[batch.valid] for tensor in per_step))


def ppo_loss(
    network: ActorCritic, samples: Samples, config: Config, kl_cost: float, weight: float
) -> tuple[Tensor, Metrics]:
    """Return the loss, times `weight`, and the sums over samples that it is made of.

    It consists of clipped surrogate, value error and entropy (eq. 9), and the KL penalty of section 4 times `kl_cost`.
    What costs nothing is only measured.
    """
    family = network.family
    pi, values = network.of_normalised_steps(samples.observation)
    log_pi = family.log_probability(pi, samples.action)
    ratio = importance_ratio("worker", log_pi, samples.log_mu, samples.log_mu, 1.0)
    policy = clipped_surrogate(ratio, samples.advantages, config.clip_epsilon).sum()
    value = clipped_value_loss(values, samples.values, samples.value_targets, config.value_clip_epsilon).sum()
    bonus = family.entropy(pi if config.entropy_cost else pi.detach()).sum()
    kl = family.kl(samples.distribution, pi if kl_cost else pi.detach()).sum()
    loss = policy + config.value_cost * value
    if config.entropy_cost:
        loss = loss - config.entropy_cost * bonus
    if kl_cost:
        loss = loss + kl_cost * kl
    return weight * loss, {
        "policy_loss": policy.item(),
        "value_loss": value.item(),
        "entropy": bonus.item(),
        "kl": kl.item(),
        "clip_fraction": clip_fraction(ratio, config.clip_epsilon).sum().item(),
    }


Actor = UnrollActor
make_network = make_actor_critic
make_sampler = from_distribution


class Learner:
    """One call of `step` makes all epochs over one batch of `batch_size` unrolls, and one new version."""

    def __init__(
        self, config: Config, network: ActorCritic, params: Parameters, queue: Queue, setting: Setting
    ) -> None:
        self.config = config
        self.core = LearnerCore(
            config,
            network,
            params,
            queue,
            setting,
            piece_columns=network.piece_steps,
            warm_up=config.observation_warm_up,
        )
        self.ready = self.core.can_take
        self._kl_cost = config.kl_cost

    def step(self) -> Metrics:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        return self.core.step(self.update)  # 4, 7  B unrolls; a new version for the actors

    def update(self, batch: Unroll) -> Metrics:
        """Make all epochs over a batch; return means of the metrics over its gradient steps."""
        setting = self.core.setting
        numbers, total = sample_numbers(batch, setting.reducer)
        batch = batch.to(setting.device)
        samples = self._samples(batch)  # 5  advantages
        check_finite(
            {"policy_loss (advantages)": samples.advantages, "value_loss (targets)": samples.value_targets},
            where=self.core.this_update(),
        )
        steps, parts = [], self.config.num_minibatches
        for epoch in range(self.config.num_epochs):  # 6  K epochs, each over every sample of all learners
            if epoch and self.config.recompute_advantages:
                samples = self._samples(batch)
            indices = shared_minibatches(numbers, total, parts, setting.generator, setting.reducer)
            for minibatch in samples.minibatches([one.to(setting.device) for one in indices]):
                steps.append(self._descend(minibatch))  # perhaps no sample of this learner
        metrics = {name: statistics.fmean(step[name] for step in steps) for name in steps[0]}
        metrics["explained_variance"] = explained_variance(samples.values, samples.value_targets)
        if self.config.kl_target is not None:
            kl = statistics.fmean(step["kl"] for step in steps[-parts:])  # of the last epoch
            self._kl_cost = adapted_kl_cost(self._kl_cost, kl, self.config.kl_target)
        self.core.updates += 1
        return metrics | {"kl_cost": self._kl_cost} | self.core.policy_lag(batch.version)

    def _samples(self, batch: Unroll) -> Samples:
        network = self.core.network
        samples = prepare(network, batch, self.config, self.core.setting.precision)
        if network.return_scale is not None:
            network.return_scale.update(network.value_of_task(samples.value_targets), self.core.setting.reducer)
        return self._normalised(samples) if self.config.normalise_advantages_over == "batch" else samples

    def _normalised(self, samples: Samples) -> Samples:
        """Return samples with standardised advantages, over all learners, where the configuration wants it."""
        if not self.config.normalise_advantages:
            return samples
        return replace(samples, advantages=normalised(samples.advantages, self.core.setting.reducer))

    def _descend(self, minibatch: Samples) -> Metrics:
        if self.config.normalise_advantages_over == "minibatch":
            minibatch = self._normalised(minibatch)
        return self.core.descend(
            lambda network, part, weight: ppo_loss(network, part, self.config, self._kl_cost, weight),
            minibatch,
            minibatch.batch_size,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the core, the coefficient of the penalty, and the generator that orders minibatches."""
        own = {"kl_cost": self._kl_cost, "generator": generator_state(self.core.setting.generator)}
        return self.core.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.core.load_state_dict(state)
        self._kl_cost = state["kl_cost"]
        set_generator_state(self.core.setting.generator, state["generator"])
