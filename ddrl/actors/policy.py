"""A policy acts on an `EnvStep` and owns the recurrent state; its network is its own, or central (`Inference`)."""

from __future__ import annotations

from typing import Any

import torch

from ddrl.actors.exploration import Sampler
from ddrl.interfaces import Inference, Parameters
from ddrl.types import EnvStep, PolicyInput, PolicyOutput, PolicyStep, RecurrentState


class Policy:
    """Samples actions for B environments, with a generator of its own, whoever else is inferred for."""

    def __init__(self, inference: Inference, batch_size: int, generator: torch.Generator, sample: Sampler) -> None:
        """`sample`: how it acts on what the network puts out."""
        network: Any = inference.network
        self.inference = inference
        self.sampler = sample
        self._generator = generator
        self._device = next(network.parameters()).device
        self.state: RecurrentState = tuple(part.to(self._device) for part in network.initial_state(batch_size))
        self.last_action: torch.Tensor = network.no_action(batch_size)

    def pull(self, params: Parameters, unroll_index: int) -> None:
        """Makes ready for unroll `unroll_index`: with an own network, copies the parameters to act with into it."""
        self.inference.pull(params, unroll_index)

    @torch.inference_mode()
    def act(self, step: EnvStep) -> PolicyStep:
        """One action per environment, from pi(. | observation, state); advances the recurrent state."""
        start = torch.from_numpy(step.start)
        inputs = PolicyInput(
            torch.from_numpy(step.observation),
            masked_action(self.last_action, start),
            torch.from_numpy(step.reward).masked_fill(start, 0.0),
            start,
            self.state,
        )
        distribution, self.state, version, value = self.inference.infer(inputs)
        self.last_action = self.sampler(distribution, self._generator)
        return PolicyStep(self.last_action, distribution, torch.full((len(start),), version), value)

    def state_dict(self) -> dict[str, Any]:
        """Recurrent state and generator; with a network of its own, the parameters in use."""
        return self.inference.state_dict() | {
            "state": [part.cpu().clone() for part in self.state],
            "last_action": self.last_action.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.inference.load_state_dict(state)
        self.state = tuple(part.to(self._device) for part in state["state"])
        self.last_action = state["last_action"]
        self._generator.set_state(state["generator"])


class LocalInference:
    """Infers with a network of its own, which is on `device`; an actor that learns makes gradients reach it."""

    def __init__(self, network: Any, *, device: torch.device, precision: str) -> None:
        self.network = network.to(device)
        self.network.requires_grad_(False)
        self.version = 0
        """Of the parameters in `network`; set by whoever fills them in."""
        self.device = device
        self._bfloat16 = precision == "bfloat16"

    def autocast(self) -> torch.autocast:
        """Within it the network computes in the run's precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._bfloat16)

    def pull(self, params: Parameters, unroll_index: int) -> None:
        """Copies the parameters to act with into the network."""
        self.version = params.pull(self.network, unroll_index)

    @torch.inference_mode()
    def infer(self, inputs: PolicyInput) -> PolicyOutput:
        """One step of the network for [B, ...]."""
        with self.autocast():
            output = self.network(*(part[None].to(self.device) for part in inputs[:4]), inputs.state)
        return PolicyOutput(output.distribution[0].cpu(), output.state, self.version, output.value[0])

    def state_dict(self) -> dict[str, Any]:
        """Parameters in use."""
        return {"network": self.network.state_dict(), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.network.load_state_dict(state["network"])
        self.version = state["version"]


def masked_action(action: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """`action` [B] or [B, A], and 0 where an episode starts (`start` [B]): no action came before."""
    return action.masked_fill(start if action.dim() == 1 else start.unsqueeze(-1), 0)
