"""The part that all learners share: gradient steps, statistics, counters, published versions, saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ddrl.interfaces import KeepsStatistics, Parameters, Queue, Reducer, Service, Shards
from ddrl.learners.data_parallel import PIECE_COLUMNS, AnyBatch, ColumnParallel, Kept
from ddrl.learners.dropping import Dropping
from ddrl.learners.normalisation import Normalisation, RewardClipping
from ddrl.learners.optimizers import AdamConfig, RMSPropConfig, check_finite
from ddrl.learners.parameter_groups import GroupOptimizers, Groups, one_group
from ddrl.learners.weighting import Weighting, Weights
from ddrl.system.precision import autocast
from ddrl.types import Metrics, Unroll

LAGS = ("policy_lag_mean", "policy_lag_max", "policy_lag_first", "policy_lag_last")
"""Metrics of the policy lag: of all steps of a batch, the largest, and of first and last steps."""
PartLoss = Callable[..., tuple[Tensor, Metrics]]
"""(network, columns, weight of one step, what was kept of them) -> (weighted loss, metrics as sums over steps)."""


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
        """The optimizer and its settings."""

    @property
    def fresh_columns(self) -> int:
        """Columns of a fresh batch, over all learners."""


Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Setting:
    """The resources of a learner, which do not belong to the algorithm."""

    frame_skip: int  # environment frames of an agent step
    device: torch.device
    precision: str  # float32 or bfloat16
    num_threads: int  # that share a batch
    generator: np.random.Generator
    reducer: Reducer
    num_trainers: int = 1  # that update one network at the same time
    parameter_shards: int | None = None  # that each apply one gradient at a time; None: all at once, without locks
    shards: Shards | None = None  # the shards, if they are in processes of their own
    dropping: Dropping | None = None  # of gradients that come late; None: every step waits for all
    preemption: bool = False  # whether unrolls may end early

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which networks compute in the run's precision."""
        return autocast(self.device, self.precision)


def each_batch_once(config: object, batch: int) -> int:
    """Return the update that first uses fresh batch number `batch`, if each is learned from once, in order."""
    return batch


def no_fresh_batch(config: object, batch: int) -> int:
    """Return 0: no update waits for a fresh batch."""
    return 0


