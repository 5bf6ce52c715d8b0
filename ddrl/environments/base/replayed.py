"""B simulations of one task in a Python loop, as a `ddrl.types.VectorEnv`.

- Seeds: every episode starts from a seed of its own, which depends on (seed, environment, episode) only. What follows
  is a function of that seed and the actions, so a checkpoint is the list of actions of the running episodes. It is
  right for every task, whatever a task keeps to itself. An environment of unknown origin may draw from elsewhere:
  where `repeats` is False, episodes that come out otherwise are abandoned (`ddrl.types`), and the run goes on.
- Limits: an episode is truncated after `max_steps` steps, unless it terminates in the last of them; where `max_steps`
  is None, never.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from ddrl.environments.base.contract import accepted_actions, check_state, first_step, saved_state
from ddrl.errors import UserError
from ddrl.system.notes import say
from ddrl.system.seeding import seed_for
from ddrl.types import Array, EnvSpec, EnvStep

Stepped: TypeAlias = tuple[Array, float, bool, bool]
"""Observation, reward, terminated, truncated."""


class Replayable(Protocol):
    """One environment, without limit of steps."""

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` alone determines; return its first observation."""

    def step(self, action: Any) -> Stepped:
        """Return observation, reward, terminated and truncated; `action`, an integer or [A], is in its own units.

        Truncated: by a limit of its own, beside that of `ReplayedEnvs`.
        """

    def close(self) -> None:
        """Free native resources."""


Simulated = TypeVar("Simulated", bound=Replayable)


