"""Environments that name themselves when they fail, do not answer, or return numbers that are not finite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddrl.environments.base import finite, registry
from ddrl.errors import Closed, NonFiniteError, UserError, crash, ends_the_program
from ddrl.system.calls import EnvironmentCall
from ddrl.system.notes import say
from ddrl.types import Array, EnvSpec, EnvStep, VectorEnv


class GuardedCalls:
    """Calls into environments, one at a time and none after they were closed, whose errors name them."""

    def __init__(self, close: Callable[[], None], name: str) -> None:
        """`close` frees the environments."""
        self._close = close
        self._name = name
        self._busy = threading.Lock()
        self._closed = False

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `method` returns. Raise Closed after `close`, and what it raises as a crash (see `NamedEnv`)."""
        with self._busy:
            if self._closed:
                raise Closed
            return named(self._name, method, *arguments)

    def close(self) -> None:
        """Close the environment, but not while another thread steps it, since it may not be freed there.

        Print an error and go on: the environment was closed because it is no longer needed, and its results count.
        """
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                named(self._name, self._close)
            except UserError as error:
                say(f"{error} (as it was closed)")
            finally:
                self._busy.release()


class NamedEnv:
    """A `VectorEnv` whose errors are a `ddrl.errors.crash` of its name, with what was raised as the cause.

    Every environment of a run, an evaluation or a worker is one, so all numbers enter here: before anything is clipped,
    normalised, stored or sent, those that `ddrl.environments.base.finite` refuses end the run. `ddrl.system.calls`
    watches its calls. All methods but `close` raise UserError where the environment's own fails.
    """

    def __init__(self, env: VectorEnv, name: str, tasks: Sequence[str]) -> None:
        """`tasks` [B] has the task of each environment."""
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.load_state_dict = env.load_state_dict
        self._env = env
        self._name = name
        self._tasks = tasks
        self._steps = 0
        self._form: list[Any] = []
        """Shapes and dtypes of the newest step that was well formed: most steps are like the one before."""
        self._guard = GuardedCalls(env.close, name)
        self._call: Callable[..., EnvStep] = self._guard.call
        self.close = self._guard.close

    def reset(self) -> EnvStep:
        """Reset the environment. Raise UserError for a number that is not finite or too large, Closed after `close`."""
        step = self._call(self._env.reset)
        self._check_form(step)
        if found := finite.fault(step):
            raise self._refused(found, "no action came before")
        return step

    def step(self, actions: Array) -> EnvStep:
        """Step the environment. Raise as `reset`, and NonFiniteError where the actions are not finite.

        All that the policy saw was finite, so such actions mean that training diverged.
        """
        self._steps += 1
        try:
            step = self._call(self._env.step, actions)
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
        state: dict[str, Any] = named(self._name, self._env.state_dict)
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

    def _refused(self, found: finite.BadNumber, before: str) -> UserError:
        task = f" ({self._tasks[found.column]})" if len(set(self._tasks)) > 1 else ""
        place = f"step {self._steps} of this process, column {found.column} of {self.num_envs}{task}"
        return UserError(f"{self._name}: {place}: the {found.what}; {before}")


def make_env(
    environment: Mapping[str, Any], num_envs: int, seed: int, *, num_threads: int, name: str, first_env: int = 0
) -> NamedEnv:
    """Make environments whose errors begin with `name`; `first_env` as in `registry.make`.

    Raise UserError where they cannot be made.
    """

    def make() -> VectorEnv:
        return registry.make(**environment, num_envs=num_envs, seed=seed, num_threads=num_threads, first_env=first_env)

    env = named(name, make, keep=(UserError,))
    return NamedEnv(env, name, registry.column_tasks(environment["name"], first_env, num_envs))


def spec_of(
    environment: Mapping[str, Any], *, given: Mapping[str, Any] | None = None, where: str = "environment"
) -> EnvSpec:
    """Return an environment's spec; `where` names its keys in errors, `given` has those that stand there (None: all).

    Raise UserError where the spec cannot be determined, and for a key that has no effect.
    """
    options = {key: value for key, value in environment.items() if key != "name"}

    def checked() -> EnvSpec:
        own = {key: value for key, value in (environment if given is None else given).items() if key != "name"}
        registry.check_read(environment["name"], options, given=own, where=where)
        return registry.spec_for(environment["name"], **options)

    spec: EnvSpec = named(f"environment {environment['name']}", checked, keep=(UserError,))
    return spec


def named(name: str, work: Callable[..., Any], *arguments: Any, keep: tuple[type[Exception], ...] = ()) -> Any:
    """Return `work(*arguments)`; raise what it raises as a crash of that name, except for `keep`."""
    with EnvironmentCall(name):
        try:
            return work(*arguments)
        except keep:
            raise
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise crash(name, error) from error
