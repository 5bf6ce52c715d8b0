"""R2D2: recurrent experience replay in distributed reinforcement learning (Kapturowski et al. 2019, ICLR).

R2D2 is Ape-X with an LSTM. The replay holds overlapping sequences, each from one episode, with the recurrent state that
the actor had before them; the learner first burns in that state, then trains on the rest. With `topology.inference:
central` it is SEED RL's R2D2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from ddrl.actors.adders import SequenceItems
from ddrl.actors.exploration import from_epsilon_ladder
from ddrl.actors.replay_actor import ReplayActor
from ddrl.actors.unroll import UnrollCollector
from ddrl.errors import UserError
from ddrl.interfaces import Parameters, Replay, System, TaskKind
from ddrl.learners.core import Setting, no_fresh_batch
from ddrl.learners.normalisation import RewardClipping, clipped_rewards
from ddrl.learners.optimizers import AdamByDefault, AdamConfig
from ddrl.learners.replay_learner import ReplayLearner
from ddrl.losses.q_learning import double_q_values, mixed_priority, n_step_targets, rescale, taken, unrescale
from ddrl.networks.actor_critic import unread_keys
from ddrl.networks.q_network import QNetwork, make_q_network
from ddrl.replay.items import SequenceCut, Sequences
from ddrl.replay.replay_config import ReplayRule, check_discrete, check_replay
from ddrl.system.config_types import STRICT, Probability, check_read
from ddrl.types import EnvSpec, Metrics, NetworkOutput, RecurrentState

VERSION = 1

SYSTEM = System(
    name="R2D2",
    moves="overlapping sequences",
    store="prioritized",
    schedules=("asynchronous",),
    learned=("network", "optimizer", "target_network"),
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "vectors": {
        "unroll_length": 16,
        "actor_update_period": 16,
        "sequence_length": 32,
        "sequence_period": 16,
        "burn_in": 0,
        "batch_size": 32,
        "network": "mlp",
        "lstm_size": 64,
        "head_size": 64,
        "replay_capacity": 100_000,
        "min_replay_size": 200,
        "samples_per_insert": 4.0,
        "target_update_period": 100,
        "optimizer": {"learning_rate": 1e-3, "epsilon": 1e-5},
    },
}
"""As `replications/r2d2_2019` on its small memory tasks, but for the sizes of replay and LSTM. A small task is over
before the paper's replay would be ready or its target network renewed."""

