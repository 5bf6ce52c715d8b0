"""Groups of a network's parameters, each with its own optimizer and its own bound of the gradient's norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from ddrl.learners.optimizers import (
    AdamConfig,
    RMSPropConfig,
    clip_global_norm,
    linear_decay,
    make_optimizer,
    set_learning_rate,
)
from ddrl.types import Metrics


class OptimizerConfig(Protocol):
    """The hyperparameters of a network that is one group."""

    @property
    def max_grad_norm(self) -> float | None:
        """Bound of the gradient's global norm; None: no clipping."""

    @property
    def optimizer(self) -> RMSPropConfig | AdamConfig:
        """The optimizer and its settings."""


@dataclass(frozen=True)
class ParameterGroup:
    """Some parameters of a network, and how they are learned."""

    name: str
    """Ends the names of its metrics, where there is more than one group."""
    parameters: Sequence[nn.Parameter]
    optimizer: RMSPropConfig | AdamConfig
    max_grad_norm: float | None


Groups = Callable[[Any, Any], Sequence[ParameterGroup]]
"""(network, config) -> its groups, which hold each parameter once; `learning_rate` is that of the first one."""


def one_group(network: nn.Module, config: OptimizerConfig) -> Sequence[ParameterGroup]:
    """Return all parameters as one group: most algorithms have one optimizer."""
    return (ParameterGroup("", list(network.parameters()), config.optimizer, config.max_grad_norm),)


class GroupOptimizers:
    """The optimizers of all groups."""

    def __init__(self, groups: Sequence[ParameterGroup]) -> None:
        self._groups = groups
        self._optimizers = [make_optimizer(group.parameters, group.optimizer) for group in groups]

    def clip(self) -> Metrics:
        """Scale each group's gradients to its bound; return the norms before, and that of all groups together."""
        norms = [float(clip_global_norm(group.parameters, group.max_grad_norm)) for group in self._groups]
        if len(norms) == 1:
            return {"gradient_norm": norms[0]}
        own = {f"gradient_norm_{group.name}": norm for group, norm in zip(self._groups, norms, strict=True)}
        return {"gradient_norm": math.hypot(*norms)} | own

    def step(self, env_frames: int, rate_factor: float = 1.0) -> Metrics:
        """Make one update of each group that has a gradient; the others stay as they are, with their moments.

        Return the learning rates, by metric: that of the first one has no name.

        Args:
            env_frames: what learning rates that decay go by.
            rate_factor: multiplies all of them.
        """
        rates: Metrics = {}
        for number, (group, optimizer) in enumerate(zip(self._groups, self._optimizers, strict=True)):
            settings = group.optimizer
            rate = rate_factor * linear_decay(settings.learning_rate, env_frames, settings.decay_frames)
            rates[f"learning_rate_{group.name}" if number else "learning_rate"] = rate
            set_learning_rate(optimizer, rate)
            if any(parameter.grad is not None for parameter in group.parameters):
                optimizer.step()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state; of several, a list for each part of it."""
        states = [optimizer.state_dict() for optimizer in self._optimizers]
        return states[0] if len(states) == 1 else {key: [state[key] for state in states] for key in states[0]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        if len(self._optimizers) == 1:
            self._optimizers[0].load_state_dict(dict(state))
            return
        for number, optimizer in enumerate(self._optimizers):
            optimizer.load_state_dict({key: parts[number] for key, parts in state.items()})
