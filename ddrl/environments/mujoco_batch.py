"""MuJoCo's robots in one batch on native threads: `mujoco_batch/Ant-v5`, `mujoco_batch/cheetah-run`, ... (8 tasks).

The tasks are those of `mujoco/` and `dm_control/`, and with the same seed and the same actions the very episodes are:
starts are drawn from the same streams, and the simulator's steps are the same bits. What differs is speed. Physics runs
on `num_threads` native threads without Python's lock, and everything else is NumPy over all robots: no loop over them.
Contact forces, which Ant and Humanoid observe, are found again after the step and differ in the last bits
(`batch_engines`).

- Time, actions, ends, limits: as in `mujoco/` and `dm_control/`. Episodes begin with a loop over those that ended.
- A checkpoint holds the simulator's own states, so nothing is played again when a run is continued.
- `staggered` cuts each robot's first episode after a drawn number of steps, so that robots whose episodes are all of
  one length do not begin anew at the same step for ever. These first episodes are truncated, and count as episodes.
- Robots that would not fit into the free memory are refused before any is made.
- A simulation that diverges begins again in the model's own pose, with a warning in the log, as MuJoCo does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import psutil

from ddrl.environments import dm_control, mujoco
from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.contract import accepted_actions, first_step, loaded_arrays, saved_state
from ddrl.environments.tools.camera import Camera
from ddrl.environments.tools.simulator_camera import simulator_camera
from ddrl.environments.worlds import gymnasium_robots, suite_robots
from ddrl.environments.worlds.batch_engines import Engine, ThreadsEngine, bytes_per_robot
from ddrl.environments.worlds.batched_robots import Robot
from ddrl.errors import UserError
from ddrl.system.seeding import seed_for
from ddrl.types import Array, EnvSpec, EnvStep

TASKS: tuple[str, ...] = (*gymnasium_robots.RULES, *suite_robots.TASKS)
EXAMPLES: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": {"max_steps": 60, "staggered": True},
    "Ant-v5": {"max_steps": 40},
    "Humanoid-v5": {"max_steps": 20},
    "walker-walk": {"max_steps": 60},
}
_OWN = {"engine": Option("threads", choices=("threads",)), "staggered": Option(False)}


def _of_gymnasium(task: str) -> bool:
    """Return whether a task is one of `mujoco/`, and none of `dm_control/`."""
    return task in gymnasium_robots.RULES


OPTIONS = {task: {**(mujoco if _of_gymnasium(task) else dm_control).OPTIONS[task], **_OWN} for task in TASKS}


def spec(task: str, *, engine: str, staggered: bool, **options: Any) -> EnvSpec:
    """Return the spec of the same task in `mujoco/` or `dm_control/`, with its protocol: scores may be compared."""
    single = _single(task, **options)
    first = ";staggered-first-episodes" if staggered else ""
    return replace(single, name=f"mujoco_batch/{task}", protocol=single.protocol + first)


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> BatchedRobots:
    """Make `num_envs` robots, stepped by `num_threads` native threads.

    Raise UserError for more than fit into the free memory.
    """
    return BatchedRobots(task, num_envs, seed, num_threads, **options)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)`."""
    twin = make(task, 1, seed, **options)
    return simulator_camera(twin, twin.shown, twin.seconds_per_step)


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    camera=camera,
)


