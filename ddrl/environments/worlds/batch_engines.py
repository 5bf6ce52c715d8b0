"""What steps many robots of one model at once.

`ThreadsEngine` uses `mujoco.batch`, which runs MuJoCo's own step over all robots on native threads: the results are
those of a loop over single simulations, bit for bit, whatever the number of threads. `mujoco.rollout` has threads too,
but keeps to itself the warm start of the solver, which the next step needs, and what a step derives from a state.
"""

from __future__ import annotations

from typing import Any, Protocol

import mujoco
import numpy as np
from mujoco.batch import Batch

from ddrl.environments.worlds import physics
from ddrl.types import Array

POSITIONS_AND_VELOCITIES = int(mujoco.mjtStage.mjSTAGE_VEL)
_NOTHING = int(mujoco.mjtStage.mjSTAGE_NONE)
_WHOLE_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_ROOT = 1
"""The body that hangs on the free joint, whose three positions, quaternion and six velocities come first."""
_FREE_POSITIONS, _FREE_VELOCITIES = 7, 6
_FORCES_FROM = ("xpos", "xquat", "xmat", "cvel", "subtree_com", "actuator_length", "actuator_velocity", "ctrl")


class Engine(Protocol):
    """Steps B robots. Row i of every array belongs to robot i; a call changes the rows that it names, and no others."""

    state: Array
    """[B, N] float64: from it, and with the same controls, an engine continues with the same bits."""

    def field(self, name: str) -> Array:
        """Return a live array [B, ...] of what MuJoCo calls `name`, such as `qpos`. Raise KeyError for others.

        What is derived from a state has the values that `mj_step` leaves, and 0 before the first call.
        """

    def begin(self, rows: Array, qpos: Array, qvel: Array, warmstart: Array, settle: int) -> None:
        """Start robots `rows` [n] from positions [n, nq], velocities and accelerations [n, nv], both at controls of 0.

        `warmstart`: where the solver begins its search. `settle`: how many sub-steps pass before the episode begins.
        """

    def step(self, rows: Array, controls: Array) -> None:
        """Make an agent step of robots `rows` [n] with their rows of `controls` [B, A], in the actuators' units."""

    def shown(self) -> tuple[Any, Any]:
        """Return model and data of the first robot, for pictures."""

    def close(self) -> None:
        """Free native resources."""


class ThreadsEngine:
    """Robots on native threads of this process, as an `Engine`."""

    def __init__(
        self,
        model: Any,
        num_robots: int,
        num_threads: int,
        *,
        sub_steps: int,
        fields: tuple[str, ...],
        current: bool,
        force_model: Any = None,
    ) -> None:
        """`fields`: what `field` will be asked for, beside `qpos` and `qvel`.

        `current`: derived fields are of the new state, as in dm_control; otherwise they are what `mj_step` leaves: of
        the state before the last sub-step, or in it where the integrator has stages. `force_model`: the same model with
        a sensor of forces, for `cfrc_ext`; its root must be free, and every other joint have an actuator.
        """
        physics.route_warnings()
        self._batch = Batch(model, num_robots, max(1, min(num_threads, num_robots)))
        self._sub_steps = sub_steps
        self._stage = POSITIONS_AND_VELOCITIES if current else _NOTHING
        self.state: Array = self._batch.state
        self._fields: dict[str, Array] = {name: self._batch.bind(name) for name in ("qpos", "qvel", *fields)}
        self._probe = _ForceProbe(force_model, self._batch) if force_model is not None else None
        if self._probe:
            self._fields["cfrc_ext"] = self._probe.forces
        self._picture: Any = None

    def field(self, name: str) -> Array:
        return self._fields[name]

    def begin(self, rows: Array, qpos: Array, qvel: Array, warmstart: Array, settle: int) -> None:
        self._batch.reset(rows, stage=_NOTHING)
        self._batch.qpos[rows] = qpos
        self._batch.qvel[rows] = qvel
        self._batch.qacc_warmstart[rows] = warmstart
        if settle:
            self._batch.step(rows, settle, self._stage)
        else:
            self._batch.forward(rows)
        if self._probe:
            self._probe.forces[rows] = 0.0

    def step(self, rows: Array, controls: Array) -> None:
        self._batch.ctrl[rows] = controls[rows]
        if self._probe is None:
            self._batch.step(rows, self._sub_steps, self._stage)
            return
        self._batch.step(rows, self._sub_steps - 1)
        before = self._batch.qacc_warmstart[rows]
        self._batch.step(rows)
        self._probe.measure(rows, before)

    def shown(self) -> tuple[Any, Any]:
        model = self._batch.model
        if self._picture is None:
            self._picture = mujoco.MjData(model)
        mujoco.mj_setState(model, self._picture, self.state[0], _WHOLE_STATE)
        mujoco.mj_forward(model, self._picture)
        return model, self._picture

    def close(self) -> None:
        """Free nothing: the batch's memory and its threads go with it."""


