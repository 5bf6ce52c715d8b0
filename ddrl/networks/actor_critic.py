"""The actor-critic network: torso, optional last action and reward, optional LSTM, policy and value heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.errors import UserError
from ddrl.networks.recurrent import ResettingLSTM
from ddrl.networks.torsos import Torso, linear, make_torso
from ddrl.types import EnvSpec, NetworkOutput, RecurrentState


class ActorCritic(nn.Module):
    """pi(a|x) and V(x) from one body (Espeholt et al. 2018, Figure 3); made by `make_actor_critic`."""

    def __init__(
        self,
        torso: Torso,
        num_actions: int,
        lstm_size: int,
        feed_last_action_and_reward: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.feed_last_action_and_reward = feed_last_action_and_reward
        self.torso = torso
        size = torso.size + (num_actions + 1 if feed_last_action_and_reward else 0)
        self.core = ResettingLSTM(size, lstm_size, generator) if lstm_size else None
        size = lstm_size or size
        self.policy = linear(size, num_actions, generator)
        self.value = linear(size, 1, generator)

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, start: Tensor, state: RecurrentState
    ) -> NetworkOutput:
        """Logits [T, B, A] and values [T, B] in float32, and the state after step T.

        Args:
            observation: [T, B, ...] uint8 or float32.
            last_action: [T, B] int64; read only with `feed_last_action_and_reward`, as one-hot.
            last_reward: [T, B] float32, raw; likewise, clipped to [-1, 1] here.
            start: [T, B] bool: the recurrent state is zeroed before these steps.
            state: before step 0, from `initial_state` or an earlier output.
        """
        time, batch = observation.shape[:2]
        features = self.torso(observation.flatten(0, 1))
        if self.feed_last_action_and_reward:
            one_hot = F.one_hot(last_action.flatten(), self.num_actions)
            reward = last_reward.flatten().clamp(-1.0, 1.0).unsqueeze(-1)
            features = torch.cat([features, reward.to(features.dtype), one_hot.to(features.dtype)], dim=-1)
        if self.core is not None:
            outputs, state = self.core(features.unflatten(0, (time, batch)), start, state)
            features = outputs.flatten(0, 1)
        logits = self.policy(features).float().unflatten(0, (time, batch))
        value = self.value(features).float().view(time, batch)
        return NetworkOutput(logits, value, state)

    def initial_state(self, batch_size: int) -> RecurrentState:
        """The state before an episode: zeros, or () for a feed-forward network."""
        return () if self.core is None else self.core.initial_state(batch_size)


def make_actor_critic(
    spec: EnvSpec,
    *,
    network: str,
    lstm_size: int,
    feed_last_action_and_reward: bool,
    generator: torch.Generator,
) -> ActorCritic:
    """The network of an IMPALA agent, with weights from `generator` (on the CPU) alone.

    `network` names the torso: "shallow" (two convolutions), "nature" (three), "deep"
    (15 convolutions) or "mlp". `lstm_size` 0 is feed-forward. Raises `UserError` on an unknown network, one that does
    not fit the observations of `spec`, or a negative `lstm_size`.
    """
    if lstm_size < 0:
        raise UserError(f"lstm_size is {lstm_size}; allowed: 0 (feed-forward) or a positive number of units")
    torso = make_torso(spec, network, generator)
    return ActorCritic(torso, spec.num_actions, lstm_size, feed_last_action_and_reward, generator)
