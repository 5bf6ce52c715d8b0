"""MiniGrid's adapter: what is seen, what is paid, where episodes end; the conformance check has the rest."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from minigrid.wrappers import FlatObsWrapper, OneHotPartialObsWrapper, ViewSizeWrapper

from ddrl.environments import minigrid
from ddrl.environments.base import registry
from ddrl.environments.tools.camera import camera_for
from ddrl.errors import UserError
from ddrl.system.seeding import seed_for

MEMORY = "minigrid/MemoryS7-v0"


def theirs(seed: int, row: int, episode: int) -> gymnasium.Env:
    """MiniGrid's own environment with its own wrapper, where ours begins that episode."""
    env = OneHotPartialObsWrapper(gymnasium.make("MiniGrid-MemoryS7-v0"))
    env.reset(seed=seed_for(seed, f"{MEMORY}/{row}", episode))
    return env


def test_observations_and_rewards_are_minigrids_own() -> None:
    env, rng = registry.make(MEMORY, 2, 5), np.random.default_rng(1)
    first = env.reset()
    twins = [theirs(5, row, 0) for row in range(2)]
    np.testing.assert_array_equal(
        first.observation[1], twins[1].observation(twins[1].unwrapped.gen_obs())["image"].ravel()
    )
    episodes, paid = [0, 0], 0.0
    dead = np.zeros(2, dtype=bool)
    for _ in range(400):
        actions = rng.choice([0, 1, 2, 2], 2)
        step = env.step(actions)
        for row in range(2):
            if dead[row]:
                episodes[row] += 1
                twins[row] = theirs(5, row, episodes[row])
                continue
            seen, reward, terminated, truncated, _ = twins[row].step(int(actions[row]))
            np.testing.assert_array_equal(step.observation[row], seen["image"].ravel())
            assert (step.reward[row], step.terminated[row], step.truncated[row]) == (
                np.float32(reward),
                terminated,
                truncated and not terminated,
            )
            paid += reward
        dead = step.ended
    assert min(episodes) >= 2
    assert paid > 0


def test_the_limit_of_steps_is_the_tasks_own_or_the_option_and_counts_in_the_reward() -> None:
    assert registry.spec_for(MEMORY).protocol.split(";")[2] == "cap245"
    assert registry.spec_for(MEMORY, max_steps=40).protocol.split(";")[2] == "cap40"
    paid = {}
    for limit in (40, 80):
        env = registry.make("minigrid/Empty-5x5-v0", 1, 1, max_steps=limit)
        env.reset()
        paid[limit] = [float(env.step(np.array([action])).reward[0]) for action in (2, 2, 1, 2, 2)]
    # two forward, turn right, two forward: the goal after 5 steps
    assert paid == {limit: pytest.approx([0, 0, 0, 0, 1 - 0.9 * 5 / limit]) for limit in (40, 80)}
    env = registry.make(MEMORY, 1, 1, max_steps=3)
    env.reset()
    assert [bool(env.step(np.array([0])).truncated[0]) for _ in range(3)] == [False, False, True]


def test_a_smaller_view_is_that_of_minigrids_own_wrapper() -> None:
    env = registry.make(MEMORY, 1, 4, view_size=3)
    assert env.spec == registry.spec_for(MEMORY, view_size=3)
    assert env.spec.protocol.split(";")[1] == "view3x3,one-hot"
    twin = OneHotPartialObsWrapper(ViewSizeWrapper(gymnasium.make("MiniGrid-MemoryS7-v0"), 3))
    seen = twin.reset(seed=seed_for(4, f"{MEMORY}/0", 0))[0]
    np.testing.assert_array_equal(env.reset().observation[0], seen["image"].ravel())
    for action in (0, 0, 2, 2, 1, 1, 2):
        seen = twin.step(action)[0]
        np.testing.assert_array_equal(env.step(np.array([action])).observation[0], seen["image"].ravel())
    with pytest.raises(UserError, match=r"environment.view_size: 4 .*; allowed: odd numbers"):
        registry.spec_for(MEMORY, view_size=4)


def test_the_flat_encoding_is_that_of_minigrids_own_wrapper() -> None:
    name = "minigrid/DoorKey-5x5-v0"
    env = registry.make(name, 1, 4, encoding="flat")
    assert env.spec == registry.spec_for(name, encoding="flat")
    assert env.spec.protocol.split(";")[1] == "view7x7,flat"
    twin = FlatObsWrapper(gymnasium.make("MiniGrid-DoorKey-5x5-v0"))
    seen = twin.reset(seed=seed_for(4, f"{name}/0", 0))[0]
    assert env.spec.observation_shape == seen.shape
    np.testing.assert_array_equal(env.reset().observation[0], seen)
    for action in (0, 2, 3, 2, 1, 5, 2):
        seen = twin.step(action)[0]
        np.testing.assert_array_equal(env.step(np.array([action])).observation[0], seen)


def views(column: int, cue: str, *, view_size: int) -> list[list[float]]:
    """What is seen in the corridor of MemoryS7 at a column, facing each way, where that object is to be remembered."""
    for seed in range(100):
        world = minigrid.GridWorld("MemoryS7-v0", 245, view_size)
        world.reset(seed)
        if (world.env.grid.get(1, 2).type, world.env.grid.get(5, 1).type) != (cue, "key"):
            continue
        world.env.agent_pos = np.array([column, 3])
        return [world.step(0)[0].tolist() for _ in range(4)]
    raise AssertionError("no such episode")


@pytest.mark.parametrize(("view_size", "blind"), [(3, {4, 5}), (7, set())])
def test_only_with_a_small_view_the_object_is_out_of_sight_where_memory_is_to_decide(
    view_size: int, blind: set[int]
) -> None:
    """Blind at two columns in a row, an agent without memory cannot know: it must step from one to the other."""
    alike = {c for c in range(1, 6) if views(c, "key", view_size=view_size) == views(c, "ball", view_size=view_size)}
    assert alike == blind


@pytest.mark.parametrize("task", minigrid.TASKS)
def test_the_instruction_of_every_task_is_always_the_same(task: str) -> None:
    env = gymnasium.make(f"MiniGrid-{task}").unwrapped
    assert len({env.reset(seed=seed)[0]["mission"] for seed in range(4)}) == 1


def test_the_camera_shows_the_whole_grid_and_notices_another_episode() -> None:
    env = registry.make(MEMORY, 1, 3)
    camera = camera_for(MEMORY, 3, {})
    pictures = [camera.reset(env.reset())]
    pictures += [camera.step(action, env.step(np.array([action]))) for action in (2, 0, 1)]
    assert {picture.shape for picture in pictures} == {(1, 224, 224, 3)}
    assert (pictures[0] != pictures[1]).any()
    assert camera.actions[2] == "forward"
    with pytest.raises(RuntimeError, match="another episode"):
        camera.step(2, env.step(np.array([0])))
    camera.close()
