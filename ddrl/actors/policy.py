"""Policies, which choose actions and keep the recurrent state, and inference with a network of the actor's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ddrl.interfaces import ActingNetwork, Inference, Parameters
from ddrl.system.precision import autocast
from ddrl.types import EnvStep, PolicyInput, PolicyOutput, PolicyStep, RecurrentState

Sampler = Callable[[Tensor, torch.Generator], Tensor]
"""(network output [B, P], generator) -> actions [B] or [B, A]."""


class Policy:
    """Samples actions for B environments with its own generator; `Inference` may be local or shared by all actors."""

    def __init__(self, inference: Inference, batch_size: int, generator: torch.Generator, sample: Sampler) -> None:
        """`sample` chooses actions from the network's outputs, where `generator` is: `inference` answers there."""
        network = cast(ActingNetwork, inference.network)
        self.inference = inference
        self.sampler = sample
        self._generator = generator
        self._device = next(inference.network.parameters()).device
        self.state: RecurrentState = tuple(part.to(self._device) for part in network.initial_state(batch_size))
        self.last_action: torch.Tensor = network.no_action(batch_size).to(generator.device)

    def pull(self, params: Parameters, unroll_index: int) -> None:
        """Prepare for unroll `unroll_index`: copy the parameters to act with into a network of its own."""
        self.inference.pull(params, unroll_index)

    def act(self, step: EnvStep) -> PolicyStep:
        """Sample one action per environment from pi(. | observation, state); advance the recurrent state."""
        return self.answer(self.inputs(step))

    def inputs(self, step: EnvStep) -> PolicyInput:
        """Return what the network is given at a step; last actions and rewards are 0 where an episode starts."""
        start, action, reward = torch.from_numpy(step.start), self.last_action, torch.from_numpy(step.reward)
        if np.count_nonzero(step.start):
            action = action.masked_fill(start if action.dim() == 1 else start.unsqueeze(-1), 0)
            reward = reward.masked_fill(start, 0.0)
        return PolicyInput(torch.from_numpy(step.observation), action, reward, start, self.state)

    def answer(self, inputs: PolicyInput) -> PolicyStep:
        """Act as `act` does, on inputs that `inputs` has returned for the newest step."""
        with torch.inference_mode():
            distribution, self.state, version, value = self.inference.infer(inputs)
            self.last_action = self.sampler(distribution, self._generator)
        return PolicyStep(self.last_action, distribution, _everywhere(version, distribution.shape[0]), value)

    def state_dict(self) -> dict[str, Any]:
        """Return recurrent state and generator; of a network of its own, also the parameters in use."""
        return self.inference.state_dict() | self.own_state_dict()

    def own_state_dict(self) -> dict[str, Any]:
        """Return recurrent state and generator alone."""
        return {
            "state": [part.cpu().clone() for part in self.state],
            "last_action": self.last_action.cpu().clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.inference.load_state_dict(state)
        self.load_own_state_dict(state)

    def load_own_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `own_state_dict`."""
        self.state = tuple(part.to(self._device) for part in state["state"])
        self.last_action = state["last_action"].to(self._generator.device)
        self._generator.set_state(state["generator"])


class LocalInference:
    """Inference with the actor's own network on `device`, without gradients unless the actor enables them."""

    def __init__(self, network: Any, *, device: torch.device, precision: str, stays: bool = False) -> None:
        """`stays`: distributions stay on `device`; otherwise they are brought to the CPU."""
        self.network = network.to(device)
        self.network.requires_grad_(False)
        self.version = 0
        """Version of the parameters in `network`; set by the code that copies them in."""
        self.device = device
        self._answers_on = device if stays else torch.device("cpu")
        self._directly = bool(network.sees_steps_alone) and self._answers_on.type == device.type
        self._precision = precision

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which the network computes in the run's precision."""
        return autocast(self.device, self._precision)

    def leave_out_values(self) -> None:
        """Tell the network that nobody reads its values; one that does not read this computes them still."""
        self.network.predicts_values = False

    def pull(self, params: Parameters, unroll_index: int) -> None:
        """Copy the parameters to act with into the network."""
        self.version = params.pull(self.network, unroll_index)

    def infer(self, inputs: PolicyInput) -> PolicyOutput:
        """Make one step of the network for inputs [B, ...], as the caller does in inference mode."""
        with self.autocast():
            if self._directly:
                distribution, value = self.network.of_steps(inputs.observation)
                return PolicyOutput(distribution, (), self.version, value)
            parts = (part.to(self.device).unsqueeze(0) for part in inputs[:4])
            output = self.network.forward(*parts, inputs.state)
        distribution = output.distribution[0].to(self._answers_on)
        return PolicyOutput(distribution, output.state, self.version, output.value[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters in use and their version."""
        return {"network": self.network.state_dict(), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.network.load_state_dict(state["network"])
        self.version = state["version"]


def from_distribution(config: Any, network: Any, envs: Sequence[int] | None, num_envs: int) -> Sampler:
    """Return the sampler of the actor-critic algorithms: from the network's distribution, also in evaluation."""
    sample: Sampler = network.family.sample
    return sample


@lru_cache(maxsize=64)
def _everywhere(version: int, batch_size: int) -> Tensor:
    """Return a version for each environment, [B] int64; one tensor for all steps with it, which nobody changes."""
    return torch.full((batch_size,), version)
