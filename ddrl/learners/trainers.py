"""A trainer of GA3C: takes a batch, computes its gradient with the shared parameters as they are, and applies it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ddrl.interfaces import Queue, SharedParameters
from ddrl.learners.core import Setting
from ddrl.learners.shared_updates import gradient_of
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
        batch, setting = batch.to(self._setting.device), self._setting
        tensors, norm, metrics = gradient_of(
            lambda network: self._loss(network, batch, self._config, 1.0),  # 6  policy and value anew
            self._network,
            autocast=torch.autocast(setting.device.type, torch.bfloat16, enabled=setting.precision == "bfloat16"),
            max_grad_norm=self._config.max_grad_norm,
            version=self._params.version,
        )
        steps = int(batch.valid.sum())
        version = batch.version[batch.valid].float() if steps else batch.version.float()
        self._params.apply(  # 7  beside the other trainers
            Gradients(
                tensors=tensors,
                norm=norm,
                steps=steps,
                version=float(version.mean()),
                oldest_version=int(version.min()),
                metrics=metrics,
                items=steps,
            )
        )
