"""The engine of many robots: MuJoCo's own step, on some rows alone, and what it refuses."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from ddrl.environments.worlds.batch_engines import ThreadsEngine

POLE = """
<mujoco>
  <worldbody>
    <body name="torso">
      <joint name="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0 0 .5" size=".02"/>
      <site name="tip" pos="0 0 .5"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
  <sensor><force site="tip"/></sensor>
</mujoco>
"""
MODEL = mujoco.MjModel.from_xml_string(POLE)


def engine(num_robots: int = 3, *, current: bool = False) -> ThreadsEngine:
    return ThreadsEngine(MODEL, num_robots, 2, sub_steps=4, fields=("xpos", "xmat"), current=current)


def begun(made: ThreadsEngine, angles: np.ndarray, settle: int = 0) -> ThreadsEngine:
    rows, zeros = np.arange(len(angles), dtype=np.int32), np.zeros((len(angles), 1))
    made.begin(rows, angles[:, None], zeros, zeros, settle)
    return made


@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize("settle", [0, 7])
def test_a_step_is_mujocos_own_and_other_rows_stay_as_they_are(current: bool, settle: int) -> None:
    angles, controls = np.array([0.1, 0.2, 0.3]), np.array([[0.5], [-0.5], [1.0]])
    made = begun(engine(current=current), angles, settle)
    made.step(np.array([0, 2], dtype=np.int32), controls)
    for row, angle in enumerate(angles):
        data = mujoco.MjData(MODEL)
        data.qpos[:] = angle
        mujoco.mj_step(MODEL, data, settle)
        if row != 1:
            data.ctrl[:] = controls[row]
            mujoco.mj_step(MODEL, data, 4)
        np.testing.assert_array_equal(made.field("qpos")[row], data.qpos)
        np.testing.assert_array_equal(made.field("qvel")[row], data.qvel)
        if current:
            mujoco.mj_step1(MODEL, data)
        if row != 1:
            np.testing.assert_array_equal(made.field("xmat")[row], data.xmat)


def test_a_copied_state_continues_with_the_same_bits() -> None:
    one, other = begun(engine(), np.array([0.1, 0.2, 0.3])), engine()
    rows, controls = np.arange(3, dtype=np.int32), np.ones((3, 1))
    one.step(rows, controls)
    other.state[:] = one.state
    for made in (one, other):
        made.step(rows, controls)
    np.testing.assert_array_equal(one.state, other.state)


def test_pictures_are_of_the_first_robot() -> None:
    made = begun(engine(), np.array([0.1, 0.2, 0.3]))
    _, data = made.shown()
    assert data.qpos.tolist() == [0.1]
    np.testing.assert_array_equal(data.xmat, made.field("xmat")[0])


def test_contact_forces_of_a_robot_without_a_free_root_are_refused() -> None:
    with pytest.raises(ValueError, match="a free root and an actuator for every other joint"):
        ThreadsEngine(MODEL, 3, 1, sub_steps=4, fields=(), current=False, force_model=MODEL)
