"""The rules of the toy environments: pure functions of a state, the actions and random numbers (see `toy`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ddrl.types import Array


@dataclass(frozen=True)
class Game:
    """The rules of a game for B environments; column 0 of the state [B, K] int64 counts the steps of the episode."""

    begin: Callable[[Array], Array]
    """Random numbers [B] uint64 -> first states [B, K]."""
    step: Callable[[Array, Array, Array], tuple[Array, Array, Array, Array]]
    """States, actions, random numbers -> next states, reward [B] float32, terminated [B] bool, truncated [B] bool."""
    observe: Callable[[Array], Array]
    """States -> observations [B, observation_size] float32."""
    observation_size: int
    num_actions: int = 0
    """0: actions are continuous."""
    action_size: int = 0
    """Dimensions of a continuous action in [-1, 1]; 0: discrete."""


def catch(rows: int, columns: int) -> Game:
    """Return the rules of catch. State: step, ball's column, paddle's column. Observation: the board, row by row.

    The rules are those of bsuite's catch (Osband et al. 2020). The ball starts in any column of the top row, the paddle
    in the middle of the bottom row. The paddle moves by action - 1. The episode terminates when the ball reaches the
    bottom row: +1 for a catch, -1 otherwise. The ball's column is uniform and independent of the paddle's.
    """

    def begin(draws: Array) -> Array:
        return np.insert(_uniform(draws, columns), 2, columns // 2, axis=1)

    def step(state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        row, ball = state[:, 0] + 1, state[:, 1]
        paddle = np.clip(state[:, 2] + actions - 1, 0, columns - 1)
        landed = row == rows - 1
        reward = np.where(landed, np.where(ball == paddle, 1.0, -1.0), 0.0)
        return np.stack([row, ball, paddle], axis=1), reward.astype(np.float32), landed, np.zeros_like(landed)

    def observe(state: Array) -> Array:
        board = np.zeros((len(state), rows, columns), dtype=np.float32)
        index = np.arange(len(state))
        board[index, state[:, 0], state[:, 1]] = 1.0
        board[index, rows - 1, state[:, 2]] = 1.0
        return board.reshape(len(state), -1)

    return Game(begin, step, observe, rows * columns, num_actions=3)


def chain(length: int, limit: int) -> Game:
    """Return the rules of chain. State: step, position. Observation: the position, one-hot.

    An episode starts at any position. Action 1 moves forward, action 0 waits; moving past the end pays 1 and leads
    back to 0. It never terminates and is truncated at step `limit`, which the agent cannot see: the optimal value at
    position p with discount g is g^(length - 1 - p) / (1 - g^length), whatever the step. It is found only if truncated
    steps bootstrap. The optimal return is the mean of floor((p + limit) / length) over positions p.
    """

    def step(state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        moved = state[:, 1] + actions
        step, paid = state[:, 0] + 1, moved == length
        following = np.stack([step, moved % length], axis=1)
        return following, paid.astype(np.float32), np.zeros_like(paid), step >= limit

    begin, observe = partial(_uniform, size=length), partial(_one_hot, size=length)
    return Game(begin, step, observe, length, num_actions=2)


def memory(length: int) -> Game:
    """Return the rules of memory (a T-maze): as `recall`, but the cue is asked for once, at step `length`."""
    return recall(first=length, gap=2, questions=1)


def recall(first: int, gap: int, questions: int) -> Game:
    """Return the rules of recall. State: step, cue. Observation: the cue one-hot at step 0, and a flag for a question.

    The question is asked at step `first`, and every `gap` steps after it. Action 0 or 1 must name the cue there: +1,
    else -1; actions in between do nothing. The episode terminates with the last answer. Without memory no policy has
    a mean return above 0.
    """

    def is_asked(state: Array) -> Array:
        after = state[:, 0] - first
        asked: Array = (after >= 0) & (after % gap == 0)
        return asked

    def step(state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        reward = np.where(is_asked(state), np.where(actions == state[:, 1], 1.0, -1.0), 0.0).astype(np.float32)
        over = state[:, 0] == first + gap * (questions - 1)
        return np.stack([state[:, 0] + 1, state[:, 1]], axis=1), reward, over, np.zeros_like(over)

    def observe(state: Array) -> Array:
        begins = state[:, 0] == 0
        flags = (begins & (state[:, 1] == 0), begins & (state[:, 1] == 1), is_asked(state))
        return np.stack(flags, axis=1).astype(np.float32)

    return Game(partial(_uniform, size=2), step, observe, 3, num_actions=2)


def identity(num_actions: int, length: int) -> Game:
    """Return the rules of identity. State: step, shown action. Observation: the shown action, one-hot.

    The action shown, which is uniform, pays 1, any other 0. The episode terminates after `length` steps; with a length
    of 1 it is a contextual bandit.
    """

    def step(state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        following = _uniform(draws, num_actions)
        following[:, 0] = state[:, 0] + 1
        over = following[:, 0] >= length
        return following, (actions == state[:, 1]).astype(np.float32), over, np.zeros_like(over)

    begin, observe = partial(_uniform, size=num_actions), partial(_one_hot, size=num_actions)
    return Game(begin, step, observe, num_actions, num_actions=num_actions)


def track(action_size: int, limit: int) -> Game:
    """Return the rules of track. State: step, target of each dimension on a grid of 2^16 points, which is observed.

    A step pays 1 minus the mean distance of the action to the target, and shows the next target. It never terminates
    and is truncated at step `limit`, which the agent cannot see: the optimal value with discount g is 1 / (1 - g)
    everywhere, and is found only if truncated steps bootstrap. Two independent uniform points of [-1, 1] are 2/3 apart
    in the mean.
    """

    def begin(draws: Array) -> Array:
        # Sixteen bits of the random number for each dimension: hence at most four of them.
        shifts = np.arange(action_size, dtype=np.uint64) * np.uint64(16)
        target = ((draws[:, None] >> shifts) & np.uint64(0xFFFF)).astype(np.int64)
        return np.insert(target, 0, 0, axis=1)

    def step(state: Array, actions: Array, draws: Array) -> tuple[Array, Array, Array, Array]:
        reward = 1.0 - np.abs(actions - observe(state)).mean(axis=1)
        following = begin(draws)
        following[:, 0] = state[:, 0] + 1
        cut = following[:, 0] >= limit
        return following, reward.astype(np.float32), np.zeros_like(cut), cut

    def observe(state: Array) -> Array:
        observed: Array = ((state[:, 1:] + 0.5) / 2**15 - 1.0).astype(np.float32)
        return observed

    return Game(begin, step, observe, action_size, action_size=action_size)


def _uniform(draws: Array, size: int) -> Array:
    """Return first states [B, 2]: step 0, and a uniform number below `size`."""
    drawn = (draws % np.uint64(size)).astype(np.int64)
    return np.stack([np.zeros_like(drawn), drawn], axis=1)


def _one_hot(state: Array, size: int) -> Array:
    """Return column 1 of a state, one-hot: [B, size] float32."""
    encoded: Array = (state[:, 1:2] == np.arange(size)).astype(np.float32)
    return encoded
