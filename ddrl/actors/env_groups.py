"""Double-buffered acting (Petrenko et al. 2020, section 3.1): an actor's environments in groups that take turns.

While one group waits for its actions from central inference, another one steps. A group's step is begun and finished
apart: environments in this process step in a thread beside the actor's own, others in their worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from ddrl.system.wait_clock import SteppingClock
from ddrl.types import Array, EnvSpec, EnvStep, VectorEnv

ENDING_SECONDS = 5.0
"""A step that was begun has this time to end when its environments are closed."""


class EnvGroup(Protocol):
    """Environments whose step is begun and finished apart."""

    num_envs: int

    def reset(self) -> EnvStep:
        """Start every environment anew."""

    def begin(self, actions: Array) -> None:
        """Begin a step, as `VectorEnv.step` takes actions."""

    def finish(self) -> EnvStep:
        """Wait for the step that was begun and return it. Raise as `VectorEnv.step`."""


class AllAtOnce:
    """A group that steps in the thread of its actor, when it begins."""

    def __init__(self, env: VectorEnv, clock: SteppingClock | None = None) -> None:
        self.num_envs = env.num_envs
        self.reset = env.reset
        self._env = env
        self._clock = clock
        self._step: EnvStep | None = None

    def begin(self, actions: Array) -> None:
        """Make the step."""
        if self._clock is None:
            self._step = self._env.step(actions)
            return
        with self._clock.stepping():
            self._step = self._env.step(actions)

    def finish(self) -> EnvStep:
        """Return the step."""
        assert self._step is not None
        step, self._step = self._step, None
        return step


class SteppingThread:
    """A thread in which the groups of one actor step, one at a time; it keeps no process from ending."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], EnvStep], Future[EnvStep]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    def submit(self, work: Callable[[], EnvStep]) -> Future[EnvStep]:
        """Have `work` done after what was submitted before; return its result to come."""
        result: Future[EnvStep] = Future()
        self._jobs.put((work, result))
        return result

    def close(self) -> None:
        """Let the thread end after what was submitted, and wait `ENDING_SECONDS` for it."""
        self._jobs.put(None)
        self._thread.join(ENDING_SECONDS)

    def _run(self) -> None:
        while job := self._jobs.get():
            work, result = job
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)


class Aside:
    """A group that steps in another thread."""

    def __init__(self, env: VectorEnv, thread: SteppingThread, clock: SteppingClock | None) -> None:
        self.num_envs = env.num_envs
        self.reset = env.reset
        self._group = AllAtOnce(env, clock)
        self._thread = thread
        self._step: Future[EnvStep] | None = None

    def begin(self, actions: Array) -> None:
        """Have the step made."""

        def work() -> EnvStep:
            self._group.begin(actions)
            return self._group.finish()

        self._step = self._thread.submit(work)

    def finish(self) -> EnvStep:
        """Wait for the step."""
        assert self._step is not None
        step, self._step = self._step.result(), None
        return step


class GroupedEnvs:
    """The environments of an actor, as one `VectorEnv`, and as groups of the same size."""

    def __init__(
        self, envs: Sequence[VectorEnv], thread: SteppingThread | None = None, clock: SteppingClock | None = None
    ) -> None:
        """`thread`: where they step; None: in the actor's own, so that nothing overlaps."""
        self.spec: EnvSpec = envs[0].spec
        self.num_envs = sum(env.num_envs for env in envs)
        self._envs = envs
        self._thread = thread
        self.groups: list[EnvGroup] = [Aside(env, thread, clock) if thread else AllAtOnce(env, clock) for env in envs]

    def reset(self) -> EnvStep:
        """Start every environment of every group anew."""
        return joined_steps([env.reset() for env in self._envs])

    def step(self, actions: Array) -> EnvStep:
        """Step the groups one after the other."""
        edges = np.cumsum([env.num_envs for env in self._envs])[:-1]
        parts = zip(self._envs, np.split(actions, edges), strict=True)
        return joined_steps([env.step(part) for env, part in parts])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every group's environments; of a single group, what its `VectorEnv` returns."""
        states = [env.state_dict() for env in self._envs]
        return states[0] if len(states) == 1 else {"groups": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        states = [state] if len(self._envs) == 1 else state["groups"]
        for env, own in zip(self._envs, states, strict=True):
            env.load_state_dict(own)

    def close(self) -> None:
        """Close all environments, and let the thread end."""
        if self._thread:
            self._thread.close()
        for env in self._envs:
            env.close()


def joined_steps(steps: Sequence[EnvStep]) -> EnvStep:
    """Return one step of all environments, in the order of the groups."""
    return EnvStep(*(np.concatenate(parts) for parts in zip(*steps, strict=True)))
