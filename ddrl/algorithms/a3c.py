"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783).

Actors compute gradients on copies of their own and apply them to shared parameters, without locks and without a
learner: what is called so here counts and records. Numbered lines: Algorithm S3, for one actor and thread.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from ddrl.actors.exploration import from_distribution
from ddrl.actors.unroll import UnrollCollector
from ddrl.interfaces import SharedParameters, System
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.learners.shared_updates import GradientLearner, gradient_of
from ddrl.losses.policy import policy_gradient_loss
from ddrl.losses.returns import n_step_returns
from ddrl.losses.value import masked_sum, value_loss
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation
from ddrl.system.config_types import STRICT, Probability, check_read
from ddrl.types import EnvSpec, Gradients, Metrics, Unroll

VERSION = 1
"""Raised when behaviour changes: results of older versions are then trained anew."""

SYSTEM = System(
    name="A3C",
    moves="gradients",
    store="none",
    schedules=("asynchronous",),
    parameters="shared",
)


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Mnih et al. 2016, section 8 (Atari), unless a line says otherwise.

    "PFRL" is its reproduction, examples/atari/reproduction/a3c (Fujita et al. 2021).
    """

    unroll_length: PositiveInt = 5  # t_max, agent steps
    discount: Probability = 0.99
    value_cost: float = 0.5  # of half the squared error, as PFRL; Algorithm S3 adds the whole one, which is 2.0 here
    entropy_cost: float = 0.01  # beta
    reward_clipping: RewardClipping = "abs_one"  # Mnih et al. 2015, whose wrappers the paper uses; PFRL
    max_grad_norm: PositiveFloat | None = 40.0  # searched for and not printed (section 5.1); PFRL
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "shallow"  # section 8
    lstm_size: NonNegativeInt = 0  # 256 in the recurrent agent (section 5.1)
    feed_last_action_and_reward: bool = False  # not in this paper; Espeholt et al. 2018, Figure 3
    optimizer: RMSPropConfig = RMSPropConfig(  # section 4: shared RMSProp, falling to 0
        learning_rate=7e-4,  # of LogUniform(1e-4, 1e-2) (section 8), as PFRL
        epsilon=0.1,  # not printed; PFRL
        epsilon_inside_sqrt=True,  # section 4
        decay_frames=320_000_000,  # of the whole training; PFRL
    )
    # Not in the paper's Atari agents: those of section 9 (MuJoCo) share nothing between policy and value.
    separate_value_network: bool = False
    initialisation: Initialisation | None = None  # null: Espeholt et al. 2018's code's; on `tanh_mlp` orthogonal
    initial_log_std: float = 0.0

    @property
    def fresh_columns(self) -> int:
        """None: no batch is made, each unroll is learned from where it was collected."""
        return 0

    @property
    def stored_columns(self) -> int:
        """Columns of unrolls that stay in main memory, to be learned from again: none."""
        return 0

    def first_update(self, batch: int) -> int:
        """There are no fresh batches to wait for."""
        return 0


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """A3C learns discrete and continuous tasks. Raises `UserError` where a key would not be read."""
    check_read(config, unread_keys(spec, False, False))


def make_network(spec: EnvSpec, config: Config, generator: torch.Generator) -> ActorCritic:
    """The actor-critic network for an environment."""
    return make_actor_critic(
        spec,
        network=config.network,
        lstm_size=config.lstm_size,
        feed_last_action_and_reward=config.feed_last_action_and_reward,
        separate_value_network=config.separate_value_network,
        initial_log_std=config.initial_log_std,
        initialisation=config.initialisation,
        generator=generator,
    )


def advantage_loss(network: Any, batch: Unroll, config: Any, weight: float) -> tuple[torch.Tensor, Metrics]:
    """-log pi(a_t|s_t) (R_t - V(s_t)) - beta H(pi(s_t)) + cost (R_t - V(s_t))^2 / 2, summed over steps (section 4).

    R_t are n-step returns with the values of `network` itself; A2C has the same loss. `weight` scales the sum.
    """
    output = network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    pi, values, bootstrap_value = output.distribution[:-1], output.value[:-1], output.value[-1]
    returns = n_step_returns(
        values.detach(),
        bootstrap_value.detach(),
        network.normalised_reward(clipped_rewards(batch.reward, config.reward_clipping)),
        config.discount * (~batch.terminated).float(),
        batch.valid,
    )
    log_pi = network.family.log_probability(pi, batch.action)
    policy = masked_sum(policy_gradient_loss(log_pi, returns - values), batch.valid)
    value = masked_sum(value_loss(values, returns), batch.valid)
    bonus = masked_sum(network.family.entropy(pi), batch.valid)
    loss = weight * (policy + config.value_cost * value - config.entropy_cost * bonus)
    return loss, {"policy_loss": policy.item(), "value_loss": value.item(), "entropy": bonus.item()}


class Actor:
    """Two calls of `step` = one pass of Algorithm S3: gradients are computed in the first, and applied in the second.

    Where roles take turns (runtime serial), other actors so come between, as they do where roles run side by side.
    """

    def __init__(self, config: Config, collector: UnrollCollector, params: SharedParameters, _: Any) -> None:
        self._config = config
        self._collector = collector
        self._params = params
        self._network: Any = collector.policy.inference.network
        self._network.requires_grad_(True)
        self._gradients: Gradients | None = None

    def ready(self) -> bool:
        """Whether `step` would not wait: always."""
        return True

    def step(self) -> None:
        """Raises `NonFiniteError` when a loss or the gradient is NaN or infinite."""
        if self._gradients is not None:
            gradients, self._gradients = self._gradients, None
            self._params.apply(gradients)  # 6  asynchronous update of the shared parameters
            return
        self._collector.policy.pull(self._params, self._collector.next_index)  # 1-2  synchronise with the shared ones
        unroll = self._collector.collect(self._config.unroll_length)  # 3  act for t_max steps
        self._gradients = self.learn(unroll)  # 4-5  returns, and gradients of policy and value

    def learn(self, unroll: Unroll) -> Gradients:
        """Of the loss of an unroll, with the actor's own parameters."""
        inference: Any = self._collector.policy.inference
        version, steps = inference.version, int(unroll.valid.sum())
        tensors, norm, metrics = gradient_of(
            lambda network: advantage_loss(network, unroll.to(inference.device), self._config, 1.0),
            self._network,
            autocast=inference.autocast(),
            max_grad_norm=self._config.max_grad_norm,
            version=version,
        )
        return Gradients(tensors, norm, steps, version, version, metrics, steps)

    def state_dict(self) -> dict[str, Any]:
        """A gradient that waits to be applied."""
        return {"gradients": self._gradients and self._gradients.as_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self._gradients = state["gradients"] and Gradients(**state["gradients"])


make_sampler = from_distribution


Learner = GradientLearner
