"""Policies act on an `EnvStep` and own the recurrent state; local and central inference share `.act()`."""

from __future__ import annotations

from typing import Any

import torch

from ddrl.types import EnvStep, PolicyStep, RecurrentState


class LocalPolicy:
    """Samples from a network of its own, for B environments, with a generator of its own."""

    def __init__(
        self, network: Any, batch_size: int, generator: torch.Generator, *, device: torch.device, precision: str
    ) -> None:
        self.network = network.to(device)
        self.network.requires_grad_(False)
        self.version = 0
        """Of the parameters in `network`; set by whoever pulls them."""
        self._generator = generator
        self._device = device
        self._bfloat16 = precision == "bfloat16"
        self.state: RecurrentState = tuple(part.to(device) for part in self.network.initial_state(batch_size))
        self.last_action: torch.Tensor = self.network.no_action(batch_size)

    @torch.inference_mode()
    def act(self, step: EnvStep) -> PolicyStep:
        """One action per environment, from pi(. | observation, state); advances the recurrent state."""
        start = torch.from_numpy(step.start)
        last_action = masked_action(self.last_action, start)
        last_reward = torch.from_numpy(step.reward).masked_fill(start, 0.0)
        inputs = (torch.from_numpy(step.observation), last_action, last_reward, start)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            output = self.network(*(part[None].to(self._device) for part in inputs), self.state)
        self.state = output.state
        distribution = output.distribution[0].cpu()
        self.last_action = self.network.family.sample(distribution, self._generator)
        return PolicyStep(self.last_action, distribution, torch.full((len(start),), self.version))

    def state_dict(self) -> dict[str, Any]:
        """Parameters in use, recurrent state and generator."""
        return {
            "network": self.network.state_dict(),
            "version": self.version,
            "state": [part.cpu().clone() for part in self.state],
            "last_action": self.last_action.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.network.load_state_dict(state["network"])
        self.version = state["version"]
        self.state = tuple(part.to(self._device) for part in state["state"])
        self.last_action = state["last_action"]
        self._generator.set_state(state["generator"])


def masked_action(action: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """`action` [B] or [B, A], and 0 where an episode starts (`start` [B]): no action came before."""
    return action.masked_fill(start if action.dim() == 1 else start.unsqueeze(-1), 0)