class GradientStep:
    """Optimizes a network; shares each batch among threads of this learner, and with other learners."""

    def __init__(
        self,
        network: nn.Module,
        config: LearnerConfig,
        setting: Setting,
        piece_columns: int,
        groups: Groups = one_group,
        weighting: Weighting = "samples",
    ) -> None:
        self._parameters = list(network.parameters())  # once, because each call walks over all modules
        self._setting = setting
        self.weights = Weights(setting.reducer, weighting)
        self._optimizers = GroupOptimizers(groups(network, config))
        self._gradients = ColumnParallel(network, setting.num_threads, piece_columns)
        self.close = self._gradients.close
        self.state_dict, self.load_state_dict = self._optimizers.state_dict, self._optimizers.load_state_dict

    def forward(self, outputs: Callable[[Any, AnyBatch], Any], batch: AnyBatch) -> Kept:
        """Return what `outputs`, of a network and some columns, makes of all, with the graphs, for `step`."""

        def part_outputs(network: nn.Module, part: AnyBatch) -> Any:
            with self._setting.autocast():
                return outputs(network, part)

        return self._gradients.forward(part_outputs, batch)

    def step(
        self,
        loss: PartLoss,
        batch: AnyBatch,
        *,
        valid_steps: int,
        mean: bool,
        env_frames: int,
        where: str,
        rate_factor: float = 1.0,
        kept: Kept | None = None,
        all_steps: float | None = None,
        shares: bool = True,
    ) -> Metrics:
        """Make one gradient step; return the metrics per valid step, the gradient's norm and the learning rate.

        Args:
            loss: of some columns; the losses of parts add up.
            batch: this learner's share of the columns.
            valid_steps: of this learner's share.
            mean: weigh each step by 1 / (valid steps of all learners) instead of 1, or as `Weights` says.
            env_frames: for the learning-rate schedule.
            where: names the update in the error.
            rate_factor: multiplies the learning rate of this step.
            kept: of this batch, from `forward`, if the loss is to get it.
            all_steps: valid steps of all learners, if they are known.
            shares: False: the loss's metrics are this learner's parts of them (`Weights.sums`).

        Raises `NonFiniteError` if a loss or the gradient is NaN or infinite.
        """
        divisor = self.weights.divisor(valid_steps, all_steps)
        weight = 1.0 / divisor if mean else 1.0
        dropping = self._setting.dropping
        late = dropping is not None and dropping.is_over()
        if late:
            batch, kept = batch.columns(0, 0), None  # so that the sums have the same parts

        def part_loss(network: nn.Module, part: AnyBatch, *known: Any) -> tuple[Tensor, Metrics]:
            with self._setting.autocast():
                return loss(network, part, weight, *known)

        metrics = self._gradients.backward(part_loss, batch, kept)
        if dropping is not None:
            metrics = self._drop(metrics, dropping.arrive(), self.weights.share(valid_steps, divisor))
        self._setting.reducer.sum_([p.grad for p in self._parameters if p.grad is not None])
        metrics = self.weights.means(metrics, divisor) if shares else self.weights.parts(metrics, divisor)
        if dropping is not None:
            metrics["late_gradients"] = self.weights.total(float(late))
        metrics |= self._optimizers.clip()
        check_finite(metrics, where=where)
        return metrics | self._optimizers.step(env_frames, rate_factor)

    def _drop(self, metrics: Metrics, counts: bool, share: float) -> Metrics:
        """Scale gradient and metrics such that they are means over those that count; 0 where this one does not.

        `share` is the weight of this learner's part among those of all.
        """
        counted = self.weights.total(share if counts else 0.0)
        factor = 1.0 / counted if counts else 0.0
        torch._foreach_mul_([p.grad for p in self._parameters if p.grad is not None], factor)
        return {name: value * factor for name, value in metrics.items()}


