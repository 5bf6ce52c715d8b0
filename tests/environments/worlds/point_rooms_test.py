"""Navigation to a point in MiniWorld: rooms, motion, what is seen and paid, and an oracle on the shortest way."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from ddrl.environments.worlds import miniworld_drawing
from ddrl.environments.worlds.point_goal import FORWARD, LEFT, RIGHT, STOP
from ddrl.environments.worlds.point_rooms import (
    CLEARANCE,
    PITCH,
    RADIUS,
    ROOM,
    THICKNESS,
    Plan,
    PointRooms,
    drawn_plan,
    rim,
    walls,
)
from ddrl.system.packed_vector import vector_of
from ddrl.types import Array

SIZE = 42


def made(rooms: tuple[int, int] = (2, 3), sensors: str = "depth", reward: str = "spl", size: int = SIZE) -> Any:
    return closing(PointRooms(rooms, sensors, reward, size))


def towards_the_goal(world: PointRooms) -> int:
    """The action of an oracle: turn to where a step leads nearest to the goal, go on, stop at it."""
    if world.left <= 0.2:
        return STOP
    best, turns = (math.inf, 0), 0
    for turn in range(-17, 19):
        direction = world.env.agent.dir + math.radians(10 * turn)
        ahead = world.env.agent.pos + 0.25 * np.array([math.cos(direction), 0.0, -math.sin(direction)])
        if not world.env.intersect(world.env.agent, ahead, RADIUS):
            length = (round(world.geodesics.distance(ahead[[0, 2]]), 6), abs(turn))
            best, turns = min((best, turns), (length, turn))
    return FORWARD if turns == 0 else LEFT if turns > 0 else RIGHT


def played(world: PointRooms, seed: int) -> tuple[float, int]:
    """Return and length of the oracle's episode."""
    world.reset(seed)
    total, steps, over = 0.0, 0, False
    while not over:
        _, reward, over, _ = world.step(towards_the_goal(world))
        total, steps = total + reward, steps + 1
    return total, steps


def image_of(observation: Array, channels: int = 1, size: int = SIZE) -> Array:
    return observation[: channels * size * size].reshape(channels, size, size)


@pytest.mark.parametrize(("rooms", "seeds"), [((2, 3), range(8)), ((3, 5), range(3)), ((5, 7), range(1))])
def test_an_oracle_has_an_spl_near_1_within_500_steps(rooms: tuple[int, int], seeds: range) -> None:
    """The way has no corner that the oracle must cut; it may stop 0.2 m before the goal."""
    with made(rooms, "blind", "metric") as world:
        found = [played(world, seed) for seed in seeds]
    assert min(spl for spl, _ in found) > 0.97
    assert max(steps for _, steps in found) < 350


def test_rewards_add_up_to_the_metres_won_and_the_bonus() -> None:
    with made(sensors="blind") as world, made(sensors="blind", reward="success") as other:
        for seed in range(3):
            total, steps = played(world, seed)
            spl = world.shortest / max(world.shortest, world.moved)
            assert world.left <= 0.2
            assert total == pytest.approx(world.shortest - world.left - 0.01 * steps + 2.5 * spl)
            assert played(other, seed)[0] == pytest.approx(world.shortest - world.left - 0.01 * steps + 2.5)


def test_a_detour_lowers_spl_and_turns_and_bumps_do_not() -> None:
    with made(sensors="blind", reward="metric") as world:
        world.reset(1)
        for _ in range(36):
            world.step(RIGHT)
        while world.env.move_agent(0.25, 0.0):  # which counts no way
            pass
        bumped = world.place
        assert world.step(FORWARD)[1] == 0.0 and np.array_equal(world.place, bumped)
        assert world.moved == 0.0
        for _ in range(18):
            world.step(LEFT)
        world.step(FORWARD)
        assert world.moved == 0.25
        _, reward, over, cut = world.step(STOP)
        assert (reward, over, cut) == (0.0, True, False)
        world.reset(1)
        world.env.agent.pos[[0, 2]] = world.goal
        world._left, world.moved = 0.0, 2 * world.shortest
        assert world.step(STOP)[1] == pytest.approx(0.5)


@pytest.mark.parametrize(("away", "arrives"), [(0.19, True), (0.21, False)])
def test_a_stop_is_a_success_within_20_centimetres(away: float, arrives: bool) -> None:
    with made(sensors="blind", reward="metric") as world:
        world.reset(2)
        world.env.agent.pos[[0, 2]] = world.goal + np.array([0.25 + away, 0.0])
        world.env.agent.dir = math.pi
        world.step(FORWARD)
        assert world.left == pytest.approx(away)
        assert (world.step(STOP)[1] > 0) == arrives


