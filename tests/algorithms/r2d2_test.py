"""R2D2's loss by hand and a second time in plain Python; burn-in, stored and zero states, what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.algorithms import r2d2
from ddrl.errors import UserError
from ddrl.replay.items import Sequences
from ddrl.system.seeding import torch_generator
from ddrl.types import Array, EnvSpec, NetworkOutput, RecurrentState
from tests.algorithms.apex_dqn_test import Table, drawn
from tests.algorithms.rigs import DISCRETE, Rig, replay_of
from tests.episodes import Stream, random_stream, unrolls

SMALL = {
    "network": "tanh_mlp",
    "unroll_length": 5,
    "sequence_length": 6,
    "sequence_period": 3,
    "burn_in": 4,
    "n_step": 2,
    "lstm_size": 8,
    "head_size": 16,
    "discount": 0.9,
    "replay_capacity": 400,
    "min_replay_size": 4,
}
BURN_IN = 4


def noise(rng: np.random.Generator, step: int, episode: int, before: Array | None) -> Array:
    return rng.normal(size=DISCRETE.observation_shape).astype(np.float32)


def make_network(config: r2d2.Config, seed: int = 0, spec: EnvSpec = DISCRETE) -> Any:
    return r2d2.make_network(spec, config, torch_generator(seed, "network"))


@torch.no_grad()
def acted(network: Any, stream: Stream) -> tuple[Stream, list[RecurrentState]]:
    """The stream with the values that an actor with this network saw there, and the states before its steps."""
    state, states, q = network.initial_state(1), [], []
    for step in range(len(stream)):
        states.append(state)
        names = ("observation", "last_action", "last_reward", "start")
        inputs = (torch.from_numpy(getattr(stream, name)[step : step + 1])[None] for name in names)
        output: NetworkOutput = network(*inputs, state)
        state = output.state
        q.append(output.distribution[0, 0].numpy())
    return replace(stream, distribution=np.stack(q)), states


def replayed(config: r2d2.Config, network: Any, count: int = 12) -> tuple[Sequences, list[Stream]]:
    """Sequences drawn from a replay that an actor filled with two environments, and what happened there."""
    streams, states = [], []
    for number in range(2):
        stream, own = acted(network, random_stream(number, 101, noise, longest=25, shortest=3))
        streams.append(stream)
        states.append(own)
    replay = replay_of(config, network, DISCRETE, columns=2, seed=0)
    items = r2d2.Actor(config, None, None, replay)._items  # type: ignore[arg-type]
    for number, unroll in enumerate(unrolls(streams, config.unroll_length)):
        steps = range(number * config.unroll_length, (number + 1) * config.unroll_length)
        joined = [tuple(map(torch.cat, zip(*(own[step] for own in states), strict=True))) for step in steps]
        replay.insert(items.make(unroll, joined))
    found = replay.sample(count)
    assert isinstance(found, Sequences)
    return found, streams


def names_of(part: Sequences) -> list[tuple[int, int]]:
    """(stream, first trained step) of each sequence, in rings of 200 steps."""
    return list(zip((part.drawn.slot // 200).tolist(), part.drawn.step.tolist(), strict=True))


@torch.no_grad()
def slow_values(network: Any, part: Sequences, column: int) -> list[list[float]]:
    """Of all actions, of the m + 1 observations that are not burnt in; one step of the network at a time."""
    state = tuple(kind[column : column + 1] for kind in part.state) or network.initial_state(1)
    found = []
    for t in range(len(part.observation)):
        inputs = (part.observation, part.last_action, part.last_reward, part.start)
        output: NetworkOutput = network(*(tensor[t : t + 1, column : column + 1] for tensor in inputs), state)
        state = output.state
        found.append(output.distribution[0, 0].tolist())
    return found[part.burn_in :]


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(x: float) -> float:
    return math.copysign(((math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1, x)


def slow_errors(network: Any, target: Any, part: Sequences, config: r2d2.Config) -> list[list[float]]:
    """h(sum_k discount^k r + discount^n h^-1(Q)) - Q(s, a) of each valid step of each sequence."""
    rescaled = config.rescaling_epsilon is not None
    result: list[list[float]] = []
    for b in range(part.batch_size):
        online, other = (slow_values(one, part, b) for one in (network, target))
        result.append([])
        for t in range(int(part.valid[:, b].sum())):
            total, steps = 0.0, 0
            while True:
                total += config.discount**steps * float(part.reward[t + steps, b])
                steps += 1
                at = t + steps
                if part.ended[at - 1, b] or steps == config.n_step or at == config.sequence_length:
                    break
            if not part.terminated[at - 1, b]:
                following = other[at][int(np.argmax(online[at]))] if config.double_q else max(other[at])
                total += config.discount**steps * (h_inverse(following) if rescaled else following)
            result[-1].append((h(total) if rescaled else total) - online[t][int(part.action[t, b])])
    return result


def loss_of(errors: Sequence[Sequence[float]], weights: Sequence[float]) -> float:
    return sum(weight * sum(error**2 for error in column) / 2 for weight, column in zip(weights, errors, strict=True))


# The loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"double_q": False},
        {"rescaling_epsilon": None},
        {"stored_state": False},
        {"lstm_size": 0},
        {"burn_in": 0},
        {"n_step": 1},
        {"n_step": 9},
    ],
    ids=str,
)
def test_the_loss_is_that_of_section_2_3(keys: dict[str, Any]) -> None:
    config = r2d2.Config(**SMALL | keys)
    network, target = make_network(config), make_network(config, seed=1)
    part, _ = replayed(config, network)
    part.reward.mul_(5.0)
    errors = slow_errors(network, target, part, config)
    loss, metrics = r2d2.r2d2_loss(network, target, part, config, 0.25)
    weights = part.drawn.weight.tolist()
    assert loss.item() == pytest.approx(0.25 * loss_of(errors, weights), rel=1e-4)
    for b, column in enumerate(errors):
        expected = [*column, *[0.0] * (6 - len(column))]
        assert part.td_error[:, b].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)
    means = [sum(map(abs, column)) / len(column) for column in errors]
    assert metrics["loss"] == pytest.approx(loss_of(errors, weights), rel=1e-4)
    assert metrics["td_error"] == pytest.approx(sum(means), rel=1e-4)
    taken = [
        sum(slow_values(network, part, b)[t][int(part.action[t, b])] for t in range(len(column))) / len(column)
        for b, column in enumerate(errors)
    ]
    assert metrics["q_mean"] == pytest.approx(sum(taken), rel=1e-3, abs=1e-4)
    priorities = [0.9 * max(map(abs, column)) + 0.1 * mean for column, mean in zip(errors, means, strict=True)]
    assert r2d2.new_priorities(part, config).tolist() == pytest.approx(priorities, rel=1e-3)
    assert not part.valid.all()
    assert part.terminated.any()
    assert (part.ended & ~part.terminated).any()
    assert len(set(weights)) > 3


def by_hand(**keys: Any) -> tuple[Table, Table, Sequences, r2d2.Config]:
    """Sequences of two steps after one of burn-in: one goes on, one is terminated and one truncated in its first step.

    h(3) = 1.003, h(8) = 2.008; the online network prefers action 2 at observation 3, of value h(8).
    """
    small = {"burn_in": 1, "sequence_length": 2, "sequence_period": 1, "n_step": 2, "discount": 0.5, "lstm_size": 0}
    config = r2d2.Config(**SMALL | small | keys)
    online = Table([[0.0, 0.0, 0.0], [1.0, 0.003, 0.008], [0.0, 2.0, 0.0], [0.0, 0.0, 7.0]])
    target = Table([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [50.0, 60.0, 2.008]])
    nothing = torch.zeros((4, 3))
    ended = torch.tensor([[False, True, True], [False, False, False]])
    part = Sequences(
        observation=torch.tensor([[0, 0, 0], [1, 1, 1], [2, 3, 3], [3, 3, 3]]),
        last_action=nothing.long(),
        last_reward=nothing,
        start=nothing.bool(),
        action=torch.tensor([[0, 1, 2], [1, 0, 0]]),
        reward=torch.tensor([[6.5, 3.0, 4.0], [-1.0, 0.0, 0.0]]),
        terminated=ended & torch.tensor([False, True, False]),
        ended=ended,
        valid=torch.tensor([[True, True, True], [True, False, False]]),
        version=torch.zeros((2, 3), dtype=torch.int64),
        state=(),
        first_state=(),
        last_state=(),
        td_error=torch.zeros((2, 3)),
        drawn=drawn(3, [1.0, 0.5, 0.25]),
    )
    return online, target, part, config


def test_errors_priorities_and_gradient_by_hand() -> None:
    online, target, part, config = by_hand()
    loss, _ = r2d2.r2d2_loss(online, target, part, config, 1.0)
    loss.backward()
    # h(6.5 - 0.5 + 0.25 x 8) - 1 and, where the sequence ends, h(-1 + 0.5 x 8) - 2;
    # h(3) - 0.003; h(4 + 0.5 x 8) - 0.008
    expected = torch.tensor([[1.008, 1.0, 2.0], [-0.997, 0.0, 0.0]])
    torch.testing.assert_close(part.td_error, expected, rtol=1e-5, atol=1e-6)
    assert loss.item() == pytest.approx((1.008**2 + 0.997**2) / 2 + 0.5 * 1.0 / 2 + 0.25 * 4.0 / 2, rel=1e-5)
    gradient = torch.zeros(4, 3)
    gradient[1] = -torch.tensor([1.008, 0.5 * 1.0, 0.25 * 2.0])
    gradient[2, 1] = 0.997
    assert online.rows.grad is not None
    torch.testing.assert_close(online.rows.grad, gradient, rtol=1e-5, atol=1e-6)
    assert target.rows.grad is None
    # 0.9 x the largest + 0.1 x the mean
    found = r2d2.new_priorities(part, config).tolist()
    assert found == pytest.approx([0.9 * 1.008 + 0.1 * (1.008 + 0.997) / 2, 1.0, 2.0], rel=1e-5)


def test_without_double_q_the_target_networks_best_value_counts() -> None:
    online, target, part, config = by_hand(double_q=False, rescaling_epsilon=None)
    r2d2.r2d2_loss(online, target, part, config, 1.0)
    expected = [[6.5 - 0.5 + 0.25 * 60 - 1, 3 - 0.003, 4 + 0.5 * 60 - 0.008], [-1 + 0.5 * 60 - 2, 0.0, 0.0]]
    torch.testing.assert_close(part.td_error, torch.tensor(expected))


def test_rewards_are_clipped_only_when_asked_for() -> None:
    online, target, part, config = by_hand(reward_clipping="abs_one", rescaling_epsilon=None)
    r2d2.r2d2_loss(online, target, part, config, 1.0)
    assert part.td_error[0, 0].item() == pytest.approx(1 - 0.5 + 0.25 * 2.008 - 1, abs=1e-6)


def test_the_loss_of_a_batch_is_the_sum_over_its_parts_which_fill_in_their_errors() -> None:
    config = r2d2.Config(**SMALL)
    network, target = make_network(config), make_network(config, seed=1)
    whole, parts = (replayed(config, network)[0] for _ in range(2))
    expected, _ = r2d2.r2d2_loss(network, target, whole, config, 1.0)
    losses = [r2d2.r2d2_loss(network, target, parts.columns(*edges), config, 1.0)[0] for edges in ((0, 5), (5, 12))]
    torch.testing.assert_close(sum(losses), expected)
    torch.testing.assert_close(parts.td_error, whole.td_error)
    assert whole.td_error.any()


def test_what_a_sequence_holds_after_its_episodes_end_changes_nothing() -> None:
    config = r2d2.Config(**SMALL)
    network, target = make_network(config), make_network(config, seed=1)
    part, _ = replayed(config, network)
    losses = []
    for junk in (0.0, 1e3):
        beyond = torch.cat([torch.zeros((BURN_IN + 1, 12), dtype=torch.bool), ~part.valid])
        other = replace(
            part,
            reward=part.reward + junk * ~part.valid,
            action=torch.where(part.valid, part.action, int(junk) % 3),
            last_reward=part.last_reward + junk * beyond,
        )
        loss, _ = r2d2.r2d2_loss(network, target, other, config, 1.0)
        loss.backward()
        losses.append([loss.item(), *(float(p.grad.sum()) for p in network.parameters())])
        network.zero_grad()
    assert losses[0] == losses[1]


# Burn-in and states -------------------------------------------------------------------------------------------------


def test_no_gradient_comes_to_the_steps_that_burn_in() -> None:
    config = r2d2.Config(**SMALL)
    network, target = make_network(config), make_network(config, seed=1)
    part, _ = replayed(config, network)
    observation = part.observation.clone().requires_grad_()
    state = tuple(kind.clone().requires_grad_() for kind in part.state)
    r2d2.r2d2_loss(network, target, replace(part, observation=observation, state=state), config, 1.0)[0].backward()
    assert observation.grad is not None
    gradient = observation.grad.abs().sum(dim=-1)
    assert not gradient[:BURN_IN].any()
    assert torch.equal(gradient[BURN_IN:-1] > 0, part.valid)
    assert not gradient[-1].any(), "targets are constants"
    assert all(kind.grad is None for kind in state)


def test_the_gradient_is_that_of_the_trained_steps_alone_after_the_burnt_in_state() -> None:
    config = r2d2.Config(**SMALL)
    network = make_network(config)
    target = copy.deepcopy(network)
    part, _ = replayed(config, network)
    inputs = ("observation", "last_action", "last_reward", "start")
    with torch.no_grad():
        state = network(*(getattr(part, name)[:BURN_IN] for name in inputs), part.state).state
    rest = replace(part, state=state, **{name: getattr(part, name)[BURN_IN:] for name in inputs})
    assert (part.burn_in, rest.burn_in) == (BURN_IN, 0)
    gradients = []
    for one in (part, rest):
        network.zero_grad()
        r2d2.r2d2_loss(network, target, one, config, 1.0)[0].backward()
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])
    torch.testing.assert_close(*gradients)
    assert all(gradient.any() for gradient in gradients[0])


def test_with_stored_states_a_learner_of_the_same_parameters_sees_the_values_that_the_actor_saw() -> None:
    config = r2d2.Config(**SMALL)
    network = make_network(config)
    part, streams = replayed(config, network, count=40)
    q = r2d2.unrolled(network, part).distribution.detach()
    ages = set()
    for b, (number, step) in enumerate(names_of(part)):
        size = int(part.valid[:, b].sum()) + 1
        np.testing.assert_allclose(q[:size, b], streams[number].distribution[step : step + size], atol=1e-5)
        ages.add(step - streams[number].first(step))
    assert {0, 3, 6, 9} <= ages


def test_with_zero_states_it_does_not_unless_the_episode_begins_in_the_burn_in() -> None:
    config = r2d2.Config(**SMALL, stored_state=False)
    network = make_network(config)
    part, streams = replayed(config, network, count=40)
    assert part.state == ()
    q = r2d2.unrolled(network, part).distribution.detach()
    seen = {"begins": 0, "goes on": 0}
    for b, (number, step) in enumerate(names_of(part)):
        size = int(part.valid[:, b].sum()) + 1
        wanted = streams[number].distribution[step : step + size]
        begins = step - streams[number].first(step) <= BURN_IN
        assert np.allclose(q[:size, b], wanted, atol=1e-5) == begins
        seen["begins" if begins else "goes on"] += 1
    assert min(seen.values()) > 3


def test_a_feed_forward_network_does_not_see_the_burn_in() -> None:
    config = r2d2.Config(**SMALL | {"lstm_size": 0})
    network, target = make_network(config), make_network(config, seed=1)
    part, streams = replayed(config, network)
    assert part.state == ()
    q = r2d2.unrolled(network, part).distribution.detach()
    for b, (number, step) in enumerate(names_of(part)):
        np.testing.assert_allclose(q[0, b], streams[number].distribution[step], atol=1e-5)
    other = part.observation.clone()
    other[:BURN_IN] += 1.0
    one, same = (
        r2d2.r2d2_loss(network, target, replace(part, observation=observation), config, 1.0)[0].item()
        for observation in (part.observation, other)
    )
    assert one == same


# Staleness ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def slow_discrepancy(network: Any, actor: Any, part: Sequences, streams: list[Stream], b: int) -> tuple[float, float]:
    """Of the first and the last trained step; the actor's states come from its own walk through the whole stream."""
    number, step = names_of(part)[b]
    size = int(part.valid[:, b].sum())
    q = np.array(slow_values(network, part, b)[:size])
    _, states = acted(actor, streams[number])
    found = []
    for t in (0, size - 1):
        names = ("observation", "last_action", "last_reward", "start")
        inputs = (torch.from_numpy(getattr(streams[number], name)[step + t : step + t + 1])[None] for name in names)
        there = network(*inputs, states[step + t]).distribution[0, 0].numpy()
        found.append(float(np.sqrt(((q[t] - there) ** 2).sum()) / abs(q.max())))
    return found[0], found[1]


