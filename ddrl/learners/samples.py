"""What minibatches are made of: single steps, or whole unrolls; and what a loss reads of either.

PPO and APPO learn from single steps, and from unrolls where a network has a memory or targets need the steps' order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from ddrl.interfaces import BatchNetwork
from ddrl.learners.batch_values import evaluate, joined, output_of
from ddrl.learners.core import LearnerCore
from ddrl.learners.data_parallel import Kept
from ddrl.types import NetworkOutput, Unroll


class StepNetwork(BatchNetwork, Protocol):
    """A network that also sees single steps."""

    def of_normalised_steps(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return distributions [N, P] and values [N] at observations [N, ...]."""


@dataclass(frozen=True)
class Samples:
    """N steps, with the quantities that stay fixed during an epoch; tensors [N, ...]."""

    observation: Tensor  # normalised, if the network keeps statistics: they change after all epochs only
    action: Tensor
    distribution: Tensor  # of the behaviour policy
    log_mu: Tensor  # of the action under it
    values: Tensor  # V(x) before the first gradient step, or with `recompute_advantages` before the epoch's
    advantages: Tensor
    value_targets: Tensor

    mask = None
    """All steps are learned from."""

    @property
    def batch_size(self) -> int:
        """Number of steps."""
        return len(self.advantages)

    @property
    def num_steps(self) -> int:
        """Number of steps that are learned from: all."""
        return self.batch_size

    @property
    def seen_steps(self) -> int:
        """Number of steps that the network goes over."""
        return self.batch_size

    @property
    def per_step(self) -> list[Tensor]:
        """All tensors but the observations, in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)[1:]]

    def columns(self, start: int, stop: int) -> Self:
        """Return steps start..stop-1 as views."""
        return type(self)(self.observation[start:stop], *(tensor[start:stop] for tensor in self.per_step))

    def minibatches(self, indices: Sequence[Tensor]) -> Iterator[Self]:
        """Yield copies of the steps with the indices of each minibatch.

        All that is small is copied at once, which takes fewer operations; observations may be images.
        """
        order, sizes = torch.cat([*indices]), [len(one) for one in indices]
        small = [torch.split(tensor[order], sizes) for tensor in self.per_step]
        for chosen, *tensors in zip(indices, *small, strict=True):
            yield type(self)(self.observation[chosen], *tensors)


@dataclass(frozen=True)
class Columns:
    """Unrolls [T+1, B], with the quantities that stay fixed during an epoch; tensors [T, B]."""

    unroll: Unroll
    learned: Tensor  # bool: valid, and not too old
    log_mu: Tensor  # of the action under the behaviour policy
    values: Tensor  # V(x) at collection, or before the first gradient step
    advantages: Tensor
    value_targets: Tensor

    @property
    def batch_size(self) -> int:
        """Number of columns."""
        return self.unroll.batch_size

    @property
    def mask(self) -> Tensor:
        """Which steps are learned from, [T, B] bool."""
        return self.learned

    @property
    def num_steps(self) -> int:
        """Number of steps that are learned from."""
        return int(self.learned.sum())

    @property
    def seen_steps(self) -> int:
        """Number of steps that the network goes over."""
        return (self.unroll.length + 1) * self.batch_size

    def columns(self, start: int, stop: int) -> Self:
        """Return columns start..stop-1 as views."""
        parts = (tensor[:, start:stop] for tensor in self.per_step)
        return type(self)(self.unroll.columns(start, stop), *parts)

    def minibatches(self, indices: Sequence[Tensor]) -> Iterator[Self]:
        """Yield copies of the columns with the indices of each minibatch."""
        for chosen in indices:
            yield type(self)(self.unroll.chosen(chosen), *(tensor[:, chosen] for tensor in self.per_step))

    @property
    def per_step(self) -> list[Tensor]:
        """The tensors [T, B], in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)[1:]]


class Steps(NamedTuple):
    """What the loss is made of, for N steps [N, ...]; only the first two get a gradient."""

    pi: Tensor
    value: Tensor
    action: Tensor
    distribution: Tensor
    log_mu: Tensor
    old_value: Tensor
    advantage: Tensor
    value_target: Tensor


def steps_of(network: StepNetwork, part: Samples | Columns, output: NetworkOutput | None = None) -> Steps:
    """Return the steps that are learned from, with distributions and values of `output`, or of the network now."""
    if isinstance(part, Samples):
        return Steps(*network.of_normalised_steps(part.observation), *part.per_step)
    batch, learned = part.unroll, part.learned
    output = output or output_of(network, batch)
    per_step = (output.distribution[:-1], output.value[:-1], batch.action, batch.distribution, *part.per_step[1:])
    return Steps(*(tensor[learned] for tensor in per_step))


def outputs_once(core: LearnerCore[Any], part: Columns) -> tuple[NetworkOutput, Kept | None]:
    """Return what the network now puts out on unrolls, without gradients, and what a gradient step may use of it.

    So targets that depend on the network need no second pass, unless there are too many activations to be kept.
    """
    if part.seen_steps > core.network.kept_steps:
        return evaluate(core.network, part.unroll, core.setting.precision), None
    kept = core.forward(lambda network, piece: output_of(network, piece.unroll), part)
    return joined(kept), kept


def steps_once(core: LearnerCore[Any], part: Samples | Columns) -> tuple[Kept, bool]:
    """Return `steps_of` the pieces of a minibatch, and whether with the graphs, for a gradient step.

    So what a gradient step depends on, such as the divergence, needs no second pass, unless there are too many
    activations to be kept.
    """
    keeps = part.seen_steps <= core.network.kept_steps

    def of_piece(network: StepNetwork, piece: Samples | Columns) -> Steps:
        with nullcontext() if keeps else torch.no_grad():  # in the thread that computes it
            return steps_of(network, piece)

    return core.forward(of_piece, part), keeps
