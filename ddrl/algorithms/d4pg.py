"""D4PG: distributed distributional deterministic policy gradients (Barth-Maron et al. 2018, arXiv 1804.08617).

Many actors add Gaussian noise to a deterministic policy and send transitions of n steps; one learner trains a critic of
the distribution of returns, and moves the policy up the critic's mean. Without access to the paper's appendix, settings
are those of two other sources: Tassa et al. 2018 (arXiv 1801.00690, "Algorithm and Architecture Details": D4PG on the
DeepMind Control Suite), and Acme (Hoffman et al. 2020; google-deepmind/acme at 770bc75e, acme/agents/jax/d4pg).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Generator, Tensor

from ddrl.actors.adders import TransitionItems
from ddrl.actors.exploration import GaussianNoise, from_noise_ladder
from ddrl.actors.replay_actor import ReplayActor
from ddrl.actors.unroll import UnrollCollector
from ddrl.errors import UserError
from ddrl.interfaces import Parameters, Replay, System, TaskKind
from ddrl.learners.batch_values import TimeLimits
from ddrl.learners.core import Setting, no_fresh_batch
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import AdamByDefault, AdamConfig
from ddrl.learners.parameter_groups import ParameterGroup
from ddrl.learners.replay_learner import ReplayLearner
from ddrl.losses.categorical import cross_entropy, divergence, mean_return, projection
from ddrl.losses.policy_gradient import action_gradients
from ddrl.losses.q_learning import half_square, n_step_targets
from ddrl.networks.deterministic import DeterministicActorCritic, make_deterministic
from ddrl.networks.initialisation import Initialisation
from ddrl.replay.items import TransitionCut, Transitions
from ddrl.replay.replay_config import ReplayRule, check_replay
from ddrl.system.config_types import STRICT, LayerList, Probability, check_read
from ddrl.types import EnvSpec, Metrics

VERSION = 1
LARGEST_RETURN = 1e9
"""Bound of `v_min` and `v_max`: further out, float32 could not tell returns apart that differ by a reward."""

SYSTEM = System(
    name="D4PG",
    moves="transitions",
    store="prioritized",
    schedules=("asynchronous",),
    learned=("network", "optimizer", "target_network"),
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "continuous actions": {
        "network": "mlp",
        "policy_layers": [256, 256],
        "critic_layers": [256, 256],
        "action_input": "first_layer",
        "layer_norm": True,
        "initialisation": {"name": "orthogonal", "policy_gain": 1e-4, "value_gain": 1e-4},
        "unroll_length": 4,
        "actor_update_period": 4,
        "batch_size": 128,
        "replay_capacity": 200_000,
        "noise": 0.2,
        "error_buffer": 320.0,
        "optimizer": {"learning_rate": 3e-4},
        "policy_optimizer": {"learning_rate": 3e-4},
    },
}
"""Noise and learning rates as in Acme's example (examples/baselines/rl_continuous/run_d4pg.py), which has three layers
of 256, the first one normalised, and outputs that begin near 0. Without these two the policy was soon stuck at the ends
of its actions (cartpole-swingup). The rest is ours: sizes that two cores train in minutes, and actors whose parameters
are never old."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: D4PG in Tassa et al. 2018, unless a line says otherwise."""

    unroll_length: PositiveInt = 50  # steps that an actor sends together: as Ape-X (Horgan et al. 2018, section 3)
    actor_update_period: PositiveInt = 100  # agent steps between copies of the parameters: Horgan et al. 2018
    batch_size: PositiveInt = 256  # transitions
    discount: Probability = 0.99
    n_step: PositiveInt = 5
    critic: Literal["categorical", "mean"] = "categorical"
    """mean: of the return alone, learned from squared errors (Barth-Maron et al. 2018 compare the two)."""
    num_atoms: PositiveInt = 51  # 101 in Tassa et al. 2018; 51 in Bellemare et al. 2017, and in Acme
    v_min: float = -150.0  # the least return that the critic can represent
    v_max: float = 150.0  # the largest one
    noise: PositiveFloat = 0.3
    """Standard deviation of the noise of every actor: Acme (Hoffman et al. 2020). 0.03125 in Tassa et al. 2018, whose
    32 actors have 1/32, 2/32, ..., 1."""
    largest_noise: PositiveFloat | None = None
    """Of the last environment of all actors: it grows in equal steps from `noise`. null: one for all, as in Acme
    (Hoffman et al. 2020). 1.0 in Tassa et al. 2018."""
    act_with: Literal["policy", "target_policy"] = "policy"
    """Whose parameters actors get, and evaluations during the training. Hoffman et al. 2020: Acme's get those of the
    target policy."""
    policy_gradient_at: Literal["observation", "next_observation"] = "observation"
    """Barth-Maron et al. 2018, Algorithm 1. Acme computes it where the transitions lead to (Hoffman et al. 2020)."""
    action_gradient_clipping: Literal["value", "norm"] = "value"
    """How the critic's gradient by the action is bounded: each dimension, or the norm (Acme, Hoffman et al. 2020)."""
    action_gradient_bound: PositiveFloat | None = 1.0  # of each transition; null: none
    prioritized: bool = True  # false: the replay draws uniformly, as in Acme
    replay_capacity: PositiveInt = 1_000_000  # steps; the oldest make room
    min_replay_size: PositiveInt = 1000  # transitions before the first update: Acme (Hoffman et al. 2020)
    priority_exponent: NonNegativeFloat = 0.6
    importance_exponent: NonNegativeFloat = 0.4  # as Ape-X (Horgan et al. 2018); not in Tassa et al. 2018
    samples_per_insert: PositiveFloat | None = 32.0  # Acme (Hoffman et al. 2020); null: freely
    error_buffer: PositiveFloat = 3200.0
    """Samples that either may be ahead: a tenth of those of `min_replay_size` inserts, Acme (Hoffman et al. 2020)."""
    target_update_period: PositiveInt = 100  # updates
    reward_clipping: RewardClipping = "none"  # not in Tassa et al. 2018, whose rewards are within [0, 1]
    time_limits: TimeLimits = "bootstrap"  # Tassa et al. 2018: an episode that is cut goes on for the critic
    max_grad_norm: PositiveFloat | None = 40.0  # of the critic: Acme's TensorFlow version (Hoffman et al. 2020)
    policy_max_grad_norm: PositiveFloat | None = 40.0  # the same (Hoffman et al. 2020)
    network: Literal["mlp", "tanh_mlp"] = "mlp"  # what activates layers: rectifiers, or tanh
    policy_layers: LayerList = (300, 200)  # units
    critic_layers: LayerList = (400, 300)  # units
    action_input: Literal["first_layer", "second_layer"] = "second_layer"
    """Where the critic gets the action: beside the observation, as in Acme, or through a linear layer of its own that
    is added at the second layer."""
    layer_norm: bool = False
    """true: the first layer of policy and critic is normalised over its units, then tanh, as in Acme (Hoffman et al.
    2020). Not in Tassa et al. 2018."""
    initialisation: Initialisation | None = None
    """null: truncated normal, Sonnet's default, which Espeholt et al. 2018's code has too; not in Tassa et al. 2018."""
    optimizer: AdamByDefault = AdamConfig(learning_rate=1e-4, epsilon=1e-8)  # of the critic
    policy_optimizer: AdamByDefault = AdamConfig(learning_rate=1e-4, epsilon=1e-8)

    fresh_columns = 0  # no batch is fresh
    stored_columns = 0

    @property
    def fresh_steps(self) -> float | None:
        """Agent steps per update in the long run; None: no fixed ratio."""
        return None if self.samples_per_insert is None else self.batch_size / self.samples_per_insert

    trained_steps = 1  # of an item
    first_update = no_fresh_batch

    @property
    def replay(self) -> ReplayRule:
        """Rule of the replay: prioritized, or with priorities that are all alike."""
        return ReplayRule(
            cut=TransitionCut(self.n_step),
            capacity=self.replay_capacity,
            min_size=self.min_replay_size,
            batch_size=self.batch_size,
            samples_per_insert=self.samples_per_insert,
            error_buffer=self.error_buffer,
            priority_exponent=self.priority_exponent if self.prioritized else 0.0,
            importance_exponent=self.importance_exponent if self.prioritized else 0.0,
            delay=self.n_step,
            state_period=None,
            first_priority="largest",
        )


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if the algorithm cannot learn this environment, or if a key would have no effect."""
    if not spec.action_size:
        raise UserError(f"'{spec.name}' has discrete actions; a deterministic policy needs continuous ones")
    check_replay(config, num_learners)
    unread: dict[str, str] = {}
    if config.critic == "mean":
        unread |= dict.fromkeys(("num_atoms", "v_min", "v_max"), "critic: categorical")
    if not config.prioritized:
        unread |= dict.fromkeys(("priority_exponent", "importance_exponent"), "prioritized: true")
    if config.samples_per_insert is None:
        unread["error_buffer"] = "samples_per_insert"
    if config.action_gradient_bound is None:
        unread["action_gradient_clipping"] = "action_gradient_bound"
    check_read(config, unread, TASK_DEFAULTS)
    ordered = -LARGEST_RETURN <= config.v_min < config.v_max <= LARGEST_RETURN
    if config.critic == "categorical" and (config.num_atoms < 2 or not ordered):
        raise UserError(
            "keys 'hyperparameters.num_atoms', 'v_min' and 'v_max': at least 2 atoms, and v_min below v_max, both from "
            f"{-LARGEST_RETURN:g} to {LARGEST_RETURN:g} (got {config.num_atoms}, {config.v_min:g} and "
            f"{config.v_max:g})"
        )
    if config.action_input == "second_layer" and len(config.critic_layers) < 2:
        raise UserError(
            "key 'hyperparameters.critic_layers' must have at least 2 layers with action_input: second_layer (got "
            f"{list(config.critic_layers)})"
        )
    if config.largest_noise is not None and config.largest_noise <= config.noise:
        raise UserError(
            f"key 'hyperparameters.largest_noise' must be above noise, {config.noise:g}, from which it grows (got "
            f"{config.largest_noise:g})"
        )


def make_network(spec: EnvSpec, config: Config, generator: Generator) -> DeterministicActorCritic:
    """Return the policy and the critic, whose output is a logit for each atom or one value."""
    outputs = config.num_atoms if config.critic == "categorical" else 1
    return make_deterministic(spec, config, generator, outputs=outputs)


def make_sampler(config: Config, network: Any, envs: Sequence[int] | None, num_envs: int) -> GaussianNoise:
    """Return a sampler that adds each environment's noise to the policy's actions; evaluations have none."""
    return from_noise_ladder(config, envs, num_envs)


def first_priorities(
    distribution: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor, *, n: int
) -> Tensor:
    """Return 1, or NaN where a number of it is, [T, B]: the replay replaces 1 by its largest priority."""
    acted = distribution.sum(dim=-1)
    return 1.0 + 0.0 * n_step_targets(reward + acted[:-1], terminated, ended, acted, 1.0, n)


def values(output: Tensor, config: Config) -> Tensor:
    """Return the expected returns [B] of the critic's outputs [B, K]."""
    if config.critic == "mean":
        return output.squeeze(-1)
    return mean_return(output, config.v_min, config.v_max)


