"""What learners have in common whose actors compute the gradients: shared parameters, shared statistics, counters."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

from ddrl.handles import SharedParameters
from ddrl.learners.core import Setting
from ddrl.learners.optimizers import RMSPropConfig, linear_decay, make_rmsprop
from ddrl.types import Gradients, Metrics


class SharedConfig(Protocol):
    """The hyperparameters that it reads."""

    @property
    def optimizer(self) -> RMSPropConfig:
        """Its statistics are shared."""


class SharedUpdates:
    """Applies gradients in whatever thread brings them, without a lock (Mnih et al. 2016, section 4, "shared RMSProp").

    Parameters and mean squares are shared, and written to in place: of two threads at once one may undo a part of what
    the other has done, as in Hogwild (Recht et al. 2011). Only the counters are exact.
    """

    def __init__(self, config: SharedConfig, network: nn.Module, params: SharedParameters, setting: Setting) -> None:
        self.network = network
        self.env_frames = 0
        self.agent_steps = 0
        self.updates = 0
        self.setting = setting
        self._config = config.optimizer
        self._optimizer = make_rmsprop(network.parameters(), config.optimizer)
        self._params = params
        self._counting = threading.Lock()
        params.serve(self.apply)

    def apply(self, gradients: Gradients) -> Metrics:
        """One update; returns the gradient's metrics per step, its lag in updates and the learning rate."""
        learning_rate = linear_decay(self._config.learning_rate, self.env_frames, self._config.decay_frames)
        version = self._params.version
        self._optimizer.apply(list(gradients.tensors), learning_rate)
        with self._counting:
            self.updates += 1
            self.agent_steps += gradients.steps
            self.env_frames += gradients.steps * self.setting.frame_skip
            self._params.publish(self.network)
        metrics = {name: value / max(1, gradients.steps) for name, value in gradients.metrics.items()}
        return metrics | {
            "gradient_norm": gradients.norm,
            "learning_rate": learning_rate,
            "policy_lag_mean": version - gradients.version,
            "policy_lag_max": float(version - gradients.oldest_version),
        }

    def close(self) -> None:
        """Nothing to end: the threads are the actors'."""

    def state_dict(self) -> dict[str, Any]:
        """Network, shared statistics, counters."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "counters": [self.env_frames, self.agent_steps, self.updates],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.env_frames, self.agent_steps, self.updates = state["counters"]
