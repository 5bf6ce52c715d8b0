"""Environments that say which ones they are when they fail, or return numbers that no run can learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddrl import finite
from ddrl.environments import registry
from ddrl.errors import NonFiniteError, UserError, crash
from ddrl.types import Array, EnvStep, VectorEnv


class NamedEnv:
    """A `VectorEnv` whose errors are a `ddrl.errors.crash` of that name, with what was raised as its cause.

    Every environment of a run, an evaluation or a worker is one. So this is where numbers enter: before anything is
    clipped, normalised, stored or sent, those that `ddrl.finite` does not let pass end the run.
    """

    def __init__(self, env: VectorEnv, name: str, tasks: Sequence[str]) -> None:
        """`tasks` [B]: of each environment."""
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.state_dict = env.state_dict
        self.load_state_dict = env.load_state_dict
        self.close = env.close
        self._env = env
        self._name = name
        self._tasks = tasks
        self._steps = 0

    def reset(self) -> EnvStep:
        """The environment's own. Raises UserError where it fails, or a number is not finite or huge."""
        try:
            step = self._env.reset()
        except Exception as error:
            raise crash(self._name, error) from error
        if found := finite.fault(step):
            raise self._refused(found, "no action came before")
        return step

    def step(self, actions: Array) -> EnvStep:
        """The environment's own. Raises UserError as `reset`; NonFiniteError where it is actions that are not finite.

        All that the policy saw was finite, so such actions are its own fault.
        """
        self._steps += 1
        try:
            step = self._env.step(actions)
        except Exception as error:
            if wrong := finite.diverged(actions):
                raise NonFiniteError(f"{self._name}: training diverged: {wrong}") from error
            raise crash(self._name, error) from error
        if found := finite.fault(step):
            if wrong := finite.diverged(actions):
                raise NonFiniteError(f"{self._name}: training diverged: {wrong}, and then the {found.what}")
            raise self._refused(found, "the actions before it were finite")
        return step

    def _refused(self, found: finite.Fault, before: str) -> UserError:
        task = f" ({self._tasks[found.column]})" if len(set(self._tasks)) > 1 else ""
        place = f"step {self._steps} of this process, column {found.column} of {self.num_envs}{task}"
        return UserError(f"{self._name}: {place}: the {found.what}; {before}")


def make_env(
    environment: Mapping[str, Any], num_envs: int, seed: int, *, num_threads: int, name: str, first_env: int = 0
) -> NamedEnv:
    """Environments that say who they are when they fail; `first_env` as in `registry.make`.

    Raises UserError where they cannot be made.
    """
    try:
        env = registry.make(**environment, num_envs=num_envs, seed=seed, num_threads=num_threads, first_env=first_env)
    except UserError:
        raise
    except Exception as error:
        raise crash(name, error) from error
    return NamedEnv(env, name, registry.column_tasks(environment["name"], first_env, num_envs))