def bytes_per_robot(model: Any, fields: tuple[str, ...], *, contact_forces: bool) -> int:
    """Return about how much memory a robot of a `ThreadsEngine` takes, its state in a checkpoint included."""
    template, state = mujoco.MjData(model), mujoco.mj_stateSize(model, _WHOLE_STATE)
    named = {*fields, *(_FORCES_FROM if contact_forces else ())}
    read = sum(np.asarray(getattr(template, name)).size for name in named)
    if contact_forces:
        read += 2 * template.cfrc_ext.size
    return int(8 * (2 * (2 if contact_forces else 1) * state + 1.5 * read))  # half of what is read is copied meanwhile


class _ForceProbe:
    """The forces and torques of contacts on each body, as `mj_rnePostConstraint` finds them after a step.

    A batch computes them only for sensors, and sensors are read before the stages of a Runge-Kutta step. So the state
    of the last stage is put together from what the step left (positions and velocities of the root and of the joints),
    and a second batch, whose model has such a sensor, evaluates it once more from the same warm start: one evaluation
    beside the twenty of an agent step. Positions come back to the last bits, and forces within 1e-9 of them.
    """

    def __init__(self, model: Any, batch: Any) -> None:
        """`model` has a sensor of forces; `batch` are the robots that step. Raise ValueError for other joints."""
        self._seen = {name: batch.bind(name) for name in _FORCES_FROM}
        joints = model.actuator_trnid[:, 0]
        self._gear = model.actuator_gear[:, 0].copy()
        self._positions, self._velocities = model.jnt_qposadr[joints], model.jnt_dofadr[joints]
        if sorted(self._positions) != list(range(_FREE_POSITIONS, model.nq)):
            raise ValueError("contact forces need a free root and an actuator for every other joint")
        self._batch = Batch(model, batch.nsim, batch.nthread)
        self._found = self._batch.bind("cfrc_ext")
        self.forces: Array = np.zeros_like(self._found)
        """[B, bodies, 6]: torque and force, both in the world's frame, about the centre of mass of the whole robot."""

    def measure(self, rows: Array, warmstart: Array) -> None:
        """Measure the forces on robots `rows` [n] in their last step, whose solver began at `warmstart` [n, nv]."""
        seen = {name: array[rows] for name, array in self._seen.items()}
        place, velocity = seen["xpos"][:, _ROOT], seen["cvel"][:, _ROOT]
        turning, offset = velocity[:, :3], place - seen["subtree_com"][:, _ROOT]
        qpos, qvel = np.empty((len(rows), self._batch.model.nq)), np.empty((len(rows), self._batch.model.nv))
        qpos[:, :3], qpos[:, 3:_FREE_POSITIONS] = place, seen["xquat"][:, _ROOT]
        qpos[:, self._positions] = seen["actuator_length"] / self._gear
        qvel[:, :3] = velocity[:, 3:] + np.cross(turning, offset)
        qvel[:, 3:_FREE_VELOCITIES] = np.einsum("nij,ni->nj", seen["xmat"][:, _ROOT].reshape(-1, 3, 3), turning)
        qvel[:, self._velocities] = seen["actuator_velocity"] / self._gear
        self._batch.qpos[rows], self._batch.qvel[rows] = qpos, qvel
        self._batch.qacc_warmstart[rows], self._batch.ctrl[rows] = warmstart, seen["ctrl"]
        self._batch.forward(rows)
        self.forces[rows] = self._found[rows]
