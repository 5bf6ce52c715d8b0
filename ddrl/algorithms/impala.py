"""IMPALA: importance weighted actor-learner architecture with V-trace (Espeholt et al. 2018, arXiv 1802.01561).

Actors send unrolls with their behaviour logits; the learner corrects for the policy lag. Numbered lines: section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import nn

from ddrl.actors.unroll import UnrollCollector
from ddrl.learners.data_parallel import ColumnParallel
from ddrl.learners.gradients import check_finite, clip_global_norm
from ddrl.learners.optimizers import RMSPropConfig, linear_decay, make_optimizer, set_learning_rate
from ddrl.losses.policy import entropy, log_probability, policy_gradient_loss
from ddrl.losses.value import masked_sum, value_loss
from ddrl.losses.vtrace import corrected_targets
from ddrl.networks.actor_critic import make_actor_critic
from ddrl.types import EnvSpec, Metrics, Unroll, concatenate

VERSION = 1
"""Raised when behaviour changes: results of older versions are then trained anew."""

SYSTEM = {"name": "IMPALA", "moves": "unrolls", "store": "queue"}
"""For the table of systems: what actors send to the learner, and what it waits in."""

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Config:
    """Defaults: Table G.1 (Atari) unless a line says otherwise."""

    unroll_length: Positive = 20  # T, agent steps
    batch_size: Positive = 32  # B, unrolls
    discount: Annotated[float, Field(ge=0, le=1)] = 0.99
    correction: Literal["v_trace", "one_step_is", "epsilon_correction", "no_correction"] = "v_trace"  # section 5.2.2
    rho_bar: Annotated[float, Field(gt=0)] = 1.0  # section 4.1; 1 worked best of 1, 10, 100
    c_bar: Annotated[float, Field(gt=0)] = 1.0
    pg_rho_bar: Annotated[float, Field(gt=0)] = 1.0  # section 4.2; a key of its own in the authors' code
    lambda_: Annotated[float, Field(ge=0, le=1)] = 1.0  # remark 2
    correction_epsilon: float = 1e-6  # section 5.2.2, epsilon correction
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    loss_reduction: Literal["sum", "mean"] = "sum"  # over T and B (caption of Table D.1): it scales the learning rate
    reward_clipping: Literal["abs_one", "none"] = "abs_one"
    max_grad_norm: Annotated[float, Field(gt=0)] = 40.0
    network: Literal["shallow", "nature", "deep", "mlp"] = "shallow"
    lstm_size: Annotated[int, Field(ge=0)] = 0  # 0: feed-forward, as the paper's Atari agents (section 5.3.2)
    feed_last_action_and_reward: bool = False
    optimizer: RMSPropConfig = RMSPropConfig()
    replay_fraction: Fraction = 0.0  # of a batch; 0.5 in Table 2
    replay_capacity: Positive = 10_000  # unrolls


class Parameters(Protocol):
    """The versioned parameters, as this algorithm sees them."""

    version: int

    def can_pull(self, unroll_index: int) -> bool: ...
    def pull(self, network: nn.Module, unroll_index: int) -> int: ...
    def publish(self, network: nn.Module) -> int: ...


class Queue(Protocol):
    """Where unrolls wait for the learner."""

    def can_insert(self) -> bool: ...
    def insert(self, unroll: Unroll) -> None: ...
    def can_sample(self, columns: int) -> bool: ...
    def sample(self, columns: int) -> Unroll: ...


class Replay(Protocol):
    """Past unrolls, drawn uniformly."""

    def __len__(self) -> int: ...
    def insert(self, unroll: Unroll) -> None: ...
    def sample(self, columns: int) -> Unroll: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make_network(spec: EnvSpec, config: Config, generator: torch.Generator) -> nn.Module:
    """The actor-critic network for an environment."""
    return make_actor_critic(
        spec,
        network=config.network,
        lstm_size=config.lstm_size,
        feed_last_action_and_reward=config.feed_last_action_and_reward,
        generator=generator,
    )


def impala_loss(network: nn.Module, batch: Unroll, config: Config, weight: float) -> tuple[torch.Tensor, Metrics]:
    """Section 4.2: policy gradient with V-trace advantages, squared error to v_s, entropy bonus.

    `weight` scales the sum over time and columns (1 for `sum`), so losses and metrics of parts of a batch add up.
    """
    output = network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    logits, values, bootstrap_value = output.logits[:-1], output.value[:-1], output.value[-1]
    rewards = batch.reward.clamp(-1, 1) if config.reward_clipping == "abs_one" else batch.reward
    discounts = config.discount * (~batch.terminated).float()
    log_pi = log_probability(logits, batch.action)
    log_mu = log_probability(batch.logits, batch.action)
    with torch.no_grad():
        targets = corrected_targets(
            config.correction,
            values,
            bootstrap_value,
            rewards,
            discounts,
            log_pi - log_mu,
            valid=batch.valid,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.lambda_,
        )
    epsilon = config.correction_epsilon if config.correction == "epsilon_correction" else 0.0
    policy_steps = policy_gradient_loss(logits, batch.action, targets.pg_advantages, epsilon=epsilon)
    policy = masked_sum(policy_steps, batch.valid)
    value = masked_sum(value_loss(values, targets.vs), batch.valid)
    bonus = masked_sum(entropy(logits), batch.valid)
    loss = weight * (policy + config.value_cost * value - config.entropy_cost * bonus)
    return loss, {"policy_loss": policy.item(), "value_loss": value.item(), "entropy": bonus.item()}


class Actor:
    """One call of `step` = one unroll (section 3)."""

    def __init__(self, config: Config, collector: UnrollCollector, params: Parameters, queue: Queue) -> None:
        self._length = config.unroll_length
        self._collector = collector
        self._params = params
        self._queue = queue

    def ready(self) -> bool:
        """Whether `step` would not wait."""
        return self._params.can_pull(self._collector.next_index) and self._queue.can_insert()

    def step(self) -> None:
        """Acts for `unroll_length` steps with one version of the parameters."""
        policy, index = self._collector.policy, self._collector.next_index
        policy.version = self._params.pull(policy.network, index)  # 1  mu <- pi
        unroll = self._collector.collect(self._length)  # 2  x, a, r, mu(a|x), and the initial recurrent state
        self._queue.insert(unroll)  # 3  send the trajectory


class Learner:
    """One call of `step` = one update from `batch_size` unrolls."""

    def __init__(
        self,
        config: Config,
        network: nn.Module,
        params: Parameters,
        queue: Queue,
        replay: Replay,
        *,
        frame_skip: int,
        device: torch.device,
        precision: str,
        num_threads: int,
    ) -> None:
        self.config = config
        self.network = network
        self.env_frames = 0
        self.agent_steps = 0
        self.updates = 0
        self._params = params
        self._queue = queue
        self._replay = replay
        self._frame_skip = frame_skip
        self._device = device
        self._bfloat16 = precision == "bfloat16"
        self._replayed = round(config.batch_size * config.replay_fraction)
        self._fresh = config.batch_size - self._replayed
        self._optimizer = make_optimizer(network.parameters(), config.optimizer)
        self._gradients = ColumnParallel(network, num_threads)

    def ready(self) -> bool:
        """Whether `step` would not wait."""
        return self._queue.can_sample(self._fresh)

    def step(self) -> Metrics:
        """Samples, updates, publishes. Raises `NonFiniteError` when a loss or the gradient is NaN or infinite."""
        fresh = self._queue.sample(self._fresh)  # 4  B unrolls, [T+1, B]
        metrics = self.update(self._with_replay(fresh))
        steps = int(fresh.valid.sum())
        self.agent_steps += steps
        self.env_frames += steps * self._frame_skip
        return metrics

    def update(self, batch: Unroll) -> Metrics:
        """One gradient step on a batch, and the new version published."""
        batch = batch.to(self._device)
        valid_steps = max(1, int(batch.valid.sum()))
        weight = 1.0 if self.config.loss_reduction == "sum" else 1.0 / valid_steps
        metrics = self._gradients.backward(lambda network, part: self._loss(network, part, weight), batch)  # 5  eq. 1
        metrics = {name: value / valid_steps for name, value in metrics.items()}
        metrics["gradient_norm"] = float(clip_global_norm(self.network.parameters(), self.config.max_grad_norm))
        check_finite(metrics, where=f"update {self.updates + 1}")
        metrics["learning_rate"] = self._set_learning_rate()
        metrics |= _policy_lag(batch, self._params.version)
        self._optimizer.step()
        self._params.publish(self.network)  # 6  a new version for the actors
        self.updates += 1
        return metrics

    def _with_replay(self, fresh: Unroll) -> Unroll:
        """Section 5.2.2: half of the batch from a uniform replay; until the replay holds anything, fresh ones twice."""
        if not self._replayed:
            return fresh
        self._replay.insert(fresh)
        return concatenate([fresh, self._replay.sample(self._replayed)])

    def _loss(self, network: nn.Module, part: Unroll, weight: float) -> tuple[torch.Tensor, Metrics]:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            return impala_loss(network, part, self.config, weight)

    def _set_learning_rate(self) -> float:
        optimizer = self.config.optimizer
        rate = linear_decay(optimizer.learning_rate, self.env_frames, optimizer.decay_frames)
        set_learning_rate(self._optimizer, rate)
        return rate

    def close(self) -> None:
        """Ends the gradient threads."""
        self._gradients.close()

    def state_dict(self) -> dict[str, Any]:
        """Network, optimizer, counters, replay."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "counters": [self.env_frames, self.agent_steps, self.updates],
            "replay": self._replay.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.env_frames, self.agent_steps, self.updates = state["counters"]
        self._replay.load_state_dict(state["replay"])


def _policy_lag(batch: Unroll, version: int) -> Metrics:
    """In learner updates, over every step of the batch (replayed unrolls too)."""
    lag = (version - batch.version).float()
    return {"policy_lag_mean": lag.mean().item(), "policy_lag_max": lag.max().item()}
