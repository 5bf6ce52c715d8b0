"""Environments that say which ones they are when they fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddrl.environments import registry
from ddrl.errors import UserError, crash
from ddrl.types import Array, EnvStep, VectorEnv


class NamedEnv:
    """A `VectorEnv` whose errors are a `ddrl.errors.crash` of that name, with what was raised as its cause."""

    def __init__(self, env: VectorEnv, name: str) -> None:
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.state_dict = env.state_dict
        self.load_state_dict = env.load_state_dict
        self.close = env.close
        self._env = env
        self._name = name

    def reset(self) -> EnvStep:
        """The environment's own. Raises UserError where it fails."""
        try:
            return self._env.reset()
        except Exception as error:
            raise crash(self._name, error) from error

    def step(self, actions: Array) -> EnvStep:
        """The environment's own. Raises UserError where it fails."""
        try:
            return self._env.step(actions)
        except Exception as error:
            raise crash(self._name, error) from error


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
    return NamedEnv(env, name)