@pytest.mark.parametrize("keys", [{}, {"stored_state": False}, {"burn_in": 0}, {"stored_state": False, "burn_in": 0}])
def test_the_discrepancy_is_that_of_section_3_from_the_states_that_the_actor_had(keys: dict[str, Any]) -> None:
    config = r2d2.Config(**SMALL | keys, measure_staleness=True)
    network, actor, target = (make_network(config, seed=seed) for seed in (0, 1, 2))
    part, streams = replayed(config, actor)
    _, metrics = r2d2.r2d2_loss(network, target, part, config, 1.0)
    slow = [slow_discrepancy(network, actor, part, streams, b) for b in range(part.batch_size)]
    first, last = r2d2.q_discrepancy(network, r2d2.unrolled(network, part).distribution, part)
    np.testing.assert_allclose(first, [pair[0] for pair in slow], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(last, [pair[1] for pair in slow], rtol=1e-3, atol=1e-5)
    assert metrics["q_discrepancy_first"] == pytest.approx(sum(pair[0] for pair in slow), rel=1e-3, abs=1e-4)
    assert metrics["q_discrepancy_last"] == pytest.approx(sum(pair[1] for pair in slow), rel=1e-3)
    assert bool(first.max() < 1e-5) == (keys == {"burn_in": 0}), "a stored state is the actor's until something follows"
    assert last.max() > 1e-2


def test_nothing_is_stale_to_a_learner_of_the_same_parameters_with_stored_states() -> None:
    config = r2d2.Config(**SMALL, measure_staleness=True)
    network = make_network(config)
    part, _ = replayed(config, network)
    for found in r2d2.q_discrepancy(network, r2d2.unrolled(network, part).distribution, part):
        assert found.max() < 1e-4


def test_measuring_changes_no_loss_and_no_gradient() -> None:
    found = []
    for measured in (False, True):
        config = r2d2.Config(**SMALL, measure_staleness=measured)
        network, target = make_network(config), make_network(config, seed=1)
        part, _ = replayed(config, make_network(config, seed=2))
        loss, metrics = r2d2.r2d2_loss(network, target, part, config, 1.0)
        loss.backward()
        found.append([loss.item(), *(float(p.grad.sum()) for p in network.parameters()), metrics["td_error"]])
        assert ("q_discrepancy_last" in metrics) == measured
    assert found[0] == found[1]


@pytest.mark.parametrize("keys", [{"lstm_size": 0}, {"stored_state": False}, {"burn_in": 0}, {"burn_in": 5}], ids=str)
def test_every_ablation_learns(keys: dict[str, Any]) -> None:
    rig = Rig("r2d2", **keys)
    before = rig.weights()
    for update in range(4):
        rig.step(seed=update)
    assert not torch.equal(rig.weights(), before)


# Settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("burn_in", "period", "expected"), [(40, 40, 40), (0, 40, 40), (20, 40, 20), (50, 40, 30), (39, 40, 1), (79, 40, 1)]
)
def test_states_are_kept_no_closer_than_the_replay_has_room_for(burn_in: int, period: int, expected: int) -> None:
    """An episode's first one is that of a burn-in which begins after its first step."""
    rule = r2d2.Config(burn_in=burn_in, sequence_period=period).replay
    assert (rule.cut.before, rule.cut.reach, rule.state_period) == (burn_in, 80, expected)
    first = next(age for age in range(1, 1000) if (age + burn_in) % period == 0)
    assert rule.state_period == min(first, period)