def test_forward_is_25_centimetres_and_a_turn_10_degrees() -> None:
    with made(sensors="blind") as world:
        world.reset(3)
        direction, place = world.env.agent.dir, world.place
        world.step(LEFT)
        assert world.env.agent.dir == pytest.approx(direction + math.radians(10))
        world.step(RIGHT)
        world.step(RIGHT)
        assert world.env.agent.dir == pytest.approx(direction - math.radians(10))
        world.step(FORWARD)
        ahead = np.array([math.cos(world.env.agent.dir), -math.sin(world.env.agent.dir)])
        assert world.place - place == pytest.approx(0.25 * ahead)


def test_the_compass_points_at_the_goal_from_where_the_agent_looks() -> None:
    with made() as world:
        world.reset(4)
        for direction, east, south, expected in [
            (0.0, 2.0, 0.0, (0.2, 1.0, 0.0)),
            (0.0, 0.0, 2.0, (0.2, 0.0, -1.0)),  # south is to the right of who looks east
            (math.pi / 2, 0.0, -5.0, (0.5, 1.0, 0.0)),
            (math.pi, 0.0, 3.0, (0.3, 0.0, 1.0)),
            (1.0, 0.0, 0.0, (0.0, 1.0, 0.0)),
        ]:
            world.env.agent.dir, world.goal = direction, world.place + np.array([east, south])
            assert world.compass() == pytest.approx(expected, abs=1e-6)
            assert vector_of(world._observation(), 3) == pytest.approx(expected, abs=1e-6)


