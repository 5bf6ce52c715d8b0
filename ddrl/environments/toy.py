"""Six small environments with known returns, for tests (rules: `toy_games`). No loop over environments.

A game is a pure function of its state, the action and one random number that depends on (seed, environment, episode,
step) only; so the state of an environment is a row of integers, and a checkpoint is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.contract import accepted_actions, check_state, first_step, saved_state
from ddrl.environments.tools.camera import Camera, cell_camera
from ddrl.environments.worlds.toy_games import Game, catch, chain, identity, memory, recall, track
from ddrl.errors import UserError
from ddrl.system.seeding import mixed, seed_for
from ddrl.types import Array, EnvSpec, EnvStep

VERSION = 1
"""Part of the protocol id. Raise it when a game's behaviour changes."""
_GAMES: dict[str, Callable[..., Game]] = {f.__name__: f for f in (catch, chain, memory, recall, identity, track)}
TASKS = tuple(_GAMES)
EXAMPLES: dict[str, dict[str, Any]] = {task: {} for task in TASKS}
OPTIONS = {
    "catch": {"rows": Option(10, 2, 100), "columns": Option(5, 1, 100)},
    "chain": {"length": Option(10, 1, 1000), "limit": Option(25, 1, 100_000)},
    "memory": {"length": Option(8, 1, 10_000)},
    "recall": {"first": Option(4, 1, 10_000), "gap": Option(8, 1, 10_000), "questions": Option(3, 1, 1000)},
    "track": {"action_size": Option(1, 1, 4), "limit": Option(25, 1, 100_000)},
    "identity": {"num_actions": Option(4, 2, 100), "length": Option(10, 1, 10_000)},
}
_ACTIONS = {"catch": ("left", "stay", "right"), "chain": ("wait", "forward")}


def game(task: str, **options: Any) -> Game:
    """Return the rules of one task; options that are not given have their defaults."""
    return _GAMES[task](**{key: option.default for key, option in OPTIONS[task].items()} | options)


def spec(task: str, **options: Any) -> EnvSpec:
    """Return the spec of one task: flat float32 observations."""
    rules = game(task, **options)
    settings = ",".join(f"{key}{value}" for key, value in options.items())
    return EnvSpec(
        name=f"toy/{task}",
        observation_shape=(rules.observation_size,),
        observation_dtype="float32",
        num_actions=rules.num_actions,
        action_size=rules.action_size,
        frame_skip=1,
        protocol=f"toy-{VERSION}/{task};{settings};autoreset-next-step;raw-rewards",
    )


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> ToyEnvs:
    """Make `num_envs` games; `num_threads` is ignored, since nothing is native."""
    return ToyEnvs(spec(task, **options), game(task, **options), num_envs, seed)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that draws what the agent sees as cells: catch as its board, the others as one row."""
    board = (options["rows"], options["columns"]) if task == "catch" else (1, game(task, **options).observation_size)
    return cell_camera(board, _ACTIONS.get(task, ()))


def recipe(task: str, **options: Any) -> Mapping[str, Any]:
    """Return how the drivers of other libraries make a game: they have catch alone."""
    if task != "catch":
        raise UserError(f"environment 'toy/{task}': drivers of other libraries make catch alone of these games")
    return {"kind": "catch", "options": options}


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    reference_scores="toy.csv",
    camera=camera,
    recipe=recipe,
)


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
        """Start every environment's next episode."""
        self._episode = self._episode + 1
        self._state = self._rules.begin(self._draws(self._episode, 0))
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        return first_step(self._rules.observe(self._state))

    def step(self, actions: Array) -> EnvStep:
        """Apply `actions`: [B], or [B, A] float32 clipped to [-1, 1].

        Raise ValueError for actions of another shape, outside the action set or NaN, and RuntimeError before `reset`.
        """
        actions = accepted_actions(actions, self.spec, self.num_envs)
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
        """Return the states, the episodes and which environments' next step is dead."""
        arrays = {"state": self._state, "episode": self._episode, "ended": self._ended}
        return saved_state(self.spec, self._seed, arrays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raise UserError for a state of another protocol, seed or number of environments.
        """
        check_state(state, {"state", "episode", "ended"}, self.spec, self._seed, self.num_envs)
        self._state = state["state"].numpy().copy()
        self._episode = state["episode"].numpy().copy()
        self._ended = state["ended"].numpy().copy()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _draws(self, episode: Array, step: Array | int) -> Array:
        """Return a random number [B] uint64 for each environment's episode and step (SplitMix64, applied in turn)."""
        of_episode = mixed(mixed(self._streams) ^ episode.astype(np.uint64))
        return mixed(of_episode ^ np.asarray(step).astype(np.uint64))
