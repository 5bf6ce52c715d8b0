"""The actor-critic network: torso, optional last action, reward and instruction, optional LSTM, policy, value heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.errors import UserError
from ddrl.interfaces import Reducer
from ddrl.networks.distributions import CATEGORICAL, GAUSSIAN, Family
from ddrl.networks.initialisation import Orthogonal, TruncatedNormal, default_initialisation, linear
from ddrl.networks.instruction_encoder import as_seen_by_torso, instruction_channel
from ddrl.networks.normalisation import ObservationNormaliser, RewardNormaliser
from ddrl.networks.recurrent import ResettingLSTM
from ddrl.networks.torsos import Torso, make_torso
from ddrl.types import EnvSpec, NetworkOutput, RecurrentState

PIECE_STEPS = {"uint8": 256, "float32": 4096}
"""Steps whose activations are held at once, by the type of the observations: 256 keep the deep network under 1 GiB."""


class ActorCritic(nn.Module):
    """pi(a|x) and V(x) from one body (Espeholt et al. 2018, Figure 3), or from two; made by `make_actor_critic`."""

    def __init__(
        self,
        spec: EnvSpec,
        torso: Torso,
        lstm_size: int,
        feed_last_action_and_reward: bool,
        initialisation: TruncatedNormal | Orthogonal,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.family: Family = GAUSSIAN if spec.action_size else CATEGORICAL
        self.num_actions, self.action_size = spec.num_actions, spec.action_size
        self.feed_last_action_and_reward = feed_last_action_and_reward
        self.observation_normaliser: ObservationNormaliser | None = None
        self.reward_normaliser: RewardNormaliser | None = None
        self.piece_steps = PIECE_STEPS[spec.observation_dtype]
        self.torso = torso
        self.value_torso: Torso | None = None
        actions = spec.action_size or spec.num_actions
        size = torso.size + (actions + 1 if feed_last_action_and_reward else 0)
        self.instructions = instruction_channel(spec, generator)
        size += 0 if self.instructions is None else self.instructions.size
        self.core = ResettingLSTM(size, lstm_size, generator) if lstm_size else None
        size = lstm_size or size
        _, policy_gain, value_gain = initialisation.gains
        self.policy = linear(size, actions, generator, policy_gain)
        self.value = linear(size, 1, generator, value_gain)
        self.log_std: nn.Parameter | None = None

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, start: Tensor, state: RecurrentState
    ) -> NetworkOutput:
        """Distributions [T, B, P] and values [T, B] in float32, and the state after step T.

        Args:
            observation: [T, B, ...] uint8 or float32; an instruction packed with the image is read beside it.
            last_action: [T, B] int64 or [T, B, A] float32; read only with `feed_last_action_and_reward`, one-hot where
                discrete.
            last_reward: [T, B] float32, raw; likewise, clipped to [-1, 1] here.
            start: [T, B] bool: the recurrent state is zeroed before these steps.
            state: before step 0, from `initial_state` or an earlier output.
        """
        time, batch = observation.shape[:2]
        if self.observation_normaliser is not None:
            observation = self.observation_normaliser(observation)
        flat, instruction = observation.flatten(0, 1), None
        if self.instructions is not None:
            flat, instruction = self.instructions(flat)
        features = self.torso(flat)
        if self.feed_last_action_and_reward:
            action = last_action.flatten(0, 1)
            inputs = action if self.action_size else F.one_hot(action, self.num_actions)
            reward = last_reward.flatten().clamp(-1.0, 1.0).unsqueeze(-1)
            features = torch.cat([features, reward.to(features.dtype), inputs.to(features.dtype)], dim=-1)
        if instruction is not None:
            features = torch.cat([features, instruction.to(features.dtype)], dim=-1)
        if self.core is not None:
            outputs, state = self.core(features.unflatten(0, (time, batch)), start, state)
            features = outputs.flatten(0, 1)
        distribution = self.policy(features).float()
        if self.log_std is not None:
            distribution = torch.cat([distribution, self.log_std.expand_as(distribution)], dim=-1)
        value = self.value(features if self.value_torso is None else self.value_torso(flat))
        return NetworkOutput(distribution.unflatten(0, (time, batch)), value.float().view(time, batch), state)

    def initial_state(self, batch_size: int) -> RecurrentState:
        """The state before an episode: zeros, or () for a feed-forward network."""
        return () if self.core is None else self.core.initial_state(batch_size)

    def no_action(self, batch_size: int) -> Tensor:
        """The last action before an episode: zeros [batch_size] int64 or [batch_size, A] float32."""
        return torch.zeros(batch_size, self.action_size) if self.action_size else torch.zeros(batch_size).long()

    def normalised_reward(self, reward: Tensor) -> Tensor:
        """Rewards [...] as the losses see them: scaled, where the network keeps statistics of returns."""
        return reward if self.reward_normaliser is None else self.reward_normaliser(reward)

    def observe(self, observations: Tensor, reducer: Reducer) -> None:
        """Adds observations [N, ...] to the statistics, if there are any."""
        if self.observation_normaliser is not None:
            self.observation_normaliser.update(observations, reducer)


def make_actor_critic(
    spec: EnvSpec,
    *,
    network: str,
    generator: torch.Generator,
    lstm_size: int = 0,
    feed_last_action_and_reward: bool = False,
    separate_value_network: bool = False,
    initial_log_std: float = 0.0,
    initialisation: TruncatedNormal | Orthogonal | None = None,
    observation_normalisation: bool = False,
    normalised_observation_clip: float | None = 10.0,
    reward_normalisation: bool = False,
    normalised_reward_clip: float | None = 10.0,
) -> ActorCritic:
    """The network of an agent, with weights from `generator` (on the CPU) alone.

    `network` names the torso (`ddrl.networks.torsos.NETWORKS`). `lstm_size` 0 is feed-forward. Continuous actions get a
    diagonal Gaussian whose log standard deviation is one learned number per dimension, whatever the observation.
    `separate_value_network`: V(x) has a torso of its own. `initialisation`: None is that of the network
    (`default_initialisation`). What is normalised is clipped to +- its bound; None: not at all. Raises `UserError` on
    an unknown network, one that does not fit the observations of `spec`, a negative `lstm_size`, or keys that exclude
    each other.
    """
    if lstm_size < 0:
        raise UserError(f"lstm_size is {lstm_size}; allowed: 0 (feed-forward) or a positive number of units")
    if separate_value_network and (lstm_size or feed_last_action_and_reward):
        raise UserError(
            "separate_value_network: true goes with lstm_size: 0 and feed_last_action_and_reward: false only"
        )
    if separate_value_network and spec.image_shape is not None:
        raise UserError(f"separate_value_network: true would not see the instructions of '{spec.name}'; allowed: false")
    if observation_normalisation and spec.observation_dtype != "float32":
        raise UserError(f"observation_normalisation: true needs float32 observations, but '{spec.name}' has images")

    start = initialisation or default_initialisation(network)
    hidden_gain, _, value_gain = start.gains
    torso = make_torso(as_seen_by_torso(spec), network, generator, hidden_gain)
    made = ActorCritic(spec, torso, lstm_size, feed_last_action_and_reward, start, generator)
    if separate_value_network:
        made.value_torso = make_torso(spec, network, generator, hidden_gain)
        made.value = linear(made.value_torso.size, 1, generator, value_gain)
    if spec.action_size:
        made.log_std = nn.Parameter(torch.full((spec.action_size,), initial_log_std))
    if observation_normalisation:
        made.observation_normaliser = ObservationNormaliser(spec.observation_shape, normalised_observation_clip)
    if reward_normalisation:
        made.reward_normaliser = RewardNormaliser(normalised_reward_clip)
    return made


def unread_keys(spec: EnvSpec, observation_normalisation: bool, reward_normalisation: bool) -> dict[str, str]:
    """Keys of `make_actor_critic` that change nothing here -> what would read them."""
    unread = {}
    if not spec.action_size:
        unread["initial_log_std"] = "continuous actions"
    if not observation_normalisation:
        unread["normalised_observation_clip"] = "observation_normalisation: true"
    if not reward_normalisation:
        unread["normalised_reward_clip"] = "reward_normalisation: true"
    return unread
