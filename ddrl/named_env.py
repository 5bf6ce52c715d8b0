"""Environments that say which ones they are when they fail, or when they do not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ddrl.calls import calling
from ddrl.environments import registry
from ddrl.errors import Closed, UserError, crash, ends_the_program
from ddrl.types import Array, EnvStep, VectorEnv


class NamedEnv:
    """A `VectorEnv` whose errors are a `ddrl.errors.crash` of that name, with what was raised as its cause.

    Its calls are among those that `ddrl.calls` watches. All methods raise UserError where the environment's own fails.
    """

    def __init__(self, env: VectorEnv, name: str) -> None:
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.state_dict = env.state_dict
        self.load_state_dict = env.load_state_dict
        self._env = env
        self._name = name
        self._busy = threading.Lock()
        self._closed = False

    def reset(self) -> EnvStep:
        """The environment's own. Raises `Closed` after `close`."""
        with self._busy:
            first: EnvStep = _named(self._name, self._opened.reset)
            return first

    def step(self, actions: Array) -> EnvStep:
        """The environment's own. Raises `Closed` after `close`."""
        with self._busy:
            step: EnvStep = _named(self._name, self._opened.step, actions)
            return step

    @property
    def _opened(self) -> VectorEnv:
        if self._closed:
            raise Closed
        return self._env

    def close(self) -> None:
        """The environment's own; one that another thread still waits for stays as it is: nobody may free it there."""
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                _named(self._name, self._env.close)
            finally:
                self._busy.release()


def make_env(
    environment: Mapping[str, Any], num_envs: int, seed: int, *, num_threads: int, name: str, first_env: int = 0
) -> NamedEnv:
    """Environments that say who they are when they fail; `first_env` as in `registry.make`.

    Raises UserError where they cannot be made.
    """

    def make() -> VectorEnv:
        return registry.make(**environment, num_envs=num_envs, seed=seed, num_threads=num_threads, first_env=first_env)

    return NamedEnv(_named(name, make, keep=(UserError,)), name)


def _named(name: str, work: Callable[..., Any], *arguments: Any, keep: tuple[type[Exception], ...] = ()) -> Any:
    """What `work` returns; what it raises, but for `keep`, as a crash of that name."""
    with calling(name):
        try:
            return work(*arguments)
        except keep:
            raise
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise crash(name, error) from error
