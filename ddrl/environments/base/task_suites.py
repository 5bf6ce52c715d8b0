"""Several tasks side by side, for one agent that plays them all: each environment plays one of them.

A task that fails does not end the others: its environments begin anew, as if they had been lost (`ddrl.types`,
abandoned episodes), and after `MOST_FAILURES` failures they are given up.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ddrl.environments.base.contract import accepted_actions
from ddrl.errors import UserError, crash, ends_the_program
from ddrl.system.notes import say
from ddrl.types import Array, EnvSpec, EnvStep, VectorEnv

MOST_FAILURES = 3
"""The number of times that a task may fail in a process before it is given up."""


def common_spec(name: str, specs: Sequence[EnvSpec]) -> EnvSpec:
    """Return the spec that tasks of one suite share; its protocol has what is common to theirs, and a checksum of all.

    Raise UserError where they differ in observations, actions or frame skip.
    """
    first = specs[0]
    for own in specs[1:]:
        for field in EnvSpec.__dataclass_fields__:
            if field not in ("name", "protocol") and getattr(own, field) != getattr(first, field):
                found = f"{field} {getattr(first, field)} in {first.name} and {getattr(own, field)} in {own.name}"
                raise UserError(f"environment '{name}': what one agent plays must be alike, but here is {found}")
    versions = "+".join(dict.fromkeys(own.protocol.partition("/")[0] for own in specs))
    tokens = set.intersection(*(set(re.split("[;,]", own.protocol)) for own in specs))
    parts = [[token for token in part.split(",") if token in tokens] for part in first.protocol.split(";")[1:]]
    shared = [",".join(part) for part in parts if part]
    checksum = zlib.crc32("\n".join(own.protocol for own in specs).encode())
    protocol = ";".join([f"{versions}/{name.partition('/')[2]}", *shared, f"{len(specs)}-tasks-{checksum:08x}"])
    return EnvSpec(**{**vars(first), "name": name, "protocol": protocol})


class SuiteEnvs:
    """Environments [B] of several tasks as one `VectorEnv`; tasks are stepped one after another."""

    def __init__(
        self,
        spec: EnvSpec,
        make: Callable[[str, int, int], VectorEnv],
        tasks: Sequence[str],
        note: Callable[[str], None] = say,
    ) -> None:
        """`tasks` [B] has the task of each environment. `note` is called with a line for the user for each failure.

        `make(task, number, failures)` makes environments of a task, with other seeds after each failure.
        Raise UserError where environments cannot be made.
        """
        self.spec = spec
        self.num_envs = len(tasks)
        self._make = make
        self._note = note
        self._columns = {name: np.flatnonzero(np.array(tasks) == name) for name in dict.fromkeys(tasks)}
        self._failures = dict.fromkeys(self._columns, 0)
        self._envs: dict[str, VectorEnv | None] = {}
        """None: given up."""
        for name in self._columns:
            self._begin(name)

    def reset(self) -> EnvStep:
        """Start every environment anew, except for those that were given up. Let what a task raises here pass."""
        whole = self._dead_steps()
        for name, env in self._envs.items():
            _write(whole, self._columns[name], env.reset() if env else None)
        return whole

    def step(self, actions: Array) -> EnvStep:
        """Apply `actions`, [B] int64 or [B, A] float32. Raise ValueError for others."""
        actions = accepted_actions(actions, self.spec, self.num_envs)
        whole = self._dead_steps()
        for name, columns in self._columns.items():
            env = self._envs[name]
            if env is None:
                continue
            try:
                _write(whole, columns, env.step(actions[columns]))
            except BaseException as error:
                if ends_the_program(error):
                    raise
                _write(whole, columns, self._restart(name, error))
                whole.start[columns], whole.valid[columns] = True, False
        return whole

    def _restart(self, name: str, error: BaseException) -> EnvStep | None:
        """Return the first step of new episodes of a task that failed, None where the task is given up."""
        while self._failures[name] < MOST_FAILURES:
            self._failures[name] += 1
            times = f"failure {self._failures[name]} of {MOST_FAILURES} at most"
            self._note(f"{_described(name, error)}; its environments begin anew ({times})")
            self._end(name)
            try:
                return self._begin(name).reset()
            except BaseException as another:
                if ends_the_program(another):
                    raise
                error = another
        self._note(f"{_described(name, error)}; given up, the other tasks go on")
        self._end(name)
        return None

    def _begin(self, name: str) -> VectorEnv:
        self._envs[name] = env = self._make(name, len(self._columns[name]), self._failures[name])
        return env

    def _end(self, name: str) -> None:
        """Free the environments of a task, whatever state they are in."""
        env, self._envs[name] = self._envs.get(name), None
        try:
            if env is not None:
                env.close()
        except BaseException as error:
            if ends_the_program(error):
                raise
            self._note(_described(name, error))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of each task's environments, and how often they failed."""
        envs = {name: env.state_dict() if env else None for name, env in self._envs.items()}
        return {"envs": envs, "failures": dict(self._failures)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; a task that was given up stays so.

        Raise UserError for a state of other tasks, or as the tasks' own environments.
        """
        if list(state.get("envs", {})) != list(self._columns):
            raise UserError(f"environment state: of other tasks than those of {self.spec.name} here")
        for name, saved in state["envs"].items():
            if saved is None or state["failures"][name] != self._failures[name]:
                self._end(name)
            self._failures[name] = state["failures"][name]
            if saved is not None:
                (self._envs[name] or self._begin(name)).load_state_dict(saved)

    def close(self) -> None:
        for name in self._columns:
            self._end(name)

    def _dead_steps(self) -> EnvStep:
        observation = np.zeros((self.num_envs, *self.spec.observation_shape), dtype=self.spec.observation_dtype)
        flags = (np.zeros(self.num_envs, dtype=np.bool_) for _ in range(5))
        return EnvStep(observation, np.zeros(self.num_envs, dtype=np.float32), *flags)


def _write(whole: EnvStep, columns: Array, part: EnvStep | None) -> None:
    """Fill the columns of a task with its step; leave them as they are where `part` is None."""
    for own, field in zip(part or (), whole, strict=part is not None):
        field[columns] = own


def _described(name: str, error: BaseException) -> str:
    """Return one line: the error, and its notes, which say where it was raised."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{crash(name, error)}" + (f" ({notes})" if notes else "")
