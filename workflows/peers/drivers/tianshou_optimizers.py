"""Optimizers of Tianshou from our settings."""

from __future__ import annotations

from typing import Any

import torch
from protocol import Settings
from tianshou.algorithm.optim import LRSchedulerFactory, TorchOptimizerFactory


class Decay(LRSchedulerFactory):
    """The learning rate that falls over the request's frames."""

    def __init__(self, share: Any, steps: float, total: int, first: int = 0) -> None:
        """`steps`: between two updates; `first`: before the first one, of `total`."""
        self._share, self._steps, self._total, self._first = share, steps, total, first

    def create_scheduler(self, optim: torch.optim.Optimizer) -> Any:
        """Return the scheduler, which takes a step after each update."""
        return torch.optim.lr_scheduler.LambdaLR(
            optim, lambda update: self._share(1.0 - (self._first + update * self._steps) / self._total)
        )


def optimizer_of(settings: Settings, scale: float = 1.0) -> TorchOptimizerFactory:
    """Return the optimizer; `scale`: of the library's gradients, where ours are 1."""
    take = settings.take
    rate = take("optimizer.learning_rate")
    if take("optimizer.name") == "adam":
        betas = (take("optimizer.beta1"), take("optimizer.beta2"))
        return TorchOptimizerFactory(torch.optim.Adam, lr=rate, betas=betas, eps=scale * take("optimizer.epsilon"))
    settings.same("optimizer.epsilon_inside_sqrt", False, "torch's RMSProp has it outside of the root")
    settings.same("optimizer.initial_mean_square", 0.0, "torch's RMSProp starts at 0")
    names = {"alpha": "decay", "eps": "epsilon", "momentum": "momentum", "centered": "centered"}
    given = {theirs: take(f"optimizer.{ours}") for theirs, ours in names.items()}
    given["eps"] *= scale
    return TorchOptimizerFactory(torch.optim.RMSprop, lr=rate, **given)
