"""Navigation to a point: rewards, SPL, ends, observations, seeds and states; the tasks in MiniWorld as environments.

What happens in MiniWorld's rooms is tested in `worlds/point_rooms_test.py`.
"""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np
import pytest

from ddrl.environments import pointnav
from ddrl.environments.base import registry
from ddrl.environments.pointnav import DISTANCE_UNIT, ROOMS, SIDES, PointNavEnvs
from ddrl.environments.tools.camera import camera_for
from ddrl.environments.tools.check import check_environment
from ddrl.environments.worlds import egocentric_view, grid_mazes
from ddrl.environments.worlds.grid_mazes import WALL
from ddrl.environments.worlds.point_goal import FORWARD, LEFT, RIGHT, STOP
from ddrl.errors import UserError
from ddrl.system.instruction_words import image_of
from ddrl.system.packed_vector import vector_of
from ddrl.types import EnvStep

every_task = pytest.mark.parametrize("task", SIDES)


def made(task: str = "small", num_envs: int = 8, seed: int = 1, **options: Any) -> PointNavEnvs:
    env = registry.make(f"pointnav/{task}", num_envs, seed, **options)
    assert isinstance(env, PointNavEnvs)
    return env


def ahead_of(env: PointNavEnvs, heading: np.ndarray) -> np.ndarray:
    """The cells one step away from the agents, in the directions of `heading`."""
    cells = grid_mazes.width(SIDES[env.spec.name.partition("/")[2]][1])
    return env.poses()[0] + np.array([row * cells + column for row, column in egocentric_view.AHEAD])[heading]


def towards_the_goal(env: PointNavEnvs) -> np.ndarray:
    """The actions of an oracle: turn to where the distance falls, go on, stop at the goal."""
    rows, (place, heading), maze = np.arange(env.num_envs), env.poses(), env.running()
    left = maze.distance[rows, place]
    turn = np.full(env.num_envs, RIGHT)
    for turned, action in ((2, RIGHT), (3, LEFT), (1, RIGHT), (0, FORWARD)):
        nearer = maze.distance[rows, ahead_of(env, (heading + turned) % 4)] == left - 1
        turn = np.where(nearer, action, turn)
    return np.where(left == 0, STOP, turn)


def anywhere(env: PointNavEnvs, generator: np.random.Generator) -> np.ndarray:
    """Random actions without a stop."""
    return generator.integers(FORWARD, RIGHT + 1, env.num_envs)


def distances(env: PointNavEnvs) -> np.ndarray:
    return env.running().distance[np.arange(env.num_envs), env.poses()[0]].astype(np.float64)


def same(one: EnvStep, other: EnvStep) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@every_task
@pytest.mark.parametrize("reward", ["spl", "success", "metric"])
def test_an_oracle_has_spl_1_and_the_distance_as_its_return(task: str, reward: str) -> None:
    env = made(task, num_envs=20, reward=reward)
    env.reset()
    steps, returns, counts, first = [], np.zeros(20), np.zeros(20), distances(env)
    over = np.zeros(20, dtype=bool)
    while not over.all():
        steps.append(env.step(towards_the_goal(env)))
        returns += np.where(over, 0, steps[-1].reward)
        counts += ~over
        assert not (steps[-1].ended & ~steps[-1].terminated).any()
        over |= steps[-1].ended
    assert returns == pytest.approx(1.0 if reward == "metric" else first - 0.01 * counts + 2.5, abs=1e-4)
    assert len(set(counts.tolist())) > 3, "episodes differ in length"


def test_rewards_add_up_to_the_distance_that_was_won() -> None:
    env, generator, returns = made("medium", num_envs=16), np.random.default_rng(0), np.zeros(16)
    env.reset()
    first = distances(env)
    for count in range(1, 201):
        step = env.step(anywhere(env, generator))
        returns += step.reward
        assert not step.ended.any()
        assert returns == pytest.approx(first - distances(env) - 0.01 * count, abs=1e-4)
    assert len(set((first - distances(env)).tolist())) > 5


