"""The actor-critic network: torso, optional inputs and LSTM, a policy head and a value head."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from ddrl.errors import UserError
from ddrl.networks.direct import find_parts_directly
from ddrl.networks.distributions import CATEGORICAL, GAUSSIAN, Family
from ddrl.networks.initialisation import Kind, default_initialisation, linear
from ddrl.networks.normalisation import ObservationNormaliser, ReturnScale, RewardNormaliser
from ddrl.networks.torsos import VECTORS, Torso, described, make_torso
from ddrl.networks.trunk import Fed, features, features_of_steps, make_trunk, steps_held
from ddrl.types import EnvSpec, NetworkOutput, RecurrentState

NO_VALUE = torch.tensor(math.nan)
"""Stands for values that nobody reads."""
MEMORY_KEYS = ("lstm_size", "feed_last_action_and_reward")
"""Keys with one of which an output depends on the steps before."""
EXCLUDED_BY = {"separate_value_network": MEMORY_KEYS}
"""Key -> keys, and with one of them a network cannot have it: a value network of its own has no memory."""


class ActorCritic(nn.Module):
    """pi(a|x) and V(x), from one torso (Espeholt et al. 2018, Figure 3) or from one torso each."""

    predicts_values = True
    """Whether V(x) is computed; False: NaN stands in its place, for who only acts."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        network: str,
        generator: torch.Generator,
        mlp_size: int | None = None,
        scaled_pixels: bool = True,
        lstm_size: int = 0,
        feed_last_action_and_reward: Fed = False,
        separate_value_network: bool = False,
        initial_log_std: float = 0.0,
        initialisation: Kind | None = None,
        observation_normalisation: bool = False,
        normalised_observation_clip: float | None = 10.0,
        reward_normalisation: bool = False,
        normalised_reward_clip: float | None = 10.0,
        return_scaling: bool = False,
    ) -> None:
        """Draw all weights from `generator` (on the CPU).

        `network` names the torso (`ddrl.networks.torsos.NETWORKS`); for `mlp_size` and `scaled_pixels` see
        `make_torso`. `lstm_size` 0 means no LSTM. Continuous actions get a diagonal Gaussian whose log standard
        deviation is one learned number per dimension, the same for every observation. With `separate_value_network`,
        V(x) has its own torso. `initialisation` None means the default of the network (`default_initialisation`).
        Normalised values are clipped to +- their bound; None: not clipped. With `return_scaling`, V(x) is measured in
        the running deviation of returns, which a learner updates.
        Raises `UserError` if the network is unknown or does not fit the observations of `spec`, if `lstm_size` is
        negative, or if keys exclude each other.
        """
        super().__init__()
        _check_keys(spec, lstm_size, feed_last_action_and_reward, separate_value_network, observation_normalisation)
        initialisation = initialisation or default_initialisation(network)
        hidden_gain, policy_gain, value_gain = self.gains = initialisation.gains
        self.family: Family = GAUSSIAN if spec.action_size else CATEGORICAL
        self.num_actions, self.action_size = spec.num_actions, spec.action_size
        self.feed_last_action_and_reward = feed_last_action_and_reward
        self.piece_steps, self.kept_steps = steps_held(spec, network)
        options: dict[str, Any] = {"mlp_size": mlp_size, "scaled_pixels": scaled_pixels}
        self.torso, self.instructions, self.vector, self.core, size = make_trunk(
            spec,
            network,
            generator,
            lstm_size=lstm_size,
            feed_last_action_and_reward=feed_last_action_and_reward,
            gain=hidden_gain,
            **options,
        )
        self.policy = linear(size, spec.action_size or spec.num_actions, generator, policy_gain)
        self.value = linear(size, 1, generator, value_gain)
        self.value_torso: Torso | None = None
        if separate_value_network:
            self.value_torso = make_torso(spec, network, generator, hidden_gain, **options)
            self.value = linear(self.value_torso.size, 1, generator, value_gain)
        self.log_std = nn.Parameter(torch.full((spec.action_size,), initial_log_std)) if spec.action_size else None
        shape, bound = spec.observation_shape, normalised_observation_clip
        self.observation_normaliser = ObservationNormaliser(shape, bound) if observation_normalisation else None
        self.reward_normaliser = RewardNormaliser(normalised_reward_clip) if reward_normalisation else None
        self.return_scale = ReturnScale() if return_scaling else None
        find_parts_directly(self)

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, start: Tensor, state: RecurrentState
    ) -> NetworkOutput:
        """Return distributions [T, B, P] and values [T, B] in float32, and the state after step T.

        Arguments as of `ddrl.networks.trunk.features`.
        """
        time, batch = observation.shape[:2]
        observation = self.normalised_observation(observation)
        found, seen, state = features(self, observation, last_action, last_reward, start, state)
        distribution = self._distribution(found)
        value = self._value(found, seen).view(time, batch) if self.predicts_values else NO_VALUE.expand(time, batch)
        return NetworkOutput(distribution.view(time, batch, distribution.shape[-1]), value, state)

    @property
    def sees_steps_alone(self) -> bool:
        """Return whether an output depends on the observation of its own step alone."""
        return self.core is None and not self.feed_last_action_and_reward

    def of_steps(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return distributions [N, P] and values [N] in float32 at observations [N, ...], of which each is seen alone.

        The network `sees_steps_alone`.
        """
        return self.of_normalised_steps(self.normalised_observation(observation))

    def of_normalised_steps(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `of_steps` does, of observations from `normalised_observation`."""
        found, seen = features_of_steps(self, observation)
        distribution = self._distribution(found)
        return distribution, self._value(found, seen) if self.predicts_values else NO_VALUE.expand(len(found))

    def _distribution(self, found: Tensor) -> Tensor:
        distribution: Tensor = self.policy.forward(found).float()
        if self.log_std is not None:
            distribution = torch.cat([distribution, self.log_std.expand_as(distribution)], dim=-1)
        return distribution

    def _value(self, found: Tensor, seen: Tensor) -> Tensor:
        value: Tensor = self.value.forward(found if self.value_torso is None else self.value_torso.forward(seen))
        return value.float().squeeze(-1)

    def describe(self) -> dict[str, Any]:
        """Return layers and first weights as plain data, from which another library builds the same network."""
        return {
            "torso": described(self.torso),
            "separate": self.value_torso is not None,
            "recurrent": 0 if self.core is None else self.core.size,
            "instructions": 0 if self.instructions is None else self.instructions.size,
            "gains": list(self.gains),
        }

    def seen_reward(self, last_reward: Tensor) -> Tensor:
        """Return rewards clipped to [-1, 1]."""
        return last_reward.clamp(-1.0, 1.0)

    def initial_state(self, batch_size: int) -> RecurrentState:
        """Return the state before an episode: zeros, or () without an LSTM."""
        return () if self.core is None else self.core.initial_state(batch_size)

    def no_action(self, batch_size: int) -> Tensor:
        """Return the last action before an episode: zeros [batch_size] int64 or [batch_size, A] float32."""
        return torch.zeros(batch_size, self.action_size) if self.action_size else torch.zeros(batch_size).long()

    def normalised_observation(self, observation: Tensor) -> Tensor:
        """Return observations [...] as the torso sees them: scaled if the network keeps statistics of them."""
        return observation if self.observation_normaliser is None else self.observation_normaliser.forward(observation)

    def value_of_task(self, value: Tensor) -> Tensor:
        """Return values [...] of the network as the task counts them: times the deviation of returns, if it has one."""
        return value if self.return_scale is None else value * self.return_scale.deviation

    def value_target(self, returns: Tensor) -> Tensor:
        """Return what the network's values [...] should be, given returns as the task counts them."""
        return returns if self.return_scale is None else returns / self.return_scale.deviation

    def normalised_reward(self, reward: Tensor) -> Tensor:
        """Return rewards [...] as the losses use them: scaled if the network keeps statistics of returns."""
        return reward if self.reward_normaliser is None else self.reward_normaliser(reward)


def _check_keys(
    spec: EnvSpec, lstm_size: int, feed_last_action_and_reward: Fed, separate_value: bool, normalise: bool
) -> None:
    if lstm_size < 0:
        raise UserError(f"lstm_size is {lstm_size}; allowed: 0 (feed-forward) or a positive number of units")
    if separate_value and (lstm_size or feed_last_action_and_reward):
        raise UserError(
            "key 'hyperparameters.separate_value_network': true has no memory; allowed: false, or true with "
            "lstm_size: 0 and feed_last_action_and_reward: false"
        )
    if separate_value and spec.image_shape is not None:
        beside = "numbers" if spec.vector_size else "instructions"
        raise UserError(f"separate_value_network: true would not see the {beside} of '{spec.name}'; allowed: false")
    if normalise and spec.observation_dtype != "float32":
        raise UserError(f"observation_normalisation: true needs float32 observations, but '{spec.name}' has images")


def make_actor_critic(spec: EnvSpec, config: Any, generator: torch.Generator) -> ActorCritic:
    """Return the network that an algorithm's `config` describes; keys that it does not have keep their defaults."""
    return ActorCritic(spec, generator=generator, **network_keys(ActorCritic, config))


def network_keys(kind: type[nn.Module], config: Any) -> dict[str, Any]:
    """Return the arguments of the network class `kind` that `config` has under the same name."""
    return {name: getattr(config, name) for name in inspect.signature(kind).parameters if hasattr(config, name)}


def unread_keys(spec: EnvSpec, config: Any) -> dict[str, str]:
    """Return the keys of the network that have no effect with this `config`, each with what would give it one."""
    unread = {}
    if not spec.action_size:
        unread["initial_log_std"] = "continuous actions"
    if config.network not in VECTORS:
        unread["mlp_size"] = f"network: {' or '.join(VECTORS)}"
    if spec.observation_dtype != "uint8":
        unread["scaled_pixels"] = "observations of pixels"
    keys = {"normalised_observation_clip": "observation", "observation_warm_up": "observation"}
    for key, kind in (keys | {"normalised_reward_clip": "reward"}).items():
        if not getattr(config, f"{kind}_normalisation", False):
            unread[key] = f"{kind}_normalisation: true"
    return unread
