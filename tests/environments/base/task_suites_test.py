"""Suites: several tasks for one agent, each in environments of its own; one that fails does not end the others."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ddrl.environments.base import registry
from ddrl.environments.base.task_suites import MOST_FAILURES, SuiteEnvs
from ddrl.environments.tools.check import check
from ddrl.errors import UserError
from ddrl.system.seeding import numpy_generator
from ddrl.types import Array, EnvStep, VectorEnv

SMALL, LARGE = "minigrid/Empty-Random-5x5-v0", "minigrid/DoorKey-8x8-v0"
BOTH = "minigrid/Empty-Random-5x5-v0+DoorKey-8x8-v0"
CUT = {"max_steps": 12}
TURN = 1


def test_each_environment_plays_one_task_in_turn() -> None:
    assert registry.tasks_of(BOTH) == (SMALL, LARGE)
    assert registry.column_tasks(BOTH, first=3, num_envs=4) == [LARGE, SMALL, LARGE, SMALL]
    assert registry.tasks_of(SMALL) == (SMALL,)


def test_a_named_suite_is_the_tasks_that_its_adapter_lists() -> None:
    levels = registry.tasks_of("dmlab/dmlab30_test")
    assert len(levels) == 30
    assert levels == registry.suites("dmlab")["dmlab/dmlab30_test"]
    assert registry.spec_for("dmlab/dmlab30_test", action_set="r2d2").num_actions == 15


def test_a_suite_keeps_the_contract_of_environments() -> None:
    check(lambda seed: registry.make(BOTH, 3, seed, **CUT), BOTH)


def test_a_column_sees_what_its_task_shows_alone() -> None:
    plan = numpy_generator(1, "plan").integers(0, 7, (40, 4))
    mixed = registry.make(BOTH, 4, seed=5, **CUT)
    alone = {0: registry.make(SMALL, 2, seed=5, **CUT), 1: registry.make(LARGE, 2, seed=5, **CUT)}
    steps = [(mixed.reset(), {first: env.reset() for first, env in alone.items()})]
    steps += [(mixed.step(a), {first: env.step(a[first::2]) for first, env in alone.items()}) for a in plan]
    for step, parts in steps:
        for first, part in parts.items():
            for whole, own in zip(step, part, strict=True):
                np.testing.assert_array_equal(whole[first::2], own)


def test_a_protocol_names_what_the_tasks_share_and_tells_other_lists_apart() -> None:
    protocol = registry.spec_for(BOTH, **CUT).protocol
    assert protocol.startswith("minigrid-3.2.0/Empty-Random-5x5-v0+DoorKey-8x8-v0;view7x7,one-hot;cap12;")
    assert ";2-tasks-" in protocol
    other = registry.spec_for("minigrid/DoorKey-8x8-v0+Empty-Random-5x5-v0", **CUT).protocol
    assert other.rpartition("-")[2] != protocol.rpartition("-")[2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("minigrid/Empty-5x5-v0+Empty-9x9-v0", "unknown task of minigrid 'Empty-9x9-v0'"),
        ("minigrid/Empty-5x5-v0+Empty-5x5-v0", "names a task twice"),
        ("dmlab/dmlab30", r"unknown task of dmlab 'dmlab30' \(did you mean 'dmlab30_t"),
        ("toy/catch+chain", "environment 'toy/catch\\+chain': what one agent plays must be alike"),
        ("atari/pong+breakout", "what one agent plays must be alike, but here is num_actions 6"),
    ],
)
def test_a_suite_that_no_agent_can_play_is_one_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        registry.spec_for(name)


class Fragile:
    """Catch that fails at some of its own steps."""

    def __init__(self, fails_at: set[int], seed: int) -> None:
        self._env = registry.make(SMALL, 2, seed, **CUT)
        self.spec, self.num_envs = self._env.spec, 2
        self._fails_at, self._steps = fails_at, 0
        self.closed = False

    def reset(self) -> EnvStep:
        return self._env.reset()

    def step(self, actions: Array) -> EnvStep:
        self._steps += 1
        if self._steps in self._fails_at:
            error = RuntimeError("out of pixels")
            error.add_note("episode 7")
            raise error
        return self._env.step(actions)

    def state_dict(self) -> dict[str, Any]:
        return self._env.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._env.load_state_dict(state)

    def close(self) -> None:
        self.closed = True
        self._env.close()


def fragile_suite(fails_at: Callable[[int], set[int]], lines: list[str]) -> tuple[SuiteEnvs, list[Fragile]]:
    """Columns 0 and 2 fail at steps that depend on the number of failures so far; 1 and 3 never do."""
    made: list[Fragile] = []

    def make(task: str, count: int, failures: int) -> VectorEnv:
        if task == LARGE:
            return registry.make(LARGE, count, 0, **CUT)
        made.append(Fragile(fails_at(failures), failures))
        return made[-1]

    tasks = registry.column_tasks(BOTH, 0, 4)
    return SuiteEnvs(registry.spec_for(BOTH, **CUT), make, tasks, lines.append), made


def play(env: VectorEnv, steps: int) -> list[EnvStep]:
    return [env.reset(), *(env.step(np.full(4, TURN)) for _ in range(steps))]


def test_a_task_that_fails_begins_anew_and_the_others_go_on() -> None:
    lines: list[str] = []
    env, made = fragile_suite(lambda failures: set() if failures else {3}, lines)
    steps = play(env, 6)
    assert [step.valid[0] for step in steps] == [True, True, True, False, True, True, True]
    assert [step.start[0] for step in steps] == [True, False, False, True, False, False, False]
    undisturbed = play(registry.make(LARGE, 4, 0, **CUT), 6)
    assert all(np.array_equal(a.observation[1::2], b.observation[:2]) for a, b in zip(steps, undisturbed, strict=True))
    assert lines == [
        f"{SMALL}: RuntimeError: out of pixels (episode 7); its environments begin anew (failure 1 of 3 at most)"
    ]
    assert [part.closed for part in made] == [True, False]


def test_a_task_that_fails_again_and_again_is_given_up() -> None:
    lines: list[str] = []
    env, made = fragile_suite(lambda failures: {1}, lines)
    steps = play(env, 8)
    assert len(made) == MOST_FAILURES + 1
    assert all(part.closed for part in made)
    assert lines[-1] == f"{SMALL}: RuntimeError: out of pixels (episode 7); given up, the other tasks go on"
    assert not any(step.valid[::2].any() for step in steps[1:])
    assert [bool(step.start[0]) for step in steps] == [True] * 5 + [False] * 4  # each failure cuts what came before
    assert all(step.valid[1] for step in steps)


def test_a_task_that_was_given_up_stays_so_when_a_state_is_restored() -> None:
    env, _ = fragile_suite(lambda failures: {1}, [])
    play(env, 8)
    restored, made = fragile_suite(lambda failures: {1}, [])
    restored.load_state_dict(env.state_dict())
    following, expected = restored.step(np.full(4, TURN)), env.step(np.full(4, TURN))
    assert all(np.array_equal(a, b) for a, b in zip(following, expected, strict=True))
    assert [part.closed for part in made] == [True]


def test_after_a_failure_other_episodes_are_played_and_a_state_names_them() -> None:
    env, _ = fragile_suite(lambda failures: set() if failures else {3}, [])
    play(env, 6)
    restored, made = fragile_suite(lambda failures: set() if failures else {3}, [])
    restored.load_state_dict(env.state_dict())
    assert len(made) == 2  # with the seed of after the failure
    following, expected = restored.step(np.full(4, TURN)), env.step(np.full(4, TURN))
    assert all(np.array_equal(a, b) for a, b in zip(following, expected, strict=True))


def test_a_state_of_other_tasks_is_refused() -> None:
    env, _ = fragile_suite(lambda failures: set(), [])
    env.reset()
    other = registry.make("minigrid/Empty-5x5-v0+Empty-6x6-v0", 2, seed=0, **CUT)
    with pytest.raises(UserError, match="of other tasks than those of"):
        other.load_state_dict(env.state_dict())
