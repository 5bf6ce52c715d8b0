"""The Q-network: torso, optional last action, reward and instruction, optional LSTM, one head or two (dueling)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.errors import UserError
from ddrl.networks.actor_critic import network_keys
from ddrl.networks.direct import find_parts_directly
from ddrl.networks.initialisation import Gain, Kind, TruncatedNormal, linear
from ddrl.networks.torsos import DeepTorso, described
from ddrl.networks.trunk import PIECE_STEPS, features, make_trunk
from ddrl.types import EnvSpec, NetworkOutput, RecurrentState


class Head(nn.Module):
    """A rectified hidden layer, then a linear one: [N, inputs] -> [N, outputs]."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, generator: torch.Generator, gains: tuple[Gain, Gain]
    ) -> None:
        """`gains`: of the hidden layer and of the linear one (`ddrl.networks.initialisation`)."""
        super().__init__()
        self.hidden = linear(inputs, hidden, generator, gains[0])
        self.output = linear(hidden, outputs, generator, gains[1])

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.output(F.relu(self.hidden(features)))
        return out


class QNetwork(nn.Module):
    """Q(o, .) of a discrete task; its output's `distribution` holds the values of all actions."""

    sees_steps_alone = False
    """Whether there is a way to evaluate single steps that takes fewer operations."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        network: str,
        head_size: int,
        generator: torch.Generator,
        mlp_size: int | tuple[int, ...] | None = None,
        scaled_pixels: bool = True,
        initialisation: Kind | None = None,
        lstm_size: int = 0,
        feed_last_action_and_reward: bool = False,
        dueling: bool = False,
        reward_input: str = "raw",
    ) -> None:
        """Draw all weights from `generator` (on the CPU).

        Without an LSTM (`lstm_size` 0), the heads' hidden layers replace the linear layer of the convolutional torsos
        (Wang et al. 2016, Figure 1). For `mlp_size` and `scaled_pixels` see `make_torso`. `initialisation` None means
        truncated normal; values of actions start as an actor-critic's value. Raises `UserError` if the network is
        unknown or does not fit the observations.
        """
        super().__init__()
        if spec.action_size:
            raise UserError(f"'{spec.name}' has continuous actions; Q-learning needs discrete ones")
        self.num_actions = spec.num_actions
        self.feed_last_action_and_reward = feed_last_action_and_reward
        self.reward_input = reward_input
        self.observation_normaliser = None
        self.reward_normaliser = None
        hidden_gain, _, value_gain = self.gains = (initialisation or TruncatedNormal()).gains
        self.torso, self.instructions, self.vector, self.core, size = make_trunk(
            spec,
            network,
            generator,
            lstm_size=lstm_size,
            feed_last_action_and_reward=feed_last_action_and_reward,
            gain=hidden_gain,
            convolutions_only=not lstm_size,
            mlp_size=mlp_size,
            scaled_pixels=scaled_pixels,
        )
        self.piece_steps = PIECE_STEPS["uint8" if isinstance(self.torso, DeepTorso) else "float32"]
        gains = (hidden_gain, value_gain)
        self.advantage = Head(size, head_size, spec.num_actions, generator, gains)
        self.value = Head(size, head_size, 1, generator, gains) if dueling else None
        find_parts_directly(self)

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, start: Tensor, state: RecurrentState
    ) -> NetworkOutput:
        """Return values [T, B, A] of all actions and [T, B] of the best one, in float32, and the state after step T.

        Arguments as of `ddrl.networks.trunk.features`.
        """
        found, _, state = features(self, observation, last_action, last_reward, start, state)
        q = self.advantage(found).float()
        if self.value is not None:  # Wang et al. 2016, eq. 9
            q = self.value(found).float() + q - q.mean(dim=-1, keepdim=True)
        q = q.unflatten(0, observation.shape[:2])
        return NetworkOutput(q, q.amax(dim=-1), state)

    def describe(self) -> dict[str, Any]:
        """Return layers as plain data, from which another library builds the same network."""
        return {
            "torso": described(self.torso),
            "recurrent": 0 if self.core is None else self.core.size,
            "instructions": 0 if self.instructions is None else self.instructions.size,
            "heads": {"hidden": self.advantage.hidden.out_features, "dueling": self.value is not None},
            "gains": list(self.gains),
        }

    def seen_reward(self, last_reward: Tensor) -> Tensor:
        """Return rewards as they are, or their tanh (`reward_input`)."""
        return last_reward.tanh() if self.reward_input == "tanh" else last_reward

    def initial_state(self, batch_size: int) -> RecurrentState:
        """Return the state before an episode: zeros, or () without an LSTM."""
        return () if self.core is None else self.core.initial_state(batch_size)

    def no_action(self, batch_size: int) -> Tensor:
        """Return the last action before an episode: zeros [batch_size] int64."""
        return torch.zeros(batch_size, dtype=torch.int64)


def make_q_network(spec: EnvSpec, config: Any, generator: torch.Generator) -> QNetwork:
    """Return the network that an algorithm's `config` describes; keys that it does not have keep their defaults."""
    return QNetwork(spec, generator=generator, **network_keys(QNetwork, config))
