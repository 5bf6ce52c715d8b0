"""What the Atari adapter adds to ALE: protocol, ends, lost lives, exact states."""

import numpy as np
import pytest
import torch

from ddrl.environments import atari
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.types import EnvStep

STATES = [
    ("breakout", {}),
    ("pong", {"max_frames": 600}),
    ("breakout", {"sticky_actions": 0.25}),
    ("surround", {"max_frames": 400}),
]


@pytest.fixture
def make():
    """`registry.make` that closes what it made."""
    made = []

    def build(game, num_envs=2, seed=1, **options):
        made.append(registry.make(f"atari/{game}", num_envs, seed, **options))
        return made[-1]

    yield build
    for env in made:
        env.close()


def play(env, steps, seed=0):
    generator = np.random.default_rng(seed)
    return [env.step(generator.integers(0, env.spec.num_actions, env.num_envs)) for _ in range(steps)]


def assert_same(a, b):
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        for field in EnvStep._fields:
            np.testing.assert_array_equal(getattr(left, field), getattr(right, field), f"step {index}, {field}")


def test_a_lost_life_is_terminated_without_a_reset(make):
    env = make("breakout")
    trace = [env.reset(), *play(env, 120)]
    lost = [(index, row) for index, step in enumerate(trace) for row in np.nonzero(step.terminated & ~step.ended)[0]]
    assert len(lost) >= 4
    for index, row in lost:
        assert trace[index].start[row]
        assert trace[index].valid[row]
        if index + 1 < len(trace):
            assert trace[index + 1].valid[row]
            # The stack runs on: three of its frames were already there.
            np.testing.assert_array_equal(trace[index + 1].observation[row, :3], trace[index].observation[row, 1:])


def test_lives_that_roll_on_are_the_same_game_whose_lost_lives_begin_no_episode(make):
    lives, rolling = make("breakout"), make("breakout", life_loss_resets=False)
    assert rolling.spec.protocol == lives.spec.protocol.replace("life-loss-terminal", "life-loss-terminal,rolling")
    resets = lives.reset(), rolling.reset()
    trace = list(zip(play(lives, 200), play(rolling, 200), strict=True))
    for one, other in [resets, *trace]:
        for field in ("observation", "reward", "terminated", "truncated", "ended", "valid"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field), field)
    for one, other in trace:
        np.testing.assert_array_equal(other.start, ~one.valid)
    assert sum(int((one.terminated & ~one.ended).sum()) for one, _ in trace) >= 4


def test_lives_that_are_not_looked_at_cannot_roll_on():
    with pytest.raises(
        UserError, match=r"environment\.life_loss_resets: false is only read where life_loss_terminates"
    ):
        registry.spec_for("atari/breakout", life_loss_terminates=False, life_loss_resets=False)


def test_without_life_loss_only_the_game_over_terminates(make):
    lives, game = make("breakout"), make("breakout", life_loss_terminates=False)
    lives.reset(), game.reset()
    for with_lives, without in zip(play(lives, 200), play(game, 200), strict=True):
        np.testing.assert_array_equal(with_lives.observation, without.observation)
        np.testing.assert_array_equal(without.terminated, with_lives.ended)
        np.testing.assert_array_equal(without.start, ~with_lives.valid)


def test_the_cap_truncates_after_that_many_frames(make):
    env = make("pong", max_frames=40)
    env.reset()
    trace = play(env, 22)
    assert [index for index, step in enumerate(trace) if step.truncated.all()] == [9, 20]
    assert [index for index, step in enumerate(trace) if not step.valid.any()] == [10, 21]
    assert not any(step.terminated.any() for step in trace)


def test_a_small_image_is_the_same_game_seen_coarser(make):
    large, small = make("breakout"), make("breakout", image_size=42)
    assert small.spec.observation_shape == (4, 42, 42)
    assert small.spec.protocol == large.spec.protocol.replace("gray84x84", "gray42x42")
    for a, b in zip([large.reset(), *play(large, 60)], [small.reset(), *play(small, 60)], strict=True):
        assert b.observation.shape == (2, 4, 42, 42)
        for field in EnvStep._fields[1:]:
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
        halved = a.observation.reshape(2, 4, 42, 2, 42, 2).mean(axis=(3, 5))
        assert np.abs(halved - b.observation).mean() < 3


def test_rewards_are_not_clipped(make):
    env = make("ms_pacman", 1)
    env.reset()
    assert max(step.reward.max() for step in play(env, 100)) >= 10


@pytest.mark.parametrize(("noop_max", "allowed"), [(0, {0}), (1, {1}), (3, {1, 2, 3})])
def test_an_episode_starts_with_one_to_noop_max_no_ops(make, noop_max, allowed):
    env, counts = make("pong", 4, noop_max=noop_max, max_frames=4), []
    native = env._native.step

    def spy(actions):
        result = native(actions)
        if not env._ended.any():  # the first step of an episode: one action, four frames
            counts.extend((result[4]["episode_frame_number"] - 4).tolist())
        return result

    env._native.step = spy
    env.reset()
    for _ in range(16):
        env.step(np.zeros(4, dtype=np.int64))
    assert len(counts) == 32
    assert set(counts) == allowed


def test_an_environment_does_not_depend_on_its_neighbours_or_on_threads(make):
    alone, among = make("breakout", 1), make("breakout", 3, num_threads=2)
    alone.reset(), among.reset()
    generator = np.random.default_rng(0)
    for _ in range(250):
        actions = generator.integers(0, 4, 3)
        a, b = alone.step(actions[:1]), among.step(actions)
        for field in EnvStep._fields:
            np.testing.assert_array_equal(getattr(a, field)[0], getattr(b, field)[0])


