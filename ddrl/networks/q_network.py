"""The Q-network: torso, optional last action, reward and instruction, optional LSTM, one head or two (dueling)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.errors import UserError
from ddrl.networks.agent_network import PIECE_STEPS, AgentNetwork, network_keys
from ddrl.networks.initialisation import linear
from ddrl.networks.torsos import DeepTorso
from ddrl.types import EnvSpec


class Head(nn.Module):
    """A rectified hidden layer, then a linear one: [N, inputs] -> [N, outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = linear(inputs, hidden, generator)
        self.output = linear(hidden, outputs, generator)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.output(F.relu(self.hidden(features)))
        return out


class QNetwork(AgentNetwork):
    """Q(o, .) of a discrete task; its output's `distribution` holds the values of all actions."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        network: str,
        head_size: int,
        generator: torch.Generator,
        lstm_size: int = 0,
        feed_last_action_and_reward: bool = False,
        dueling: bool = False,
        reward_input: str = "raw",
    ) -> None:
        """Draw all weights from `generator` (on the CPU).

        Without an LSTM (`lstm_size` 0), the heads' hidden layers replace the linear layer of the convolutional torsos
        (Wang et al. 2016, Figure 1). Raises `UserError` if the network is unknown or does not fit the observations.
        """
        if spec.action_size:
            raise UserError(f"'{spec.name}' has continuous actions; Q-learning needs discrete ones")
        super().__init__(
            spec,
            network,
            generator,
            lstm_size=lstm_size,
            feed_last_action_and_reward=feed_last_action_and_reward,
            convolutions_only=not lstm_size,
        )
        self.reward_input = reward_input
        self.piece_steps = PIECE_STEPS["uint8" if isinstance(self.torso, DeepTorso) else "float32"]
        self.advantage = Head(self.feature_size, head_size, spec.num_actions, generator)
        self.value = Head(self.feature_size, head_size, 1, generator) if dueling else None

    def seen_reward(self, reward: Tensor) -> Tensor:
        """Return rewards [N] as they are, or their tanh (`reward_input`)."""
        return reward.tanh() if self.reward_input == "tanh" else reward

    def heads(self, features: Tensor, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of all actions [N, A], and those of the best ones [N]."""
        q = self.advantage(features).float()
        if self.value is not None:  # Wang et al. 2016, eq. 9
            q = self.value(features).float() + q - q.mean(dim=-1, keepdim=True)
        return q, q.amax(dim=-1)


def make_q_network(spec: EnvSpec, config: Any, generator: torch.Generator) -> QNetwork:
    """Return the network that an algorithm's `config` describes; keys that it does not have keep their defaults."""
    return QNetwork(spec, generator=generator, **network_keys(QNetwork, config))
