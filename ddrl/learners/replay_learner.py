"""The learner of a prioritized replay: samples a batch, learns from it, updates priorities, publishes parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ddrl.interfaces import Parameters, Replay
from ddrl.learners.core import LearnerCore, Setting
from ddrl.learners.parameter_groups import Groups, one_group
from ddrl.types import Metrics

Loss = Callable[[Any, Any, Any, Any, float], tuple[Tensor, Metrics]]
"""(network, target network, items, config, weight of an item) -> (weighted loss, metrics that add up over items); also
writes the items' `td_error`."""
Priorities = Callable[[Any, Any], Tensor]
"""(items with their `td_error`, config) -> new priorities [B]."""


class ReplayLearner:
    """One call of `step` = one update from `batch_size` items of the replay (Horgan et al. 2018, Algorithm 2)."""

    def __init__(
        self,
        config: Any,
        network: Any,
        params: Parameters,
        replay: Replay,
        setting: Setting,
        *,
        loss: Loss,
        priorities: Priorities,
        groups: Groups = one_group,
        publishes_target: bool = False,
    ) -> None:
        """`config` has the keys of `LearnerConfig`, batch_size, target_update_period and trained_steps (of an item).

        `groups` divides the network's parameters among optimizers. With `publishes_target` actors, and evaluations
        during the training, get the target network's parameters.
        """
        pieces = max(1, network.piece_steps // config.trained_steps)
        self.config = config
        self.core = LearnerCore(config, network, params, None, setting, piece_columns=pieces, groups=groups)
        self.target_network = copy.deepcopy(network).requires_grad_(False)
        self._replay = replay
        self._loss = loss
        self._priorities = priorities
        self._published = self.target_network if publishes_target else self.core.network
        self._target_updates = 0

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""
        return self._replay.can_sample(self.config.batch_size)

    def step(self) -> Metrics:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        batch = self._replay.sample(self.config.batch_size)  # 4  a prioritized batch
        metrics = self.update(batch)  # 5-7  the loss, and one step down
        self._replay.update(batch.drawn, self._priorities(batch, self.config))  # 8-9  new priorities
        self.core.count_to(batch.drawn.inserted_steps)
        if self.core.updates % self.config.target_update_period == 0:
            self.target_network.load_state_dict(self.core.network.state_dict())
            self._target_updates += 1
        self.core.publish(self._published)  # a new version for the actors
        return metrics | {"target_updates": float(self._target_updates)}

    def update(self, batch: Any) -> Metrics:
        """Make one gradient step on a batch, and write its `td_error`."""
        on_device = batch.to(self.core.setting.device)
        metrics = self.core.descend(
            lambda network, part, weight: self._loss(network, self.target_network, part, self.config, weight),
            on_device,
            batch.batch_size,
        )
        batch.td_error.copy_(on_device.td_error)
        self.core.updates += 1
        return metrics | self.core.policy_lag(batch.version)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the core and of the target network."""
        return self.core.state_dict() | {
            "target_network": self.target_network.state_dict(),
            "target_updates": self._target_updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.core.load_state_dict(state)
        self.target_network.load_state_dict(state["target_network"])
        self._target_updates = state["target_updates"]


def no_actions(batch_size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return last actions, last rewards and starts [1, B] for a network that reads none of them."""
    zeros = torch.zeros((1, batch_size), device=device)
    return zeros.long(), zeros, zeros.bool()
