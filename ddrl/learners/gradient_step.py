"""One gradient step, the same for every algorithm: backward, add up, clip, check, learning rate, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ddrl.interfaces import Reducer
from ddrl.learners.data_parallel import PIECE_COLUMNS, AnyBatch, ColumnParallel
from ddrl.learners.gradients import check_finite, clip_global_norm
from ddrl.learners.optimizers import AdamConfig, RMSPropConfig, linear_decay, make_optimizer, set_learning_rate
from ddrl.types import Metrics

PartLoss = Callable[[Any, AnyBatch, float], tuple[torch.Tensor, Metrics]]
"""(network, columns, weight of one step) -> (weighted loss, metrics as sums over steps)."""


class GradientStep:
    """Optimizes a network; shares each batch among threads of this learner, and with other learners."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: RMSPropConfig | AdamConfig,
        *,
        max_grad_norm: float | None,
        device: torch.device,
        precision: str,
        num_threads: int,
        reducer: Reducer,
        piece_columns: int = PIECE_COLUMNS,
    ) -> None:
        self._parameters = list(network.parameters())  # once: each step would walk the modules anew
        self._config = optimizer
        self._optimizer = make_optimizer(self._parameters, optimizer)
        self._max_grad_norm = max_grad_norm
        self._device = device
        self._bfloat16 = precision == "bfloat16"
        self._reducer = reducer
        self._gradients = ColumnParallel(network, num_threads, piece_columns)

    def step(
        self, loss: PartLoss[AnyBatch], batch: AnyBatch, *, valid_steps: int, mean: bool, env_frames: int, where: str
    ) -> Metrics:
        """One step down `loss`; returns its metrics per valid step, the gradient's norm and the learning rate.

        Args:
            loss: of some columns; parts add up.
            batch: this learner's share of the columns.
            valid_steps: of this learner's share.
            mean: weigh each step by 1 / (valid steps of all learners) instead of 1.
            env_frames: for the learning-rate schedule.
            where: names the update in the error.

        Raises `NonFiniteError` when a loss or the gradient is NaN or infinite.
        """
        all_steps = max(1, int(self.total(float(valid_steps))))
        weight = 1.0 / all_steps if mean else 1.0

        def part_loss(network: nn.Module, part: AnyBatch) -> tuple[torch.Tensor, Metrics]:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
                return loss(network, part, weight)

        metrics = self._gradients.backward(part_loss, batch)
        self._reducer.sum_([p.grad for p in self._parameters if p.grad is not None])
        metrics = {name: self.total(value) / all_steps for name, value in metrics.items()}
        metrics["gradient_norm"] = float(clip_global_norm(self._parameters, self._max_grad_norm))
        check_finite(metrics, where=where)
        metrics["learning_rate"] = linear_decay(self._config.learning_rate, env_frames, self._config.decay_frames)
        set_learning_rate(self._optimizer, metrics["learning_rate"])
        self._optimizer.step()
        return metrics

    def total(self, value: float) -> float:
        """The sum of one number over all learners."""
        if self._reducer.size == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        self._reducer.sum_([tensor])
        return float(tensor)

    def close(self) -> None:
        """Ends the gradient threads."""
        self._gradients.close()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self._optimizer.load_state_dict(state)
