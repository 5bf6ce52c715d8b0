"""Every adapter's examples conform, and an environment that breaks the contract is caught."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from ddrl.environments.base import registry
from ddrl.environments.tools import check
from ddrl.environments.tools.check import ConformanceError, check_environment


@pytest.mark.parametrize("name", registry.examples())
def test_the_example_conforms(name):
    found = check_environment(name)
    assert found.terminated + found.truncated > 0
    assert found.protocol == registry.spec_for(name, **registry.examples()[name]).protocol


def test_the_examples_show_every_kind_of_end():
    breakout = registry.adapter("atari").examples["breakout"]
    assert registry.resolve_options("atari/breakout", breakout)["life_loss_terminates"]
    assert check_environment("toy/chain").truncated > 0
    assert check_environment("toy/catch").terminated > 0


NUMBERS = itertools.count()


class Broken:
    """`toy/catch`, or another environment, its steps passed through `spoil(env, step)`."""

    def __init__(self, seed, spoil, name="toy/catch", **options):
        self.env = registry.make(name, 2, seed, **(options or {"rows": 6}))
        self.spec, self.num_envs, self.spoil, self.seed = self.env.spec, 2, spoil, seed
        self.steps, self.before, self.number = 0, None, next(NUMBERS)

    def _pass(self, step):
        self.steps += 1
        spoiled = self.spoil(self, step)
        self.before = step
        return spoiled

    def reset(self):
        return self._pass(self.env.reset())

    def step(self, actions):
        return self._pass(self.env.step(actions))

    def state_dict(self):
        return self.env.state_dict()

    def load_state_dict(self, state):
        self.env.load_state_dict(state)

    def close(self):
        pass


def overwritten(env, step):
    if env.before is not None:
        env.before.observation[:] = step.observation
    return step


def unseeded(env, step):
    return step._replace(
        reward=step.reward + np.where(step.valid & (env.steps > 1), np.float32(env.number), np.float32(0))
    )


def counting(env, step):
    """Depends on how often it was called, which no state holds."""
    return step._replace(observation=step.observation + np.float32(env.steps))


FAULTS = {
    "dtype": (
        lambda env, step: step._replace(observation=step.observation.astype(np.float64)),
        "observation is float64",
    ),
    "shape": (lambda env, step: step._replace(observation=step.observation[:, :-1]), "observation is float32 (2, 29)"),
    "reward type": (lambda env, step: step._replace(reward=step.reward.astype(np.int32)), "reward is int32"),
    "nan": (lambda env, step: step._replace(reward=step.reward + np.float32("nan")), "nonzero reward"),
    "infinite": (lambda env, step: step._replace(observation=step.observation / np.float32(0)), "not finite"),
    "reset not a start": (
        lambda env, step: step._replace(start=step.start & (env.steps > 1)),
        "reset must return start",
    ),
    "both ends": (lambda env, step: step._replace(truncated=step.terminated), "terminated and truncated at once"),
    "truncation goes on": (
        lambda env, step: step._replace(
            terminated=step.terminated & False, truncated=step.ended, ended=step.ended & False
        ),
        "truncated but not ended",
    ),
    "no reason": (lambda env, step: step._replace(terminated=step.terminated & False), "neither terminated nor"),
    "dead step valid": (lambda env, step: step._replace(valid=step.valid | True), "the step after an end must be dead"),
    "reward on dead step": (
        lambda env, step: step._replace(reward=step.reward + np.where(step.valid, 0, 1).astype(np.float32)),
        "a dead step has a reward",
    ),
    "start too early": (
        lambda env, step: step._replace(start=step.ended if env.steps > 1 else step.start),
        "start must mark",
    ),
    "start within an episode": (lambda env, step: step._replace(start=step.start | True), "start must mark"),
    "no end": (
        lambda env, step: step._replace(
            terminated=step.terminated & False,
            ended=step.ended & False,
            start=step.start & (env.steps == 1),
            valid=step.valid | True,
        ),
        "no episode ended",
    ),
    "overwritten": (overwritten, "was overwritten by a later step"),
    "unseeded": (unseeded, "the same seed and actions: step 1 differs in reward"),
    "state incomplete": (counting, "the state saved after step"),
}


def broken(spoil, **changes):
    def make(seed):
        env = Broken(seed, spoil)
        for name, value in changes.items():
            setattr(env, name, value)
        return env

    return make


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_step_is_caught(fault):
    spoil, message = FAULTS[fault]
    with np.errstate(divide="ignore", invalid="ignore"), pytest.raises(ConformanceError) as error:
        check.check(broken(spoil), "toy/catch", 60)
    assert message in str(error.value)


def test_lost_lives_may_roll_on_but_not_some_of_them():
    lives_lost = []

    def counted(env, step):
        lives_lost.append((step.terminated & ~step.ended).sum())
        return step

    check.check(lambda seed: Broken(seed, counted, "atari/breakout", life_loss_resets=False), "atari/breakout")
    assert sum(lives_lost) > 0

    def only_one_rolls(env, step):
        return step._replace(start=step.start & (~step.valid | (env.steps == 1) | [True, False]))

    with pytest.raises(ConformanceError, match="start must mark"):
        check.check(lambda seed: Broken(seed, only_one_rolls, "atari/breakout", frame_skip=4), "atari/breakout", 60)


def same(env, step):
    return step


def test_the_unbroken_fake_passes():
    assert check.check(broken(same), "toy/catch", 60).terminated > 0


def test_an_ignored_seed_is_caught():
    with pytest.raises(ConformanceError, match="seeds change nothing"):
        check.check(lambda seed: Broken(1, same), "toy/catch", 60)


def test_a_wrong_spec_is_caught():
    with pytest.raises(ConformanceError, match="the spec names itself 'toy/catch'"):
        check.check(broken(same), "toy/memory", 60)


def test_an_empty_protocol_is_caught():
    class Spec:
        name, protocol = "toy/catch", " "

    with pytest.raises(ConformanceError, match="protocol id is empty"):
        check.check(broken(same, spec=Spec), "toy/catch", 60)


def test_a_state_that_is_not_plain_data_is_caught():
    with pytest.raises(ConformanceError, match="state_dict holds more than"):
        check.check(broken(same, state_dict=lambda: {"generator": torch.nn.Linear(1, 1)}), "toy/catch", 60)


def test_a_state_that_is_asked_for_must_not_change_anything():
    def make(seed):
        env = Broken(seed, same)
        env.state_dict = lambda: (env.env.step(np.zeros(2, dtype=np.int64)), env.env.state_dict())[1]
        return env

    with pytest.raises(ConformanceError):
        check.check(make, "toy/catch", 60)


def test_an_action_that_does_not_exist_must_be_rejected():
    def make(seed):
        env = Broken(seed, same)
        env.step = lambda actions: env._pass(env.env.step(np.clip(np.resize(actions, 2), 0, 2).astype(np.int64)))
        return env

    with pytest.raises(ConformanceError, match="action 3: step must raise ValueError"):
        check.check(make, "toy/catch", 60)


def continuous(act, **spec_changes):
    """Makes `toy/track` whose actions pass through `act(actions)` before they reach it."""

    def make(seed):
        env = Broken(seed, same, "toy/track", limit=9)
        env.spec = dataclasses.replace(env.spec, **spec_changes)
        env.step = lambda actions: env._pass(env.env.step(act(actions)))
        return env

    return make


def test_a_continuous_environment_that_keeps_the_contract_passes():
    assert check.check(continuous(lambda actions: actions), "toy/track", 60).truncated > 0


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda actions: np.where(np.abs(actions) > 1, actions / 2, actions),
            "actions clipped to [-1, 1]: step ",
        ),
        (lambda actions: np.nan_to_num(actions), "NaN in the last environment's action: step must raise ValueError"),
        (lambda actions: actions.reshape(-1, 1), "one number for each action: step must raise ValueError"),
        (lambda actions: actions[..., :1], "one dimension too many: step must raise ValueError"),
        (lambda actions: actions[:2], "one action too many: step must raise ValueError"),
        (lambda actions: actions.astype(np.float32), "actions that are not float32: step must raise ValueError"),
    ],
)
def test_continuous_actions_that_are_not_checked_or_not_clipped_are_caught(act, message):
    with pytest.raises(ConformanceError) as error:
        check.check(continuous(act), "toy/track", 60)
    assert message in str(error.value)


@pytest.mark.parametrize("kinds", [{"num_actions": 3}, {"action_size": 0}, {"num_actions": 1, "action_size": 0}])
def test_actions_are_either_discrete_or_continuous(kinds):
    with pytest.raises(ConformanceError, match=r"num_actions is \d and action_size \d"):
        check.check(continuous(lambda actions: actions, **kinds), "toy/track", 60)
