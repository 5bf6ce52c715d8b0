"""The rules of the toy environments: pure functions of a state, the actions and random numbers (see `toy`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ddrl.types import Array


class Game(Protocol):
    """The rules of a game for B environments; column 0 of the state [B, K] int64 counts the steps of the episode."""

    @property
    def num_actions(self) -> int:
        """How many actions there are; 0: they are continuous."""

    @property
    def action_size(self) -> int:
        """Dimensions of a continuous action in [-1, 1]; 0: discrete."""

    @property
    def observation_size(self) -> int:
        """Length of an observation."""

    @property
    def optimal_return(self) -> float:
        """Mean undiscounted return of the best policy (with memory)."""

    @property
    def random_return(self) -> float:
        """Mean undiscounted return of uniformly random actions."""

    def begin(self, draws: Array) -> Array:
        """First states [B, K] from random numbers [B] uint64."""

    def step(self, state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Next states, reward [B] float32, terminated [B] bool, truncated [B] bool."""

    def observe(self, state: Array) -> Array:
        """Observations [B, observation_size] float32."""


@dataclass(frozen=True)
class Catch:
    """State: step, ball's column, paddle's column. The paddle moves by action - 1; +1 for a catch, -1 otherwise."""

    rows: int
    columns: int
    num_actions: int = 3
    action_size: int = 0
    optimal_return: float = 1.0

    @property
    def observation_size(self) -> int:
        """The board, row by row."""
        return self.rows * self.columns

    @property
    def random_return(self) -> float:
        """The ball's column is uniform and independent of the paddle's."""
        return 2.0 / self.columns - 1.0

    def begin(self, draws: Array) -> Array:
        """The ball starts in any column of the top row, the paddle in the middle of the bottom row."""
        ball = (draws % np.uint64(self.columns)).astype(np.int64)
        return np.stack([np.zeros_like(ball), ball, np.full_like(ball, self.columns // 2)], axis=1)

    def step(self, state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Terminates when the ball reaches the bottom row."""
        row, ball = state[:, 0] + 1, state[:, 1]
        paddle = np.clip(state[:, 2] + actions - 1, 0, self.columns - 1)
        landed = row == self.rows - 1
        reward = np.where(landed, np.where(ball == paddle, 1.0, -1.0), 0.0)
        return np.stack([row, ball, paddle], axis=1), reward.astype(np.float32), landed, np.zeros_like(landed)

    def observe(self, state: Array) -> Array:
        """1 where the ball and the paddle are."""
        board = np.zeros((len(state), self.rows, self.columns), dtype=np.float32)
        index = np.arange(len(state))
        board[index, state[:, 0], state[:, 1]] = 1.0
        board[index, self.rows - 1, state[:, 2]] = 1.0
        return board.reshape(len(state), -1)


@dataclass(frozen=True)
class Chain:
    """State: step, position. Action 1 moves forward, action 0 waits; moving past the end pays 1 and leads back to 0.

    The limit cuts a process that goes on for ever, and is not seen: the optimal value at position p with discount g is
    g^(length - 1 - p) / (1 - g^length), whatever the step. It is found only if truncated steps bootstrap.
    """

    length: int
    limit: int
    num_actions: int = 2
    action_size: int = 0

    @property
    def observation_size(self) -> int:
        """The position, one-hot."""
        return self.length

    @property
    def optimal_return(self) -> float:
        """Rounds completed before the limit: floor((p + m) / length) has mean m / length over positions p."""
        return self.limit / self.length

    @property
    def random_return(self) -> float:
        """Half of the moves lead forward."""
        return self.limit / (2 * self.length)

    def optimal_value(self, position: int, discount: float) -> float:
        """Discounted value of always moving forward from `position`, without the limit."""
        return float(discount ** (self.length - 1 - position) / (1.0 - discount**self.length))

    def begin(self, draws: Array) -> Array:
        """Any position."""
        position = (draws % np.uint64(self.length)).astype(np.int64)
        return np.stack([np.zeros_like(position), position], axis=1)

    def step(self, state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Never terminates; truncated at step `limit`."""
        moved = state[:, 1] + actions
        step, paid = state[:, 0] + 1, moved == self.length
        following = np.stack([step, moved % self.length], axis=1)
        return following, paid.astype(np.float32), np.zeros_like(paid), step >= self.limit

    def observe(self, state: Array) -> Array:
        """One-hot position."""
        return _one_hot(state[:, 1], self.length)


@dataclass(frozen=True)
class Memory:
    """State: step, cue. Action 0 or 1 must name the cue at step `length`: +1, else -1; earlier actions do nothing."""

    length: int
    num_actions: int = 2
    action_size: int = 0
    observation_size: int = 3
    optimal_return: float = 1.0
    random_return: float = 0.0
    """Also the best return of a policy without memory."""

    def begin(self, draws: Array) -> Array:
        """A cue of 0 or 1."""
        cue = (draws % np.uint64(2)).astype(np.int64)
        return np.stack([np.zeros_like(cue), cue], axis=1)

    def step(self, state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Terminates with the answer, after `length` + 1 steps."""
        asked = state[:, 0] == self.length
        reward = np.where(asked, np.where(actions == state[:, 1], 1.0, -1.0), 0.0).astype(np.float32)
        return np.stack([state[:, 0] + 1, state[:, 1]], axis=1), reward, asked, np.zeros_like(asked)

    def observe(self, state: Array) -> Array:
        """The cue one-hot at step 0, the question's flag at step `length`, nothing else."""
        first = state[:, 0] == 0
        flags = (first & (state[:, 1] == 0), first & (state[:, 1] == 1), state[:, 0] == self.length)
        return np.stack(flags, axis=1).astype(np.float32)


@dataclass(frozen=True)
class Recall:
    """State: step, cue. As `Memory`, but asked more than once: at step `first`, and every `gap` steps after it."""

    first: int
    gap: int
    questions: int
    num_actions: int = 2
    action_size: int = 0
    observation_size: int = 3
    random_return: float = 0.0

    @property
    def optimal_return(self) -> float:
        """One for each question."""
        return float(self.questions)

    def begin(self, draws: Array) -> Array:
        """A cue of 0 or 1."""
        cue = (draws % np.uint64(2)).astype(np.int64)
        return np.stack([np.zeros_like(cue), cue], axis=1)

    def step(self, state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Terminates with the last answer."""
        asked = self._asked(state)
        reward = np.where(asked, np.where(actions == state[:, 1], 1.0, -1.0), 0.0).astype(np.float32)
        over = state[:, 0] == self.first + self.gap * (self.questions - 1)
        return np.stack([state[:, 0] + 1, state[:, 1]], axis=1), reward, over, np.zeros_like(over)

    def observe(self, state: Array) -> Array:
        """The cue one-hot at step 0, a flag where it is asked for, nothing else."""
        first = state[:, 0] == 0
        flags = (first & (state[:, 1] == 0), first & (state[:, 1] == 1), self._asked(state))
        return np.stack(flags, axis=1).astype(np.float32)

    def _asked(self, state: Array) -> Array:
        after = state[:, 0] - self.first
        asked: Array = (after >= 0) & (after % self.gap == 0)
        return asked


@dataclass(frozen=True)
class Identity:
    """State: step, shown action. +1 for the action shown, 0 otherwise; `length` 1 is a contextual bandit."""

    num_actions: int
    length: int
    action_size: int = 0

    @property
    def observation_size(self) -> int:
        """The shown action, one-hot."""
        return self.num_actions

    @property
    def optimal_return(self) -> float:
        """One per step."""
        return float(self.length)

    @property
    def random_return(self) -> float:
        """The shown action is uniform."""
        return self.length / self.num_actions

    def begin(self, draws: Array) -> Array:
        """Shows an action."""
        shown = (draws % np.uint64(self.num_actions)).astype(np.int64)
        return np.stack([np.zeros_like(shown), shown], axis=1)

    def step(self, state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Shows the next action; terminates after `length` steps."""
        step = state[:, 0] + 1
        following = self.begin(draws)
        following[:, 0] = step
        over = step >= self.length
        return following, (actions == state[:, 1]).astype(np.float32), over, np.zeros_like(over)

    def observe(self, state: Array) -> Array:
        """One-hot."""
        return _one_hot(state[:, 1], self.num_actions)


@dataclass(frozen=True)
class Track:
    """State: step, target of each dimension on a grid of 2^16 points. Pays 1 minus the mean distance to the target.

    The process goes on for ever, and a limit that is not seen cuts it: the optimal value with discount g is 1 / (1 - g)
    everywhere, and is found only if truncated steps bootstrap.
    """

    action_size: int
    limit: int
    num_actions: int = 0

    @property
    def observation_size(self) -> int:
        """The target."""
        return self.action_size

    @property
    def optimal_return(self) -> float:
        """One per step."""
        return float(self.limit)

    @property
    def random_return(self) -> float:
        """Two independent uniform points of [-1, 1] are 2/3 apart in the mean."""
        return self.limit / 3.0

    def optimal_value(self, discount: float) -> float:
        """Discounted value of always hitting the target, without the limit."""
        return 1.0 / (1.0 - discount)

    def begin(self, draws: Array) -> Array:
        """Sixteen bits of the random number for each dimension: hence at most four of them."""
        shifts = np.arange(self.action_size, dtype=np.uint64) * np.uint64(16)
        target = ((draws[:, None] >> shifts) & np.uint64(0xFFFF)).astype(np.int64)
        return np.concatenate([np.zeros((len(draws), 1), dtype=np.int64), target], axis=1)

    def step(self, state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Shows the next target; never terminates; truncated at step `limit`."""
        reward = 1.0 - np.abs(actions - self.observe(state)).mean(axis=1)
        following = self.begin(draws)
        following[:, 0] = state[:, 0] + 1
        cut = following[:, 0] >= self.limit
        return following, reward.astype(np.float32), np.zeros_like(cut), cut

    def observe(self, state: Array) -> Array:
        """The target in (-1, 1)."""
        observed: Array = ((state[:, 1:] + 0.5) / 2**15 - 1.0).astype(np.float32)
        return observed


def _one_hot(index: Array, size: int) -> Array:
    encoded = np.zeros((len(index), size), dtype=np.float32)
    encoded[np.arange(len(index)), index] = 1.0
    return encoded
