"""Many robots at once: the episodes of the single environments, ends, states, threads, staggering, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from ddrl.environments import mujoco_batch
from ddrl.environments.base import registry
from ddrl.environments.mujoco_batch import BatchedRobots
from ddrl.errors import UserError
from ddrl.types import Array, EnvStep, VectorEnv

STEPS = 1000
EXACT = ("reward", "terminated", "truncated", "ended", "start", "valid")
every_task = pytest.mark.parametrize("task", mujoco_batch.TASKS)


def made(task: str, num_envs: int = 3, seed: int = 3, num_threads: int = 1, **options: Any) -> BatchedRobots:
    env = registry.make(f"mujoco_batch/{task}", num_envs, seed, num_threads=num_threads, **options)
    assert isinstance(env, BatchedRobots)
    return env


def single(task: str) -> str:
    """The name of the same task, one simulation at a time."""
    return f"mujoco/{task}" if task.endswith("-v5") else f"dm_control/{task}"


def plan(env: VectorEnv, steps: int, seed: int = 0) -> Array:
    """Random actions [steps, B, A], some beyond 1."""
    shape = (steps, env.num_envs, env.spec.action_size)
    return np.random.default_rng(seed).uniform(-1.3, 1.3, shape).astype(np.float32)


def played(env: VectorEnv, actions: Array) -> list[EnvStep]:
    return [env.reset(), *(env.step(chosen) for chosen in actions)]


def assert_same(a: list[EnvStep], b: list[EnvStep], rows: Any = slice(None)) -> None:
    """Steps of `a`, and of environments `rows` of `b`, are equal bit for bit."""
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        for field in EnvStep._fields:
            np.testing.assert_array_equal(getattr(left, field), getattr(right, field)[rows], f"step {index}, {field}")


def assert_episodes_of_the_single_environments(task: str, **options: Any) -> list[EnvStep]:
    batch, alone = made(task, **options), registry.make(single(task), 3, 3, **options)
    actions = plan(batch, STEPS)
    found = played(batch, actions)
    for index, (own, theirs) in enumerate(zip(found, played(alone, actions), strict=True)):
        for field in EXACT[1:]:
            np.testing.assert_array_equal(getattr(own, field), getattr(theirs, field), f"step {index}, {field}")
        np.testing.assert_allclose(own.reward, theirs.reward, rtol=1e-6, atol=1e-6, err_msg=f"step {index}")
        np.testing.assert_allclose(own.observation, theirs.observation, rtol=1e-6, atol=1e-6, err_msg=f"step {index}")
    return found


@every_task
def test_a_thousand_steps_are_those_of_the_single_environment_with_the_same_seed(task: str) -> None:
    found = assert_episodes_of_the_single_environments(task, max_steps=300)
    assert sum(step.ended.sum() for step in found) >= 9


@pytest.mark.parametrize("task", ["Walker2d-v5", "Ant-v5", "Humanoid-v5"])
def test_they_are_the_same_where_fallen_robots_go_on(task: str) -> None:
    found = assert_episodes_of_the_single_environments(task, terminate_when_unhealthy=False)
    assert [index for index, step in enumerate(found) if step.ended.any()] == [STEPS]


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "Walker2d-v5", "cheetah-run", "walker-run"])
def test_what_is_read_from_the_state_is_equal_bit_for_bit(task: str) -> None:
    batch, alone = made(task, max_steps=100), registry.make(single(task), 3, 3, max_steps=100)
    actions = plan(batch, 250)
    assert_same(played(batch, actions), played(alone, actions))


def test_contact_forces_are_gymnasiums_within_a_millionth_of_a_newton() -> None:
    for task in ("Ant-v5", "Humanoid-v5"):
        batch = made(task, 2, terminate_when_unhealthy=False)
        alone = registry.make(single(task), 2, 3, terminate_when_unhealthy=False)
        batch.reset(), alone.reset()
        largest = 0.0
        for chosen in plan(batch, 300):
            batch.step(chosen), alone.step(chosen)
            theirs = np.array([simulation.env.data.cfrc_ext for simulation in alone.simulations])
            np.testing.assert_allclose(batch._engine.field("cfrc_ext"), theirs, rtol=1e-9, atol=1e-6)
            largest = max(largest, float(np.abs(theirs).max()))
        assert largest > 100.0, "the robots touched the ground"


@every_task
def test_spec_and_protocol_are_those_of_the_single_environment(task: str) -> None:
    own, theirs = registry.spec_for(f"mujoco_batch/{task}"), registry.spec_for(single(task))
    assert replace(own, name=theirs.name) == theirs
    staggered = registry.spec_for(f"mujoco_batch/{task}", staggered=True)
    assert staggered.protocol == own.protocol + ";staggered-first-episodes"


def test_contact_forces_can_be_left_out_of_the_observation_and_stay_in_the_reward() -> None:
    seen, blind = made("Ant-v5"), made("Ant-v5", contact_forces=False)
    assert (seen.spec.observation_shape, blind.spec.observation_shape) == ((105,), (27,))
    for own, other in zip(played(seen, plan(seen, 100)), played(blind, plan(seen, 100)), strict=True):
        np.testing.assert_array_equal(own.observation[:, :27], other.observation)
        np.testing.assert_array_equal(own.reward, other.reward)


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "cheetah-run", "walker-walk"])
def test_every_state_continues_with_the_same_bits(task: str) -> None:
    env, restored = made(task, max_steps=25, staggered=True), made(task, max_steps=25, staggered=True)
    actions = plan(env, 60)
    trace, states = [env.reset()], []
    for chosen in actions:
        states.append(env.state_dict())
        trace.append(env.step(chosen))
    ended = [index for index, step in enumerate(trace[:40]) if step.ended.any()]
    for moment in (0, ended[0], ended[0] + 1, ended[-1], 40):
        restored.load_state_dict(states[moment])
        assert_same(trace[moment + 1 : moment + 20], [restored.step(a) for a in actions[moment : moment + 19]])
        later = restored.state_dict()
        for key, value in states[moment + 19].items():
            assert torch.equal(value, later[key]) if isinstance(value, torch.Tensor) else value == later[key], key


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "Humanoid-v5", "walker-walk"])
def test_neither_neighbours_nor_threads_change_an_episode(task: str) -> None:
    many, few, threads = made(task, 9, max_steps=20), made(task, 2, max_steps=20), made(task, 9, 3, 3, max_steps=20)
    actions = plan(many, 60)
    trace = played(many, actions)
    assert_same(played(few, actions[:, :2]), trace, rows=slice(2))
    assert_same(played(threads, actions), trace)


def test_another_seed_and_another_episode_start_elsewhere() -> None:
    env = made("Walker2d-v5")
    starts = [env.reset().observation, env.reset().observation, made("Walker2d-v5", seed=4).reset().observation]
    assert len({row.tobytes() for start in starts for row in start}) == 9


def test_a_limit_truncates_unless_the_last_step_terminates() -> None:
    free = made("Walker2d-v5", 1)
    free.reset()
    push = np.ones((1, 6), dtype=np.float32)
    fall = next(index for index in range(1, 200) if free.step(push).terminated[0])
    for limit, kind in ((fall - 1, "truncated"), (fall, "terminated"), (fall + 1, "terminated")):
        env = made("Walker2d-v5", 1, max_steps=limit)
        env.reset()
        ends = [env.step(push) for _ in range(min(limit, fall))]
        assert [step.ended[0] for step in ends] == [False] * (len(ends) - 1) + [True]
        assert (ends[-1].terminated[0], ends[-1].truncated[0]) == (kind == "terminated", kind == "truncated")


def test_staggered_first_episodes_differ_in_length_and_later_ones_do_not() -> None:
    env = made("HalfCheetah-v5", 12, max_steps=30, staggered=True)
    lengths: list[list[int]] = [[] for _ in range(12)]
    step, begun = env.reset(), np.zeros(12, dtype=int)
    for index, chosen in enumerate(plan(env, 90), start=1):
        step = env.step(chosen)
        assert not step.terminated.any()
        for row in np.flatnonzero(step.ended):
            lengths[row].append(index - begun[row])
            begun[row] = index + 1
    first = [own[0] for own in lengths]
    assert len(set(first)) > 6
    assert 1 <= min(first) <= max(first) <= 30
    assert {length for own in lengths for length in own[1:]} == {30}
    few = made("HalfCheetah-v5", 2, max_steps=30, staggered=True)
    assert few._first_limit.tolist() == first[:2], "a limit depends on seed and robot alone"


def test_staggering_changes_lengths_and_nothing_else() -> None:
    plain, staggered = (made("HalfCheetah-v5", 3, max_steps=40, staggered=value) for value in (False, True))
    shortest = int(staggered._first_limit.min())
    actions = plan(plain, shortest)
    for own, other in zip(played(plain, actions), played(staggered, actions), strict=True):
        np.testing.assert_array_equal(own.observation, other.observation)
        np.testing.assert_array_equal(own.reward, other.reward)


def test_more_robots_than_fit_into_memory_are_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mujoco_batch, "ThreadsEngine", None)
    with pytest.raises(UserError) as error:
        made("Ant-v5", 10**9)
    line = str(error.value)
    assert line.startswith("environment 'mujoco_batch/Ant-v5': 1000000000 robots need about ")
    assert "GiB of memory are free; allowed: up to " in line
    assert "\n" not in line


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "walker-walk"])
def test_the_memory_of_a_robot_is_about_what_is_estimated(task: str) -> None:
    made(task, 1).reset()  # what is loaded once
    before = psutil.Process().memory_info().rss
    env = made(task, 4000)
    env.reset()
    env.step(np.zeros((4000, env.spec.action_size), dtype=np.float32))
    each = (psutil.Process().memory_info().rss - before) / 4000
    assert each < 1.5 * mujoco_batch._bytes_per_robot(env._robot, env.spec.observation_shape[0])


def test_a_step_before_the_first_reset_is_an_error_also_in_a_restored_state() -> None:
    fresh, used = made("HalfCheetah-v5"), made("HalfCheetah-v5")
    state, still = fresh.state_dict(), np.zeros((3, 6), dtype=np.float32)
    first = fresh.reset()
    used.reset()
    used.load_state_dict(state)
    with pytest.raises(RuntimeError, match="before reset"):
        used.step(still)
    assert_same([first], [used.reset()])


@pytest.mark.parametrize(
    ("num_envs", "seed", "options"), [(4, 3, {}), (3, 5, {}), (3, 3, {"max_steps": 5}), (3, 3, {"staggered": True})]
)
def test_the_state_of_other_robots_is_an_error(num_envs: int, seed: int, options: dict[str, Any]) -> None:
    state = made("HalfCheetah-v5").state_dict()
    with pytest.raises(UserError, match="environment state: "):
        made("HalfCheetah-v5", num_envs, seed, **options).load_state_dict(state)


def test_a_simulation_that_diverges_begins_again_with_a_warning_and_leaves_its_neighbours_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env, sound = made("HalfCheetah-v5", num_threads=2), made("HalfCheetah-v5", num_threads=2)
    env.reset(), sound.reset()
    still = np.zeros((3, 6), dtype=np.float32)
    env._engine.field("qvel")[1] = 1e12
    step, theirs = env.step(still), sound.step(still)
    assert "unstable" in caplog.text
    assert np.isfinite(step.observation).all()
    np.testing.assert_array_equal(step.observation[[0, 2]], theirs.observation[[0, 2]])
