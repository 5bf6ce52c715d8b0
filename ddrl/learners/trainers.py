"""The trainer of GA3C: takes a batch, computes its gradient with the present shared parameters, and applies it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from ddrl.interfaces import Queue, SharedParameters
from ddrl.learners.core import Setting
from ddrl.learners.shared_updates import gradient_of
from ddrl.types import Metrics, Unroll

Loss = Callable[[Any, Unroll, Any, float], tuple[Tensor, Metrics]]
"""(network, batch, config, weight) -> (sum over steps, metrics as sums over steps)."""


class TrainerConfig(Protocol):
    """The hyperparameters that a trainer reads."""

    @property
    def batch_size(self) -> int:
        """Unrolls of a batch."""

    @property
    def max_grad_norm(self) -> float | None:
        """Bound of the gradient's global norm; None: no clipping."""


class Trainer:
    """A role of which several run at the same time; each has its own gradients, but shares the parameters."""

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
        """Return whether `step` would run without waiting."""
        return self._queue.can_sample(self._config.batch_size)

    def step(self) -> None:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is not finite, `Closed` after the run."""
        self.update(self._queue.sample(self._config.batch_size))  # 5  the training queue

    def update(self, batch: Unroll) -> None:
        """Make one update from a batch."""
        batch = batch.to(self._setting.device)
        gradients = gradient_of(
            lambda network: self._loss(network, batch, self._config, 1.0),  # 6  policy and value anew
            self._network,
            self._setting.autocast(),
            self._config.max_grad_norm,
            version=self._params.version,
            items=int(batch.valid.sum()),
        )
        version = batch.version[batch.valid].float() if gradients.items else batch.version.float()
        acted = replace(gradients, version=float(version.mean()), oldest_version=int(version.min()))
        self._params.apply(acted)  # 7  beside the other trainers