def cast(world: PointRooms, size: int) -> Array:
    """Depth [size, size] in metres by rays from the eye, against MiniWorld's wall segments, floor and ceiling."""
    direction, eye = world.env.agent.dir, world.place
    ahead = np.array([math.cos(direction), -math.sin(direction)])
    right = np.array([math.sin(direction), math.cos(direction)])
    offsets = (np.arange(size) + 0.5) / size * 2 - 1  # a field of view of 90 degrees: the tangent is 1 at the edge
    one, other = (world.env.wall_segs[:, end][:, [0, 2]] for end in (0, 1))
    depth = np.full((size, size), np.inf)
    for column, aside in enumerate(offsets):
        ray, along = ahead + aside * right, other - one
        crossed = ray[0] * along[:, 1] - ray[1] * along[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            start = one - eye
            far = (start[:, 0] * along[:, 1] - start[:, 1] * along[:, 0]) / crossed
            where = (start[:, 0] * ray[1] - start[:, 1] * ray[0]) / crossed
        depth[:, column] = far[(far > 0) & (where >= 0) & (where <= 1)].min()
    upright = np.where(offsets < 0, (2.74 - 1.5) / -offsets, 1.5 / offsets)  # rows go down
    return np.minimum(depth, upright[:, None])


@pytest.mark.parametrize("rooms", [(2, 3), (3, 5)])
def test_depth_is_what_rays_measure(rooms: tuple[int, int]) -> None:
    with made(rooms, size=84) as world:
        for seed in range(4):
            observation = world.reset(seed)
            for action in (FORWARD, LEFT, LEFT, FORWARD):
                seen = image_of(observation, size=84)[0].astype(int)
                expected = np.rint(cast(world, 84).clip(max=10.0) * 25.5).astype(int)
                assert np.mean(np.abs(seen - expected) <= 1) > 0.99, "but for edges"
                observation = world.step(action)[0]


def test_depth_is_what_miniworld_draws() -> None:
    """Its own frame buffer stores 16 bits, of which there are few for what is far."""
    from miniworld.opengl import FrameBuffer

    with made(size=84) as world:
        seen = image_of(world.reset(6), size=84)[0].astype(int)
        with miniworld_drawing.current() as canvas:
            world.env.shadow_window = canvas.window
            type(world.env)._render_static(world.env)
            world.env.render_obs = lambda buffer: type(world.env).render_obs(world.env, buffer)
            theirs = world.env.render_depth(FrameBuffer(84, 84, 1))[:, :, 0]
    assert np.mean(np.abs(seen - theirs.clip(max=10.0) * 25.5) <= 2) > 0.97


def test_what_is_behind_a_turn_is_seen_after_it() -> None:
    with made() as world:
        first = world.reset(7)
        seen = [world.step(LEFT)[0] for _ in range(36)]
        assert len({image.tobytes() for image in seen}) == 36
        assert np.mean(np.abs(image_of(seen[-1]).astype(int) - image_of(first)) <= 1) > 0.99


def test_colours_and_blindness_show_the_same_episode() -> None:
    with made() as depth, made(sensors="rgb") as rgb, made(sensors="blind") as blind:
        for action in (None, FORWARD, LEFT, FORWARD):
            seen = [world.reset(8) if action is None else world.step(action)[0] for world in (depth, rgb, blind)]
            assert len({observation[-12:].tobytes() for observation in seen}) == 1
            assert image_of(seen[0]).std() > 5
            assert image_of(seen[1], 3).std() > 5 and len(np.unique(image_of(seen[1], 3))) > 50
            assert not image_of(seen[2]).any()


def test_an_episode_does_not_depend_on_those_before_it() -> None:
    with made() as fresh, made() as used:
        for seed in range(6):
            used.reset(seed + 50)
            used.step(FORWARD)
            assert np.array_equal(fresh.reset(seed), used.reset(seed))
            assert fresh.step(FORWARD)[1] == used.step(FORWARD)[1]


def test_episodes_differ_in_rooms_places_and_directions() -> None:
    with made(sensors="blind") as world:
        found = set()
        for seed in range(40):
            world.reset(seed)
            found.add((len(world.plan.south), round(float(world.start[0]), 3), round(world.env.agent.dir, 3)))
            ends = np.concatenate([world.start, world.goal]) % PITCH
            assert (ends >= CLEARANCE).all() and (ends <= ROOM - CLEARANCE).all()
            assert not world.env.intersect(world.env.agent, np.array([world.goal[0], 0.0, world.goal[1]]), RADIUS)
            assert world.shortest > 1.0
    assert len(found) == 40 and {count for count, _, _ in found} == {1, 2}


@pytest.mark.parametrize("rooms", [(2, 3), (5, 7)])
def test_walls_and_openings_are_those_that_miniworld_bumps_into(rooms: tuple[int, int]) -> None:
    """A random place is free for MiniWorld exactly where it is far enough from our rectangles and from the rim."""
    generator = np.random.default_rng(0)
    with made(rooms, "blind") as world:
        for seed in range(3):
            world.reset(seed)
            found, around = walls(world.plan), rim(world.plan)
            for place in generator.uniform(around[0], around[1], (300, 2)):
                outside = np.maximum(np.abs(place - found.middle) - found.half, 0)
                gaps = [*np.hypot(*outside.T), *(place - around[0]), *(around[1] - place)]
                inside = min(gaps) == 0  # of a wall, where MiniWorld tests only its surface
                bumps = bool(world.env.intersect(world.env.agent, np.array([place[0], 0.0, place[1]]), RADIUS))
                assert inside or bumps == (min(gaps) < RADIUS)


def test_a_row_of_closed_places_is_one_wall_and_a_pillar_stands_where_all_is_open() -> None:
    nothing = Plan(np.ones((3, 2), dtype=bool), np.ones((2, 3), dtype=bool), (0, 0), (2, 2))
    assert len(walls(nothing).middle) == 4, "pillars"
    assert walls(nothing).half == pytest.approx(THICKNESS / 2)
    east = np.array([[False, True], [False, True], [True, True]])
    found = walls(nothing._replace(east=east))
    long = found.half[:, 1].argmax()
    assert len(found.middle) == 3
    assert found.half[long] == pytest.approx([THICKNESS / 2, (2 * PITCH + THICKNESS) / 2])
    assert found.middle[long] == pytest.approx([ROOM + THICKNESS / 2, (2 * PITCH - THICKNESS) / 2])


def test_a_plan_follows_from_its_key_and_all_rooms_are_connected() -> None:
    for key in range(20):
        plan = drawn_plan(key, 3, 5)
        assert all(np.array_equal(one, other) for one, other in zip(plan, drawn_plan(key, 3, 5), strict=True))
        count = len(plan.south) + 1
        reached, frontier = {plan.goal}, [plan.goal]
        while frontier:
            row, column = frontier.pop()
            ways = [(row, column + 1)] if column + 1 < count and plan.east[row, column] else []
            ways += [(row, column - 1)] if column and plan.east[row, column - 1] else []
            ways += [(row + 1, column)] if row + 1 < count and plan.south[row, column] else []
            ways += [(row - 1, column)] if row and plan.south[row - 1, column] else []
            frontier += [way for way in ways if way not in reached]
            reached |= set(ways)
        assert len(reached) == count**2 and plan.start in reached


def test_the_picture_has_the_view_and_the_map_with_goal_and_agent() -> None:
    with made() as world:
        world.reset(9)
        first = world.picture()
        world.step(FORWARD)
        second = world.picture()
    assert first.shape == second.shape == (1, 336, 672, 3) and first.dtype == np.uint8
    for colour in ((40, 170, 60), (200, 40, 40)):
        assert (second[0, :, 336:] == colour).all(axis=-1).any()
    assert (first[0, :, :336] != second[0, :, :336]).any() and (first[0, :, 336:] != second[0, :, 336:]).any()