def critic_losses(
    network: DeterministicActorCritic, target_network: DeterministicActorCritic, part: Transitions, config: Config
) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each transition the critic's loss, the error without gradient, and the expected return, each [B].

    With Y = R + discount^K Z'(x', pi'(x')), after a terminal state R alone, of the target networks: the cross entropy
    of Z(x, a) with Y on the atoms, and their divergence; or (Y - Q(x, a))^2 / 2, and the difference.
    """
    with torch.no_grad():
        next_output = target_network.critic(part.next_observation, target_network.actions(part.next_observation))
        steps = torch.arange(config.n_step, device=next_output.device).unsqueeze(-1)
        rewards = clipped_rewards(part.reward, config.reward_clipping)
        returns = (config.discount**steps * rewards).sum(dim=0)
        over = part.terminated if config.time_limits == "bootstrap" else part.ended
        scale = (config.discount ** part.steps.float()).masked_fill(over, 0.0)
    output = network.critic(part.observation, part.action)
    value = values(output, config)
    if config.critic == "mean":
        error = returns + scale * next_output.squeeze(-1) - value
        return half_square(error, None), error.detach(), value.detach()
    with torch.no_grad():
        target = projection(next_output.softmax(dim=-1), returns, scale, config.v_min, config.v_max)
        error = divergence(target, output)
    return cross_entropy(target, output), error, value.detach()


def policy_losses(network: DeterministicActorCritic, part: Transitions, config: Config) -> tuple[Tensor, Tensor]:
    """Return of each transition -pi(x) dQ/da at a = pi(x), whose gradient is that of -Q(x, pi(x)), and Q(x, pi(x)).

    Each [B]. dQ/da is a constant here, cut to its bound, so the critic's parameters get no gradient.
    """
    at_next = config.policy_gradient_at == "next_observation"
    observation = part.next_observation if at_next else part.observation
    actions = network.actions(observation)
    chosen = actions.detach().requires_grad_()
    value = values(network.critic(observation, chosen), config)
    (slope,) = torch.autograd.grad(value.sum(), chosen)
    slope = action_gradients(slope, config.action_gradient_bound, by_norm=config.action_gradient_clipping == "norm")
    return -(slope * actions).sum(dim=-1), value.detach()


def d4pg_loss(
    network: DeterministicActorCritic,
    target_network: DeterministicActorCritic,
    part: Transitions,
    config: Config,
    weight: float,
) -> tuple[Tensor, Metrics]:
    """Return `weight` times the sum over items of w L_critic + L_policy, and metrics; write `part.td_error`.

    w is the importance weight, which the policy's loss has not. The two losses have no parameter in common, so their
    sum has the gradients of both (Barth-Maron et al. 2018, Algorithm 1).
    """
    critic_loss, error, value = critic_losses(network, target_network, part, config)
    policy_loss, policy_value = policy_losses(network, part, config)
    part.td_error.copy_(error)
    weighted = part.drawn.weight * critic_loss
    return weight * (weighted.sum() + policy_loss.sum()), {
        "critic_loss": weighted.sum().item(),
        "policy_loss": -policy_value.sum().item(),
        "td_error": error.abs().sum().item(),
        "q_mean": value.sum().item(),
    }


def Actor(config: Config, collector: UnrollCollector, params: Parameters, replay: Replay) -> ReplayActor:
    """Return an actor of which one call of `step` makes one unroll."""
    items = TransitionItems(config.n_step, partial(first_priorities, n=config.n_step))
    pull_period = max(1, config.actor_update_period // config.unroll_length)
    return ReplayActor(config.unroll_length, pull_period, collector, params, replay, items)


def new_priorities(batch: Transitions, config: Config) -> Tensor:
    """Return the absolute errors [B]."""
    return batch.td_error.abs()


def groups(network: DeterministicActorCritic, config: Config) -> tuple[ParameterGroup, ...]:
    """Return the critic's parameters and the policy's, each with its own optimizer and bound."""
    policy = [*network.torso.parameters(), *network.policy.parameters()]
    return (
        ParameterGroup("critic", list(network.critic.parameters()), config.optimizer, config.max_grad_norm),
        ParameterGroup("policy", policy, config.policy_optimizer, config.policy_max_grad_norm),
    )


def Learner(
    config: Config, network: DeterministicActorCritic, params: Parameters, replay: Replay, setting: Setting
) -> ReplayLearner:
    """Return a learner of which one call of `step` makes one update."""
    return ReplayLearner(
        config,
        network,
        params,
        replay,
        setting,
        loss=d4pg_loss,
        priorities=new_priorities,
        groups=groups,
        publishes_target=config.act_with == "target_policy",
    )
