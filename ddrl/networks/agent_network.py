"""What all networks of agents share: torso, optional instruction, last action and reward, and an optional LSTM."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.networks.instruction_encoder import as_seen_by_torso, instruction_channel
from ddrl.networks.normalisation import ObservationNormaliser, RewardNormaliser
from ddrl.networks.recurrent import ResettingLSTM
from ddrl.networks.torsos import make_torso
from ddrl.types import EnvSpec, NetworkOutput, RecurrentState

PIECE_STEPS = {"uint8": 256, "float32": 4096}
"""Steps whose activations are held at once, by the type of the observations: 256 keep the deep network under 1 GiB."""


class AgentNetwork(nn.Module, ABC):
    """A network that sees T steps of B environments and keeps a recurrent state; its heads are its own."""

    piece_steps: int
    """Steps whose activations are held at once."""

    def __init__(
        self,
        spec: EnvSpec,
        network: str,
        generator: torch.Generator,
        *,
        lstm_size: int,
        feed_last_action_and_reward: bool,
        hidden_gain: float | None = None,
        convolutions_only: bool = False,
    ) -> None:
        """Draw all weights but the heads' from `generator`; `hidden_gain`, `convolutions_only`: see `make_torso`."""
        super().__init__()
        self.num_actions, self.action_size = spec.num_actions, spec.action_size
        self.feed_last_action_and_reward = feed_last_action_and_reward
        self.observation_normaliser: ObservationNormaliser | None = None
        self.reward_normaliser: RewardNormaliser | None = None
        self.torso = make_torso(
            as_seen_by_torso(spec), network, generator, hidden_gain, convolutions_only=convolutions_only
        )
        size = self.torso.size + ((spec.action_size or spec.num_actions) + 1 if feed_last_action_and_reward else 0)
        self.instructions = instruction_channel(spec, generator)
        size += 0 if self.instructions is None else self.instructions.size
        self.core = ResettingLSTM(size, lstm_size, generator) if lstm_size else None
        self.feature_size = lstm_size or size

    @abstractmethod
    def seen_reward(self, reward: Tensor) -> Tensor:
        """Return rewards [N] as the network is fed them."""

    @abstractmethod
    def heads(self, features: Tensor, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return distributions [N, P] and values [N] or [N, 1] in float32.

        Args:
            features: [N, `feature_size`], after the LSTM.
            observation: [N, ...] as the torso sees it, for heads with a torso of their own.
        """

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, start: Tensor, state: RecurrentState
    ) -> NetworkOutput:
        """Return distributions [T, B, P] and values [T, B] in float32, and the state after step T.

        Args:
            observation: [T, B, ...] uint8 or float32; may hold an instruction packed with the image.
            last_action: [T, B] int64 or [T, B, A] float32; read only with `feed_last_action_and_reward`, discrete
                actions as one-hot vectors.
            last_reward: [T, B] float32, raw; read only with `feed_last_action_and_reward`, as `seen_reward`.
            start: [T, B] bool: the recurrent state is set to zero before these steps.
            state: before step 0, from `initial_state` or an earlier output.
        """
        time, batch = observation.shape[:2]
        if self.observation_normaliser is not None:
            observation = self.observation_normaliser(observation)
        flat, instruction = observation.flatten(0, 1), None
        if self.instructions is not None:
            flat, instruction = self.instructions(flat)
        parts = [self.torso(flat)]
        if self.feed_last_action_and_reward:
            action = last_action.flatten(0, 1)
            parts.append(self.seen_reward(last_reward.flatten()).unsqueeze(-1))
            parts.append(action if self.action_size else F.one_hot(action, self.num_actions))
        if instruction is not None:
            parts.append(instruction)
        features = torch.cat([part.to(parts[0].dtype) for part in parts], dim=-1) if len(parts) > 1 else parts[0]
        if self.core is not None:
            outputs, state = self.core(features.unflatten(0, (time, batch)), start, state)
            features = outputs.flatten(0, 1)
        distribution, value = self.heads(features, flat)
        return NetworkOutput(distribution.view(time, batch, distribution.shape[-1]), value.view(time, batch), state)

    def initial_state(self, batch_size: int) -> RecurrentState:
        """Return the state before an episode: zeros, or () without an LSTM."""
        return () if self.core is None else self.core.initial_state(batch_size)

    def no_action(self, batch_size: int) -> Tensor:
        """Return the last action before an episode: zeros [batch_size] int64 or [batch_size, A] float32."""
        return torch.zeros(batch_size, self.action_size) if self.action_size else torch.zeros(batch_size).long()


def network_keys(kind: type[nn.Module], config: Any) -> dict[str, Any]:
    """Return the arguments of the network class `kind` that `config` has under the same name."""
    return {name: getattr(config, name) for name in inspect.signature(kind).parameters if hasattr(config, name)}
