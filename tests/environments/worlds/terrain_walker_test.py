"""The walker on a course: every box is hit where the course says that it is, in every episode."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest

from ddrl.environments import terrain
from ddrl.environments.worlds.terrain_walker import AHEAD, BODY_SIZE, OBSERVATION_SIZE, SLOTS, TerrainSimulation

OPTIONS: dict[str, Any] = {
    "obstacles": True,
    "curriculum": True,
    "difficulty": 1.0,
    "friction": 1.0,
    "incline": 0.0,
}
with_boxes = pytest.mark.parametrize("kind", ["hurdles", "gaps", "steps"])


def started(kind: str, seed: int = 0, **options: Any) -> TerrainSimulation:
    simulation = TerrainSimulation(kind, **OPTIONS | options)
    simulation.reset(seed)
    return simulation


def boxes_in_place(simulation: TerrainSimulation) -> list[tuple[int, int]]:
    """(box of the course, geom of the model) of all that stand on the course."""
    first = simulation._first
    count = min(SLOTS, len(simulation.course.left))
    geoms = simulation.model.body_geomadr[simulation._boxes]
    return [(box, int(geoms[box % SLOTS])) for box in range(first, first + count)]


def dropped_on(simulation: TerrainSimulation, box: int, geom: int) -> bool:
    """Let the limp walker fall on the middle of a box; return whether they touched."""
    model, data, course = simulation.model, simulation.data, simulation.course
    mujoco.mj_resetData(model, data)
    data.qpos[0], data.qpos[1] = course.top[box] + 0.1, (course.left[box] + course.right[box]) / 2
    for _ in range(100):
        mujoco.mj_step(model, data)
        if any(geom in (contact.geom1, contact.geom2) for contact in data.contact):
            return True
    return False


@with_boxes
def test_every_box_is_hit_after_two_resets(kind: str) -> None:
    """Boxes of the world's body that were moved would never be, and resized ones only now and then."""
    simulation = started(kind, 1)
    for seed in (2, 3):
        simulation.reset(seed)
        found = boxes_in_place(simulation)
        assert len(found) == SLOTS
        assert [box for box, geom in found if not dropped_on(simulation, box, geom)] == []


@with_boxes
def test_rays_find_the_ground_at_the_height_that_the_course_says(kind: str) -> None:
    simulation = started(kind, 5)
    simulation.reset(6)
    places = np.random.default_rng(0).uniform(-1.9, simulation.course.right[SLOTS - 1] - 0.5, 300)
    geom, down = np.zeros(1, dtype=np.int32), np.array([0.0, 0.0, -1.0])
    for place in places:
        height = mujoco.mj_ray(simulation.model, simulation.data, np.array([place, 0.7, 4.0]), down, None, 1, -1, geom)
        assert 4.0 - height == pytest.approx(float(simulation.course.height(place)), abs=1e-6), place


@with_boxes
def test_boxes_follow_the_walker_to_the_end_of_the_course(kind: str) -> None:
    simulation = started(kind, 7)
    boxes = len(simulation.course.left)
    assert boxes > SLOTS
    for place in np.arange(0.0, 160.0, 0.5):
        simulation.data.qpos[:2] = 0.5, place  # carried along
        simulation.data.qvel[:] = 0.0
        simulation.step(np.zeros(6))
        left, right = simulation.course.left, simulation.course.right
        shown = [box for box, _ in boxes_in_place(simulation)]
        near = np.flatnonzero((right > simulation.x - 3.0) & (left < simulation.x + 8.0)).tolist()
        assert set(near) <= set(shown), place
    assert boxes_in_place(simulation)[-1][0] == boxes - 1
    assert [box for box, geom in boxes_in_place(simulation) if not dropped_on(simulation, box, geom)] == []


