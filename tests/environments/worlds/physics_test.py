"""What both MuJoCo adapters promise: gymnasium's and the suite's own numbers, ends, actions, exact states, errors."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from ddrl.environments import dm_control, mujoco
from ddrl.environments.base import registry
from ddrl.environments.worlds.spaces import Bounds
from ddrl.errors import UserError
from ddrl.system.seeding import seed_for
from ddrl.types import Array, EnvStep, VectorEnv

PAPERS = ("HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Walker2d-v5", "Ant-v5")


def actions(env: VectorEnv, steps: int, seed: int = 0, reach: float = 1.3) -> Array:
    """Random actions [steps, B, A], some beyond 1."""
    shape = (steps, env.num_envs, env.spec.action_size)
    return np.random.default_rng(seed).uniform(-reach, reach, shape).astype(np.float32)


def assert_same(a: list[EnvStep], b: list[EnvStep]) -> None:
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        for field in EnvStep._fields:
            np.testing.assert_array_equal(getattr(left, field), getattr(right, field), f"step {index}, {field}")


@pytest.mark.parametrize("task", PAPERS)
def test_the_numbers_are_those_of_gymnasium_with_its_own_wrappers(task: str) -> None:
    env, theirs = registry.make(f"mujoco/{task}", 2, 5, max_steps=60), gymnasium.make(task, max_episode_steps=60)
    space = theirs.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    step, episode = env.reset(), 0
    seen = theirs.reset(seed=seed_for(5, f"mujoco/{task}/1", episode))[0]
    plan = actions(env, 130)
    for chosen in plan:
        np.testing.assert_array_equal(step.observation[1], seen.astype(np.float32))
        over, step = step.ended[1], env.step(chosen)
        if over:
            episode += 1
            seen = theirs.reset(seed=seed_for(5, f"mujoco/{task}/1", episode))[0]
            continue
        seen, reward, terminated, truncated, _ = theirs.step(np.clip(chosen[1], -1, 1) * space.high)
        assert step.reward[1] == np.float32(reward)
        assert (step.terminated[1], step.truncated[1]) == (terminated, truncated and not terminated)
    assert episode >= 2


def test_the_numbers_are_those_of_the_suite_and_its_time_limit_truncates() -> None:
    env = registry.make("dm_control/walker-walk", 1, 3)
    theirs = dm_control.suite.load("walker", "walk", task_kwargs={"random": 0})
    theirs.task.random.seed(seed_for(3, "dm_control/walker-walk/0", 0))
    step, timestep = env.reset(), theirs.reset()
    for chosen in actions(env, 1000, reach=1.0):
        np.testing.assert_array_equal(step.observation[0], dm_control._flat(timestep.observation).astype(np.float32))
        assert not timestep.last() and not step.ended[0]
        step, timestep = env.step(chosen), theirs.step(chosen[0])
        assert step.reward[0] == np.float32(timestep.reward)
    assert timestep.last() and timestep.discount == 1.0
    assert step.truncated[0] and not step.terminated[0]


def test_a_discount_of_zero_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    env = registry.make("dm_control/lqr-lqr_2_1", 2, 1)
    env.reset()
    monkeypatch.setattr(env.simulations[1].env.task, "_TERMINAL_TOL", 100.0)
    step = env.step(np.zeros((2, 1), dtype=np.float32))
    assert step.terminated.tolist() == [False, True]
    assert not step.truncated.any()
    step = env.step(np.zeros((2, 1), dtype=np.float32))
    assert step.valid.tolist() == [True, False]
    assert step.start.tolist() == [False, True]


@pytest.mark.parametrize("task", mujoco.TASKS)
def test_every_task_of_gymnasium_starts(task: str) -> None:
    env = registry.make(f"mujoco/{task}", 1, 1)
    seen = [env.reset(), *(env.step(chosen) for chosen in actions(env, 3))]
    assert all(np.isfinite(step.observation).all() for step in seen)
    assert env.spec == registry.spec_for(f"mujoco/{task}")


def test_there_are_eleven_tasks_of_gymnasium_and_51_of_the_suite() -> None:
    assert len(mujoco.TASKS) == 11
    assert set(PAPERS) <= set(mujoco.TASKS)
    assert len(dm_control.TASKS) == len(dm_control.suite.ALL_TASKS) == 51


SAMPLE = ("acrobot-swingup", "finger-turn_hard", "lqr-lqr_6_2", "point_mass-hard", "quadruped-walk")


def check_suite_task(task: str) -> None:
    """It starts, and a state saved in its second episode continues with the same bits in environments that differ."""
    env = registry.make(f"dm_control/{task}", 1, 1, max_steps=5)
    plan = actions(env, 18)
    seen = [env.reset(), *(env.step(chosen) for chosen in plan[:9])]
    state = env.state_dict()
    seen += [env.step(chosen) for chosen in plan[9:]]
    assert all(np.isfinite(step.observation).all() for step in seen)
    env.load_state_dict(state)  # has played other episodes since
    assert_same(seen[10:], [env.step(chosen) for chosen in plan[9:]])
    env.close()


@pytest.mark.parametrize("task", SAMPLE)
def test_a_task_of_the_suite_starts_and_continues(task: str) -> None:
    check_suite_task(task)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(dm_control.TASKS) - set(SAMPLE)))
def test_every_other_task_of_the_suite_starts_and_continues(task: str) -> None:
    check_suite_task(task)


def test_actions_reach_the_bounds_of_each_actuator() -> None:
    sent: list[Array] = []
    for name, low, high in (("mujoco/Humanoid-v5", -0.4, 0.4), ("mujoco/InvertedPendulum-v5", -3.0, 3.0)):
        env = registry.make(name, 1, 1)
        env.reset()
        simulation, step = env.simulations[0].env, env.simulations[0].env.step
        simulation.step = lambda action, step=step: (sent.append(action), step(action))[1]
        for value, expected in ((-1.0, low), (0.5, high / 2), (7.0, high), (-np.inf, low)):
            env.step(np.full((1, env.spec.action_size), value, dtype=np.float32))
            assert sent[-1].dtype == np.float32
            np.testing.assert_array_equal(sent[-1], np.float32(expected))


def test_bounds_that_are_not_symmetric_are_met_and_missing_ones_leave_actions_alone() -> None:
    ends = np.array([-1.0, 0.0, 1.0], dtype=np.float32)[:, None]
    bounds = Bounds.between(np.array([-1.0, -1e10, -np.inf]), np.array([3.0, 1e10, np.inf]))
    assert bounds.scale(ends).tolist() == [[-1, -1, -1], [1, 0, 0], [3, 1, 1]]


def test_a_limit_truncates_unless_the_last_step_terminates() -> None:
    free = registry.make("mujoco/Hopper-v5", 1, 1)
    free.reset()
    still = np.ones((1, 3), dtype=np.float32)
    fall = next(index for index in range(1, 200) if free.step(still).terminated[0])
    for limit, kind in ((fall - 1, "truncated"), (fall, "terminated"), (fall + 1, "terminated")):
        env = registry.make("mujoco/Hopper-v5", 1, 1, max_steps=limit)
        env.reset()
        ends = [env.step(still) for _ in range(min(limit, fall))]
        assert [step.ended[0] for step in ends] == [False] * (len(ends) - 1) + [True]
        assert (ends[-1].terminated[0], ends[-1].truncated[0]) == (kind == "terminated", kind == "truncated")


def test_without_unhealthy_ends_the_hopper_lies_until_the_limit() -> None:
    env = registry.make("mujoco/Hopper-v5", 1, 1, max_steps=150, terminate_when_unhealthy=False)
    env.reset()
    steps = [env.step(chosen) for chosen in actions(env, 150)]
    assert [index for index, step in enumerate(steps) if step.ended[0]] == [149]
    assert steps[-1].truncated[0]


def test_contact_forces_can_be_left_out_of_the_observation() -> None:
    assert registry.spec_for("mujoco/Ant-v5").observation_shape == (105,)
    assert registry.spec_for("mujoco/Ant-v5", contact_forces=False).observation_shape == (27,)


def test_the_protocol_id_tells_every_option() -> None:
    plain = registry.spec_for("mujoco/Ant-v5").protocol
    assert plain.endswith(
        "/Ant-v5;gymnasium-1.4.0;terminates-unhealthy;float32-observations,contact-forces;actions-clipped-to-1,"
        "actions-scaled-to-bounds;cap1000;autoreset-next-step;raw-rewards"
    )
    changed = {"terminate_when_unhealthy": False, "contact_forces": False, "max_steps": 7}
    assert set(changed) == set(registry.resolve_options("mujoco/Ant-v5", {}))
    others = {registry.spec_for("mujoco/Ant-v5", **{key: value}).protocol for key, value in changed.items()}
    assert len(others | {plain}) == 4


def test_an_environment_does_not_depend_on_its_neighbours() -> None:
    alone, among = registry.make("mujoco/Hopper-v5", 1, 1), registry.make("mujoco/Hopper-v5", 3, 1)
    first, others = alone.reset(), among.reset()
    for chosen in actions(among, 80):
        for field in EnvStep._fields:
            np.testing.assert_array_equal(getattr(first, field)[0], getattr(others, field)[0])
        first, others = alone.step(chosen[:1]), among.step(chosen)
    starts = [among.reset().observation for _ in range(3)]
    assert len({row.tobytes() for start in starts for row in start}) == 9


@pytest.mark.parametrize("name", ["mujoco/Hopper-v5", "mujoco/Humanoid-v5", "dm_control/hopper-hop"])
def test_every_state_continues_with_the_same_bits(name: str) -> None:
    env, restored = registry.make(name, 2, 1, max_steps=25), registry.make(name, 2, 1, max_steps=25)
    env.reset()
    plan = actions(env, 60)
    trace, states = [], []
    for chosen in plan:
        trace.append(env.step(chosen))
        states.append(env.state_dict())
    ended = [index for index, step in enumerate(trace[:50]) if step.ended.any()]
    for moment in (0, ended[0], ended[0] + 1, ended[-1], 40):
        restored.load_state_dict(states[moment])
        assert_same(trace[moment + 1 : moment + 20], [restored.step(a) for a in plan[moment + 1 : moment + 20]])
        later = restored.state_dict()
        for key, value in states[min(moment + 19, 59)].items():
            assert torch.equal(value, later[key]) if isinstance(value, torch.Tensor) else value == later[key]


def test_a_long_episode_can_be_continued() -> None:
    env, restored = (registry.make("mujoco/InvertedPendulum-v5", 1, 1, max_steps=5000) for _ in range(2))
    env.simulations[0].env.step = _endless(env.simulations[0].env)
    restored.simulations[0].env.step = _endless(restored.simulations[0].env)
    env.reset()
    plan = actions(env, 1300)
    for chosen in plan[:1290]:
        env.step(chosen)
    state = env.state_dict()
    assert state["steps"].tolist() == [1290]
    restored.load_state_dict(state)
    assert_same([env.step(a) for a in plan[1290:]], [restored.step(a) for a in plan[1290:]])


def _endless(env: object) -> object:
    step = env.step

    def never_terminates(action: Array) -> tuple[object, ...]:
        observation, reward, _, truncated, info = step(action)
        return observation, reward, False, truncated, info

    return never_terminates


def test_a_state_before_the_first_reset_can_be_restored() -> None:
    fresh, used = registry.make("mujoco/Hopper-v5", 2, 1), registry.make("mujoco/Hopper-v5", 2, 1)
    state = fresh.state_dict()
    plan = actions(fresh, 10)
    first = [fresh.reset(), *(fresh.step(a) for a in plan)]
    used.reset()
    used.step(plan[0])
    used.load_state_dict(state)
    with pytest.raises(RuntimeError, match="before reset"):
        used.step(plan[0])
    assert_same(first, [used.reset(), *(used.step(a) for a in plan)])


@pytest.mark.parametrize(("num_envs", "seed", "options"), [(3, 1, {}), (2, 5, {}), (2, 1, {"max_steps": 5})])
def test_the_state_of_another_environment_is_an_error(num_envs: int, seed: int, options: dict[str, int]) -> None:
    state = registry.make("mujoco/Hopper-v5", 2, 1).state_dict()
    with pytest.raises(UserError, match="environment state: "):
        registry.make("mujoco/Hopper-v5", num_envs, seed, **options).load_state_dict(state)


def test_an_episode_that_went_differently_is_an_error() -> None:
    env, restored = registry.make("mujoco/Hopper-v5", 2, 1), registry.make("mujoco/Hopper-v5", 2, 1)
    env.reset()
    for chosen in actions(env, 5):
        env.step(chosen)
    state = env.state_dict()
    with pytest.raises(UserError, match="the episodes played again differ"):
        restored.load_state_dict(state | {"actions": -state["actions"]})


def test_a_crash_keeps_its_traceback_and_says_where_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    env = registry.make("mujoco/Hopper-v5", 2, 9)
    env.reset()
    plan = actions(env, 4)
    env.step(plan[0])

    def crash(action: Array) -> None:
        raise ArithmeticError("the simulator lost a leg")

    monkeypatch.setattr(env.simulations[1].env, "step", crash)
    with pytest.raises(ArithmeticError, match="lost a leg") as error:
        env.step(plan[1])
    assert error.traceback[-1].name == "crash"
    (note,) = error.value.__notes__
    assert note == (
        f"mujoco/Hopper-v5, environment 1 of seed 9, episode 0 (seed {seed_for(9, 'mujoco/Hopper-v5/1', 0)}), "
        "after 1 steps"
    )


def test_the_simulators_warnings_are_logged_and_write_no_file(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    env = registry.make("mujoco/HalfCheetah-v5", 1, 1)
    env.reset()
    assert caplog.text == ""
    env.simulations[0].env.data.qvel[:] = 1e12
    env.step(np.zeros((1, 6), dtype=np.float32))
    assert "unstable" in caplog.text
    assert list(tmp_path.iterdir()) == []
