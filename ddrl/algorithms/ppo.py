"""PPO: proximal policy optimization with the clipped surrogate (Schulman et al. 2017, arXiv 1707.06347), synchronous.

The baseline of Luo et al. 2020 (IMPACT). Actors collect one batch with the newest parameters, then wait (`UnrollActor`,
lines 1 to 3) while the learner goes over it several times. "Huang" below is Huang et al. 2022, "The 37 implementation
details of proximal policy optimization", which lists what the authors' code (openai/baselines, ppo2) does beyond the
paper; "RLlib" is ray-project/rl-experiments, halfcheetah-ppo, by authors of IMPACT.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

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
from ddrl.learners.data_parallel import Kept
from ddrl.learners.minibatches import Order
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import AdamByDefault, AdamConfig, check_finite
from ddrl.learners.parameter_groups import ParameterGroup, one_group
from ddrl.learners.samples import Columns, Samples, Steps, steps_of, steps_once
from ddrl.learners.weighting import Weighting
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
from ddrl.networks.trunk import Fed
from ddrl.system.config_types import STRICT, Probability, check_penalty, check_read
from ddrl.system.seeding import generator_state, set_generator_state
from ddrl.types import EnvSpec, Metrics, Unroll

VERSION = 1
PARTS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")  # of the loss: each learner has its part

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
    "memory": {"unroll_length": 128, "batch_size": 8, "num_minibatches": 4, "separate_value_network": False},
}
"""Images: Schulman et al. 2017, Table 5 (Atari), with a constant learning rate and clipping; minibatches of 32 x 8
steps. Memory: the same batches, since minibatches are then whole unrolls, and the one torso that such a network has."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Schulman et al. 2017, Table 3 (MuJoCo), unless a line says otherwise."""

    unroll_length: PositiveInt = 2048  # T, agent steps ("horizon")
    batch_size: PositiveInt = 1  # B, unrolls: a batch has T x B steps; ppo2 has one environment on MuJoCo
    discount: Probability = 0.99
    gae_lambda: Probability = 0.95
    num_epochs: PositiveInt = 10
    num_minibatches: PositiveInt = 32  # 64 steps each, or unrolls; every epoch shuffles anew (Huang, core detail 6)
    value_epochs: PositiveInt | None = None  # Heess et al. 2017: the baseline's own epochs after these; null: at once
    clip_epsilon: PositiveFloat | None = 0.2  # section 6.1; null: the penalty or `max_kl` alone bounds the step
    value_clip_epsilon: PositiveFloat | None = None  # Huang, core detail 9: the authors' code clips by 0.2, to no gain
    value_cost: NonNegativeFloat = 0.5  # Huang, core detail 10: c_1 of eq. 9, in ppo2
    entropy_cost: NonNegativeFloat = 0.0  # Huang, continuous detail list: ppo2 on MuJoCo; 0.01 on Atari (Table 5)
    kl_cost: NonNegativeFloat = 0.0  # section 4: beta of the penalty, off beside clipping
    kl_target: PositiveFloat | None = None  # section 4: adapts `kl_cost` after each batch; null: fixed
    kl_excess_cost: NonNegativeFloat = 0.0  # Heess et al. 2017: xi, of max(0, KL - 2 kl_target) squared
    max_kl: PositiveFloat | None = None  # Heess et al. 2017: nats beyond which a batch gets no further policy step
    normalise_advantages: bool = True  # Huang, core detail 7
    normalise_advantages_over: Literal["minibatch", "batch"] = "minibatch"  # Huang, core detail 7; "batch": as RLlib
    max_grad_norm: PositiveFloat | None = 0.5  # Huang, core detail 11
    reward_clipping: RewardClipping = "none"  # abs_one on Atari (Huang, Atari detail 6)
    optimizer: AdamByDefault = AdamConfig()  # Huang, core details 3 and 4: epsilon 1e-5, linear decay as a key
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp", "two_stream"] = "tanh_mlp"  # section 6.1
    mlp_size: PositiveInt | None = None  # units of its layers, 64 in section 6.1; null: 64 of `mlp`, else 256
    scaled_pixels: bool = True  # Huang, Atari detail 9; false: 0 to 255, as RLlib's networks see them
    lstm_size: NonNegativeInt = 0  # units; Huang, LSTM details: 128 on Atari; minibatches are then whole unrolls
    feed_last_action_and_reward: Fed = False  # not there; Espeholt et al. 2018, Figure 3; "action": Wijmans et al. 2020
    separate_value_network: bool = True  # section 6.1: "we don't share parameters"; Huang, core detail 13
    initialisation: Initialisation | None = None  # Huang, core detail 2: orthogonal; null: so where layers have tanh
    initial_log_std: float = 0.0  # Huang, continuous detail 2: state-independent, starts at 0
    observation_normalisation: bool = True  # Huang, continuous detail 6; off for images
    normalised_observation_clip: PositiveFloat | None = 10.0  # Huang, continuous detail 7; null: no bound
    observation_warm_up: NonNegativeInt = 0  # not there; agent steps before learning, as Burda et al. 2018, section 2.4
    reward_normalisation: bool = True  # Huang, continuous detail 8; off on Atari
    normalised_reward_clip: PositiveFloat | None = 10.0  # Huang, continuous detail 9; null: no bound
    return_scaling: bool = False  # not there; true: as Weng et al. 2022's code, values in the deviation of returns
    time_limits: TimeLimits = "bootstrap"  # Pardo et al. 2018; the authors' code has "terminal"
    weighting: Weighting = "samples"  # not there: of steps when learners share a batch; Wijmans et al. 2020: "learners"
    recompute_advantages: bool = False  # before every epoch (Andrychowicz et al. 2021, section 3.5)

    @property
    def fresh_columns(self) -> int:
        """Columns of a batch that come from the queue: all of them."""
        return self.batch_size

    @property
    def whole_unrolls(self) -> bool:
        """Return whether minibatches hold unrolls: what depends on earlier steps needs them in their order."""
        return self.lstm_size > 0 or self.feed_last_action_and_reward is not False

    stored_columns = 0
    first_update = each_batch_once  # an update is all epochs over one batch


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if a minibatch could be empty, or a key would have no effect.

    PPO learns discrete and continuous tasks. Every other step may be dead (see `ddrl.types`), and dead steps are left
    out. The number of learners does not matter: a minibatch may be empty where each has its own.
    """
    most = config.batch_size * (1 if config.whole_unrolls else config.unroll_length // 2)
    if config.num_minibatches > most:
        what = " whole unrolls" if config.whole_unrolls else ", as every other step of an unroll may be dead"
        raise UserError(
            f"key 'hyperparameters.num_minibatches': {config.num_minibatches} for {config.unroll_length} x "
            f"{config.batch_size} steps; allowed: 1 to {most}{what}"
        )
    check_penalty(config.kl_cost, config.kl_target)
    if config.kl_excess_cost and config.kl_target is None:
        raise UserError("key 'hyperparameters.kl_excess_cost' needs a kl_target and a kl_cost above 0; allowed: 0.0")
    if config.clip_epsilon is None and not config.kl_cost and config.max_kl is None:
        raise UserError(
            "key 'hyperparameters.clip_epsilon': null, so that nothing bounds a step of the policy; "
            "allowed: a number, or null with a kl_cost above 0 or a max_kl"
        )
    if config.value_epochs is not None and not config.separate_value_network:
        raise UserError(
            "key 'hyperparameters.value_epochs' trains the value network alone; allowed: null, or a number with "
            "separate_value_network: true"
        )
    unread = unread_keys(spec, config)
    if not config.normalise_advantages:
        unread["normalise_advantages_over"] = "normalise_advantages: true"
    check_read(config, unread)


def prepare(network: ActorCritic, batch: Unroll, config: Config, precision: str = "float32") -> Samples | Columns:
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
    targets = network.value_target(estimates.value_targets)
    if config.whole_unrolls:
        return Columns(batch, batch.valid, log_mu, output.value[:-1], estimates.advantages, targets)
    seen = network.normalised_observation(batch.observation[:-1])
    per_step = (seen, batch.action, batch.distribution, log_mu, output.value[:-1], estimates.advantages, targets)
    return Samples(*(tensor[batch.valid] for tensor in per_step))


def ppo_loss(
    network: ActorCritic,
    part: Samples | Columns,
    config: Config,
    kl_cost: float,
    weight: float,
    steps: Steps | None = None,
) -> tuple[Tensor, Metrics]:
    """Return the loss, times `weight`, and the sums over steps that it is made of.

    It consists of clipped surrogate, value error and entropy (eq. 9), and the KL penalty of section 4 times `kl_cost`.
    What costs nothing is only measured; so is the value error where the value network has epochs of its own. `steps`:
    those of `part`, if they are known.
    """
    family, steps = network.family, steps or steps_of(network, part)
    pi = steps.pi
    log_pi = family.log_probability(pi, steps.action)
    ratio = importance_ratio("worker", log_pi, steps.log_mu, steps.log_mu, 1.0)
    policy = clipped_surrogate(ratio, steps.advantage, config.clip_epsilon).sum()
    value = value_error(steps, config)
    bonus = family.entropy(pi if config.entropy_cost else pi.detach()).sum()
    kl = family.kl(steps.distribution, pi if kl_cost else pi.detach()).sum()
    loss = policy if config.value_epochs else policy + config.value_cost * value
    if config.entropy_cost:
        loss = loss - config.entropy_cost * bonus
    if kl_cost:
        loss = loss + kl_cost * kl
    metrics = {"policy_loss": policy.item(), "value_loss": value.item(), "entropy": bonus.item(), "kl": kl.item()}
    if config.clip_epsilon is not None:
        metrics["clip_fraction"] = clip_fraction(ratio, config.clip_epsilon).sum().item()
    return weight * loss, metrics


def value_error(steps: Steps, config: Config) -> Tensor:
    """Return the sum of the value errors (eq. 9), clipped where the configuration says so."""
    return clipped_value_loss(steps.value, steps.old_value, steps.value_target, config.value_clip_epsilon).sum()


def value_network_loss(
    network: ActorCritic, part: Samples | Columns, config: Config, weight: float
) -> tuple[Tensor, Metrics]:
    """Return the loss of the value network alone, times `weight`, and the sum of the errors that it is made of."""
    value = value_error(steps_of(network, part), config)
    return weight * config.value_cost * value, {"value_loss": value.item()}


def groups(network: ActorCritic, config: Config) -> Sequence[ParameterGroup]:
    """Return the parameters as one group, or those of policy and value network apart if they learn in turns."""
    if config.value_epochs is None or network.value_torso is None:
        return one_group(network, config)
    value = [*network.value_torso.parameters(), *network.value.parameters()]
    taken = {id(one) for one in value}
    policy = [one for one in network.parameters() if id(one) not in taken]
    pairs = {"policy": policy, "value": value}.items()
    return [ParameterGroup(name, ones, config.optimizer, config.max_grad_norm) for name, ones in pairs]


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
            piece_columns=max(1, network.piece_steps // (config.unroll_length if config.whole_unrolls else 1)),
            warm_up=config.observation_warm_up,
            groups=groups,
            weighting=config.weighting,
        )
        self.ready = self.core.can_take
        self._kl_cost = config.kl_cost
        self._most_kl = math.inf if config.max_kl is None else config.max_kl
        self._watches = config.max_kl is not None or config.kl_excess_cost > 0
        self._each = config.normalise_advantages and config.normalise_advantages_over == "minibatch"

    def step(self) -> Metrics:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        return self.core.step(self.update)  # 4, 7  B unrolls; a new version for the actors

    def update(self, batch: Unroll) -> Metrics:
        """Make all epochs over a batch; return means of the metrics over its gradient steps."""
        setting, config = self.core.setting, self.config
        order = Order.of(batch, batch.valid, config.whole_unrolls, setting.reducer, own=config.weighting == "learners")
        batch = batch.to(setting.device)
        part = self._part(batch)  # 5  advantages
        check_finite(
            {"policy_loss (advantages)": part.advantages, "value_loss (targets)": part.value_targets},
            where=self.core.this_update(),
        )
        steps, kl, part = self._learn(batch, part, order)
        metrics = self._of_all(steps) | self._learn_values(part, order)
        metrics["explained_variance"] = explained_variance(part.values, part.value_targets, part.mask)
        if config.kl_target is not None:
            self._kl_cost = adapted_kl_cost(self._kl_cost, kl, config.kl_target)
        if config.max_kl is not None:
            metrics["policy_steps"] = float(len(steps))
        self.core.updates += 1
        return metrics | {"kl_cost": self._kl_cost} | self.core.policy_lag(batch.version)

    def _learn(
        self, batch: Unroll, part: Samples | Columns, order: Order
    ) -> tuple[list[Metrics], float, Samples | Columns]:
        """Make the epochs of the policy; return what the steps say, the divergence at last, and the last `part`."""
        config, count = self.config, self.config.num_minibatches
        steps: list[Metrics] = []
        kl, kept, before = 0.0, None, 0
        for epoch in range(config.num_epochs):  # 6  K epochs, each over every step of all learners
            if epoch and config.recompute_advantages:
                part = self._part(batch)
            before = len(steps)
            for minibatch, all_steps in order.counted_epoch(part, count, self.core.setting, standardise=self._each):
                if self._watches:
                    kl, kept = self._divergence(minibatch, all_steps)
                    if steps and kl > self._most_kl:
                        return steps, kl, part
                steps.append(self._descend(minibatch, all_steps, kl, kept))  # perhaps no step of this learner
        return steps, self.core.total(statistics.fmean(step["kl"] for step in steps[before:])), part

    def _part(self, batch: Unroll) -> Samples | Columns:
        network, reducer = self.core.network, self.core.setting.reducer
        part = prepare(network, batch, self.config, self.core.setting.precision)
        if network.return_scale is not None:
            targets = part.value_targets if part.mask is None else part.value_targets[part.mask]
            network.return_scale.update(network.value_of_task(targets), reducer)
        return self._normalised(part) if self.config.normalise_advantages_over == "batch" else part

    def _normalised(self, part: Samples | Columns) -> Samples | Columns:
        """Return it with standardised advantages, over all learners, where the configuration wants it."""
        if not self.config.normalise_advantages:
            return part
        return replace(part, advantages=normalised(part.advantages, self.core.setting.reducer, part.mask))

    def _divergence(self, minibatch: Samples | Columns, all_steps: float | None) -> tuple[float, Kept | None]:
        """Return the mean KL divergence of a minibatch from what acted, over all learners, and what it is known by."""
        core, family = self.core, self.core.network.family
        kept, has_graphs = steps_once(core, minibatch)
        parts = [family.kl(steps.distribution, steps.pi.detach()).sum() for row in kept for steps in row]
        divisor = core.weights.divisor(minibatch.num_steps, all_steps)
        return core.weights.mean(float(sum(parts)), divisor), kept if has_graphs else None

    def _descend(self, minibatch: Samples | Columns, all_steps: float | None, kl: float, kept: Kept | None) -> Metrics:
        """Make one gradient step, on a minibatch whose divergence is `kl` if a cost depends on it.

        Return this learner's parts of the loss's metrics, which learners add up once in an update.
        """
        config, kl_cost = self.config, self._kl_cost
        if config.kl_target is not None:  # the gradient of xi max(0, KL - 2 target)^2, by its factor
            kl_cost += 2.0 * config.kl_excess_cost * max(0.0, kl - 2.0 * config.kl_target)
        return self.core.descend(
            lambda network, part, weight, *known: ppo_loss(network, part, config, kl_cost, weight, *known),
            minibatch,
            minibatch.num_steps,
            kept=kept,
            all_steps=all_steps,
            shares=False,
        )

    def _of_all(self, steps: Sequence[Metrics]) -> Metrics:
        """Return the mean of each metric over gradient steps, {} of none; those of the loss are of all learners."""
        means = {name: statistics.fmean(step[name] for step in steps) for name in (steps[0] if steps else ())}
        return means | self.core.weights.sums({name: means[name] for name in PARTS if name in means})

    def _learn_values(self, part: Samples | Columns, order: Order) -> Metrics:
        """Make the epochs of the value network alone, if it has any; return means of its metrics over them."""
        count = self.config.num_minibatches
        steps = [
            self.core.descend(
                lambda network, piece, weight: value_network_loss(network, piece, self.config, weight),
                minibatch,
                minibatch.num_steps,
                all_steps=all_steps,
                shares=False,
            )
            for _ in range(self.config.value_epochs or 0)
            for minibatch, all_steps in order.counted_epoch(part, count, self.core.setting, standardise=False)
        ]
        return self._of_all([{name: step[name] for name in ("value_loss", "gradient_norm_value")} for step in steps])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the core, the coefficient of the penalty, and the generator that orders minibatches."""
        own = {"kl_cost": self._kl_cost, "generator": generator_state(self.core.setting.generator)}
        return self.core.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.core.load_state_dict(state)
        self._kl_cost = state["kl_cost"]
        set_generator_state(self.core.setting.generator, state["generator"])
