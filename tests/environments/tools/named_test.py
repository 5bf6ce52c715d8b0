"""Where numbers of environments enter a run: what passes, what does not, and who is to blame."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddrl.api import trained
from ddrl.environments.base import finite, registry
from ddrl.environments.tools import named
from ddrl.environments.tools.named import NamedEnv, make_env
from ddrl.environments.toy import ToyEnvs
from ddrl.errors import NonFiniteError, UserError
from ddrl.types import Array, EnvStep, VectorEnv

ROOT = Path(__file__).resolve().parents[3]
BAD = (math.nan, math.inf, -math.inf, 3e38, -2e12)


class Scripted:
    """Environments that return whatever they are told to."""

    def __init__(self, spec: Any, num_envs: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        self.next: dict[str, Array] = {}
        shape = (num_envs, *spec.observation_shape)
        nowhere = np.zeros(num_envs, dtype=np.bool_)
        self._blank = EnvStep(
            np.zeros(shape, dtype=spec.observation_dtype), np.zeros(num_envs, np.float32), *[nowhere] * 5
        )
        self.state_dict = self.load_state_dict = self.close = lambda *_: None

    def reset(self) -> EnvStep:
        return self.step(np.zeros(self.num_envs, np.int64))

    def step(self, actions: Array) -> EnvStep:
        return self._blank._replace(**self.next)


def scripted(task: str = "toy/catch", num_envs: int = 3) -> tuple[Scripted, NamedEnv]:
    inner = Scripted(registry.spec_for(task), num_envs)
    env: Any = inner
    return inner, NamedEnv(env, "actor 0", [task] * num_envs)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("field", ["reward", "observation"])
def test_a_number_that_is_not_finite_or_huge_is_named_with_its_step_and_column(field: str, value: float) -> None:
    inner, env = scripted()
    env.reset()
    env.step(np.zeros(3, np.int64))
    array = getattr(env.step(np.zeros(3, np.int64)), field).copy()
    array.reshape(3, -1)[2, -1] = value
    inner.next = {field: array}
    what = re.escape(f"observation[{array.shape[-1] - 1}]" if field == "observation" else field)
    words = rf"^actor 0: step 3 of this process, column 2 of 3: the {what} is {re.escape(f'{value:g}')}; "
    with pytest.raises(UserError, match=words + "allowed: .*; the actions before it were finite$") as caught:
        env.step(np.zeros(3, np.int64))
    assert "\n" not in str(caught.value)
    assert not caught.value.is_crash
    with pytest.raises(UserError, match=r"no action came before$"):
        env.reset()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("reward", [0.0] * 3, "reward is a list; allowed: a NumPy array"),
        ("reward", np.zeros((3, 1), np.float32), "reward has the shape [3, 1]; allowed: [3]"),
        ("reward", np.array([None] * 3), "reward is of dtype object; allowed: numbers"),
        ("observation", np.zeros((3, 2), np.float32), "observation has the shape [3, 2]; allowed: [3, "),
        ("terminated", np.zeros(3), "terminated is of dtype float64; allowed: bool"),
        ("start", None, "start is a NoneType; allowed: a NumPy array"),
    ],
)
def test_what_is_no_step_is_named_in_one_line(field: str, value: Any, words: str) -> None:
    inner, env = scripted()
    inner.next[field] = value
    for call in (env.reset, lambda: env.step(np.zeros(3, np.int64))):
        with pytest.raises(UserError, match=re.escape(f"of this process: the {words}")):
            call()


def test_float64_that_float32_cannot_hold_does_not_pass() -> None:
    inner, env = scripted()
    inner.next = {"reward": np.array([0.0, 1e300, 0.0])}
    with pytest.raises(UserError, match=r"column 1 of 3: the reward is 1e\+300"):
        env.reset()


def test_every_number_up_to_the_limit_passes_and_pixels_are_not_looked_at() -> None:
    inner, env = scripted()
    limit, size = np.float32(finite.LIMIT), inner.spec.observation_shape
    inner.next = {"reward": np.array([limit, -limit, 0], np.float32), "observation": np.full((3, *size), limit)}
    assert env.reset().observation.max() == limit
    inner, env = scripted("atari/pong")
    pixels = np.full((3, 4, 84, 84), 255, np.uint8)
    inner.next = {"observation": pixels}
    assert env.reset().observation is pixels


def test_the_limit_is_what_its_reason_says() -> None:
    """The sum over a million steps of squared values, each of which adds up 1e4 rewards, is a float32."""
    value = np.float32(1e4) * np.float32(finite.LIMIT)
    assert np.isfinite(np.float32(value * value) * np.float32(1e6))
    with np.errstate(over="ignore"):
        assert not np.isfinite(np.float32(10 * value * 10 * value) * np.float32(1e6))


def test_a_suite_names_the_task_of_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    two = "minigrid/Empty-5x5-v0+Empty-6x6-v0"
    env = make_env({"name": two}, 4, 0, num_threads=1, name="actor 0")
    step = env.reset()
    bad = step._replace(reward=np.array([0, 0, 0, math.nan], np.float32))
    monkeypatch.setattr(env, "_env", Returning(bad))
    with pytest.raises(UserError, match=r"column 3 of 4 \(minigrid/Empty-6x6-v0\): the reward is nan"):
        env.step(np.zeros(4, np.int64))


class Returning:
    """Always the same step."""

    def __init__(self, step: EnvStep) -> None:
        self.reset = lambda: step
        self.step = lambda actions: step


@pytest.mark.parametrize("task", ["toy/track", "mujoco/Hopper-v5"])
def test_actions_that_are_no_numbers_are_the_training_s_fault(task: str) -> None:
    env = make_env({"name": task}, 2, 0, num_threads=1, name="actor 1")
    env.reset()
    actions = np.zeros((2, env.spec.action_size), np.float32)
    actions[1, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"^actor 1: training diverged: the policy's action in column 1 is nan$"):
        env.step(actions)


def test_infinite_actions_before_a_number_that_is_not_finite_are_to_blame_for_it() -> None:
    inner, env = scripted("toy/track")
    env.reset()
    inner.next = {"reward": np.array([0, math.nan, 0], np.float32)}
    words = r"diverged: the policy's action in column 0 is inf, and then the reward is nan"
    with pytest.raises(NonFiniteError, match=words):
        env.step(np.full((3, 1), math.inf, np.float32))


def test_a_simulation_that_breaks_under_finite_actions_is_named() -> None:
    env = make_env({"name": "mujoco/HalfCheetah-v5"}, 2, 0, num_threads=1, name="actor 0")
    env.reset()
    simulation: Any = env._env
    data = simulation.simulations[1].env.data
    data.qvel[:] = math.nan  # what MuJoCo itself does not always notice
    inner = simulation.simulations[1]
    inner.step = lambda action: (np.concatenate([data.qpos[1:], data.qvel]), 0.0, False, False)
    words = r"^actor 0: step 1 of this process, column 1 of 2: the observation\[\d+\] is nan.*actions before .* finite$"
    with pytest.raises(UserError, match=words):
        env.step(np.ones((2, env.spec.action_size), np.float32))


def test_whatever_plays_episodes_of_a_run_steps_environments_that_are_checked() -> None:
    """Only what makes them and what measures speed, or makes or checks environments, asks the registry itself."""
    callers = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ddrl").rglob("*.py") if makes(path)}
    tools = {f"ddrl/environments/tools/{name}.py" for name in ("camera", "check", "named", "random_play")}
    assert callers == tools | {"ddrl/bench/environments.py", "ddrl/bench/task_suites.py"}


def makes(path: Path) -> bool:
    return "registry.make(" in path.read_text()


def test_evaluations_and_films_are_refused_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ToyEnvs.step

    def step(self: ToyEnvs, actions: Array) -> EnvStep:
        made = whole(self, actions)
        return made._replace(reward=np.full_like(made.reward, math.nan))

    monkeypatch.setattr(ToyEnvs, "step", step)
    env: VectorEnv = trained.make_env({"name": "toy/catch"}, 1, 0, num_threads=1, name="evaluation of run")
    env.reset()
    with pytest.raises(UserError, match=r"^evaluation of run: .*the reward is nan"):
        env.step(np.zeros(1, np.int64))
    assert trained.make_env is named.make_env
