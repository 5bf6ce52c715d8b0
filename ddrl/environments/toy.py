"""Four small environments with known returns, for tests. Vectorised NumPy: no loop over environments.

A game is a pure function of its state, the action and one random number that depends on (seed, environment, episode,
step) only; so the state of an environment is a row of integers, and a checkpoint is exact.

    catch     a ball falls, the paddle must be under it (the rules of bsuite's catch: Osband et al. 2020)
    chain     never terminates: every `length` steps forward pay 1; a time limit truncates in between
    memory    a cue, `length` - 1 steps of nothing, then the question what the cue was (a T-maze)
    identity  a row of independent questions: the right action is the one shown
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ddrl.environments.camera import CellCamera
from ddrl.environments.registry import Option
from ddrl.errors import UserError
from ddrl.seeding import seed_for
from ddrl.types import Array, EnvSpec, EnvStep

VERSION = 1
"""Part of the protocol id: raised when a game's behaviour changes."""


class Game(Protocol):
    """The rules of a game for B environments; column 0 of the state [B, K] int64 counts the steps of the episode."""

    @property
    def num_actions(self) -> int:
        """How many actions there are."""

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
class Identity:
    """State: step, shown action. +1 for the action shown, 0 otherwise; `length` 1 is a contextual bandit."""

    num_actions: int
    length: int

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


TASKS = ("catch", "chain", "memory", "identity")
EXAMPLES: dict[str, dict[str, Any]] = {task: {} for task in TASKS}
OPTIONS = {
    "catch": {"rows": Option(10, 2, 100), "columns": Option(5, 1, 100)},
    "chain": {"length": Option(10, 1, 1000), "limit": Option(25, 1, 100_000)},
    "memory": {"length": Option(8, 1, 10_000)},
    "identity": {"num_actions": Option(4, 2, 100), "length": Option(10, 1, 10_000)},
}
_GAMES: dict[str, type[Catch] | type[Chain] | type[Memory] | type[Identity]] = {
    "catch": Catch,
    "chain": Chain,
    "memory": Memory,
    "identity": Identity,
}

_ACTIONS = {"catch": ("left", "stay", "right"), "chain": ("wait", "forward")}


def game(task: str, **options: Any) -> Game:
    """The rules of one task; options not given have their defaults."""
    return _GAMES[task](**{key: option.default for key, option in OPTIONS[task].items()} | options)


def spec(task: str, **options: Any) -> EnvSpec:
    """The spec of one task: flat float32 observations."""
    rules = game(task, **options)
    settings = ",".join(f"{key}{value}" for key, value in options.items())
    return EnvSpec(
        name=f"toy/{task}",
        observation_shape=(rules.observation_size,),
        observation_dtype="float32",
        num_actions=rules.num_actions,
        frame_skip=1,
        protocol=f"toy-{VERSION}/{task};{settings};autoreset-next-step;raw-rewards",
    )


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> ToyEnvs:
    """`num_envs` games; `num_threads` is ignored, since nothing is native."""
    return ToyEnvs(spec(task, **options), game(task, **options), num_envs, seed)


def camera(task: str, seed: int, **options: Any) -> CellCamera:
    """Draws what the agent sees as cells: catch as its board, the others as one row."""
    board = (options["rows"], options["columns"]) if task == "catch" else (1, game(task, **options).observation_size)
    return CellCamera(board, _ACTIONS.get(task, ()))


class ToyEnvs:
    """B copies of one game, as a `ddrl.types.VectorEnv`."""

    def __init__(self, spec: EnvSpec, rules: Game, num_envs: int, seed: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self._rules = rules
        self._seed = seed
        self._streams = np.array([seed_for(seed, "toy", index) for index in range(num_envs)], dtype=np.uint64)
        self._episode = np.full(num_envs, -1, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._state = rules.begin(self._draws(self._episode, 0))

    def reset(self) -> EnvStep:
        """Starts every environment's next episode."""
        everywhere, nowhere = np.ones(self.num_envs, dtype=np.bool_), np.zeros(self.num_envs, dtype=np.bool_)
        self._episode = self._episode + 1
        self._state = self._rules.begin(self._draws(self._episode, 0))
        self._ended = nowhere
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        observation = self._rules.observe(self._state)
        return EnvStep(observation, rewards, nowhere, nowhere, nowhere, everywhere, everywhere)

    def step(self, actions: Array) -> EnvStep:
        """Applies `actions` [B].

        Raises: ValueError for actions of another shape or outside the action set; RuntimeError before `reset`.
        """
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be integers of shape ({self.num_envs},), not {actions.dtype} {actions.shape}"
            )
        if int(actions.min()) < 0 or int(actions.max()) >= self.spec.num_actions:
            raise ValueError(f"actions must lie in 0..{self.spec.num_actions - 1}")
        if self._episode[0] < 0:
            raise RuntimeError("step was called before reset")
        dead = self._ended
        draws = self._draws(self._episode, self._state[:, 0] + 1)
        state, reward, terminated, truncated = self._rules.step(self._state, actions, draws)
        if dead.any():
            self._episode = self._episode + dead
            state = np.where(dead[:, None], self._rules.begin(self._draws(self._episode, 0)), state)
            reward, terminated, truncated = np.where(dead, np.float32(0), reward), terminated & ~dead, truncated & ~dead
        self._state, self._ended = state, terminated | truncated
        return EnvStep(self._rules.observe(state), reward, terminated, truncated, self._ended, dead, ~dead)

    def state_dict(self) -> dict[str, Any]:
        """States, episodes and pending ends: all there is."""
        return {
            "protocol": self.spec.protocol,
            "seed": self._seed,
            "state": torch.from_numpy(self._state.copy()),
            "episode": torch.from_numpy(self._episode.copy()),
            "ended": torch.from_numpy(self._ended.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises: UserError for a state of another protocol, seed or number of environments.
        """
        own: dict[str, Any] = {"protocol": self.spec.protocol, "seed": self._seed}
        for key, value in own.items():
            if state[key] != value:
                raise UserError(f"environment state: {key} is '{state[key]}', but this run has '{value}'")
        if len(state["episode"]) != self.num_envs:
            raise UserError(f"environment state: {len(state['episode'])} environments; allowed: {self.num_envs}")
        self._state = state["state"].numpy().copy()
        self._episode = state["episode"].numpy().copy()
        self._ended = state["ended"].numpy().copy()

    def close(self) -> None:
        """Nothing to free."""

    def _draws(self, episode: Array, step: Array | int) -> Array:
        """A random number [B] uint64 for each environment's episode and step (SplitMix64, applied to each in turn)."""
        mixed = _mix(self._streams)
        mixed = _mix(mixed ^ episode.astype(np.uint64))
        return _mix(mixed ^ np.asarray(step).astype(np.uint64))


def _mix(value: Array) -> Array:
    """SplitMix64's step (Steele et al. 2014): a bijection of 64-bit integers whose outputs look independent."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = value ^ (value >> np.uint64(31))
    return mixed


def _one_hot(index: Array, size: int) -> Array:
    encoded = np.zeros((len(index), size), dtype=np.float32)
    encoded[np.arange(len(index)), index] = 1.0
    return encoded
