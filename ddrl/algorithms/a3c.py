"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783).

Actors compute gradients on their own copies of the network and apply them to shared parameters, without locks. There is
no learner: the class of that name only counts and records. Numbered lines: Algorithm S3, for one actor thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.policy import LocalInference, from_distribution
from ddrl.actors.unroll import UnrollCollector
from ddrl.interfaces import SharedParameters, System, TaskKind
from ddrl.learners.batch_values import TimeLimits, discounts
from ddrl.learners.core import no_fresh_batch
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.learners.shared_updates import GradientLearner, gradient_of
from ddrl.losses.actor_critic import masked_sum, policy_gradient_loss, value_loss
from ddrl.losses.advantages import vtrace_gae
from ddrl.losses.returns import n_step_returns
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation
from ddrl.system.config_types import STRICT, Probability, check_read
from ddrl.types import EnvSpec, Gradients, Metrics, Unroll

VERSION = 1

SYSTEM = System(
    name="A3C",
    moves="gradients",
    store="none",
    schedules=("asynchronous",),
    parameters="shared",
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "vectors": {"network": "mlp", "optimizer": {"learning_rate": 4e-3, "epsilon": 1e-5}},
    "continuous actions": {"network": "tanh_mlp", "separate_value_network": True, "reward_clipping": "none"},
}
"""Section 9: two networks that share nothing for MuJoCo; the sizes are ours. Vectors: the learning rate is within the
range of section 8; the epsilon is OpenAI Baselines' for A2C, as gradients of small networks are below PFRL's 0.1."""


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
    scaled_pixels: bool = True  # not printed; PFRL; false: 0 to 255
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

    batch_size = fresh_columns = 0  # no batch is made: each unroll is learned from where it was collected
    stored_columns = 0
    first_update = no_fresh_batch


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if a key would have no effect; A3C learns discrete and continuous tasks."""
    check_read(config, unread_keys(spec, config))


def advantage_loss(
    network: ActorCritic,
    batch: Unroll,
    config: Any,
    weight: float,
    time_limits: TimeLimits = "bootstrap",
    gae_lambda: float = 1.0,
) -> tuple[Tensor, Metrics]:
    """Return the loss of A3C and A2C times `weight`, and the sums that it is made of (section 4).

    -log pi(a_t|s_t) (R_t - V(s_t)) - beta H(pi(s_t)) + cost (R_t - V(s_t))^2 / 2, summed over steps, where R_t are
    n-step returns with the values of `network` itself, or with a `gae_lambda` below 1 those of GAE: V(s_t) + A_t.
    If the network measures values in a deviation of returns, advantages are not divided by it, and targets are.
    """
    output = network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    pi, values = output.distribution[:-1], output.value[:-1]
    returns = returns_of(network, output.value.detach(), batch, config, time_limits, gae_lambda)
    log_pi = network.family.log_probability(pi, batch.action)
    policy = masked_sum(policy_gradient_loss(log_pi, returns - network.value_of_task(values)), batch.valid)
    value = masked_sum(value_loss(values, network.value_target(returns)), batch.valid)
    bonus = masked_sum(network.family.entropy(pi if config.entropy_cost else pi.detach()), batch.valid)
    loss = policy + config.value_cost * value
    if config.entropy_cost:
        loss = loss - config.entropy_cost * bonus
    return weight * loss, {"policy_loss": policy.item(), "value_loss": value.item(), "entropy": bonus.item()}


def returns_of(
    network: ActorCritic, values: Tensor, batch: Unroll, config: Any, time_limits: TimeLimits, gae_lambda: float
) -> Tensor:
    """Return the returns R_t [T, B] that `advantage_loss` learns from, given the network's values [T+1, B]."""
    values = network.value_of_task(values)
    rewards = network.normalised_reward(clipped_rewards(batch.reward, config.reward_clipping))
    steps = (values[:-1], values[-1], rewards, discounts(batch, config.discount, time_limits))
    if gae_lambda < 1.0:
        on_policy = torch.zeros_like(rewards)
        return vtrace_gae(*steps, on_policy, valid=batch.valid, gae_lambda=gae_lambda).value_targets
    return n_step_returns(*steps, batch.valid)


class Actor:
    """Two calls of `step` make one pass of Algorithm S3: the first computes gradients, the second applies them.

    So other actors can act between the two where roles take turns (runtime serial), as they can where roles run in
    parallel.
    """

    def __init__(self, config: Config, collector: UnrollCollector, params: SharedParameters, _: object) -> None:
        self._config = config
        self._collector = collector
        self._params = params
        self._inference = cast(LocalInference, collector.policy.inference)
        self._inference.network.requires_grad_(True)
        self._gradients: Gradients | None = None

    def ready(self) -> bool:
        """Return True: `step` never waits."""
        return True

    def step(self) -> None:
        """Compute or apply a gradient. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        if self._gradients is not None:
            gradients, self._gradients = self._gradients, None
            self._params.apply(gradients)  # 6  asynchronous update of the shared parameters
            return
        self._collector.policy.pull(self._params, self._collector.next_index)  # 1-2  synchronise with the shared ones
        unroll = self._collector.collect(self._config.unroll_length)  # 3  act for t_max steps
        self._gradients = self.learn(unroll)  # 4-5  returns, and gradients of policy and value

    def learn(self, unroll: Unroll) -> Gradients:
        """Return the gradient of an unroll's loss with the actor's own parameters."""
        inference = self._inference
        return gradient_of(
            lambda network: advantage_loss(network, unroll.to(inference.device), self._config, 1.0),
            inference.network,
            inference.autocast(),
            self._config.max_grad_norm,
            version=inference.version,
            items=int(unroll.valid.sum()),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the gradient that waits to be applied, if there is one."""
        return {"gradients": self._gradients and self._gradients.as_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._gradients = state["gradients"] and Gradients(**state["gradients"])


Learner = GradientLearner
make_network = make_actor_critic
make_sampler = from_distribution