class BatchedRobots:
    """B robots as a `ddrl.types.VectorEnv`."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        seed: int,
        num_threads: int,
        *,
        engine: str,
        staggered: bool,
        max_steps: int,
        **options: Any,
    ) -> None:
        """`options` are those of the task, beside `max_steps`."""
        self.spec = spec(task, engine=engine, staggered=staggered, max_steps=max_steps, **options)
        self.num_envs = num_envs
        self._robot = robot = _robot(task, **options)
        _check_memory(self.spec, robot, num_envs)
        self._engine: Engine = ThreadsEngine(
            robot.model,
            num_envs,
            num_threads,
            sub_steps=robot.sub_steps,
            fields=robot.fields,
            current=robot.current,
            force_model=robot.force_model,
        )
        self._seed, self._stream = seed, _single(task, max_steps=max_steps, **options).name
        self._max_steps = max_steps
        rows = range(num_envs) if staggered else ()
        first = [1 + seed_for(seed, f"mujoco_batch/{task}/{row}/first") % max_steps for row in rows]
        self._first_limit = np.array(first or [max_steps] * num_envs)
        self._episode = np.full(num_envs, -1)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._place = np.zeros(num_envs)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time of an agent step."""
        return self._robot.seconds_per_step

    def reset(self) -> EnvStep:
        """Start every robot's next episode."""
        self._begin(np.arange(self.num_envs, dtype=np.int32))
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._place = self._robot.place(self._engine.field)
        return first_step(self._observe())

    def step(self, actions: Array) -> EnvStep:
        """Apply `actions` [B, A] float32.

        Raise ValueError for actions of another shape or type or NaN, and RuntimeError before `reset`.
        """
        actions = accepted_actions(actions, self.spec, self.num_envs)
        if self._episode[0] < 0:
            raise RuntimeError("step was called before reset")
        robot, field, dead = self._robot, self._engine.field, self._ended
        controls = robot.bounds.scale(actions)
        self._engine.step(np.flatnonzero(~dead).astype(np.int32), controls)
        self._steps = self._steps + 1
        if dead.any():
            self._begin(np.flatnonzero(dead).astype(np.int32))
        before, self._place = self._place, robot.place(field)
        velocity = (self._place - before) / robot.seconds_per_step
        reward = np.where(dead, 0.0, robot.reward(field, velocity, controls)).astype(np.float32)
        terminated = ~robot.healthy(field) & ~dead
        limit = np.where(self._episode == 0, self._first_limit, self._max_steps)
        truncated = (self._steps >= limit) & ~terminated & ~dead
        self._ended = terminated | truncated
        return EnvStep(self._observe(), reward, terminated, truncated, self._ended, dead, ~dead)

    def state_dict(self) -> dict[str, Any]:
        """Return episodes, steps, the simulator's states and what the next rewards start from."""
        return saved_state(self.spec, self._seed, self._state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raise UserError for a state of another protocol, seed or number of environments.
        """
        loaded = loaded_arrays(state, self._state(), self.spec, self._seed, self.num_envs)
        self._episode, self._ended = loaded["episode"], loaded["ended"]
        self._steps, self._place = loaded["steps"], loaded["place"]
        self._engine.state[:] = loaded["simulations"]

    def close(self) -> None:
        """Free the simulations. No other method may be called afterwards."""
        self._engine.close()

    def shown(self) -> tuple[Any, Any]:
        """Return model and data of the first robot as it stands, for pictures."""
        return self._engine.shown()

    def _state(self) -> dict[str, Array]:
        places = {"steps": self._steps, "place": self._place, "simulations": self._engine.state}
        return {"episode": self._episode, "ended": self._ended, **places}

    def _begin(self, rows: Array) -> None:
        """Start the next episode of robots `rows` [n] int32."""
        self._episode[rows] += 1
        self._steps[rows] = 0
        seeds = [
            seed_for(self._seed, f"{self._stream}/{row}", int(episode))
            for row, episode in zip(rows.tolist(), self._episode[rows], strict=True)
        ]
        qpos, qvel = (np.array(parts) for parts in zip(*map(self._robot.start, seeds), strict=True))
        self._engine.begin(rows, qpos, qvel, np.tile(self._robot.warmstart, (len(rows), 1)), self._robot.settle)

    def _observe(self) -> Array:
        """Return the observations [B, N] float32."""
        parts = self._robot.observe(self._engine.field)
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")


def _single(task: str, **options: Any) -> EnvSpec:
    """Return the spec of the same task where it is simulated one by one."""
    return mujoco.spec(task, **options) if _of_gymnasium(task) else dm_control.spec(task, **options)


@cache
def _robot(task: str, **options: Any) -> Robot:
    """Return a task's robot; `options` are those of the task, beside `max_steps`."""
    if _of_gymnasium(task):
        with closing(mujoco.GymnasiumSimulation(task, {})) as simulation:
            return gymnasium_robots.robot(task, simulation.env, **options)
    with closing(dm_control.SuiteSimulation(task)) as simulation:
        return suite_robots.robot(task, simulation.env)


def _check_memory(of_task: EnvSpec, robot: Robot, num_envs: int) -> None:
    """Raise UserError if the robots need more memory than is free."""
    each, free = _bytes_per_robot(robot, of_task.observation_shape[0]), psutil.virtual_memory().available
    if num_envs * each > free:
        raise UserError(
            f"environment '{of_task.name}': {num_envs} robots need about {num_envs * each / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB of memory are free; allowed: up to {free // each}"
        )


def _bytes_per_robot(robot: Robot, observation_size: int) -> int:
    """Return about how much memory a robot takes, with its newest two observations."""
    forces = robot.force_model is not None
    return bytes_per_robot(robot.model, robot.fields, contact_forces=forces) + 8 * observation_size
