"""The toy games pay what they say."""

import numpy as np
import pytest

from ddrl.environments import toy
from ddrl.environments.base import registry

SIZES = [  # task, options, mean return of the best policy (with memory), and of uniformly random actions
    ("catch", {}, 1, 2 / 5 - 1),
    ("catch", {"rows": 4, "columns": 3}, 1, 2 / 3 - 1),
    ("chain", {}, 25 / 10, 25 / 20),
    ("chain", {"length": 3, "limit": 10}, 10 / 3, 10 / 6),
    ("memory", {}, 1, 0),
    ("memory", {"length": 1}, 1, 0),
    ("recall", {}, 3, 0),
    ("recall", {"first": 1, "gap": 1, "questions": 4}, 4, 0),
    ("identity", {}, 10, 10 / 4),
    ("identity", {"num_actions": 2, "length": 1}, 1, 1 / 2),
    ("track", {}, 25, 25 / 3),
    ("track", {"action_size": 3, "limit": 4}, 4, 4 / 3),
]


def returns(task, options, act, episodes=2000):
    """Mean return of `act(observation, remembered)` over one episode in each of `episodes` environments."""
    env = registry.make(f"toy/{task}", episodes, 7, **options)
    step = env.reset()
    first, total, over = step.observation, np.zeros(episodes), np.zeros(episodes, dtype=bool)
    while not over.all():
        step = env.step(act(step.observation, first))
        total += np.where(over, 0.0, step.reward)
        over |= step.ended
    return total


def best_action(task, options):
    columns = options.get("columns", 5)

    def catch(observation, first):
        board = observation.reshape(len(observation), -1, columns)
        ball, paddle = board[:, :-1].sum(axis=1).argmax(axis=1), board[:, -1].argmax(axis=1)
        return np.sign(ball - paddle) + 1

    return {
        "catch": catch,
        "chain": lambda observation, first: np.ones(len(observation), dtype=np.int64),
        "memory": lambda observation, first: first[:, :2].argmax(axis=1),
        "recall": lambda observation, first: first[:, :2].argmax(axis=1),
        "identity": lambda observation, first: observation.argmax(axis=1),
        "track": lambda observation, first: observation,
    }[task]


@pytest.mark.parametrize(("task", "options", "optimal", "random"), SIZES)
def test_the_best_policy_earns_the_optimal_return(task, options, optimal, random):
    found = returns(task, options, best_action(task, options))
    assert abs(found.mean() - optimal) <= 4 * found.std() / len(found) ** 0.5 + 1e-6 * abs(optimal)


@pytest.mark.parametrize(("task", "options", "optimal", "random"), SIZES)
def test_random_actions_earn_the_random_return(task, options, optimal, random):
    rules, generator = toy.game(task, **options), np.random.default_rng(1)

    def act(seen, first):
        if rules.action_size:
            return generator.uniform(-1, 1, (len(seen), rules.action_size)).astype(np.float32)
        return generator.integers(0, rules.num_actions, len(seen))

    found = returns(task, options, act)
    assert abs(found.mean() - random) <= 4 * found.std() / len(found) ** 0.5


def test_without_memory_the_cue_is_a_coin_toss():
    found = returns("memory", {}, lambda seen, first: seen[:, 0].astype(np.int64))
    assert abs(found.mean()) <= 4 / len(found) ** 0.5


def test_the_cue_is_shown_once_and_the_question_asked_at_the_end():
    env = registry.make("toy/memory", 1, 1, length=3)
    seen = [env.reset().observation[0].tolist()]
    for _ in range(3):
        seen.append(env.step(np.zeros(1, dtype=np.int64)).observation[0].tolist())
    assert seen[0] in ([1, 0, 0], [0, 1, 0])
    assert seen[1:] == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert env.step(np.zeros(1, dtype=np.int64)).terminated.all()


def test_what_was_shown_is_asked_for_again_and_again():
    env = registry.make("toy/recall", 1, 1, first=2, gap=3, questions=3)
    cue = env.reset().observation[0, :2].tolist()
    steps = [env.step(np.array([cue.index(1) if at < 5 else cue.index(0)])) for at in range(9)]
    assert [step.observation[0].tolist() for step in steps[:8]] == [
        [0, 0, float(at in (2, 5, 8))] for at in range(1, 9)
    ]
    assert [float(step.reward[0]) for step in steps] == [0, 0, 1, 0, 0, -1, 0, 0, -1]
    assert [bool(step.terminated[0]) for step in steps] == [False] * 8 + [True]


def chain_value(position, length, discount):
    """The discounted value of always moving forward, without the limit, as `toy_games.chain` has it."""
    return discount ** (length - 1 - position) / (1 - discount**length)


def test_the_chain_is_only_ever_truncated_and_its_value_solves_bellmans_equation():
    env, discount = registry.make("toy/chain", 4, 1, length=10, limit=25), 0.9
    env.reset()
    ones = np.ones(4, dtype=np.int64)
    steps = [env.step(ones) for _ in range(60)]
    assert sum(step.truncated.sum() for step in steps) == 8
    assert not any(step.terminated.any() for step in steps)
    for position in range(10):
        following = (position + 1) % 10
        reward = float(following == 0)
        assert chain_value(position, 10, discount) == pytest.approx(
            reward + discount * chain_value(following, 10, discount)
        )


def test_track_pays_one_minus_the_mean_distance_of_the_clipped_action():
    env = registry.make("toy/track", 500, 1, action_size=2, limit=3)
    target = env.reset().observation
    assert -1 < target.min() < -0.99 and 0.99 < target.max() < 1
    generator, ends = np.random.default_rng(0), []
    for _ in range(7):
        action = generator.uniform(-2, 2, target.shape).astype(np.float32)
        step = env.step(action)
        expected = 1 - np.abs(np.clip(action, -1, 1) - target).mean(axis=1)
        np.testing.assert_allclose(step.reward, np.where(step.valid, expected, 0), atol=1e-6)
        assert not np.array_equal(step.observation, target)
        target, _ = step.observation, ends.append(bool(step.truncated.all()))
        assert not step.terminated.any()
    assert ends == [False, False, True, False, False, False, True]
    value = 1 / (1 - 0.9)  # of always hitting the target, as `toy_games.track` has it
    assert value == pytest.approx(1 + 0.9 * value)


def test_episodes_differ_from_each_other_and_between_environments():
    env = registry.make("toy/identity", 64, 1, num_actions=100)
    shown = np.array([env.reset().observation.argmax(axis=1) for _ in range(64)])
    assert len(np.unique(shown)) > 90
    assert len({tuple(row) for row in shown}) == len({tuple(row) for row in shown.T}) == 64
