"""The networks of a deterministic policy: actions within [-1, 1], and a critic of an observation and an action."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ddrl.errors import UserError
from ddrl.networks.actor_critic import NO_VALUE, network_keys
from ddrl.networks.direct import find_parts_directly
from ddrl.networks.distributions import GAUSSIAN
from ddrl.networks.initialisation import Gain, Kind, TruncatedNormal, linear
from ddrl.networks.torsos import MLPTorso, described, make_torso
from ddrl.networks.trunk import PIECE_STEPS
from ddrl.types import EnvSpec, NetworkOutput, RecurrentState

ACTION_INPUTS = ("first_layer", "second_layer")


class Critic(nn.Module):
    """Z(o, a): K logits of a distribution over returns, or one value."""

    def __init__(
        self,
        policy_torso: MLPTorso,
        spec: EnvSpec,
        sizes: tuple[int, ...],
        outputs: int,
        action_input: str,
        generator: torch.Generator,
        gains: tuple[Gain, Gain],
    ) -> None:
        """Make layers of `sizes` units, which sees what `policy_torso` sees and has its activation.

        The action enters beside the inputs of the first or the second layer. That is a linear layer of the action's
        own whose output is added to that layer's (Tassa et al. 2018, "Algorithm and Architecture Details"); its weights
        start as those of the layer, so that a new critic hardly depends on a single dimension. `gains`: of hidden
        layers and of the output. The first layer is normalised if the policy's is.
        """
        super().__init__()
        self.activation, self.scale = policy_torso.activation, policy_torso.scale
        self.action_layer = ACTION_INPUTS.index(action_input)
        widths = [math.prod(spec.observation_shape), *sizes]
        self.layers = nn.ModuleList(
            [
                linear(inputs + spec.action_size * (number == self.action_layer), units, generator, gains[0])
                for number, (inputs, units) in enumerate(pairwise(widths))
            ]
        )
        self.norm = nn.LayerNorm(sizes[0]) if policy_torso.norm is not None else None
        self.output = linear(sizes[-1], outputs, generator, gains[1])

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Map observations [N, ...] and actions [N, A] to [N, K] float32."""
        x = observation.flatten(1).float() * self.scale
        for number, layer in enumerate(self.layers):
            if number == self.action_layer:
                x = torch.cat([x, action.to(x.dtype)], dim=-1)
            x = layer.forward(x)
            norm = self.norm if number == 0 else None
            x = self.activation(x) if norm is None else torch.tanh(norm.forward(x))
        out: Tensor = self.output.forward(x)
        return out.float()


class DeterministicActorCritic(nn.Module):
    """pi(o) and Z(o, a), which share no layer. Its output's `distribution` holds pi(o) and the log of the noise.

    Only a learner asks for the critic, by `critic`; in outputs NaN stands in the place of values.
    """

    sees_steps_alone = True
    family = GAUSSIAN
    feed_last_action_and_reward = False

    def __init__(
        self,
        spec: EnvSpec,
        *,
        network: str,
        generator: torch.Generator,
        policy_layers: tuple[int, ...],
        critic_layers: tuple[int, ...],
        action_input: str,
        outputs: int,
        noise: float,
        layer_norm: bool = False,
        initialisation: Kind | None = None,
    ) -> None:
        """Draw all weights from `generator` (on the CPU).

        `network` says what activates the layers: `mlp` or `tanh_mlp`, see `make_torso`. `outputs`: K of the critic.
        `noise` is the deviation that outputs name; the sampler of an actor has its own. `layer_norm`: see `MLPTorso`;
        for policy and critic. `initialisation` None means truncated normal. Raises `UserError` if actions are discrete,
        or if the network does not fit the observations.
        """
        super().__init__()
        if not spec.action_size:
            raise UserError(f"'{spec.name}' has discrete actions; a deterministic policy needs continuous ones")
        self.action_size = spec.action_size
        self.observation_normaliser = None
        self.reward_normaliser = None
        self.piece_steps = PIECE_STEPS[spec.observation_dtype]
        self.log_noise = math.log(noise)
        hidden_gain, policy_gain, value_gain = self.gains = (initialisation or TruncatedNormal()).gains
        torso = make_torso(spec, network, generator, hidden_gain, mlp_size=policy_layers, layer_norm=layer_norm)
        assert isinstance(torso, MLPTorso)
        self.torso = torso
        self.policy = linear(torso.size, spec.action_size, generator, policy_gain)
        gains = (hidden_gain, value_gain)
        self.critic = Critic(torso, spec, critic_layers, outputs, action_input, generator, gains)
        find_parts_directly(self)

    def actions(self, observation: Tensor) -> Tensor:
        """Return pi(o) = tanh(linear(torso(o))), [N, A] float32 within [-1, 1], of observations [N, ...]."""
        return torch.tanh(self.policy.forward(self.torso.forward(observation)).float())

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, start: Tensor, state: RecurrentState
    ) -> NetworkOutput:
        """Return distributions [T, B, 2A], values of NaN [T, B] and no state, of observations [T, B, ...]."""
        time, batch = observation.shape[:2]
        distribution, value = self.of_steps(observation.flatten(0, 1))
        return NetworkOutput(distribution.view(time, batch, -1), value.view(time, batch), ())

    def of_steps(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return distributions [N, 2A] and values of NaN [N] at observations [N, ...]."""
        mean = self.actions(observation)
        return torch.cat([mean, torch.full_like(mean, self.log_noise)], dim=-1), NO_VALUE.expand(len(mean)).clone()

    def describe(self) -> dict[str, Any]:
        """Return layers as plain data, from which another library builds the same network."""
        return {
            "torso": described(self.torso),
            "critic": {
                "hidden": [layer.out_features for layer in self.critic.layers if isinstance(layer, nn.Linear)],
                "outputs": self.critic.output.out_features,
                "action_layer": self.critic.action_layer,
                "layer_norm": self.critic.norm is not None,
            },
            "gains": list(self.gains),
        }

    def initial_state(self, batch_size: int) -> RecurrentState:
        """Return no state: the network has no LSTM."""
        return ()

    def no_action(self, batch_size: int) -> Tensor:
        """Return the last action before an episode: zeros [batch_size, A]."""
        return torch.zeros(batch_size, self.action_size)


def make_deterministic(
    spec: EnvSpec, config: Any, generator: torch.Generator, *, outputs: int
) -> DeterministicActorCritic:
    """Return the network that an algorithm's `config` describes, with a critic of `outputs` numbers."""
    keys = network_keys(DeterministicActorCritic, config)
    return DeterministicActorCritic(spec, generator=generator, outputs=outputs, **keys)