class LearnerCore(Generic[Network]):
    """What every learner does in the same way, whatever the algorithm."""

    def __init__(
        self,
        config: LearnerConfig,
        network: Network,
        params: Parameters,
        queue: Queue | None,
        setting: Setting,
        *,
        piece_columns: int = PIECE_COLUMNS,
        warm_up: int = 0,
        groups: Groups = one_group,
        weighting: Weighting = "samples",
    ) -> None:
        """`queue` gives fresh batches; None: the algorithm draws its batches from a replay.

        The first `warm_up` agent steps fill the statistics and are not learned from. `groups` divides the network's
        parameters among optimizers.
        """
        self.network = network
        self.env_frames = 0
        self.agent_steps = 0
        self.updates = 0
        self.helpers: Sequence[Service] = ()
        """Services that learn beside the learner's own steps."""
        self._params = params
        self._queue = queue
        self.setting = setting
        self.fresh_columns = config.fresh_columns // setting.reducer.size
        statistics = cast(KeepsStatistics, network)  # no type says that a network is both
        self._warm_up = warm_up
        self._normalisation = Normalisation(statistics, config.discount, config.reward_clipping, setting.reducer)
        self._gradient = GradientStep(network, config, setting, piece_columns, groups, weighting)
        self.weights, self.total = self._gradient.weights, self._gradient.weights.total
        self.close, self.forward = self._gradient.close, self._gradient.forward

    def can_take(self) -> bool:
        """Return whether `take` would return at once."""
        assert self._queue is not None
        return self._queue.can_sample(self.fresh_columns)

    def take(self) -> Unroll:
        """Take this learner's columns of the next fresh batch, [T+1, B]; add its rewards to the statistics."""
        assert self._queue is not None
        fresh = self._queue.sample(self.fresh_columns)
        self._normalisation.add_rewards(fresh)
        return fresh

    def count(self, fresh: Unroll) -> Metrics:
        """Count the valid steps of a fresh batch, over all learners; return how much of it was preempted.

        That is the shares of valid steps and of unrolls that ended early; nothing where none can be preempted.
        """
        sums = {"valid": float(fresh.valid.sum())}
        if self.setting.preemption:
            sums |= {"preempted": float(fresh.preempted.sum()), "columns": float(fresh.batch_size)}
        sums = self.weights.sums(sums)
        self.count_to(self.agent_steps + int(sums["valid"]))
        if not self.setting.preemption:
            return {}
        columns = sums["columns"]
        return {
            "live_fraction": sums["valid"] / (columns * fresh.length),
            "preempted_fraction": sums["preempted"] / columns,
        }

    def count_to(self, agent_steps: int) -> None:
        """Set the number of valid steps so far, and the environment frames that follow from it."""
        self.agent_steps = agent_steps
        self.env_frames = agent_steps * self.setting.frame_skip

    @property
    def warms_up(self) -> bool:
        """Return whether the next fresh batch fills the statistics and is not learned from."""
        return self.agent_steps < self._warm_up

    def step(self, learn: Callable[[Unroll], Metrics]) -> Metrics:
        """Take a fresh batch, let `learn` make an update from it, and publish a version; return the metrics.

        While the statistics of observations warm up, `learn` is left out, and the metrics are the policy lag.
        """
        fresh = self.take()
        metrics = self.policy_lag(fresh.version) if self.warms_up else learn(fresh)
        self.observe(fresh)
        self.publish()
        return metrics | self.count(fresh)

    def descend(
        self,
        loss: PartLoss,
        batch: AnyBatch,
        valid_steps: int,
        *,
        mean: bool = True,
        rate_factor: float = 1.0,
        kept: Kept | None = None,
        all_steps: float | None = None,
        shares: bool = True,
    ) -> Metrics:
        """Make one gradient step of the present update (see `GradientStep.step`)."""
        return self._gradient.step(
            loss,
            batch,
            valid_steps=valid_steps,
            mean=mean,
            env_frames=self.env_frames,
            where=self.this_update(),
            rate_factor=rate_factor,
            kept=kept,
            all_steps=all_steps,
            shares=shares,
        )

    def update(self, loss: PartLoss, batch: Unroll, *, mean: bool) -> Metrics:
        """Make one update: a gradient step on a batch [T+1, B]. Return its metrics and the policy lag of the batch."""
        batch = batch.to(self.setting.device)
        metrics = self.descend(loss, batch, int(batch.valid.sum()), mean=mean)
        self.updates += 1
        return metrics | self.policy_lag(batch.version)

    def this_update(self) -> str:
        """Return the name of the present update, for errors."""
        return f"update {self.updates + 1}"

    def observe(self, fresh: Unroll) -> None:
        """Add a fresh batch's observations to the statistics, after the update (see `Normalisation`)."""
        self._normalisation.add_observations(fresh)

    def publish(self, network: nn.Module | None = None) -> None:
        """Publish the network's present parameters, or those of another `network`, as the next version for actors."""
        self._params.publish(network or self.network)

    def policy_lag(self, version: Tensor) -> Metrics:
        """Return the lag in updates of a batch on which `version` [T, B] acted: of all, first and last steps.

        Replayed unrolls count too. First and last steps differ if the policy may change within an unroll, as with
        central inference.
        """
        lag = (self._params.version - version).float()
        least, most = (extreme.item() for extreme in lag.aminmax())
        if least == most:  # as under the synchronous schedule
            return dict.fromkeys(LAGS, most)
        return dict(zip(LAGS, (lag.mean().item(), most, lag[0].mean().item(), lag[-1].mean().item()), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of network (with its statistics), optimizer, counters and running returns."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._gradient.state_dict(),
            "counters": [self.env_frames, self.agent_steps, self.updates],
            "normalisation": self._normalisation.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.network.load_state_dict(state["network"])
        self._gradient.load_state_dict(state["optimizer"])
        self.env_frames, self.agent_steps, self.updates = state["counters"]
        self._normalisation.load_state_dict(state["normalisation"])
