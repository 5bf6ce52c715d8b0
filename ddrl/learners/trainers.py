"""A trainer of GA3C: takes a batch, computes its gradient with the shared parameters as they are, and applies it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ddrl.handles import Queue, SharedParameters
from ddrl.learners.core import Setting
from ddrl.learners.gradients import check_finite, clip_global_norm
from ddrl.types import Gradients, Metrics, Unroll

Loss = Callable[[Any, Unroll, Any, float], tuple[Tensor, Metrics]]
"""(network, batch, config, weight) -> (sum over steps, metrics as sums over steps)."""


class TrainerConfig(Protocol):
    """The hyperparameters that it reads."""

    @property
    def batch_size(self) -> int:
        """Unrolls of a batch."""

    @property
    def max_grad_norm(self) -> float | None:
        """Bound of the gradient's global norm; None: no clipping."""


class Trainer:
    """A role, of which several run beside each other: each has gradients of its own and none has parameters."""

    def __init__(
        self,
        config: TrainerConfig,
        network: Any,
        params: SharedParameters,
        queue: Queue,
        setting: Setting,
        *,
        loss: Loss,
    ) -> None:
        self._config = config
        self._network = copy.deepcopy(network)
        params.lend(self._network)
        self._params = params
        self._queue = queue
        self._setting = setting
        self._loss = loss

    def ready(self) -> bool:
        """Whether `step` would not wait."""
        return self._queue.can_sample(self._config.batch_size)

    def step(self) -> None:
        """Raises `NonFiniteError` when a loss or the gradient is NaN or infinite, `Closed` once the run is over."""
        self.update(self._queue.sample(self._config.batch_size))  # 5  the training queue

    def update(self, batch: Unroll) -> None:
        """One update from a batch."""
        batch, device = batch.to(self._setting.device), self._setting.device.type
        self._network.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=self._setting.precision == "bfloat16"):
            loss, metrics = self._loss(self._network, batch, self._config, 1.0)  # 6  policy and value anew
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(clip_global_norm(self._network.parameters(), self._config.max_grad_norm))
        check_finite(metrics | {"gradient_norm": norm}, where=f"update {self._params.version + 1} or after")
        steps = int(batch.valid.sum())
        version = batch.version[batch.valid].float() if steps else batch.version.float()
        self._params.apply(  # 7  beside the other trainers
            Gradients(
                tensors=tuple(parameter.grad for parameter in self._network.parameters()),
                norm=norm,
                steps=steps,
                version=float(version.mean()),
                oldest_version=int(version.min()),
                metrics=metrics,
                items=steps,
            )
        )