LEAST_VALUE = 1e-3
"""Least divisor of a discrepancy, because values start near 0. Ours."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: Kapturowski et al. 2019, Table 2, unless a line says otherwise."""

    unroll_length: PositiveInt = 40  # steps that an actor sends together: a sequence's period (section 2.3)
    actor_update_period: PositiveInt = 400  # agent steps between copies of the parameters
    sequence_length: PositiveInt = 80  # m, trained steps
    sequence_period: PositiveInt = 40  # steps from one sequence to the next: they overlap by 40 (section 2.3)
    burn_in: NonNegativeInt = 40  # l, steps before them
    stored_state: bool = True  # section 3; false: zeros before the burn-in
    measure_staleness: bool = False  # the Q discrepancy of section 3 with each update; actors then send every state
    batch_size: PositiveInt = 64  # sequences
    discount: Probability = 0.997
    n_step: PositiveInt = 5
    double_q: bool = True  # section 2.3
    dueling: bool = True  # section 2.3
    rescaling_epsilon: PositiveFloat | None = 1e-3  # of h(x) (section 2.3); null: values are not rescaled
    epsilon: Probability = 0.4  # of the first environment; as Ape-X (Horgan et al. 2018)
    epsilon_alpha: NonNegativeFloat = 7.0  # as Ape-X (Horgan et al. 2018)
    evaluation_epsilon: Probability = 0.001  # the authors' code of SEED RL (Espeholt et al. 2020)
    replay_capacity: PositiveInt = 4_000_000  # steps: 100,000 sequences
    min_replay_size: PositiveInt = (
        1250  # sequences before the first update: 50,000 steps, as Ape-X (Horgan et al. 2018)
    )
    priority_exponent: NonNegativeFloat = 0.9
    importance_exponent: NonNegativeFloat = 0.6
    priority_eta: Probability = 0.9  # p = eta max |delta| + (1 - eta) mean |delta| (section 2.3)
    samples_per_insert: PositiveFloat | None = None  # null: freely, as Ape-X (Horgan et al. 2018); appendix: about 0.4
    error_buffer: PositiveFloat = 512.0  # samples that either may be ahead; ours, as Reverb (Cassirer et al. 2021)
    target_update_period: PositiveInt = 2500  # updates
    reward_clipping: RewardClipping = "none"  # section 2.3
    max_grad_norm: PositiveFloat | None = 40.0  # as Ape-X (Horgan et al. 2018)
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "nature"  # section 2.3
    scaled_pixels: bool = True  # the authors' code of SEED RL; false: 0 to 255
    lstm_size: NonNegativeInt = 512  # section 2.3; 0: feed-forward, as its ablation
    feed_last_action_and_reward: bool = True  # section 2.3
    reward_input: Literal["raw", "tanh"] = (
        "raw"  # the authors' code of SEED RL; tanh: that of Acme (Hoffman et al. 2020)
    )
    head_size: PositiveInt = 512  # hidden units of each stream (section 2.3)
    optimizer: AdamByDefault = AdamConfig(learning_rate=1e-4, epsilon=1e-3)

    fresh_columns = 0  # no batch is fresh
    stored_columns = 0

    @property
    def fresh_steps(self) -> float | None:
        """Agent steps per update in the long run; None: no fixed ratio."""
        if self.samples_per_insert is None:
            return None
        return self.batch_size / self.samples_per_insert * self.sequence_period

    first_update = no_fresh_batch

    @property
    def trained_steps(self) -> int:
        """Steps of a sequence, including the burn-in."""
        return self.sequence_length + self.burn_in

    @property
    def replay(self) -> ReplayRule:
        """Rule of the prioritized replay."""
        # The first state is kept when an episode has this age, the next ones after each further period.
        oldest_begin = self.sequence_period - self.burn_in % self.sequence_period
        state_period = 1 if self.measure_staleness else oldest_begin
        return ReplayRule(
            cut=SequenceCut(
                self.sequence_length, self.burn_in, from_states=self.stored_state, measured=self.measure_staleness
            ),
            capacity=self.replay_capacity,
            min_size=self.min_replay_size,
            batch_size=self.batch_size,
            samples_per_insert=self.samples_per_insert,
            error_buffer=self.error_buffer,
            priority_exponent=self.priority_exponent,
            importance_exponent=self.importance_exponent,
            delay=self.n_step,
            state_period=state_period if self.keeps_states else None,
        )

    @property
    def keeps_states(self) -> bool:
        """True if actors send recurrent states."""
        return self.lstm_size > 0 and (self.stored_state or self.measure_staleness)


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if the algorithm cannot learn this environment, or if a key would have no effect."""
    check_discrete(spec)
    check_replay(config, num_learners)
    check_read(config, unread_keys(spec, config))
    if config.sequence_period > config.sequence_length:
        raise UserError(
            f"key 'hyperparameters.sequence_period' must be at most sequence_length, {config.sequence_length}: steps "
            f"between sequences would never be learned from (got {config.sequence_period})"
        )
    unread = {} if config.lstm_size else dict.fromkeys(("stored_state", "measure_staleness"), "an lstm_size above 0")
    if not config.feed_last_action_and_reward:
        unread["reward_input"] = "feed_last_action_and_reward"
    if config.samples_per_insert is None:
        unread["error_buffer"] = "samples_per_insert"
    check_read(config, unread)


make_network = make_q_network
make_sampler = from_epsilon_ladder


def targets(reward: Tensor, terminated: Tensor, ended: Tensor, next_value: Tensor, config: Config) -> Tensor:
    """Return h(sum_k discount^k r_{t+k} + discount^n h^-1(Q)) (section 2.3), [T, B], for Q `next_value` [T+1, B]."""
    rewards = clipped_rewards(reward, config.reward_clipping)
    epsilon = config.rescaling_epsilon
    if epsilon is None:
        return n_step_targets(rewards, terminated, ended, next_value, config.discount, config.n_step)
    values = unrescale(next_value, epsilon)
    return rescale(n_step_targets(rewards, terminated, ended, values, config.discount, config.n_step), epsilon)


def td_errors(q: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor, config: Config) -> Tensor:
    """Return an actor's n-step errors [T, B] by its own values [T+1, B, A]; it has no target network."""
    return targets(reward, terminated, ended, q.amax(dim=-1), config) - taken(q[:-1], action)


