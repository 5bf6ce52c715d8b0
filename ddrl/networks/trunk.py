"""The trunk of every network: torso, optional instruction, last action and reward, and an optional LSTM.

A network has the modules that `make_trunk` returns as its own, under these names, so that checkpoints hold them there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ddrl.networks.initialisation import Gain
from ddrl.networks.instruction_encoder import InstructionChannel, as_seen_by_torso, instruction_channel
from ddrl.networks.recurrent import ResettingLSTM
from ddrl.networks.torsos import Torso, make_torso
from ddrl.types import EnvSpec, RecurrentState

Fed: TypeAlias = Literal[False, True, "action"]
"""A configuration key: whether a network is fed the last action and the last reward; `action`: the last action alone,
as Wijmans et al. 2020 do."""
PIECE_STEPS = {"uint8": 256, "float32": 4096}
"""Steps whose activations are held at once, by the type of the observations: 256 keep the deep network under 1 GiB."""
KEPT_STEPS = {"uint8": 2048, "float32": 65_536}
"""Steps of a minibatch whose activations may be held so that a second pass is saved; `PIECE_STEPS` of the deep one."""


class Trunk(NamedTuple):
    """The modules of a trunk, and the number of features that it puts out."""

    torso: Torso
    instructions: InstructionChannel | None
    core: ResettingLSTM | None
    size: int


def make_trunk(
    spec: EnvSpec,
    network: str,
    generator: torch.Generator,
    *,
    lstm_size: int,
    feed_last_action_and_reward: Fed,
    gain: Gain = None,
    convolutions_only: bool = False,
    mlp_size: int | tuple[int, ...] | None = None,
    scaled_pixels: bool = True,
) -> Trunk:
    """Draw a trunk's weights from `generator`; the other arguments and errors are those of `make_torso`."""
    seen = as_seen_by_torso(spec)
    torso = make_torso(
        seen,
        network,
        generator,
        gain,
        convolutions_only=convolutions_only,
        mlp_size=mlp_size,
        scaled_pixels=scaled_pixels,
    )
    size = torso.size + (feed_last_action_and_reward is True)
    size += (spec.action_size or spec.num_actions) if feed_last_action_and_reward else 0
    instructions = instruction_channel(spec, generator)
    size += 0 if instructions is None else instructions.size
    core = ResettingLSTM(size, lstm_size, generator) if lstm_size else None
    return Trunk(torso, instructions, core, lstm_size or size)


def steps_held(spec: EnvSpec, network: str) -> tuple[int, int]:
    """Return how many steps' activations are held at once, and how many may be kept to save a second pass."""
    pieces = PIECE_STEPS[spec.observation_dtype]
    return pieces, pieces if network == "deep" else KEPT_STEPS[spec.observation_dtype]


class HasTrunk(Protocol):
    """A network with a trunk."""

    torso: Torso
    instructions: InstructionChannel | None
    core: ResettingLSTM | None
    num_actions: int

    @property
    def feed_last_action_and_reward(self) -> Fed:
        """Return what it is fed beside observations."""

    def seen_reward(self, last_reward: Tensor) -> Tensor:
        """Return raw rewards as the network is fed them."""


def features(
    network: HasTrunk,
    observation: Tensor,
    last_action: Tensor,
    last_reward: Tensor,
    start: Tensor,
    state: RecurrentState,
) -> tuple[Tensor, Tensor, RecurrentState]:
    """Return the features [T * B, F], the observations [T * B, ...] as the torso sees them, and the state after step T.

    Args:
        observation: [T, B, ...] uint8 or float32; may hold an instruction packed with the image.
        last_action: [T, B] int64 or [T, B, A] float32; read only with `feed_last_action_and_reward`, discrete actions
            as one-hot vectors.
        last_reward: [T, B] float32, raw; read only with the same, but not if it is `action`, as `seen_reward`.
        start: [T, B] bool: the recurrent state is set to zero before these steps.
        state: before step 0, from `initial_state` or an earlier output.
    """
    found, flat, instruction = _seen(network, observation.flatten(0, 1))
    if network.feed_last_action_and_reward:
        action = last_action.flatten(0, 1)
        action = action if last_action.is_floating_point() else F.one_hot(action, network.num_actions)
        if network.feed_last_action_and_reward != "action":
            reward = network.seen_reward(last_reward).flatten().unsqueeze(-1)
            found = torch.cat([found, reward.to(found.dtype)], dim=-1)
        found = torch.cat([found, action.to(found.dtype)], dim=-1)
    if instruction is not None:
        found = torch.cat([found, instruction.to(found.dtype)], dim=-1)
    if network.core is not None:
        outputs, state = network.core(found.view(*observation.shape[:2], found.shape[-1]), start, state)
        found = outputs.flatten(0, 1)
    return found, flat, state


def features_of_steps(network: HasTrunk, observation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features [N, F], and the observations as the torso sees them, of steps that are seen alone [N, ...].

    The network has no LSTM, and is not fed last actions and rewards.
    """
    found, flat, instruction = _seen(network, observation)
    return (found if instruction is None else torch.cat([found, instruction.to(found.dtype)], dim=-1)), flat


def _seen(network: HasTrunk, observation: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the torso's features of observations [N, ...], what it saw, and features of instructions, if any."""
    instruction = None
    if network.instructions is not None:
        observation, instruction = network.instructions(observation)
    # `forward`, since a call of a module costs as much as a small layer
    return network.torso.forward(observation), observation, instruction
