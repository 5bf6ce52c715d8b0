"""What every learner has in common: its place among actors and other learners, counters, gradient steps, state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import nn

from ddrl.interfaces import KeepsStatistics, Parameters, Queue, Reducer, Shards
from ddrl.learners.data_parallel import PIECE_COLUMNS, AnyBatch
from ddrl.learners.gradient_step import GradientStep, PartLoss
from ddrl.learners.normalisation import Normalisation, RewardClipping
from ddrl.learners.optimizers import AdamConfig, RMSPropConfig
from ddrl.types import Metrics, Unroll


class HasVersion(Protocol):
    """An unroll, or what was drawn from a replay."""

    @property
    def version(self) -> torch.Tensor:
        """[T, B] int64: of the parameters that acted."""


class LearnerConfig(Protocol):
    """The hyperparameters that every learner reads."""

    @property
    def discount(self) -> float:
        """Per agent step."""

    @property
    def reward_clipping(self) -> RewardClipping:
        """See `clipped_rewards`."""

    @property
    def max_grad_norm(self) -> float | None:
        """Bound of the gradient's global norm; None: no clipping."""

    @property
    def optimizer(self) -> RMSPropConfig | AdamConfig:
        """Which one, and its settings."""

    @property
    def fresh_columns(self) -> int:
        """Columns of a fresh batch, over all learners."""


Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Setting:
    """Where and with what a learner computes; nothing of it belongs to the algorithm."""

    frame_skip: int  # environment frames of an agent step
    device: torch.device
    precision: str  # float32 or bfloat16
    num_threads: int  # that share a batch
    generator: np.random.Generator
    reducer: Reducer
    num_trainers: int = 1  # that update one network beside each other
    parameter_shards: int | None = None  # that each apply one gradient at a time; None: all at once, without locks
    shards: Shards | None = None  # these, where they are in processes of their own


class LearnerCore(Generic[Network]):
    """The part of a learner that no algorithm changes; each has one, and steps and updates in its own way."""

    def __init__(
        self,
        config: LearnerConfig,
        network: Network,
        params: Parameters,
        queue: Queue | None,
        setting: Setting,
        *,
        piece_columns: int = PIECE_COLUMNS,
    ) -> None:
        """`queue`: where fresh batches come from; None: there are none, the algorithm draws from a replay."""
        self.network = network
        self.env_frames = 0
        self.agent_steps = 0
        self.updates = 0
        self._params = params
        self._queue = queue
        self.setting = setting
        self.fresh_columns = config.fresh_columns // setting.reducer.size
        statistics = cast(KeepsStatistics, network)  # no type says that a network is both
        self._normalisation = Normalisation(statistics, config.discount, config.reward_clipping, setting.reducer)
        self._gradient = GradientStep(
            network,
            config.optimizer,
            max_grad_norm=config.max_grad_norm,
            device=setting.device,
            precision=setting.precision,
            num_threads=setting.num_threads,
            reducer=setting.reducer,
            piece_columns=piece_columns,
        )

    def can_take(self) -> bool:
        """Whether `take` would not wait."""
        assert self._queue is not None
        return self._queue.can_sample(self.fresh_columns)

    def take(self) -> Unroll:
        """This learner's columns of the next fresh batch, [T+1, B]; its rewards enter the statistics."""
        assert self._queue is not None
        fresh = self._queue.sample(self.fresh_columns)
        self._normalisation.before(fresh)
        return fresh

    def count(self, fresh: Unroll) -> None:
        """Counts the valid steps of a fresh batch, over all learners."""
        steps = int(self._gradient.total(float(fresh.valid.sum())))
        self.agent_steps += steps
        self.env_frames += steps * self.setting.frame_skip

    def count_to(self, agent_steps: int) -> None:
        """So many valid steps have been made by now, of which a replay keeps count."""
        self.agent_steps = agent_steps
        self.env_frames = agent_steps * self.setting.frame_skip

    def descend(self, loss: PartLoss[AnyBatch], batch: AnyBatch, valid_steps: int, *, mean: bool = True) -> Metrics:
        """One gradient step of the update that is under way (see `GradientStep.step`)."""
        return self._gradient.step(
            loss,
            batch,
            valid_steps=valid_steps,
            mean=mean,
            env_frames=self.env_frames,
            where=self.this_update(),
        )

    def this_update(self) -> str:
        """Names the update that is under way, for errors."""
        return f"update {self.updates + 1}"

    def observe(self, fresh: Unroll) -> None:
        """A fresh batch's observations enter the statistics; after the update, as `Normalisation` says."""
        self._normalisation.after(fresh)

    def publish(self) -> None:
        """Makes the network's present parameters the next version for the actors."""
        self._params.publish(self.network)

    def policy_lag(self, batch: HasVersion) -> Metrics:
        """In learner updates, over every step of a batch (replayed unrolls too), and over first and last steps alone.

        They differ where the policy may change within an unroll, as with central inference.
        """
        lag = (self._params.version - batch.version).float()
        return {
            "policy_lag_mean": lag.mean().item(),
            "policy_lag_max": lag.max().item(),
            "policy_lag_first": lag[0].mean().item(),
            "policy_lag_last": lag[-1].mean().item(),
        }

    def close(self) -> None:
        """Ends the gradient threads."""
        self._gradient.close()

    def state_dict(self) -> dict[str, Any]:
        """Network with its statistics, optimizer, counters, running returns."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._gradient.state_dict(),
            "counters": [self.env_frames, self.agent_steps, self.updates],
            "normalisation": self._normalisation.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.network.load_state_dict(state["network"])
        self._gradient.load_state_dict(state["optimizer"])
        self.env_frames, self.agent_steps, self.updates = state["counters"]
        self._normalisation.load_state_dict(state["normalisation"])