@pytest.mark.parametrize("keys", [{"stored_state": False}, {"lstm_size": 0}], ids=str)
def test_no_states_are_kept_where_none_are_used(keys: dict[str, Any]) -> None:
    config = r2d2.Config(**SMALL | keys)
    items = r2d2.Actor(config, None, None, None)._items  # type: ignore[arg-type]
    assert config.replay.state_period is None
    assert not items.keeps_states


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"sequence_period": 81},
            "key 'hyperparameters.sequence_period' must be at most sequence_length, 80: steps between sequences would "
            "never be learned from (got 81)",
        ),
        (
            {"stored_state": False, "lstm_size": 0},
            "key 'hyperparameters.stored_state': false would not be read; it goes with an lstm_size above 0; allowed "
            "otherwise: true",
        ),
        (
            {"measure_staleness": True, "lstm_size": 0},
            "key 'hyperparameters.measure_staleness': true would not be read; it goes with an lstm_size above 0; "
            "allowed otherwise: false",
        ),
        (
            {"reward_input": "tanh", "feed_last_action_and_reward": False},
            "key 'hyperparameters.reward_input': \"tanh\" would not be read; it goes with feed_last_action_and_reward; "
            'allowed otherwise: "raw"',
        ),
    ],
    ids=["period", "state", "staleness", "reward"],
)
def test_what_makes_no_sense_is_refused_in_one_line_that_names_its_key(keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as refusal:
        r2d2.check(r2d2.Config(**keys), DISCRETE, 1)
    assert str(refusal.value) == expected
