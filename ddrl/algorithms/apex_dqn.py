"""Ape-X DQN: distributed prioritized experience replay (Horgan et al. 2018, arXiv 1803.00933).

Many actors explore, each with its own epsilon, and send transitions with initial priorities; one learner samples them
by priority. The paper itself could not be read: its settings come from notes that agree with each other
(replications/apex_2018/published); "section" and "Algorithm" are those of the paper as the notes cite it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.adders import TransitionItems
from ddrl.actors.exploration import EpsilonGreedy, from_epsilon_ladder
from ddrl.actors.replay_actor import ReplayActor
from ddrl.actors.unroll import UnrollCollector
from ddrl.errors import UserError
from ddrl.interfaces import Parameters, Replay, System, TaskKind
from ddrl.learners.batch_values import TimeLimits
from ddrl.learners.core import Setting, no_fresh_batch
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import RMSPropByDefault, RMSPropConfig
from ddrl.learners.replay_learner import ReplayLearner, no_actions
from ddrl.losses.q_learning import double_q_values, half_square, n_step_targets, taken
from ddrl.networks.actor_critic import unread_keys
from ddrl.networks.initialisation import Initialisation
from ddrl.networks.q_network import QNetwork, make_q_network
from ddrl.replay.items import TransitionCut, Transitions
from ddrl.replay.replay_config import ReplayRule, check_discrete, check_replay
from ddrl.system.config_types import STRICT, LayerSizes, Probability, check_read
from ddrl.types import EnvSpec, Metrics

VERSION = 1

SYSTEM = System(
    name="Ape-X",
    moves="transitions",
    store="prioritized",
    schedules=("asynchronous",),
    learned=("network", "optimizer", "target_network"),
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "vectors": {
        "network": "mlp",
        "batch_size": 64,
        "actor_update_period": 50,
        "replay_capacity": 100_000,
        "min_replay_size": 1000,
        "samples_per_insert": 2.0,
        "target_update_period": 100,
        "optimizer": {"name": "adam", "learning_rate": 1e-3},
    },
}
"""Ours: a small task is over before the paper's replay would be ready or its target network renewed. The ratio of
samples to inserts is fixed, since actors on vectors outrun a learner that samples freely."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Horgan et al. 2018, Atari, unless a line says otherwise."""

    unroll_length: PositiveInt = 50  # steps that an actor sends together: section 3, as the method note has it
    actor_update_period: PositiveInt = 100  # agent steps between copies of the parameters: 400 frames
    batch_size: PositiveInt = 512  # transitions
    discount: Probability = 0.99
    n_step: PositiveInt = 3
    double_q: bool = True
    dueling: bool = True
    epsilon: Probability = 0.4  # of the first environment
    epsilon_alpha: NonNegativeFloat = 7.0  # epsilon^(1 + alpha i / (N - 1)) of environment i of N
    initial_epsilon: Probability | None = None  # null: the ladder's from the beginning; else as Mnih et al. 2015
    exploration_steps: PositiveInt | None = None
    """Of an actor, dead ones too, over which they fall: 1,000,000 in Mnih et al. 2015; null: they do not."""
    evaluation_epsilon: Probability = 0.001  # the authors' code of SEED RL (Espeholt et al. 2020); not in the notes
    replay_capacity: PositiveInt = 2_000_000  # steps
    min_replay_size: PositiveInt = 50_000  # transitions before the first update
    priority_exponent: NonNegativeFloat = 0.6
    importance_exponent: NonNegativeFloat = 0.4
    samples_per_insert: PositiveFloat | None = None  # null: freely (section 3), at some 0.8 there
    error_buffer: PositiveFloat = 4096.0  # samples that either may be ahead; ours, as Reverb (Cassirer et al. 2021)
    target_update_period: PositiveInt = 2500  # updates
    reward_clipping: RewardClipping = "abs_one"  # Mnih et al. 2015, as Kapturowski et al. 2019 say
    error_clipping: PositiveFloat | None = None  # null: no bound on the slope; 1.0 in Mnih et al. 2015, Methods
    time_limits: TimeLimits = "bootstrap"  # Pardo et al. 2018; not in the notes
    max_grad_norm: PositiveFloat | None = 40.0
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "nature"  # Mnih et al. 2015
    mlp_size: LayerSizes | None = None
    """Units of two layers, or of each (not in the notes, nor in Mnih et al. 2015); null: 64, 256 of `tanh_mlp`."""
    initialisation: Initialisation | None = None  # not in the notes; null: as Espeholt et al. 2018's code
    scaled_pixels: bool = True  # not printed; as the authors' code of SEED RL has it for R2D2; false: 0 to 255
    head_size: PositiveInt = 512  # hidden units of each stream (Wang et al. 2016)
    optimizer: RMSPropByDefault = RMSPropConfig(
        learning_rate=0.00025 / 4,
        decay=0.95,
        epsilon=1.5e-7,
        epsilon_inside_sqrt=True,
        centered=True,
        decay_frames=None,
    )

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
        """Rule of the prioritized replay."""
        return ReplayRule(
            cut=TransitionCut(self.n_step),
            capacity=self.replay_capacity,
            min_size=self.min_replay_size,
            batch_size=self.batch_size,
            samples_per_insert=self.samples_per_insert,
            error_buffer=self.error_buffer,
            priority_exponent=self.priority_exponent,
            importance_exponent=self.importance_exponent,
            delay=self.n_step,
            state_period=None,
        )


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if the algorithm cannot learn this environment, or if a key would have no effect."""
    check_discrete(spec)
    check_replay(config, num_learners)
    check_read(config, unread_keys(spec, config))
    if config.samples_per_insert is None:
        check_read(config, {"error_buffer": "samples_per_insert"})
    if (config.initial_epsilon is None) != (config.exploration_steps is None):
        raise UserError(
            "keys 'hyperparameters.initial_epsilon' and 'hyperparameters.exploration_steps' go together: both null, or "
            f"an epsilon and a number of steps (got {config.initial_epsilon} and {config.exploration_steps})"
        )
    if config.initial_epsilon is not None and config.initial_epsilon <= config.epsilon:
        raise UserError(
            f"key 'hyperparameters.initial_epsilon' must be above epsilon, {config.epsilon:g}, to which it falls (got "
            f"{config.initial_epsilon:g})"
        )


make_network = make_q_network


def make_sampler(config: Config, network: Any, envs: Sequence[int] | None, num_envs: int) -> EpsilonGreedy:
    """Return an epsilon-greedy sampler, whose epsilons the actor may lower to the ladder's; evaluation has its own."""
    return from_epsilon_ladder(config, network, envs, num_envs, config.initial_epsilon)