@pytest.mark.parametrize(("reward", "paid"), [("spl", 2.5), ("success", 2.5), ("metric", 1.0)])
def test_a_detour_lowers_spl_and_turns_do_not(reward: str, paid: float) -> None:
    """Two moves there and back; moves against a wall do not count."""
    env = made(num_envs=1, reward=reward)
    env.reset()
    shortest = distances(env)[0]
    for action in (LEFT, LEFT, RIGHT, RIGHT):
        env.step(np.array([action]))
    rows = np.zeros(1, dtype=int)
    while env.running().distance[rows, ahead_of(env, env.poses()[1])] != WALL:
        env.step(np.array([RIGHT]))
    before = env.poses()[0]
    env.step(np.array([FORWARD]))
    assert (env.poses()[0] == before).all(), "a wall"
    while env.running().distance[rows, ahead_of(env, env.poses()[1])] == WALL:
        env.step(np.array([RIGHT]))
    moved = distances(env)[0]
    for action in (FORWARD, RIGHT, RIGHT, FORWARD):
        env.step(np.array([action]))
    assert distances(env)[0] == moved == shortest
    while distances(env)[0] > 0:
        env.step(towards_the_goal(env))
    step = env.step(np.array([STOP]))
    share = 1.0 if reward == "success" else shortest / (shortest + 2)
    cost = 0.0 if reward == "metric" else 0.01
    assert step.reward[0] == pytest.approx(paid * share - cost)
    assert step.terminated[0] and not step.truncated[0]


def test_spl_counts_the_moves_of_its_own_episode() -> None:
    env, ends = made(reward="metric"), 0
    env.reset()
    for _ in range(100):
        step = env.step(towards_the_goal(env))
        assert step.reward[step.terminated] == pytest.approx(1.0)
        ends += int(step.terminated.sum())
    assert ends > 16


def test_a_stop_elsewhere_ends_the_episode_and_pays_nothing() -> None:
    for reward, paid in (("spl", -0.01), ("success", -0.01), ("metric", 0.0)):
        env = made(reward=reward)
        env.reset()
        step = env.step(np.full(8, STOP))
        assert step.reward == pytest.approx(paid)
        assert step.terminated.all() and step.ended.all() and not step.truncated.any()
        following = env.step(np.full(8, STOP))
        assert following.start.all() and not following.valid.any() and not following.ended.any()
        assert (following.reward == 0).all()


def test_the_limit_truncates_and_a_stop_at_the_limit_terminates() -> None:
    env = made(num_envs=2, max_steps=5)
    env.reset()
    for _ in range(2):
        for _ in range(4):
            assert not env.step(np.array([LEFT, LEFT])).ended.any()
        last = env.step(np.array([LEFT, STOP]))
        assert last.truncated.tolist() == [True, False]
        assert last.terminated.tolist() == [False, True]
        assert not env.step(np.array([LEFT, STOP])).valid.any()


def test_metric_pays_nothing_but_spl() -> None:
    env, generator = made(num_envs=32, reward="metric"), np.random.default_rng(0)
    env.reset()
    for _ in range(100):
        stopped = distances(env) == 0
        actions = np.where(stopped, STOP, anywhere(env, generator))
        step = env.step(actions)
        arrived = stopped & step.valid
        assert ((step.reward > 0) == arrived).all()
        assert (step.reward <= 1).all() and (step.reward[~arrived] == 0).all()


def test_an_observation_has_the_view_and_the_compass() -> None:
    env, generator = made("large", num_envs=16), np.random.default_rng(3)
    cells = grid_mazes.width(SIDES["large"][1])
    step = env.reset()
    for _ in range(40):
        place, heading = env.poses()
        maze = env.running()
        for row in range(16):
            centre, (north, east) = divmod(int(place[row]), cells), egocentric_view.AHEAD[heading[row]]
            down, across = np.array(divmod(int(maze.goal[row]), cells)) - centre
            forward, left = down * north + across * east, across * north - down * east
            length = float(np.hypot(forward, left))
            expected = [length / DISTANCE_UNIT, forward / max(length, 1), left / max(length, 1)]
            assert step.observation[row, -3:] == pytest.approx(expected, abs=1e-6) or length == 0
            turned = np.rot90(maze.distance[row].reshape(cells, cells) == WALL, heading[row])
            here = np.rot90((np.arange(cells * cells) == place[row]).reshape(cells, cells), heading[row])
            (up,), (aside,) = (part.tolist() for part in np.nonzero(here))
            walls = turned[up - 6 : up + 1, aside - 3 : aside + 4].ravel()
            assert np.array_equal(step.observation[row, :-3], egocentric_view.depth(walls[None])[0])
        step = env.step(anywhere(env, generator))