@pytest.mark.parametrize(("game", "options"), STATES)
def test_a_state_continues_with_the_same_bits(make, monkeypatch, game, options):
    monkeypatch.setattr(atari, "RELOAD_STEPS", 100)
    env, restored = make(game, **options), make(game, **options)
    env.reset()
    plan = np.random.default_rng(3).integers(0, env.spec.num_actions, (320, 2))
    states, trace = [], []
    for actions in plan:
        trace.append(env.step(actions))
        states.append(env.state_dict())
    ended = [index for index, step in enumerate(trace[:270]) if step.ended.any()]
    assert states[270]["loads"].max() > 1
    for moment in (ended[-1], ended[-1] + 1, 270):
        restored.load_state_dict(states[moment])
        assert_same(trace[moment + 1 : moment + 41], [restored.step(a) for a in plan[moment + 1 : moment + 41]])
        later = restored.state_dict()
        for key, value in states[moment + 40].items():
            assert torch.equal(value, later[key]) if isinstance(value, torch.Tensor) else value == later[key]


def test_a_state_before_the_first_reset_can_be_restored(make):
    fresh, used = make("breakout"), make("breakout")
    first = [fresh.reset(), *play(fresh, 10)]
    state = make("breakout").state_dict()
    used.reset()
    play(used, 5)
    used.load_state_dict(state)
    assert_same(first, [used.reset(), *play(used, 10)])


def test_only_the_current_episode_is_played_again(make, monkeypatch):
    env, restored = make("pong", max_frames=400), make("pong", max_frames=400)
    env.reset()
    play(env, 250)
    state = env.state_dict()
    steps, native = [], restored._native.step
    monkeypatch.setattr(restored._native, "step", lambda actions: steps.append(1) or native(actions))
    restored.load_state_dict(state)
    assert state["counts"].tolist() == [250, 250]
    assert len(steps) == 250 - int(state["skipped"].min()) == 48


def test_a_restored_game_that_went_differently_is_an_error(make):
    env, restored = make("breakout"), make("breakout")
    env.reset()
    play(env, 60)
    state = env.state_dict()
    with pytest.raises(UserError, match="the games played again differ"):
        restored.load_state_dict(state | {"actions": (state["actions"] + 1) % 4})


@pytest.mark.parametrize(("num_envs", "seed", "options"), [(3, 1, {}), (2, 5, {}), (2, 1, {"noop_max": 5})])
def test_the_state_of_another_environment_is_an_error(make, num_envs, seed, options):
    with pytest.raises(UserError, match="environment state: "):
        make("breakout", num_envs, seed, **options).load_state_dict(make("breakout").state_dict())


def test_step_before_reset_is_an_error(make):
    with pytest.raises(RuntimeError, match="before reset"):
        make("breakout").step(np.zeros(2, dtype=np.int64))


def test_the_action_tape_forgets_only_what_nobody_needs():
    tape, rows = atari._ActionTape(2), np.random.default_rng(0).integers(0, 18, (200, 2))
    loaded, started = [0, 0], [0, 0]
    for index, row in enumerate(rows):
        tape.append(row)
        if index % 7 == 0:
            tape.start(np.array([True, False]), np.array([index % 3 == 0, False]))
            started[0] = index + 1
            loaded[0] = index + 1 if index % 3 == 0 else loaded[0]
        if index % 50 == 49:
            tape.start(np.array([False, True]), np.array([False, True]))
            started[1] = loaded[1] = index + 1
        counts, skipped, actions = tape.contents().values()
        assert counts.tolist() == [index + 1 - begin for begin in loaded]
        assert skipped.tolist() == [start - begin for start, begin in zip(started, loaded, strict=True)]
        expected = np.concatenate([rows[loaded[column] : index + 1, column] for column in range(2)])
        np.testing.assert_array_equal(actions, expected)
        assert sum(map(len, tape._actions)) == len(expected)
    copy = atari._ActionTape(2)
    copy.fill(**tape.contents())
    for name, found in tape.contents().items():
        np.testing.assert_array_equal(copy.contents()[name], found)


class Dying:
    """In place of ALE: a game whose lives are gone some steps before it is over, as some games count them."""

    def __init__(self, lives, shape):
        self._lives, self._shape = lives, shape

    def step(self, actions):
        lives, nothing = self._lives.pop(0), np.zeros(1, dtype=np.bool_)
        over = np.array([not self._lives])
        info = {"lives": np.array([lives], dtype=np.int32), "episode_frame_number": np.array([4])}
        return np.zeros((1, *self._shape), dtype=np.uint8), np.zeros(1), over, nothing, info


def test_the_last_life_is_lost_when_the_game_is_over_and_not_before(make, monkeypatch):
    env = make("breakout", num_envs=1)
    env.reset()
    monkeypatch.setattr(env, "_native", Dying([5, 2, 1, 0, 0, 0], env.spec.observation_shape))
    steps = [env.step(np.zeros(1, dtype=np.int64)) for _ in range(6)]
    assert [bool(step.terminated[0]) for step in steps] == [False, True, True, False, False, True]
    assert [bool(step.start[0]) for step in steps] == [False, True, True, False, False, False]
    assert [bool(step.ended[0]) for step in steps] == [False] * 5 + [True]