def unrolled(network: QNetwork, part: Sequences) -> NetworkOutput:
    """Return the outputs at the trained steps and the one after, [m + 1, B]; the burn-in before gets no gradient."""
    inputs = (part.observation, part.last_action, part.last_reward, part.start)
    state: RecurrentState = part.state or network.initial_state(part.batch_size)
    if part.burn_in and state:
        with torch.no_grad():
            state = network(*(tensor[: part.burn_in] for tensor in inputs), state).state
    output: NetworkOutput = network(*(tensor[part.burn_in :] for tensor in inputs), state)
    return output


@torch.no_grad()
def q_discrepancy(network: QNetwork, q: Tensor, part: Sequences) -> tuple[Tensor, Tensor]:
    """Return how much the values at the first and the last trained step differ from those with the actor's state, [B].

    It is |q(o, h') - q(o, h)|_2 / |max q(o, h')| (section 3) with the learner's parameters, where h' is the state after
    burn-in and unrolling, and h the actor's state at that step; the maximum is over actions and the sequence's steps.
    `q` [m + 1, B, A] are the values with h'.
    """
    columns = torch.arange(part.batch_size, device=q.device)
    lengths = part.valid.sum(dim=0)
    largest = q[:-1].masked_fill(~part.valid.unsqueeze(-1), -torch.inf).amax(dim=(0, 2)).abs()
    found = []
    for step, state in ((torch.zeros_like(lengths), part.first_state), (lengths - 1, part.last_state)):
        inputs = (part.observation, part.last_action, part.last_reward, part.start)
        there = network(*(tensor[part.burn_in + step, columns][None] for tensor in inputs), state).distribution[0]
        distance = torch.linalg.vector_norm(q[step, columns] - there, dim=-1)
        found.append(distance / largest.clamp(min=LEAST_VALUE))
    return found[0], found[1]


def r2d2_loss(
    network: QNetwork, target_network: QNetwork, part: Sequences, config: Config, weight: float
) -> tuple[Tensor, Metrics]:
    """Return `weight` times the sum of importance-weighted losses, and metrics; write `part.td_error`.

    The loss of a sequence is the sum of half the squared n-step double-Q errors (section 2.3). Its last steps bootstrap
    from the observation after it, less than n steps later (as the authors' code of SEED RL).
    """
    q = unrolled(network, part).distribution
    with torch.no_grad():
        target_q = unrolled(target_network, part).distribution
        next_value = double_q_values(q, target_q) if config.double_q else target_q.amax(dim=-1)
        target = targets(part.reward, part.terminated, part.ended, next_value, config)
    value = taken(q[:-1], part.action)
    error = (target - value).masked_fill(~part.valid, 0.0)
    part.td_error.copy_(error.detach())
    loss = (part.drawn.weight * error.square().sum(dim=0)).sum() / 2
    lengths = part.valid.sum(dim=0)
    metrics = {
        "loss": loss.item(),
        "td_error": (error.detach().abs().sum(dim=0) / lengths).sum().item(),
        "q_mean": ((value.detach() * part.valid).sum(dim=0) / lengths).sum().item(),
    }
    if part.first_state:
        first, last = q_discrepancy(network, q.detach(), part)
        metrics |= {"q_discrepancy_first": first.sum().item(), "q_discrepancy_last": last.sum().item()}
    return weight * loss, metrics


def Actor(config: Config, collector: UnrollCollector, params: Parameters, replay: Replay) -> ReplayActor:
    """Return an actor of which one call of `step` makes one unroll."""
    items = SequenceItems(
        config.n_step,
        partial(td_errors, config=config),
        length=config.sequence_length,
        period=config.sequence_period,
        burn_in=config.burn_in,
        priority=partial(mixed_priority, eta=config.priority_eta),
        keeps_states=config.keeps_states,
        every_state=config.measure_staleness,
    )
    pull_period = max(1, config.actor_update_period // config.unroll_length)
    return ReplayActor(config.unroll_length, pull_period, collector, params, replay, items)


def new_priorities(batch: Sequences, config: Config) -> Tensor:
    """Return the mix of largest and mean absolute error of each sequence, [B]."""
    return mixed_priority(batch.td_error, batch.valid, config.priority_eta)


def Learner(config: Config, network: QNetwork, params: Parameters, replay: Replay, setting: Setting) -> ReplayLearner:
    """Return a learner of which one call of `step` makes one update."""
    return ReplayLearner(config, network, params, replay, setting, loss=r2d2_loss, priorities=new_priorities)