def test_an_observation_tells_the_body_and_the_ground_ahead() -> None:
    simulation = started("hurdles", 0)
    mujoco.mj_resetData(simulation.model, simulation.data)
    first = simulation.course.left[0]
    simulation.data.qpos[1] = first - 1.0
    mujoco.mj_forward(simulation.model, simulation.data)
    seen = simulation._observation()
    assert seen.shape == (OBSERVATION_SIZE,)
    assert seen[14] == pytest.approx(1.3), "the torso's height"
    assert seen[15:24].tolist() == [0.0] * 9, "it stands still"
    assert seen[24:].tolist() == simulation.course.height(simulation.x + AHEAD).tolist()
    near = AHEAD < 3.0
    assert AHEAD[near & (seen[24:] > 0)].tolist() == [1.1], "the hurdle is 1.0 to 1.2 m ahead"
    assert (np.diff(AHEAD) > 0).all()


def test_friction_and_incline_change_the_physics_and_not_the_course() -> None:
    def slid(**options: Any) -> float:
        simulation = started("flat", 0, **options)
        simulation.data.qvel[1] = 3.0
        for _ in range(30):
            simulation.step(np.zeros(6))
        return simulation.x

    usual = slid()
    assert slid(friction=0.1) != usual
    assert slid(incline=10.0) < usual < slid(incline=-10.0)
    assert np.array_equal(started("hurdles", 4, friction=0.1).course.left, started("hurdles", 4).course.left)
    gravity = started("flat", incline=10.0).model.opt.gravity
    assert np.linalg.norm(gravity) == pytest.approx(9.81)
    assert gravity[0] < 0


def test_simulations_share_no_model() -> None:
    one, other = started("hurdles", 1), started("hurdles", 2)
    before = other.model.body_pos.copy()
    one.reset(9)
    assert np.array_equal(other.model.body_pos, before)
    assert started("flat", friction=0.5).model.geom_friction[0, 0] == started("flat").model.geom_friction[0, 0] / 2


@pytest.mark.parametrize("kind", sorted(terrain.TASKS))
def test_a_limp_walker_falls_and_an_upright_one_that_runs_is_paid(kind: str) -> None:
    simulation = started(kind)
    ends = [simulation.step(np.zeros(6))[2:] for _ in range(150)]
    assert not any(fallen for fallen, _ in ends[:5])
    assert any(fallen for fallen, _ in ends)
    assert not any(cut for _, cut in ends)
    simulation.reset(1)
    simulation.data.qvel[1] = 2.0
    _, reward, fallen, _ = simulation.step(np.full(6, 0.1))
    assert 1.0 < reward < 3.0
    assert not fallen


def test_a_walker_in_a_pit_has_fallen() -> None:
    simulation = started("gaps", difficulty=2.0)
    hole = float(simulation.course.right[15] + simulation.course.left[16]) / 2
    simulation.data.qpos[:2] = -2.9, hole
    _, _, fallen, _ = simulation.step(np.zeros(6))
    assert fallen


def test_the_first_numbers_of_an_observation_are_of_the_body_alone() -> None:
    flat, rough = (started("hurdles", difficulty=hard)._observation() for hard in (0.1, 1.0))
    assert np.array_equal(flat[:BODY_SIZE], rough[:BODY_SIZE])
    assert not np.array_equal(flat[BODY_SIZE:], rough[BODY_SIZE:])
    assert terrain.ADAPTER.spec("steps", **OPTIONS, max_steps=10).body_size == BODY_SIZE


@with_boxes
def test_a_course_without_obstacles_is_the_flat_one(kind: str) -> None:
    none, flat = started(kind, 3, obstacles=False), started("flat", 3)
    assert len(none.course.left) == 0
    generator = np.random.default_rng(0)
    for _ in range(20):
        action = generator.uniform(-1, 1, 6)
        assert all(np.array_equal(a, b) for a, b in zip(none.step(action), flat.step(action), strict=True))
    assert "no-obstacles" in terrain.spec(kind, max_steps=9, **OPTIONS | {"obstacles": False}).protocol
    assert "obstacles" not in terrain.spec(kind, max_steps=9, **OPTIONS).protocol
