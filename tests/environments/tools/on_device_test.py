"""Environments on a device: those that speak NumPy are wrapped, and those that speak tensors are named and checked."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ddrl.actors.unroll import empty_unroll
from ddrl.environments.base import registry
from ddrl.environments.tools import on_device
from ddrl.environments.tools.on_device import HostEnvs, NamedDeviceEnv, make_device_env
from ddrl.errors import Closed, NonFiniteError, UserError
from ddrl.types import DeviceVectorEnv, TensorStep
from tests import tensor_games
from tests.environments.tools.named_test import scripted

CPU = torch.device("cpu")


def made(task: str, **options: Any) -> HostEnvs | NamedDeviceEnv:
    environment = {"name": task, **options}
    return make_device_env(environment, 3, 5, device=CPU, num_threads=1, name="actor 0")


def named(task: str = "track") -> NamedDeviceEnv:
    return NamedDeviceEnv(tensor_games.TensorGames(task, 3, 5, "cpu"), "actor 0", CPU)


def unroll_of(env: NamedDeviceEnv) -> dict[str, Tensor]:
    return {name: torch.zeros_like(part) for name, part in empty_unroll(env.spec, 3, 4).items()}


@pytest.mark.parametrize("task", tensor_games.GAMES)
def test_tensors_of_the_adapter_are_preferred_and_play_the_same_episodes(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = made(f"toy/{task}")
    tensor_games.offer(monkeypatch)
    own = made(f"toy/{task}")
    assert (type(wrapped), type(own)) == (HostEnvs, NamedDeviceEnv)
    generator = torch.Generator().manual_seed(0)
    steps = [wrapped.reset(), own.reset()]
    for _ in range(80):
        for a, b in zip(*steps, strict=True):
            assert torch.equal(a, b)
        draws = torch.rand(3, generator=generator)
        actions = (3 * draws).long() if task == "catch" else (4 * draws - 2).unsqueeze(-1)
        steps = [wrapped.step(actions), own.step(actions)]


def test_a_suite_and_options_without_tensors_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor_games.offer(monkeypatch)
    assert registry.make_on_device("toy/catch", 1, 0, "cpu") is not None
    assert registry.make_on_device("pointnav/small", 1, 0, "cpu") is None
    assert registry.make_on_device("pointnav/small+medium", 1, 0, "cpu") is None
    with pytest.raises(UserError, match="nothing"):
        registry.make_on_device("toy/catch", 1, 0, "cpu", nothing=1)


def test_a_wrapped_environment_is_checked_at_each_step() -> None:
    inner, env = scripted()
    wrapped = HostEnvs(env, CPU)
    wrapped.reset()
    inner.next = {"reward": np.full(3, math.nan, np.float32)}
    with pytest.raises(UserError, match=r"actor 0.*reward is nan"):
        wrapped.step(torch.zeros(3, dtype=torch.int64))


def test_arrays_that_cannot_be_written_become_tensors_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    inner, env = scripted()
    flags = np.broadcast_to(np.array(True), (3,))
    inner.next = {"valid": flags, "reward": np.arange(6, dtype=np.float32)[::-2]}
    step = HostEnvs(env, CPU).reset()
    assert step.valid.all() and step.reward.tolist() == [5.0, 3.0, 1.0]
    assert not recwarn.list


@pytest.mark.parametrize("task", ["toy/catch", "toy/track"])
def test_a_parcel_holds_a_whole_step(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    _, env = scripted(task)
    parcel = on_device._Parcel(env, CPU)
    real = made(task)
    step: Any = real.reset()
    for _ in range(30):
        arrays = type(env.reset())(*(part.numpy() for part in step))
        assert all(torch.equal(a, b) for a, b in zip(parcel.send(arrays), step, strict=True))
        step = real.step(torch.zeros(3, dtype=torch.int64) if task == "toy/catch" else torch.zeros(3, 1))


@pytest.mark.parametrize("field", ["reward", "observation"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -2e12])
def test_a_number_that_is_not_allowed_is_named_after_the_unroll(field: str, value: float) -> None:
    env = named()
    unroll = unroll_of(env)
    env.check(unroll)
    unroll[field][2, 1] = value
    with pytest.raises(
        UserError, match=rf"^actor 0: column 1 of 3: the {field}.* is {re.escape(f'{value:g}')}; allowed"
    ):
        env.check(unroll)


def test_the_first_observation_is_looked_at() -> None:
    env = named()
    unroll = unroll_of(env)
    unroll["observation"][0, 2] = math.nan
    with pytest.raises(UserError, match="column 2"):
        env.check(unroll)


def test_actions_that_are_not_finite_mean_that_training_diverged() -> None:
    env = named()
    unroll = unroll_of(env)
    unroll["action"][1, 2] = math.nan
    unroll["observation"][2:, 2] = math.nan
    with pytest.raises(NonFiniteError, match=r"^actor 0: training diverged: the policy's action in column 2 is nan"):
        env.check(unroll)


class Wrong:
    """Tensor games that return a step of another form."""

    def __init__(self, **parts: Tensor) -> None:
        env = tensor_games.TensorGames("catch", 3, 5, "cpu")
        self.spec, self.num_envs = env.spec, env.num_envs
        self.state_dict, self.load_state_dict = env.state_dict, env.load_state_dict
        self._env, self._parts = env, parts

    def reset(self) -> TensorStep:
        return self._env.reset()._replace(**self._parts)

    def step(self, actions: Tensor) -> TensorStep:
        raise ValueError("broken")

    def close(self) -> None:
        raise ValueError("broken")


@pytest.mark.parametrize(
    ("field", "part", "found"),
    [
        ("reward", torch.zeros(3, dtype=torch.float64), r"torch.float64 \[3\] on cpu; allowed: torch.float32 \[3\]"),
        ("start", torch.zeros(3), r"torch.float32 \[3\] on cpu; allowed: torch.bool \[3\]"),
        ("observation", torch.zeros(3, 5), r"torch.float32 \[3, 5\] on cpu; allowed: torch.float32 \[3, 50\] on cpu"),
        (
            "valid",
            torch.zeros(3, dtype=torch.bool, device="meta"),
            r"torch.bool \[3\] on meta; allowed",
        ),
    ],
)
def test_a_step_of_another_form_is_refused(field: str, part: Tensor, found: str) -> None:
    env: DeviceVectorEnv = Wrong(**{field: part})
    with pytest.raises(UserError, match=f"^actor 0: the {field} is {found}"):
        NamedDeviceEnv(env, "actor 0", CPU).reset()


def test_errors_name_the_environment_and_a_closed_one_is_not_stepped(capsys: pytest.CaptureFixture[str]) -> None:
    env = NamedDeviceEnv(Wrong(), "actor 0", CPU)
    env.reset()
    with pytest.raises(UserError, match=r"actor 0.*broken"):
        env.step(torch.zeros(3, dtype=torch.int64))
    env.close()
    assert "broken (as it was closed)" in capsys.readouterr().err
    with pytest.raises(Closed):
        env.reset()
