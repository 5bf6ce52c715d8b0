"""Acting on a device makes the unrolls of acting on the host: here the device is the CPU, so bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddrl.actors.device_unroll import DeviceCollector
from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.environments.tools.named import NamedEnv
from ddrl.environments.tools.on_device import HostEnvs
from ddrl.networks.actor_critic import ActorCritic
from ddrl.system.seeding import torch_generator
from ddrl.training.builder import AnyCollector, Builder
from ddrl.types import Array, EnvStep, Episode, Unroll, VectorEnv
from tests import tensor_games
from tests.actors.evaluator_test import every_kind, recurrent
from tests.runs import config
from tests.scripted import Scripted

CPU = torch.device("cpu")
LENGTH = 9
RECURRENT = {"lstm_size": 8, "feed_last_action_and_reward": True}
SIMULATED = {"network": "tanh_mlp", "observation_normalisation": True, "reward_clipping": "none"}
TASKS: dict[str, dict[str, Any]] = {
    "terminations": {"environment": {"name": "toy/catch"}},
    "truncations": {"environment": {"name": "toy/track"}},
    "a memory": {"environment": {"name": "toy/memory"}, "hyperparameters": RECURRENT},
    "mazes": {"environment": {"name": "pointnav/small", "max_steps": 12}, "hyperparameters": RECURRENT},
    "a suite": {"environment": {"name": "pointnav/small+medium", "max_steps": 12}},
    "robots": {
        "environment": {"name": "mujoco_batch/HalfCheetah-v5", "max_steps": 15, "staggered": True},
        "hyperparameters": SIMULATED,
    },
    "robots that fall": {"environment": {"name": "mujoco_batch/Walker2d-v5"}, "hyperparameters": SIMULATED},
}


def collectors(**overrides: Any) -> tuple[list[AnyCollector], list[list[Episode]]]:
    """A collector on the host and one on the device, of the same configuration, and the episodes of each."""
    builder = Builder(config(**overrides, topology={"schedule": "synchronous", "env_threads": 2}), CPU)
    episodes: list[list[Episode]] = [[], []]
    made = builder.collector(1, episodes[0].append), builder.device_collector(1, episodes[1].append)
    for one in made:
        one.policy.inference.network.load_state_dict(builder.network().state_dict())
    return list(made), episodes


def assert_same(host: Unroll, device: Unroll) -> None:
    for name, own in host.as_dict().items():
        other = getattr(device, name)
        for a, b in zip(*((part if isinstance(part, tuple) else (part,)) for part in (own, other)), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, name
            assert torch.equal(a, b), name


@pytest.mark.parametrize("task", TASKS)
def test_unrolls_and_episodes_are_those_of_the_host(task: str) -> None:
    (host, device), episodes = collectors(**TASKS[task])
    dead = 0
    for _ in range(6):
        made = host.collect(LENGTH)
        assert_same(made, device.collect(LENGTH))
        dead += int((~made.valid).sum())
    assert dead > 3 or task == "robots that fall"
    assert episodes[0] == episodes[1]
    assert episodes[0] or task == "robots that fall"
    assert host.agent_steps == device.agent_steps > 0


@pytest.mark.parametrize("task", ["toy/catch", "toy/track"])
def test_environments_that_speak_tensors_need_no_numpy(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tensor_games.TensorGames] = []
    tensor_games.offer(monkeypatch, made)
    (host, device), episodes = collectors(environment={"name": task})
    own = [host.collect(30)]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "from_numpy", lambda array: pytest.fail("an array became a tensor"))
        patched.setattr(torch.Tensor, "numpy", lambda tensor, **_: pytest.fail("a tensor became an array"))
        others = [device.collect(30)]
    own.append(host.collect(30))
    others.append(device.collect(30))
    assert len(made) == 1
    for ours, theirs in zip(own, others, strict=True):
        assert_same(ours, theirs)
    assert episodes[0] == episodes[1] != []


@every_kind
def test_scripted_ends_of_every_kind_are_stored_as_on_the_host(kind: str) -> None:
    episodes: list[list[Episode]] = [[], []]
    env, _, policy = recurrent(kind)
    host = UnrollCollector(env, policy, actor=3, on_episode=episodes[0].append)
    other, _, its_policy = recurrent(kind)
    device = on_device(other, its_policy, episodes[1])
    for _ in range(4):
        assert_same(host.collect(LENGTH), device.collect(LENGTH))
    assert episodes[0] == episodes[1]
    assert len(episodes[0]) > 3


@every_kind
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_either_kind_of_collector_continues_the_other(kind: str, cut: int) -> None:
    env, _, policy = recurrent(kind)
    ended: list[list[Episode]] = [[], []]
    first = on_device(env, policy, ended[0])
    for _ in range(cut):
        first.collect(5)
    state = first.state_dict()
    other, _, its_policy = recurrent(kind)
    second = UnrollCollector(other, its_policy, actor=3, on_episode=ended[1].append)
    second.load_state_dict(state)
    ended[0].clear()
    for _ in range(3):
        assert_same(first.collect(5), second.collect(5))
    third_env, _, third_policy = recurrent(kind)
    third = on_device(third_env, third_policy, [])
    third.load_state_dict(second.state_dict())
    assert_same(first.collect(5), third.collect(5))
    assert ended[0][: len(ended[1])] == ended[1]


def test_the_values_that_were_predicted_are_those_of_the_host() -> None:
    (host, device), _ = collectors(**TASKS["truncations"])
    values: list[list[torch.Tensor]] = [[], []]
    for one, own in zip((host, device), values, strict=True):
        one.collect(LENGTH, values=own, last_value=False)
    assert len(values[0]) == LENGTH
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))


class Losing:
    """Environments of which one is lost now and then: its next step begins an episode and is dead."""

    def __init__(self, env: Scripted, places: dict[int, int]) -> None:
        """`places`: number of the step -> the environment that is lost in it."""
        self.spec, self.num_envs = env.spec, env.num_envs
        self.reset, self.state_dict, self.load_state_dict = env.reset, env.state_dict, env.load_state_dict
        self.close = env.close
        self._env, self._places, self._steps = env, places, 0

    def step(self, actions: Array) -> EnvStep:
        step = EnvStep(*(part.copy() for part in self._env.step(actions)))
        place = self._places.get(self._steps)
        self._steps += 1
        if place is not None:
            step.start[place], step.valid[place], step.reward[place] = True, False, 0.0
            step.terminated[place] = step.truncated[place] = step.ended[place] = False
        return step


def test_episodes_whose_environment_is_lost_are_abandoned_as_on_the_host() -> None:
    places = {4: 0, LENGTH: 1, 2 * LENGTH - 1: 2, 2 * LENGTH + 3: 3}
    episodes: list[list[Episode]] = [[], []]
    env, _, policy = recurrent("discrete")
    host = UnrollCollector(Losing(env, places), policy, actor=3, on_episode=episodes[0].append)
    other, _, its_policy = recurrent("discrete")
    device = on_device(Losing(other, places), its_policy, episodes[1])
    for _ in range(4):
        assert_same(host.collect(LENGTH), device.collect(LENGTH))
    assert host.abandoned == device.abandoned > 1
    assert sorted(episodes[0]) == sorted(episodes[1])


def test_an_unroll_keeps_its_memory() -> None:
    (_, device), _ = collectors(**TASKS["terminations"])
    first = device.collect(LENGTH)
    before = first.clone()
    device.collect(LENGTH)
    assert_same(before, first)


def test_no_step_asks_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the device `meta` have shapes and no numbers: whoever asked for one, or copied one, would fail."""
    meta, length = torch.device("meta"), 7
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        spec = tensor_games.TensorGames("track", 4, 0, "meta").spec
        network = ActorCritic(
            spec, network="tanh_mlp", generator=torch_generator(0, "x"), observation_normalisation=True, **RECURRENT
        )
        inference = LocalInference(network, device=meta, precision="float32", stays=True)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    policy = Policy(inference, 4, torch_generator(0, "policy"), network.family.sample)
    policy.last_action = policy.last_action.to(meta)  # there are no generators on this device
    env = tensor_games.TensorGames("track", 4, 0, "meta")
    collector = DeviceCollector(env, policy, device=meta, actor=0, on_episode=pytest.fail, tasks=["toy/track"] * 4)
    counted: list[int] = []
    monkeypatch.setattr(collector, "_count", lambda unroll, ended, before: counted.append(len(ended)))
    unroll = collector.collect(length)
    assert {part.device for part in unroll.tensors} == {meta}
    assert counted == [length]
    with pytest.raises(NotImplementedError, match="meta"):
        unroll.reward.sum().cpu()


def on_device(env: VectorEnv, policy: Policy, episodes: list[Episode]) -> DeviceCollector:
    tasks = [env.spec.name] * env.num_envs
    wrapped = HostEnvs(NamedEnv(env, "scripted", tasks), CPU)
    return DeviceCollector(wrapped, policy, device=CPU, actor=3, on_episode=episodes.append, tasks=tasks)