def test_the_blind_see_no_wall_and_play_the_same_episodes() -> None:
    env, blind, generator = made(), made(sensors="blind"), np.random.default_rng(0)
    steps = [(env.reset(), blind.reset())]
    for _ in range(60):
        actions = generator.integers(0, 4, 8)
        steps.append((env.step(actions), blind.step(actions)))
    for seen, felt in steps:
        assert not felt.observation[:, :-3].any()
        assert seen.observation[:, :-3].any(axis=1).all()
        assert np.array_equal(seen.observation[:, -3:], felt.observation[:, -3:])
        assert np.array_equal(seen.reward, felt.reward)


@every_task
def test_each_environment_plays_as_it_would_among_fewer(task: str) -> None:
    """However many episodes are drawn ahead, which depends on the number of environments."""
    many, few, one = made(task, 70), made(task, 3), made(task, 1)
    steps = [env.reset() for env in (many, few, one)]
    generator = np.random.default_rng(0)
    for _ in range(150):
        for other in steps[1:]:
            assert all(np.array_equal(a[: len(b)], b) for a, b in zip(steps[0], other, strict=True))
        actions = generator.integers(0, 4, 70)
        steps = [env.step(actions[: env.num_envs]) for env in (many, few, one)]


def test_a_crowd_draws_no_episode_ahead_and_plays_the_same() -> None:
    many, few = made(num_envs=1100), made(num_envs=2)
    many.reset(), few.reset()
    for _ in range(5):
        steps = [env.step(np.zeros(env.num_envs, dtype=np.int64)) for env in (many, few)]
        assert np.array_equal(steps[0].observation[:2], steps[1].observation)