def td_errors(q: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor, config: Config) -> Tensor:
    """Return an actor's n-step errors [T, B] by its own values [T+1, B, A]; it has no target network."""
    rewards = clipped_rewards(reward, config.reward_clipping)
    over = terminated if config.time_limits == "bootstrap" else ended
    targets = n_step_targets(rewards, over, ended, q.amax(dim=-1), config.discount, config.n_step)
    return targets - taken(q[:-1], action)


def apex_loss(
    network: QNetwork, target_network: QNetwork, part: Transitions, config: Config, weight: float
) -> tuple[Tensor, Metrics]:
    """Return `weight` times the sum over items of w (G_t - q(S_t, A_t))^2 / 2, and metrics; write `part.td_error`.

    G_t is the n-step return with a double-Q bootstrap, w the importance weight (section 3.1). Beyond `error_clipping`
    the square goes on as a straight line.
    """
    blank = no_actions(part.batch_size, part.action.device)
    q = network(part.observation[None], *blank, ()).distribution[0]
    with torch.no_grad():
        next_q = target_network(part.next_observation[None], *blank, ()).distribution[0]
        if config.double_q:
            online = network(part.next_observation[None], *blank, ()).distribution[0]
            next_value = double_q_values(online, next_q)
        else:
            next_value = next_q.amax(dim=-1)
        steps = torch.arange(config.n_step, device=q.device).unsqueeze(-1)
        rewards = clipped_rewards(part.reward, config.reward_clipping)
        returns = (config.discount**steps * rewards).sum(dim=0)
        over = part.terminated if config.time_limits == "bootstrap" else part.ended
        bootstrap = (config.discount**part.steps * next_value).masked_fill(over, 0.0)
    value = taken(q, part.action)
    error = returns + bootstrap - value
    part.td_error.copy_(error.detach())
    loss = (part.drawn.weight * half_square(error, config.error_clipping)).sum()
    return weight * loss, {
        "loss": loss.item(),
        "td_error": error.detach().abs().sum().item(),
        "q_mean": value.detach().sum().item(),
    }


def Actor(config: Config, collector: UnrollCollector, params: Parameters, replay: Replay) -> ReplayActor:
    """Return an actor of which one call of `step` makes one unroll."""
    items = TransitionItems(config.n_step, partial(td_errors, config=config))
    pull_period = max(1, config.actor_update_period // config.unroll_length)
    return ReplayActor(
        config.unroll_length, pull_period, collector, params, replay, items, exploration_steps=config.exploration_steps
    )


def new_priorities(batch: Transitions, config: Config) -> Tensor:
    """Return the absolute errors [B]."""
    return batch.td_error.abs()


def Learner(config: Config, network: QNetwork, params: Parameters, replay: Replay, setting: Setting) -> ReplayLearner:
    """Return a learner of which one call of `step` makes one update."""
    return ReplayLearner(config, network, params, replay, setting, loss=apex_loss, priorities=new_priorities)
