"""The Q-network: torso, optional last action, reward and instruction, optional LSTM, one or two (dueling) heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.errors import UserError
from ddrl.networks.actor_critic import PIECE_STEPS
from ddrl.networks.initialisation import linear
from ddrl.networks.instruction_encoder import as_seen_by_torso, instruction_channel
from ddrl.networks.recurrent import ResettingLSTM
from ddrl.networks.torsos import DeepTorso, Torso, make_torso
from ddrl.types import EnvSpec, NetworkOutput, RecurrentState


class Head(nn.Module):
    """A rectified hidden layer, then a linear one: [N, inputs] -> [N, outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = linear(inputs, hidden, generator)
        self.output = linear(hidden, outputs, generator)

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        out: Tensor = self.output(F.relu(self.hidden(features)))
        return out


class QNetwork(nn.Module):
    """Q(o, .) of a discrete task; made by `make_q_network`. Its `distribution` are the values of all actions."""

    def __init__(
        self,
        spec: EnvSpec,
        torso: Torso,
        lstm_size: int,
        feed_last_action_and_reward: bool,
        dueling: bool,
        head_size: int,
        generator: torch.Generator,
        reward_input: str,
    ) -> None:
        super().__init__()
        self.num_actions = spec.num_actions
        self.feed_last_action_and_reward = feed_last_action_and_reward
        self.reward_input = reward_input
        self.observation_normaliser = None
        self.reward_normaliser = None
        self.piece_steps = PIECE_STEPS["uint8" if isinstance(torso, DeepTorso) else "float32"]
        self.torso = torso
        size = torso.size + (spec.num_actions + 1 if feed_last_action_and_reward else 0)
        self.instructions = instruction_channel(spec, generator)
        size += 0 if self.instructions is None else self.instructions.size
        self.core = ResettingLSTM(size, lstm_size, generator) if lstm_size else None
        size = lstm_size or size
        self.advantage = Head(size, head_size, spec.num_actions, generator)
        self.value = Head(size, head_size, 1, generator) if dueling else None

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, start: Tensor, state: RecurrentState
    ) -> NetworkOutput:
        """Values [T, B, A] of all actions and of the best one [T, B], in float32, and the state after step T.

        Args:
            observation: [T, B, ...] uint8 or float32; an instruction packed with the image is read beside it.
            last_action: [T, B] int64; read only with `feed_last_action_and_reward`, one-hot.
            last_reward: [T, B] float32, raw; likewise, as it is or its tanh, by `reward_input`.
            start: [T, B] bool: the recurrent state is zeroed before these steps.
            state: before step 0, from `initial_state` or an earlier output.
        """
        time, batch = observation.shape[:2]
        flat, instruction = observation.flatten(0, 1), None
        if self.instructions is not None:
            flat, instruction = self.instructions(flat)
        features = self.torso(flat)
        if self.feed_last_action_and_reward:
            action = F.one_hot(last_action.flatten(), self.num_actions).to(features.dtype)
            reward = last_reward.tanh() if self.reward_input == "tanh" else last_reward
            features = torch.cat([features, reward.flatten().unsqueeze(-1).to(features.dtype), action], dim=-1)
        if instruction is not None:
            features = torch.cat([features, instruction.to(features.dtype)], dim=-1)
        if self.core is not None:
            outputs, state = self.core(features.unflatten(0, (time, batch)), start, state)
            features = outputs.flatten(0, 1)
        q = self.advantage(features).float()
        if self.value is not None:  # Wang et al. 2016, eq. 9
            q = self.value(features).float() + q - q.mean(dim=-1, keepdim=True)
        q = q.unflatten(0, (time, batch))
        return NetworkOutput(q, q.amax(dim=-1), state)

    def initial_state(self, batch_size: int) -> RecurrentState:
        """The state before an episode: zeros, or () for a feed-forward network."""
        return () if self.core is None else self.core.initial_state(batch_size)

    def no_action(self, batch_size: int) -> Tensor:
        """The last action before an episode: zeros [batch_size] int64."""
        return torch.zeros(batch_size, dtype=torch.int64)


def make_q_network(
    spec: EnvSpec,
    *,
    network: str,
    lstm_size: int,
    feed_last_action_and_reward: bool,
    dueling: bool,
    head_size: int,
    generator: torch.Generator,
    reward_input: str = "raw",
) -> QNetwork:
    """The network of an agent, with weights from `generator` (on the CPU) alone.

    Feed-forward (`lstm_size` 0), the heads' hidden layers take the place of the convolutional torsos' linear layer
    (Wang et al. 2016, Figure 1). Raises `UserError` on an unknown network, or one that does not fit the observations.
    """
    if spec.action_size:
        raise UserError(f"'{spec.name}' has continuous actions; Q-learning needs discrete ones")
    torso = make_torso(as_seen_by_torso(spec), network, generator, convolutions_only=not lstm_size)
    return QNetwork(spec, torso, lstm_size, feed_last_action_and_reward, dueling, head_size, generator, reward_input)