def test_seeds_repeat_and_differ() -> None:
    first, again, other = (made(seed=seed).reset().observation for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len({row.tobytes() for row in first}) == 8, "environments differ"


def test_every_reset_and_every_end_brings_the_next_episode() -> None:
    env, other = made(), made()
    env.reset(), other.reset()
    second = env.reset()
    other.step(np.full(8, STOP))
    assert np.array_equal(other.step(np.full(8, STOP)).observation, second.observation)
    mazes = set()
    for _ in range(40):
        mazes |= {maze.tobytes() for maze in env.running().distance}
        env.reset()
    assert len(mazes) > 300


@every_task
def test_a_state_continues_with_the_same_bits_wherever_it_was_taken(task: str) -> None:
    env, generator = made(task, num_envs=4, max_steps=30), np.random.default_rng(5)
    env.reset()
    moments = {"episode begins": 0, "within": 0, "dead step next": 0}
    for _ in range(40):
        kind = "dead step next" if env.state_dict()["ended"].any() else "within"
        moments[kind if env.state_dict()["steps"].any() else "episode begins"] += 1
        fresh, state = made(task, num_envs=4, max_steps=30), env.state_dict()
        fresh.load_state_dict(state)
        actions = generator.choice(4, (20, 4), p=[0.05, 0.5, 0.25, 0.2])
        for row in actions:
            assert same(env.step(row), fresh.step(row))
        assert np.array_equal(env.picture(), fresh.picture())
    assert moments["dead step next"] > 2 and moments["within"] > 2


def test_an_environment_that_has_played_on_goes_back_to_an_earlier_state() -> None:
    env = made(num_envs=4)
    env.reset()
    state, stops = env.state_dict(), np.full(4, STOP)
    expected = [env.step(stops) for _ in range(100)]
    for _ in range(2):
        env.load_state_dict(state)
        assert all(same(env.step(stops), step) for step in expected)


def test_a_state_taken_before_the_first_reset_can_be_loaded() -> None:
    env, fresh = made(), made()
    fresh.load_state_dict(env.state_dict())
    with pytest.raises(RuntimeError, match="before reset"):
        fresh.step(np.zeros(8, dtype=np.int64))
    assert same(env.reset(), fresh.reset())


def test_the_protocol_names_what_changes_scores() -> None:
    protocols = {
        registry.spec_for(f"pointnav/{task}", **options).protocol
        for task in SIDES
        for options in ({}, {"max_steps": 9}, {"sensors": "blind"}, {"reward": "success"}, {"reward": "metric"})
    }
    assert len(protocols) == 20


def test_the_camera_shows_the_whole_maze_with_the_agent_and_the_goal() -> None:
    env, camera = made("mixed", num_envs=1), camera_for("pointnav/mixed", 1, {})
    pictures = [camera.reset(env.reset())]
    while distances(env)[0] > 0:
        actions = towards_the_goal(env)
        pictures.append(camera.step(int(actions[0]), env.step(actions)))
    assert {picture.shape for picture in pictures} == {(1, 27 * 16, 27 * 16, 3)}
    goals = [bool((picture == (40, 170, 60)).all(axis=-1).any()) for picture in pictures]
    assert goals == [True] * (len(pictures) - 1) + [False], "at the end the agent stands on it"
    assert all((picture == (200, 40, 40)).all(axis=-1).any() for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    camera.close()


def rooms(task: str = "miniworld_small", num_envs: int = 2, seed: int = 1, **options: Any) -> Any:
    """Environments in MiniWorld, which are closed with the block."""
    return closing(registry.make(f"pointnav/{task}", num_envs, seed, **options))


@pytest.mark.parametrize(("task", "sensors"), [("miniworld_small", "depth"), ("miniworld_medium", "rgb")])
def test_the_tasks_in_miniworld_conform(task: str, sensors: str) -> None:
    found = check_environment(f"pointnav/{task}", 60, max_steps=8, sensors=sensors, image_size=42)
    assert found.terminated > 0


@pytest.mark.parametrize(("sensors", "channels"), [("depth", 1), ("rgb", 3), ("blind", 1)])
def test_an_observation_in_miniworld_is_an_image_and_a_compass(sensors: str, channels: int) -> None:
    with rooms(sensors=sensors, image_size=48) as env:
        step = env.reset()
        images, compass = image_of(step.observation, env.spec), vector_of(step.observation, env.spec.vector_size)
        for row, world in enumerate(env.simulations):
            east, south = world.goal - world.place
            assert compass[row, 0] == pytest.approx(np.hypot(east, south) / 10)
            assert np.hypot(*compass[row, 1:]) == pytest.approx(1)
    assert images.shape == (2, channels, 48, 48) and images.any() == (sensors != "blind")


def test_the_reward_and_the_sensors_change_no_episode_in_miniworld() -> None:
    with rooms(image_size=42) as env, rooms(sensors="blind", reward="metric", image_size=42) as other:
        for step, felt in [
            (env.reset(), other.reset()),
            *((env.step(a), other.step(a)) for a in [np.array([1, 2])] * 3),
        ]:
            assert np.array_equal(vector_of(step.observation, 3), vector_of(felt.observation, 3))


def test_the_limit_truncates_and_a_stop_terminates_in_miniworld() -> None:
    with rooms(max_steps=3, image_size=42) as env:
        env.reset()
        env.step(np.array([LEFT, LEFT]))
        env.step(np.array([LEFT, LEFT]))
        last = env.step(np.array([LEFT, STOP]))
    assert last.truncated.tolist() == [True, False] and last.terminated.tolist() == [False, True]


def test_the_protocol_of_miniworlds_tasks_names_what_changes_scores() -> None:
    changes = ({}, {"max_steps": 9}, {"sensors": "rgb"}, {"sensors": "blind"}, {"reward": "metric"}, {"image_size": 42})
    specs = [registry.spec_for(f"pointnav/{task}", **options) for task in ROOMS for options in changes]
    assert len({spec.protocol for spec in specs}) == 18
    assert all("forward0.25m,turn10deg,arrived0.2m" in spec.protocol for spec in specs)
    assert {spec.observation_shape for spec in specs} == {(84 * 84 + 12,), (3 * 84 * 84 + 12,), (42 * 42 + 12,)}


def test_without_miniworld_its_tasks_are_one_line_and_those_on_a_grid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(pointnav, "version", missing)
    for ask in (registry.spec_for, lambda name: registry.make(name, 1, 1)):
        with pytest.raises(
            UserError, match=r"^environment 'pointnav/miniworld_small': the package 'miniworld' is not installed$"
        ):
            ask("pointnav/miniworld_small")
    assert made().reset().start.all()


def test_the_camera_in_miniworld_shows_the_same_episode_with_a_map() -> None:
    camera = camera_for("pointnav/miniworld_small", 1, {"image_size": 42})
    with rooms(num_envs=1, image_size=42) as env:
        pictures = [camera.reset(env.reset()), *(camera.step(FORWARD, env.step(np.array([FORWARD]))) for _ in range(3))]
        with pytest.raises(RuntimeError, match="another episode"):
            camera.step(LEFT, env.step(np.array([RIGHT])))
    camera.close()
    assert {picture.shape for picture in pictures} == {(1, 336, 672, 3)}
    assert len({picture.tobytes() for picture in pictures}) > 1