class ReplayedEnvs(Generic[Simulated]):
    """B simulations of one task, whose episodes are played again where a checkpoint is continued."""

    def __init__(
        self,
        spec: EnvSpec,
        make: Callable[[], Simulated],
        num_envs: int,
        seed: int,
        *,
        max_steps: int | None,
        repeats: bool = True,
        in_units: Callable[[Array], Array] = lambda actions: actions,
    ) -> None:
        """`make` builds one simulation, always the same; an episode is cut after `max_steps` steps.

        `repeats`: an episode that cannot be played again is an error; otherwise it is abandoned. `in_units` turns
        actions [..., A] of the agent into those of the simulation.
        """
        self.spec = spec
        self.num_envs = num_envs
        self.simulations = [make() for _ in range(num_envs)]
        self._in_units = in_units
        self._repeats = repeats
        self._seed = seed
        self._max_steps = math.inf if max_steps is None else max_steps
        self._episode = np.full(num_envs, -1, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._last = self._empty()
        """The newest observations [B, ...]."""
        self._taken: list[list[Any]] = [[] for _ in range(num_envs)]
        """The actions of each running episode, as the agent gave them."""

    def reset(self) -> EnvStep:
        """Start every environment's next episode."""
        observation = self._empty()
        for row in range(self.num_envs):
            observation[row] = self._start(row)
        self._last, self._ended = observation, np.zeros(self.num_envs, dtype=np.bool_)
        return first_step(observation)

    def step(self, actions: Array) -> EnvStep:
        """Apply `actions`: [B] integers, or [B, A] float32.

        Raise ValueError for actions of another shape or type, outside the action set or NaN, RuntimeError before
        `reset`, and whatever a simulation raises, with a note that names the environment, its episode and its seed.
        """
        actions = accepted_actions(actions, self.spec, self.num_envs)
        if self._episode[0] < 0:
            raise RuntimeError("step was called before reset")
        dead = self._ended
        converted = self._in_units(actions)
        observation = self._empty()
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = terminated.copy()

        for row, is_dead in enumerate(dead.tolist()):
            if is_dead:
                observation[row] = self._start(row)
                continue
            observation[row], reward[row], over, cut = self._advance(row, actions[row], converted[row])
            terminated[row] = over
            truncated[row] = not over and (cut or len(self._taken[row]) >= self._max_steps)
        self._last, self._ended = observation, terminated | truncated
        return EnvStep(observation, reward, terminated, truncated, self._ended, dead, ~dead)

    def state_dict(self) -> dict[str, Any]:
        """Return each environment's episode and the actions since its start, and a checksum of what was seen last."""
        steps, shape = self._steps(), (self.spec.action_size,) if self.spec.action_size else ()
        actions = np.array(list(chain(*self._taken)), dtype=np.float32 if shape else np.int64)
        arrays = {
            "episode": self._episode,
            "ended": self._ended,
            "steps": steps,
            "actions": actions.reshape(int(steps.sum()), *shape),
        }
        return saved_state(self.spec, self._seed, arrays) | {"checksums": self._checksums()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the running episodes again.

        Raise UserError for a state of another protocol, seed or number of environments, or if the episodes played
        again differ from the recorded ones; if `repeats` is False, these are abandoned instead.
        """
        keys = {"episode", "ended", "steps", "actions", "checksums"}
        check_state(state, keys, self.spec, self._seed, self.num_envs)
        self._episode = state["episode"].numpy().copy()
        self._ended = state["ended"].numpy().copy()
        self._taken = [[] for _ in range(self.num_envs)]
        self._last = self._empty()
        if self._episode[0] < 0:
            return
        ends = np.cumsum(state["steps"].numpy())
        for row, actions in enumerate(np.split(state["actions"].numpy(), ends[:-1])):
            self._episode[row] -= 1  # the start counts it again
            self._last[row] = self._play(row, actions)
        differs = [own != recorded for own, recorded in zip(self._checksums(), state["checksums"], strict=True)]
        if any(differs) and self._repeats:
            raise UserError(
                "environment state: the episodes played again differ from the recorded ones: another processor or "
                "another version of a library"
            )
        self._abandon(np.array(differs) & ~self._ended)

    def close(self) -> None:
        """Free the simulations. No other method may be called afterwards."""
        for simulation in self.simulations:
            simulation.close()

    def _empty(self) -> Array:
        return np.empty((self.num_envs, *self.spec.observation_shape), dtype=self.spec.observation_dtype)

    def _start(self, row: int) -> Array:
        """Start the next episode of one environment; return its first observation."""
        self._episode[row] += 1
        self._taken[row] = []
        observation: Array = self._noted(row, self.simulations[row].reset, self._seed_of(row))
        return observation

    def _play(self, row: int, actions: Array) -> Array:
        """Start the next episode of one environment and play `actions`, up to an early end; return what was seen last.

        A saved episode that had ended holds its last action, so an end before the last one shows another episode.
        """
        seen = self._start(row)
        for number, (action, converted) in enumerate(zip(actions, self._in_units(actions), strict=True), start=1):
            seen, _, terminated, truncated = self._advance(row, action, converted)
            if (terminated or truncated) and number < len(actions):
                return seen
        return seen

    def _abandon(self, rows: Array) -> None:
        """Give up the running episodes of these environments [B]: their next step begins new ones."""
        if rows.any():
            say(
                f"{self.spec.name}: {int(rows.sum())} of {self.num_envs} running episodes did not repeat themselves "
                "from their seeds and actions; they are abandoned, and new episodes begin"
            )
        self._ended = self._ended | rows

    def _advance(self, row: int, action: Any, converted: Any) -> Stepped:
        """Step one environment; `converted` is `action` in its units."""
        result: Stepped = self._noted(row, self.simulations[row].step, converted)
        self._taken[row].append(action)
        return result

    def _noted(self, row: int, call: Callable[[Any], Any], argument: Any) -> Any:
        """Return `call(argument)`; add a note to what it raises, which says where the environment stands."""
        try:
            return call(argument)
        except Exception as error:
            place = f"{self.spec.name}, environment {row} of seed {self._seed}, episode {self._episode[row]}"
            error.add_note(f"{place} (seed {self._seed_of(row)}), after {len(self._taken[row])} steps")
            raise

    def _seed_of(self, row: int) -> int:
        return seed_for(self._seed, f"{self.spec.name}/{row}", int(self._episode[row]))

    def _steps(self) -> Array:
        """Return how many steps each running episode has had [B]."""
        return np.array([len(taken) for taken in self._taken], dtype=np.int64)

    def _checksums(self) -> list[int]:
        flags = zip(self._last, self._ended.tolist(), strict=True)
        return [zlib.crc32(seen.tobytes() + f"{ended}".encode()) for seen, ended in flags]
