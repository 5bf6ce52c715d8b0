"""The settings of a prioritized replay, and the check of an algorithm's hyperparameters for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, cast

from ddrl.errors import UserError
from ddrl.interfaces import Hyperparameters
from ddrl.replay.items import Cut
from ddrl.types import EnvSpec


@dataclass(frozen=True)
class ReplayRule:
    """How items are cut, how many steps are held, and how items are drawn."""

    cut: Cut
    capacity: int
    """Steps, over all streams."""
    min_size: int
    """Items that must be there before any is drawn."""
    batch_size: int
    samples_per_insert: float | None
    error_buffer: float
    priority_exponent: float
    importance_exponent: float
    delay: int
    """Steps by which items follow the unrolls that complete them."""
    state_period: int | None
    """Least number of steps between two recurrent states that are kept; None: none are kept."""
    first_priority: Literal["actor", "largest"] = "actor"
    """actor: the one that an item comes with; largest: the largest priority so far (Schaul et al. 2016, Algorithm 1,
    line 6), for actors that have no errors."""

    def stream_length(self, num_streams: int, unroll_length: int) -> int:
        """Return the steps that each stream holds. Raise UserError where an item could be gone before it is whole."""
        length = self.capacity // num_streams
        least = 2 * unroll_length + self.delay + self.cut.before + self.cut.reach
        if length < least:
            raise UserError(
                f"key 'hyperparameters.replay_capacity' must be at least {least * num_streams:,}, {least} steps for "
                f"each of {num_streams} environments: two unrolls and the longest item (got {self.capacity:,})"
            )
        return length


class ReplayConfig(Hyperparameters, Protocol):
    """The hyperparameters of an algorithm whose learner draws from a prioritized replay."""

    @property
    def actor_update_period(self) -> int:
        """Agent steps between an actor's copies of the parameters."""

    @property
    def fresh_steps(self) -> float | None:
        """Agent steps per update in the long run; None: no fixed ratio."""

    @property
    def replay(self) -> ReplayRule:
        """The settings of its replay."""


def with_replay(hyperparameters: Hyperparameters) -> ReplayConfig:
    """Return the hyperparameters of an algorithm that has a prioritized replay, as these must be."""
    return cast(ReplayConfig, hyperparameters)


def check_discrete(spec: EnvSpec) -> None:
    """Raise UserError where Q-learning cannot choose the best action, since there are infinitely many."""
    if spec.action_size:
        raise UserError(f"'{spec.name}' has continuous actions; Q-learning needs discrete ones")


def check_replay(config: ReplayConfig, num_learners: int) -> None:
    """Raise UserError where a replay could not work with these settings."""
    rule = config.replay
    if num_learners > 1:
        raise UserError(f"key 'topology.num_learners' must be 1 with a prioritized replay (got {num_learners})")
    if config.actor_update_period % config.unroll_length:
        raise UserError(
            f"key 'hyperparameters.actor_update_period' must be a multiple of unroll_length, {config.unroll_length}, "
            f"since actors pull between unrolls (got {config.actor_update_period})"
        )
    if rule.min_size > rule.capacity:
        raise UserError(
            f"key 'hyperparameters.min_replay_size' must be at most replay_capacity, {rule.capacity:,}: so many items "
            f"would never be there (got {rule.min_size:,})"
        )
