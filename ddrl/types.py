"""The ONE statement of time alignment and shapes. T = unroll length, B = columns (environments).

A = actions of a discrete task, or dimensions of a continuous one. An action is int64 [...] there and float32 [..., A]
here; P is the number of parameters of its distribution: A logits, or A means and A log standard deviations (2A).

    t:              0         1         2    ...   T-1        T
    observation   [o_0       o_1       o_2        o_{T-1}    o_T]     T+1 entries: the last bootstraps, and is the
    last_action   [a_{-1}    a_0       a_1        a_{T-2}    a_{T-1}] first of the next unroll (they overlap by one)
    last_reward   [r_0       r_1       r_2        r_{T-1}    r_T]
    start         [s_0       s_1       s_2        s_{T-1}    s_T]
    action        [a_0       a_1       a_2        a_{T-1}]            T entries: transition t acts on o_t and leads
    reward        [r_1       r_2       r_3        r_T]                to o_{t+1}; `reward[t]` is r_{t+1}
    distribution  [mu(o_0)   ...                  mu(o_{T-1})]        what a_t was drawn from

Ends. An episode that ends at transition t stores `terminated[t]` or `truncated[t]`, and o_{t+1} is its own final
observation. Environments reset at the next step: transition t+1 is *dead* (`valid[t+1]` is False: its action was
ignored, its reward is 0) and o_{t+2} is the first observation of the next episode (`start[t+2]`). So a truncated step
bootstraps from V(o_{t+1}), its own final observation, and never from the next episode. A lost life may be stored as
`terminated` too: then there is no reset, no dead step, and `start[t+1]` marks where the next life begins. Where lives
roll on (`life_loss_resets: false`) it does not: nothing is bootstrapped across the loss, but recurrent state, sequences
and the episode go on. So an episode is over at t where transition t+1 is dead or `start[t+1]`.

Abandoned episodes. A remote environment that is lost after a_t was sent never answers; what takes its place begins an
episode. Transition t is then dead and o_{t+1} the first observation of the new episode, as if the old one had been
truncated at t-1: `truncated[t-1]` says so where t-1 is in the same unroll, and o_t stands for its final observation.
A task of a suite that fails again and again is given up: all further transitions of its columns are dead.

Preempted unrolls (`ddrl.actors.preemption`). An unroll that ends after n < T transitions keeps its shape:
transitions n to T-1 are dead, and the observations n to T are o_n, which bootstraps. Nothing has ended there, so no end
is stored, and the next unroll begins with o_n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy.typing as npt

if TYPE_CHECKING:  # who steps environments alone needs no torch
    import torch

Array = npt.NDArray[Any]
Metrics = dict[str, float]
RecurrentState: TypeAlias = "tuple[torch.Tensor, ...]"
"""Tensors [B, ...], one per kind of state; empty for a feed-forward network."""


@dataclass(frozen=True)
class EnvSpec:
    """What a network and a report need to know of an environment."""

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: str  # "uint8" (scaled by 1/255 in the network) or "float32"
    num_actions: int
    """Number of actions of a discrete task; 0 where actions are continuous."""
    frame_skip: int
    """Environment frames that one agent step consumes."""
    protocol: str
    """Protocol id: version, wrappers in order, sticky actions, life-loss rule, action set."""
    action_size: int = 0
    """Dimensions of a continuous action in [-1, 1]; 0: discrete."""
    frame_stack: int = 1
    """How many past frames the first axis of an observation holds, the newest last; 1: it is no stack."""
    image_shape: tuple[int, int, int] | None = None
    """Shape of the image where an observation also holds an instruction (`instruction_words`) or, with `vector_size`,
    numbers; None: it holds neither."""
    vector_size: int = 0
    """How many numbers an observation holds beside its image (`packed_vector`); 0: none."""
    body_size: int = 0
    """How many numbers of a flat observation, the first ones, are of the agent's body; the others are of its
    surroundings. 0: they are not told apart."""

    @property
    def distribution_size(self) -> int:
        """P: how many numbers a policy puts out."""
        return 2 * self.action_size if self.action_size else self.num_actions


class EnvStep(NamedTuple):
    """What a vector environment returns for its B environments: arrays [B, ...] of finite numbers."""

    observation: Array
    reward: Array
    """float32, raw: never clipped by the environment."""
    terminated: Array
    """bool: nothing follows (also a lost life where the protocol says so); the value after it is 0."""
    truncated: Array
    """bool: cut by a limit; the value after it is that of `observation`."""
    ended: Array
    """bool: the game is over (terminated or truncated, but not a lost life); the next step is dead."""
    start: Array
    """bool: `observation` begins an episode; recurrent state resets before it."""
    valid: Array
    """bool: False for a dead step, which only brought the first observation of an episode."""


class VectorEnv(Protocol):
    """B environments stepped together, with next-step autoreset (see the module's docstring)."""

    spec: EnvSpec
    num_envs: int

    def reset(self) -> EnvStep:
        """Start every environment anew: reward 0, `start` and `valid` True, no end."""

    def step(self, actions: Array) -> EnvStep:
        """Apply `actions`: [B] int64, or [B, A] float32 (each dimension is clipped to [-1, 1])."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue with the same bits (tensors, ints, strings, lists, dicts)."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""

    def close(self) -> None:
        """Free native resources."""


class TensorStep(NamedTuple):
    """An `EnvStep` of tensors on one device, for a step there without NumPy; nobody writes to them later."""

    observation: torch.Tensor  # [B, ...] uint8 or float32
    reward: torch.Tensor  # [B] float32, raw
    terminated: torch.Tensor  # [B] bool, as are the others
    truncated: torch.Tensor
    ended: torch.Tensor
    start: torch.Tensor
    valid: torch.Tensor


class DeviceVectorEnv(Protocol):
    """A `VectorEnv` whose actions and steps are tensors on one device. Neither call may wait for the device."""

    spec: EnvSpec
    num_envs: int

    def reset(self) -> TensorStep:
        """Start every environment anew: reward 0, `start` and `valid` True, no end."""

    def step(self, actions: torch.Tensor) -> TensorStep:
        """Apply `actions`: [B] int64, or [B, A] float32 (each dimension is clipped to [-1, 1])."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue with the same bits, with tensors on any device."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; its tensors are on the CPU."""

    def close(self) -> None:
        """Free native resources."""


class Episode(NamedTuple):
    """An episode that is over."""

    task: str
    """`prefix/task`: of a suite, the one that was played."""
    episode_return: float
    """Raw."""
    length: int
    """Agent steps."""
    abandoned: bool = False
    """Its environment was lost before it ended: what came until then is no return."""


class NetworkOutput(NamedTuple):
    """What every actor-critic network returns for inputs [T, B, ...]."""

    distribution: torch.Tensor  # [T, B, P], float32
    value: torch.Tensor  # [T, B], float32
    state: RecurrentState  # after the last step


class PolicyStep(NamedTuple):
    """What a policy returns for one `EnvStep`."""

    action: torch.Tensor  # [B] int64 or [B, A] float32
    distribution: torch.Tensor  # [B, P] float32: the behaviour policy mu
    version: torch.Tensor  # [B] int64: the parameters' version
    value: torch.Tensor  # [B] float32, where the network is


class PolicyInput(NamedTuple):
    """What a network needs to act for B environments; an actor that is alone sends its own, a batch joins several."""

    observation: torch.Tensor  # [B, ...] uint8 or float32
    last_action: torch.Tensor  # [B] int64 or [B, A] float32; 0 where `start`
    last_reward: torch.Tensor  # [B] float32, raw; 0 where `start`
    start: torch.Tensor  # [B] bool
    state: RecurrentState  # each [B, ...]


class PolicyOutput(NamedTuple):
    """A network's answer to a `PolicyInput`."""

    distribution: torch.Tensor  # [B, P] float32, where actions are sampled: on the CPU, unless all acting is elsewhere
    state: RecurrentState  # each [B, ...], after this step
    version: int  # of the parameters
    value: torch.Tensor  # [B] float32, where the network is


@dataclass(frozen=True)
class Unroll:
    """A fixed-length slice of experience of B columns, time-major (alignment: the module's docstring)."""

    observation: torch.Tensor  # [T+1, B, ...] uint8 or float32
    last_action: torch.Tensor  # [T+1, B] int64 or [T+1, B, A] float32; 0 where `start`
    last_reward: torch.Tensor  # [T+1, B] float32, raw; 0 where `start`
    start: torch.Tensor  # [T+1, B] bool
    action: torch.Tensor  # [T, B] int64 or [T, B, A] float32 (as sampled, not yet clipped)
    reward: torch.Tensor  # [T, B] float32, raw
    terminated: torch.Tensor  # [T, B] bool
    truncated: torch.Tensor  # [T, B] bool
    valid: torch.Tensor  # [T, B] bool
    distribution: torch.Tensor  # [T, B, P] float32, of the behaviour policy
    version: torch.Tensor  # [T, B] int64: version of the parameters that acted
    actor: torch.Tensor  # [B] int64: which actor made the column
    env: torch.Tensor  # [B] int64: in which of its environments
    index: torch.Tensor  # [B] int64: how many unrolls that actor had made before
    initial_state: RecurrentState  # each [B, ...]: before step 0
    returns: tuple[torch.Tensor, ...] = ()  # one [T, B] float32 where the actor computes them (GA3C); else none
    values: tuple[torch.Tensor, ...] = ()  # one [T, B] float32, V(o_t) as predicted while acting (APPO); else none

    @property
    def preempted(self) -> torch.Tensor:
        """[B] bool: whether a column ended early: its last transition is dead and yet brought no new episode."""
        return ~self.valid[-1] & self.valid.any(0) & (self.start[-1] == self.start[-2])

    @property
    def length(self) -> int:
        """T."""
        return int(self.action.shape[0])

    @property
    def batch_size(self) -> int:
        """B."""
        return int(self.action.shape[1])

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, those in tuples too."""
        parts = self.as_dict().values()
        return [tensor for part in parts for tensor in (part if isinstance(part, tuple) else (part,))]

    def columns(self, start: int, stop: int) -> Unroll:
        """Return columns start..stop-1 as views."""
        return self._map(lambda tensor, axis: tensor.narrow(axis, start, stop - start))

    def chosen(self, indices: torch.Tensor) -> Unroll:
        """Return copies of the columns of these indices [m] int64, in their order."""
        return self._map(lambda tensor, axis: tensor.index_select(axis, indices))

    def to(self, device: torch.device) -> Unroll:
        """Return the same unroll on `device`."""
        return self._map(lambda tensor, axis: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Unroll:
        """Return a copy in memory from which a GPU copies by itself, while the processor goes on."""
        return self._map(lambda tensor, axis: tensor.pin_memory())

    def clone(self) -> Unroll:
        """Return a copy that shares no memory."""
        return self._map(lambda tensor, axis: tensor.clone())

    def _map(self, function: Callable[[torch.Tensor, int], torch.Tensor]) -> Unroll:
        """Apply `function(tensor, axis of the columns)` to every tensor."""
        mapped: dict[str, Any] = {
            name: tuple(function(part, _axis(name)) for part in value)
            if isinstance(value, tuple)
            else function(value, _axis(name))
            for name, value in self.as_dict().items()
        }
        return Unroll(**mapped)

    def as_dict(self) -> dict[str, Any]:
        """Return field name -> tensor (or tuple of tensors)."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _axis(name: str) -> int:
    """Return the axis of the columns in a field of an unroll."""
    return 0 if name in ("actor", "env", "index", "initial_state") else 1


@dataclass(frozen=True)
class Experience:
    """What an actor sends to a replay: an unroll, and the items that became whole with it.

    An item is a transition or a sequence. It is named by its first trained step: the column, and the step's number
    counted from step 0 of this unroll; it is negative where the item began in an earlier one.
    """

    unroll: Unroll
    item_column: torch.Tensor  # [N] int64
    item_step: torch.Tensor  # [N] int64
    priority: torch.Tensor  # [N] float32, >= 0: from the actor's own temporal-difference errors
    state_column: torch.Tensor  # [M] int64: where recurrent states are kept
    state_step: torch.Tensor  # [M] int64: in this unroll
    state: RecurrentState  # each [M, ...]: before these steps

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        own = (self.item_column, self.item_step, self.priority, self.state_column, self.state_step, *self.state)
        return self.unroll.nbytes + sum(tensor.nbytes for tensor in own)


@dataclass(frozen=True)
class Gradients:
    """What an actor sends that computes gradients itself: of one loss, with the parameters it had last synchronised."""

    tensors: tuple[torch.Tensor, ...]  # one for each parameter, in the network's order
    norm: float  # before it was clipped
    steps: int  # fresh valid agent steps that are counted with it
    version: float  # of the parameters that acted: updates that they had seen, the mean over steps
    oldest_version: int  # of them
    metrics: Metrics  # sums over `items`
    items: int  # steps or transitions that the loss is of

    def as_dict(self) -> dict[str, Any]:
        """Return field name -> value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


class Begun(NamedTuple):
    """What is known of an update before it is applied."""

    version: int  # of the parameters
    learning_rate: float


def concatenate(unrolls: list[Unroll]) -> Unroll:
    """Return one batch of all columns, in the order given; a single unroll is returned as it is."""
    if len(unrolls) == 1:
        return unrolls[0]
    import torch  # not by who steps environments alone

    parts = [unroll.as_dict() for unroll in unrolls]
    joined: dict[str, Any] = {
        name: tuple(
            torch.cat(tensors, dim=_axis(name)) for tensors in zip(*(part[name] for part in parts), strict=True)
        )
        if isinstance(first, tuple)
        else torch.cat([part[name] for part in parts], dim=_axis(name))
        for name, first in parts[0].items()
    }
    return Unroll(**joined)
