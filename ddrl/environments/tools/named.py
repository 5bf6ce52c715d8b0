"""Environments that say which ones they are when they fail, do not answer, or return numbers that are not finite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ddrl.environments.base import finite, registry
from ddrl.errors import Closed, NonFiniteError, UserError, crash, ends_the_program
from ddrl.system.calls import Call
from ddrl.system.notes import say
from ddrl.types import Array, EnvSpec, EnvStep, VectorEnv


class NamedEnv:
    """A `VectorEnv` whose errors are a `ddrl.errors.crash` of that name, with what was raised as its cause.

    Every environment of a run, an evaluation or a worker is one. So this is where numbers enter: before anything is
    clipped, normalised, stored or sent, those that `ddrl.environments.base.finite` does not let pass end the run. Its
    calls are among those that `ddrl.system.calls` watches. All methods but `close` raise UserError where the
    environment's own fails.
    """

    def __init__(self, env: VectorEnv, name: str, tasks: Sequence[str]) -> None:
        """`tasks` [B]: of each environment."""
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.load_state_dict = env.load_state_dict
        self._env = env
        self._name = name
        self._tasks = tasks
        self._steps = 0
        self._form: list[Any] = []
        """Shapes and dtypes of the newest step whose form was right: most steps are like the one before."""
        self._busy = threading.Lock()
        self._closed = False

    def reset(self) -> EnvStep:
        """The environment's own. Raises UserError for a number that is not finite or huge, `Closed` after `close`."""
        with self._busy:
            step: EnvStep = _named(self._name, self._opened.reset)
        self._check_form(step)
        if found := finite.fault(step):
            raise self._refused(found, "no action came before")
        return step

    def step(self, actions: Array) -> EnvStep:
        """The environment's own. Raises as `reset`; NonFiniteError where it is actions that are not finite.

        All that the policy saw was finite, so such actions are its own fault.
        """
        self._steps += 1
        try:
            with self._busy:
                step: EnvStep = _named(self._name, self._opened.step, actions)
        except UserError as error:
            if wrong := finite.diverged(actions):
                raise NonFiniteError(f"{self._name}: training diverged: {wrong}") from error
            raise
        self._check_form(step)
        if found := finite.fault(step):
            if wrong := finite.diverged(actions):
                raise NonFiniteError(f"{self._name}: training diverged: {wrong}, and then the {found.what}")
            raise self._refused(found, "the actions before it were finite")
        return step

    def state_dict(self) -> dict[str, Any]:
        """The environment's own."""
        state: dict[str, Any] = _named(self._name, self._env.state_dict)
        return state

    def _check_form(self, step: EnvStep) -> None:
        try:
            form = [(part.shape, part.dtype) for part in step]
        except AttributeError:
            form = []
        if form and form == self._form:
            return
        if wrong := finite.malformed(step, self.spec, self.num_envs):
            raise UserError(f"{self._name}: step {self._steps} of this process: the {wrong}")
        self._form = form

    def _refused(self, found: finite.Fault, before: str) -> UserError:
        task = f" ({self._tasks[found.column]})" if len(set(self._tasks)) > 1 else ""
        place = f"step {self._steps} of this process, column {found.column} of {self.num_envs}{task}"
        return UserError(f"{self._name}: {place}: the {found.what}; {before}")

    @property
    def _opened(self) -> VectorEnv:
        if self._closed:
            raise Closed
        return self._env

    def close(self) -> None:
        """The environment's own; one that another thread still waits for stays as it is: nobody may free it there.

        One that fails is told of and no more: what it was for has been done, and its results are not lost for it.
        """
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                _named(self._name, self._env.close)
            except UserError as error:
                say(f"{error} (as it was closed)")
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

    env = _named(name, make, keep=(UserError,))
    return NamedEnv(env, name, registry.column_tasks(environment["name"], first_env, num_envs))


def spec_of(environment: Mapping[str, Any]) -> EnvSpec:
    """What a network needs to know of an environment. Raises UserError where it cannot be said."""
    keep = (UserError,)
    spec: EnvSpec = _named(f"environment {environment['name']}", partial(registry.spec_for, **environment), keep=keep)
    return spec


def _named(name: str, work: Callable[..., Any], *arguments: Any, keep: tuple[type[Exception], ...] = ()) -> Any:
    """What `work` returns; what it raises, but for `keep`, as a crash of that name."""
    with Call(name):
        try:
            return work(*arguments)
        except keep:
            raise
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise crash(name, error) from error
