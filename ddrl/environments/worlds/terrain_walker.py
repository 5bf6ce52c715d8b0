"""dm_control's planar walker on a course of boxes.

One model serves all episodes: compiling one takes a tenth of a second, a step a quarter of a millisecond. It has
`SLOTS` boxes, which are moved when an episode begins, and as the walker leaves them behind. Each is a body of its own,
moved by `body_pos`: boxes that belong to the world's body and are moved by `geom_pos` are never hit, because the tree
of volumes by which MuJoCo finds contacts is built when the model is compiled. A box whose size changes needs new
bounds.
"""

from __future__ import annotations

import copy
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from ddrl.environments.worlds import physics
from ddrl.environments.worlds.courses import PIT, Course, draw
from ddrl.system.files import read_file
from ddrl.types import Array

SLOTS = 24
"""Boxes of the model."""
SUB_STEPS = 10
"""Steps of 2.5 ms in an agent step, as in dm_control's tasks."""
AHEAD = np.concatenate([np.linspace(-0.5, 1.5, 11), np.geomspace(1.75, 8.0, 9)])
"""Metres from the torso at which the ground's height is seen: the denser, the nearer."""
_BEHIND = 4.0
"""Metres behind the walker at which a box is moved to the front."""
_FOOTING = 0.3
"""Metres around the torso whose highest ground the walker stands on."""
LOWEST, MOST_TILT = 0.7, 1.0
"""Height of the torso above its footing, and its tilt in radians, beyond which the walker has fallen."""
_TORQUE_COST = 0.005
_JOINT_NOISE = 0.05
_SEEN = 2.0
"""Bound of seen heights."""
_AWAY = -50.0
_DEPTH = 2.0
"""Metres from the top of a platform to its bottom."""


_INCLUDED = ("visual", "skybox", "materials")
_WALKER_BODIES = 7
_HEIGHT = 2 * _WALKER_BODIES
"""Where an observation has the torso's height above its footing."""
BODY_SIZE = _HEIGHT + 1 + 9
"""Numbers of an observation that are of the body: its orientations, height and velocities."""
OBSERVATION_SIZE = BODY_SIZE + len(AHEAD)
ACTIONS = 6


class TerrainSimulation:
    """A walker and its course, as a `replayed.Replayable`.

    Reward: forward velocity in m/s, less `_TORQUE_COST` times the sum of squared actions. An episode terminates when
    the walker has fallen.
    """

    course: Course
    _first: int  # the box in the first slot of the window

    def __init__(
        self, kind: str, *, obstacles: bool, curriculum: bool, difficulty: float, friction: float, incline: float
    ) -> None:
        """`friction` multiplies that of all bodies; `incline` is the slope of the whole course in degrees, upwards.

        Without `obstacles` a course of any kind is a flat one.
        """
        self._kind = kind if obstacles else "flat"
        self._curriculum, self._difficulty = curriculum, difficulty
        self.model = copy.copy(_model(PIT if self._kind in ("gaps", "steps") else 0.0))
        self.data = mujoco.MjData(self.model)
        self.model.geom_friction[:, 0] *= friction
        slope, g = np.deg2rad(incline), -float(self.model.opt.gravity[2])
        self.model.opt.gravity[:] = (-g * np.sin(slope), 0.0, -g * np.cos(slope))
        self._boxes = [self.model.body(f"box{slot}").id for slot in range(SLOTS)]
        self._torso = self.model.body("torso").id

    @property
    def seconds_per_step(self) -> float:
        """Simulated time of an agent step."""
        return SUB_STEPS * float(self.model.opt.timestep)

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation [N] float64."""
        generator = np.random.default_rng(seed)
        self.course = draw(self._kind, generator, curriculum=self._curriculum, difficulty=self._difficulty)
        self._first = 0
        for slot in range(SLOTS):
            self._place(slot)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[3:] = generator.uniform(-_JOINT_NOISE, _JOINT_NOISE, self.model.nq - 3)
        mujoco.mj_forward(self.model, self.data)
        return self._observation()

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        """Return observation [N] float64, reward, terminated and truncated (never)."""
        self.data.ctrl[:] = action
        # Ends with what follows from the new positions, as dm_control's environments do.
        mujoco.mj_step2(self.model, self.data)
        mujoco.mj_step(self.model, self.data, SUB_STEPS - 1)
        mujoco.mj_step1(self.model, self.data)
        while self._first < len(self.course.right) - SLOTS and self.course.right[self._first] < self.x - _BEHIND:
            self._first += 1
            self._place(self._first + SLOTS - 1)
        reward = float(self.data.sensordata[0]) - _TORQUE_COST * float(np.square(action).sum())
        observation = self._observation()
        # No course goes below 0 but for pits.
        low = min(float(observation[_HEIGHT]), float(self.data.xpos[self._torso, 2])) < LOWEST
        fallen = low or abs(float(self.data.qpos[2])) > MOST_TILT
        return observation, reward, fallen, False

    def close(self) -> None:
        """Free nothing: the model's memory goes with it."""

    @property
    def x(self) -> float:
        """Place of the torso along the course, in metres."""
        return float(self.data.xpos[self._torso, 0])

    def _observation(self) -> Array:
        """Return orientations, height above the footing, velocities, and heights of the ground around and ahead."""
        orientations = self.data.xmat[1 : 1 + _WALKER_BODIES].reshape(-1, 9)[:, [0, 2]].ravel()
        footing = self.course.highest(self.x - _FOOTING, self.x + _FOOTING)
        height = float(self.data.xpos[self._torso, 2]) - footing
        seen = np.clip(self.course.height(self.x + AHEAD) - footing, -_SEEN, _SEEN)
        return np.concatenate([orientations, [height], self.data.qvel, seen])

    def _place(self, index: int) -> None:
        """Put box `index` of the course into its slot; away if the course has no such box."""
        body = self._boxes[index % SLOTS]
        geom = int(self.model.body_geomadr[body])
        if index >= len(self.course.left):
            self.model.body_pos[body] = (0.0, 0.0, _AWAY)
            return
        left, right, top = (float(part[index]) for part in self.course[:3])
        thickness = top if self.course.base == 0.0 else _DEPTH
        self.model.body_pos[body] = ((left + right) / 2, 0.0, top - thickness / 2)
        self.model.geom_size[geom] = ((right - left) / 2, 0.8, thickness / 2)
        self.model.geom_rbound[geom] = np.linalg.norm(self.model.geom_size[geom])
        self.model.geom_aabb[geom, 3:] = self.model.geom_size[geom]


@cache
def _model(floor: float) -> Any:
    """Return the compiled walker with `SLOTS` boxes and a floor of some height."""
    physics.route_warnings()
    folder = Path(str(files("dm_control"))) / "suite"  # read as files: the package itself would look for a display
    parts = {f"./common/{name}.xml": read_file(folder / "common" / f"{name}.xml") for name in _INCLUDED}
    spec = mujoco.MjSpec.from_string(read_file(folder / "walker.xml").decode(), include=parts)
    spec.geom("floor").pos[2] = floor
    for slot in range(SLOTS):
        body = spec.worldbody.add_body(name=f"box{slot}", pos=(0.0, 0.0, _AWAY))
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=(0.5, 0.8, 0.5), conaffinity=1, friction=(0.7, 0.1, 0.1))
    return spec.compile()
