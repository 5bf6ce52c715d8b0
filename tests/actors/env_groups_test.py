"""Groups of environments that take turns see, do and get what they would side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.actors.env_groups import AllAtOnce, Aside, GroupedEnvs, SteppingThread, joined_steps
from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.algorithms import impala
from ddrl.environments.tools.named import NamedEnv
from ddrl.errors import UserError
from ddrl.networks.distributions import CATEGORICAL, GAUSSIAN
from ddrl.system.seeding import torch_generator
from ddrl.system.wait_clock import SteppingClock
from ddrl.types import Array, EnvSpec, EnvStep, Episode, PolicyInput, PolicyOutput, RecurrentState, Unroll
from tests.algorithms.rigs import SPECS
from tests.scripted import SCRIPTS, Scripted

LENGTH = 7


def inference_for(spec: EnvSpec, **keys: Any) -> LocalInference:
    config = impala.Config(network="tanh_mlp", **keys)
    network = impala.make_network(spec, config, torch_generator(0, "network"))
    with torch.no_grad():
        network.policy.weight.mul_(300.0)  # what is seen decides
    return LocalInference(network, device=torch.device("cpu"), precision="float32")


class Actor:
    """A collector of scripted environments, in groups of some sizes, with a deterministic policy."""

    def __init__(
        self, spec: EnvSpec, sizes: Sequence[int], *, turns: bool, thread: SteppingThread | None = None, **keys: Any
    ) -> None:
        edges = np.cumsum([0, *sizes])
        parts = [Scripted(spec, SCRIPTS[start:stop]) for start, stop in pairwise(edges)]
        env, inference = GroupedEnvs(parts, thread if turns else None), inference_for(spec, **keys)
        sample = (GAUSSIAN if spec.action_size else CATEGORICAL).mode
        self.episodes: list[Episode] = []
        policies = [
            Policy(inference, size, torch_generator(0, "policy"), sample)
            for size in (sizes if turns else [env.num_envs])
        ]
        self.collector = UnrollCollector(
            env,
            policies[0],
            actor=0,
            on_episode=self.episodes.append,
            groups=list(zip(env.groups, policies, strict=True)) if turns else (),
        )

    def unrolls(self, number: int) -> list[tuple[Unroll, list[RecurrentState], list[torch.Tensor]]]:
        found = []
        for _ in range(number):
            states: list[RecurrentState] = []
            values: list[torch.Tensor] = []
            found.append((self.collector.collect(LENGTH, states, values, last_value=False), states, values))
        return found


CLOSE = ("distribution", "initial_state", "action", "last_action", "reward", "last_reward")
"""A batch of another size may be added up in another order, which the last bits of actions and rewards can show."""


def assert_same(ours: Unroll, theirs: Unroll) -> None:
    for name, tensor in ours.as_dict().items():
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if name in CLOSE else {"rtol": 0.0, "atol": 0.0}
        torch.testing.assert_close(tensor, getattr(theirs, name), **tolerance)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["discrete", "continuous"]),
    st.sampled_from([(2, 2), (1, 3), (3, 1), (1, 1, 1, 1), (2, 1, 1)]),
    st.booleans(),
    st.sampled_from([{}, {"lstm_size": 5, "feed_last_action_and_reward": True}]),
)
def test_each_environment_s_stream_is_the_same_with_one_and_with_several_groups(
    task: str, sizes: tuple[int, ...], aside: bool, keys: dict[str, Any]
) -> None:
    thread = SteppingThread("test-environments") if aside else None
    ours = Actor(SPECS[task], sizes, turns=True, thread=thread, **keys)
    theirs = Actor(SPECS[task], sizes, turns=False, **keys)
    for one, other in zip(ours.unrolls(6), theirs.unrolls(6), strict=True):
        assert_same(one[0], other[0])
        assert len(one[1]) == len(one[2]) == LENGTH
        torch.testing.assert_close(one[1:], other[1:], rtol=1e-4, atol=1e-4)
    assert [episode.length for episode in sorted(ours.episodes)] == [one.length for one in sorted(theirs.episodes)]
    assert ours.collector.agent_steps == theirs.collector.agent_steps
    if thread:
        thread.close()


class Meeting:
    """Where an inference of one group and the step of another must be under way at the same time."""

    def __init__(self, spec: EnvSpec, calls: int) -> None:
        self.barrier = threading.Barrier(2, timeout=20)
        self.inference, self.calls = inference_for(spec), calls
        self.asked = self.stepped = 0

    def infer(self, inputs: PolicyInput) -> PolicyOutput:
        if self.asked:  # before the first answer nothing steps
            self.barrier.wait()
        self.asked += 1
        return self.inference.infer(inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inference, name)


class Meets(Scripted):
    """Environments that step only while something is inferred."""

    meeting: Meeting

    def step(self, actions: Array) -> EnvStep:
        if self.meeting.stepped < self.meeting.calls - 1:  # after the last answer nothing is asked
            self.meeting.stepped += 1
            self.meeting.barrier.wait()
        return super().step(actions)


def test_one_group_steps_while_another_one_waits_for_its_actions() -> None:
    spec, calls = SPECS["discrete"], 2 * LENGTH
    meeting, parts = Meeting(spec, calls), [Meets(spec, SCRIPTS[:2]), Meets(spec, SCRIPTS[2:])]
    for part in parts:
        part.meeting = meeting
    thread = SteppingThread("test-environments")
    env = GroupedEnvs(parts, thread)
    inference: Any = meeting
    policies = [Policy(inference, 2, torch_generator(0, "policy"), CATEGORICAL.mode) for _ in range(2)]
    collector = UnrollCollector(
        env,
        policies[0],
        actor=0,
        on_episode=lambda episode: None,
        groups=list(zip(env.groups, policies, strict=True)),
    )
    collector.collect(LENGTH)
    assert (meeting.asked, meeting.stepped) == (calls, calls - 1)
    env.close()


def test_a_restored_actor_goes_on_with_each_group_where_it_was() -> None:
    for keys in ({}, {"lstm_size": 5}):
        own = Actor(SPECS["discrete"], (2, 2), turns=True, **keys)
        own.unrolls(2)
        restored = Actor(SPECS["discrete"], (2, 2), turns=True, **keys)
        restored.collector.load_state_dict(own.collector.state_dict())
        for one, other in zip(own.unrolls(3), restored.unrolls(3), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one[0].tensors, other[0].tensors, strict=True))


class Breaks(Scripted):
    """Environments whose third step raises."""

    def step(self, actions: Array) -> EnvStep:
        if len(self.played) == 3:
            raise UserError("an engine stopped")
        return super().step(actions)


def test_what_environments_raise_in_the_thread_beside_is_raised_in_the_actor_s() -> None:
    thread, clock = SteppingThread("test-environments"), SteppingClock()
    group = Aside(Breaks(SPECS["discrete"], SCRIPTS[:2]), thread, clock)
    actions = np.zeros(2, dtype=np.int64)
    group.reset()
    for _ in range(2):
        group.begin(actions)
        assert group.finish().reward.shape == (2,)
    group.begin(actions)
    with pytest.raises(UserError, match="an engine stopped"):
        group.finish()
    assert clock.seconds > 0
    thread.close()


def test_groups_are_one_vector_environment_too() -> None:
    spec = SPECS["discrete"]
    env = GroupedEnvs([Scripted(spec, SCRIPTS[:1]), Scripted(spec, SCRIPTS[1:])])
    twins = [Scripted(spec, SCRIPTS[:1]), Scripted(spec, SCRIPTS[1:])]
    first, expected = env.reset(), joined_steps([one.reset() for one in twins])
    assert all(np.array_equal(a, b) for a, b in zip(first, expected, strict=True))
    step = env.step(np.array([0, 1, 2, 1]))
    expected = joined_steps([twins[0].step(np.array([0])), twins[1].step(np.array([1, 2, 1]))])
    assert all(np.array_equal(a, b) for a, b in zip(step, expected, strict=True))
    assert (env.num_envs, [group.num_envs for group in env.groups]) == (4, [1, 3])
    assert isinstance(env.groups[0], AllAtOnce)


class Counted(Scripted):
    """Environments whose step takes a while, and which count how often they are closed."""

    closed = 0

    def step(self, actions: Array) -> EnvStep:
        time.sleep(0.1)
        return super().step(actions)

    def close(self) -> None:
        self.closed += 1


def test_groups_in_the_midst_of_a_step_are_closed_once_it_is_over() -> None:
    parts = [Counted(SPECS["discrete"], SCRIPTS[:2]), Counted(SPECS["discrete"], SCRIPTS[2:])]
    named = [NamedEnv(part, f"group {i}", ["test/discrete"] * 2) for i, part in enumerate(parts)]
    env = GroupedEnvs(named, SteppingThread("test-environments"))
    env.reset()
    for group in env.groups:
        group.begin(np.zeros(2, dtype=np.int64))
    env.close()
    assert [part.closed for part in parts] == [1, 1]
