"""Ape-X DQN's loss by hand and a second time in plain Python; its priorities, its target network, what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddrl.actors.exploration import epsilon_ladder
from ddrl.algorithms import apex_dqn
from ddrl.errors import UserError
from ddrl.replay.items import Drawn, Transitions
from ddrl.system.seeding import torch_generator
from ddrl.types import Experience, NetworkOutput, RecurrentState
from tests.algorithms.rigs import CONTINUOUS, DISCRETE, Rig

SMALL = {"network": "tanh_mlp", "head_size": 16, "n_step": 3, "discount": 0.9}


class Table(nn.Module):
    """Values [N, A] of N observations, which are their numbers."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, observation: Tensor, *_: Any) -> NetworkOutput:
        q = self.rows[observation]
        return NetworkOutput(q, q.amax(dim=-1), ())

    def initial_state(self, batch_size: int) -> RecurrentState:
        return ()


def drawn(size: int, weight: list[float] | None = None) -> Drawn:
    numbers = torch.arange(size)
    return Drawn(torch.tensor(weight or [1.0] * size), slot=numbers, step=numbers, inserted_steps=0)


def random_transitions(seed: int, size: int = 8, n: int = 3) -> Transitions:
    """Some end before n steps, some are terminated."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, n + 1, (size,), generator=generator)
    here = torch.arange(n).unsqueeze(-1) < steps
    cut = torch.arange(size) % 3 == 0
    return Transitions(
        observation=torch.randn((size, 4), generator=generator),
        action=torch.randint(3, (size,), generator=generator),
        reward=2 * torch.randn((n, size), generator=generator) * here,
        steps=steps,
        terminated=(terminated := torch.rand(size, generator=generator) < 0.4),
        ended=terminated | cut,
        next_observation=torch.randn((size, 4), generator=generator),
        version=torch.zeros((1, size), dtype=torch.int64),
        td_error=torch.zeros(size),
        drawn=drawn(size, torch.rand(size, generator=generator).tolist()),
    )


def networks(config: Any) -> tuple[Any, Any]:
    """Two that disagree about the best action."""
    return tuple(apex_dqn.make_network(DISCRETE, config, torch_generator(seed, "network")) for seed in (0, 1))  # type: ignore[return-value]


def values(network: Any, observation: Tensor) -> list[float]:
    """Of all actions, of one observation [4]."""
    zeros = torch.zeros(1, 1)
    out: NetworkOutput = network(observation[None, None], zeros.long(), zeros, zeros.bool(), ())
    return out.distribution[0, 0].tolist()


def slow_errors(network: Any, target: Any, batch: Transitions, config: Any) -> list[float]:
    """G_t - q(S_t, A_t), one transition at a time."""
    errors = []
    for i in range(batch.batch_size):
        steps, following = int(batch.steps[i]), 0.0
        if not (batch.ended if config.time_limits == "terminal" else batch.terminated)[i]:
            online, other = (values(one, batch.next_observation[i]) for one in (network, target))
            following = other[int(np.argmax(online))] if config.double_q else max(other)
        for k in reversed(range(steps)):
            reward = float(batch.reward[k, i])
            if config.reward_clipping == "abs_one":
                reward = min(max(reward, -1.0), 1.0)
            following = reward + config.discount * following
        errors.append(following - values(network, batch.observation[i])[int(batch.action[i])])
    return errors


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("reward_clipping", ["abs_one", "none"])
@pytest.mark.parametrize("time_limits", ["bootstrap", "terminal"])
def test_the_loss_is_half_the_squared_n_step_error(
    double_q: bool, dueling: bool, reward_clipping: str, time_limits: str
) -> None:
    keys = {"double_q": double_q, "dueling": dueling, "reward_clipping": reward_clipping, "time_limits": time_limits}
    config = apex_dqn.Config(**SMALL | keys)
    (network, target), batch = networks(config), random_transitions(1)
    errors = slow_errors(network, target, batch, config)
    loss, metrics = apex_dqn.apex_loss(network, target, batch, config, 0.25)
    weights = batch.drawn.weight.tolist()
    expected = sum(weight * error**2 / 2 for weight, error in zip(weights, errors, strict=True))
    assert loss.item() == pytest.approx(0.25 * expected, rel=1e-5)
    assert batch.td_error.tolist() == pytest.approx(errors, rel=1e-4, abs=1e-6)
    q = [values(network, batch.observation[i])[int(batch.action[i])] for i in range(8)]
    assert metrics == pytest.approx({"loss": expected, "td_error": sum(map(abs, errors)), "q_mean": sum(q)}, rel=1e-4)
    assert set(batch.steps.tolist()) == {1, 2, 3}
    assert set(zip(batch.terminated.tolist(), batch.ended.tolist(), strict=True)) == {
        (True, True),
        (False, True),
        (False, False),
    }
    assert batch.reward.abs().max() > 1


def by_hand(**keys: Any) -> tuple[Table, Table, Transitions, Any]:
    """Two transitions from observation 0 and one from 1, of 2, 1 and 2 steps; one is cut, the last is terminated."""
    config = apex_dqn.Config(**SMALL | {"n_step": 2, "discount": 0.5, "reward_clipping": "none"} | keys)
    online = Table([[1.0, 2.0], [3.0, 0.0], [0.0, 5.0]])
    target = Table([[0.0, 0.0], [40.0, 80.0], [16.0, 8.0]])
    batch = Transitions(
        observation=torch.tensor([0, 0, 1]),
        action=torch.tensor([0, 1, 0]),
        reward=torch.tensor([[1.0, 3.0, 2.0], [4.0, 0.0, -1.0]]),
        steps=torch.tensor([2, 1, 2]),
        terminated=torch.tensor([False, False, True]),
        ended=torch.tensor([False, True, True]),
        next_observation=torch.tensor([1, 2, 2]),
        version=torch.zeros((1, 3), dtype=torch.int64),
        td_error=torch.zeros(3),
        drawn=drawn(3, [1.0, 0.5, 0.25]),
    )
    return online, target, batch, config


@pytest.mark.parametrize(
    ("keys", "errors"),
    [
        # Online prefers action 0 at observation 1 and action 1 at observation 2:
        # 1 + 4/2 + 40/4 - 1, 3 + 8/2 - 2, 2 - 1/2 - 3
        ({}, [12.0, 5.0, -1.5]),
        # 1 + 4/2 + 80/4 - 1, 3 + 16/2 - 2, 2 - 1/2 - 3
        ({"double_q": False}, [22.0, 9.0, -1.5]),
        # 1 + 1/2 + 40/4 - 1, 1 + 8/2 - 2, 1 - 1/2 - 3
        ({"reward_clipping": "abs_one"}, [10.5, 3.0, -2.5]),
        # the second is worth its reward alone: 3 - 2
        ({"time_limits": "terminal"}, [12.0, 1.0, -1.5]),
    ],
)
def test_errors_and_gradient_by_hand(keys: dict[str, Any], errors: list[float]) -> None:
    online, target, batch, config = by_hand(**keys)
    loss, _ = apex_dqn.apex_loss(online, target, batch, config, 1.0)
    loss.backward()
    assert batch.td_error.tolist() == errors
    assert loss.item() == pytest.approx(errors[0] ** 2 / 2 + 0.5 * errors[1] ** 2 / 2 + 0.25 * errors[2] ** 2 / 2)
    expected = torch.zeros(3, 2)
    expected[0, 0], expected[0, 1], expected[1, 0] = -errors[0], -0.5 * errors[1], -0.25 * errors[2]
    assert online.rows.grad is not None
    torch.testing.assert_close(online.rows.grad, expected)
    assert target.rows.grad is None


def test_beyond_its_bound_an_error_is_priced_along_a_line_and_its_priority_is_the_error() -> None:
    online, target, batch, config = by_hand(error_clipping=4.0)  # errors of 12, 5 and -1.5
    loss, _ = apex_dqn.apex_loss(online, target, batch, config, 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(4 * (12 - 2) + 0.5 * 4 * (5 - 2) + 0.25 * 1.5**2 / 2)
    assert online.rows.grad is not None
    assert online.rows.grad.flatten().tolist() == pytest.approx([-4.0, -0.5 * 4, 0.25 * 1.5, 0.0, 0.0, 0.0])
    assert apex_dqn.new_priorities(batch, config).tolist() == [12.0, 5.0, 1.5]


def test_importance_weights_scale_each_transitions_gradient() -> None:
    config = apex_dqn.Config(**SMALL)
    (network, target), batch = networks(config), random_transitions(2, size=4)
    gradients = []
    for weight in ([1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0], [0.5, 0.1, 0.0, 2.0]):
        network.zero_grad()
        apex_dqn.apex_loss(network, target, replace(batch, drawn=drawn(4, weight)), config, 1.0)[0].backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters()]))
    torch.testing.assert_close(gradients[4], 0.5 * gradients[0] + 0.1 * gradients[1] + 2.0 * gradients[3])


def test_the_loss_of_a_batch_is_the_sum_over_its_parts_which_fill_in_their_errors() -> None:
    config = apex_dqn.Config(**SMALL)
    (network, target), whole, parts = networks(config), random_transitions(3), random_transitions(3)
    expected, _ = apex_dqn.apex_loss(network, target, whole, config, 1.0)
    losses = [apex_dqn.apex_loss(network, target, parts.columns(*edges), config, 1.0)[0] for edges in ((0, 3), (3, 8))]
    torch.testing.assert_close(sum(losses), expected)
    torch.testing.assert_close(parts.td_error, whole.td_error)
    assert whole.td_error.all()


def test_new_priorities_are_absolute_errors() -> None:
    online, target, batch, config = by_hand()
    apex_dqn.apex_loss(online, target, batch, config, 1.0)
    assert apex_dqn.new_priorities(batch, config).tolist() == [12.0, 5.0, 1.5]


def test_an_actors_first_priorities_are_the_learners_errors_while_all_networks_are_the_same() -> None:
    rig = Rig("apex_dqn", n_step=2, samples_per_insert=None, error_buffer=4096.0)
    for seed in range(3):
        rig.queue.insert(rig.unroll(seed))
    replay = rig.queue.replay
    batch = replay.sample(64)
    apex_dqn.apex_loss(rig.network, rig.network, batch, rig.config, 1.0)
    priorities = batch.td_error.abs().clamp(min=1e-6).double() ** rig.config.priority_exponent
    found = replay._tree[batch.drawn.slot.numpy()]
    inside = batch.drawn.step % 6 < 4  # unrolls of the rig do not go on where the one before ended
    assert inside.sum() > 20
    np.testing.assert_allclose(found[inside], priorities[inside], rtol=1e-3)


# The learner --------------------------------------------------------------------------------------------------------


def same(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("algorithm", ["apex_dqn", "r2d2"])
@pytest.mark.parametrize("period", [1, 3])
def test_the_target_network_is_refreshed_every_n_updates_and_stands_still_in_between(
    algorithm: str, period: int
) -> None:
    rig = Rig(algorithm, target_update_period=period)
    learner = rig.learner
    assert same(learner.target_network, rig.network)
    for update in range(1, 8):
        before = [parameter.clone() for parameter in learner.target_network.parameters()]
        assert rig.step(seed=update)["target_updates"] == update // period
        assert same(learner.target_network, rig.network) == (update % period == 0)
        if update % period:
            assert all(map(torch.equal, before, learner.target_network.parameters()))
    assert all(parameter.grad is None for parameter in learner.target_network.parameters())


@pytest.mark.parametrize("algorithm", ["apex_dqn", "r2d2"])
def test_the_learner_gives_the_items_that_it_drew_their_new_priorities(algorithm: str) -> None:
    rig = Rig(algorithm)
    rig.step(seed=0)
    replay, seen = rig.queue.replay, []
    sample, update = replay.sample, replay.update
    rig.learner._replay = SimpleNamespace(
        can_sample=replay.can_sample,
        sample=lambda count: seen.append(sample(count)) or seen[-1],
        update=lambda items, priorities: seen.append((items, priorities)) or update(items, priorities),
    )
    rig.step(seed=1)
    batch, (items, priorities) = seen
    assert items is batch.drawn
    assert batch.td_error.any()
    assert torch.equal(priorities, rig.module.new_priorities(batch, rig.config))
    found = replay._tree[batch.drawn.slot.numpy()]
    for i, (slot, step) in enumerate(zip(batch.drawn.slot.tolist(), batch.drawn.step.tolist(), strict=True)):
        twice = [j for j in range(4) if (batch.drawn.slot[j], batch.drawn.step[j]) == (slot, step)]
        assert found[i] == pytest.approx(float(priorities[twice[-1]]) ** rig.config.priority_exponent)


# The actor ----------------------------------------------------------------------------------------------------------


class FakeCollector:
    """Counts what an actor asks of it."""

    def __init__(self, rig: Rig, sampler: Any = None) -> None:
        self.rig, self.next_index, self.pulls = rig, 0, list[int]()
        self.env = SimpleNamespace(num_envs=4)
        self.policy = SimpleNamespace(pull=lambda params, index: self.pulls.append(index), sampler=sampler)
        self.policies = [self.policy]

    def collect(self, length: int, states: list[Any] | None) -> Any:
        assert length == 6
        if states is not None:
            states.extend([self.rig.network.initial_state(4)] * length)
        self.next_index += 1
        return self.rig.unroll(self.next_index)


@pytest.mark.parametrize("algorithm", ["apex_dqn", "r2d2"])
def test_an_actor_pulls_parameters_every_so_many_steps_and_sends_every_unroll(algorithm: str) -> None:
    rig = Rig(algorithm, actor_update_period=18)
    sent: list[Experience] = []
    replay: Any = SimpleNamespace(insert=sent.append, can_insert=lambda: len(sent) < 7)
    collector: Any = FakeCollector(rig)
    actor = rig.module.Actor(rig.config, collector, rig.params, replay)
    for _ in range(4):
        assert actor.ready()
        actor.step()
    copy = rig.module.Actor(rig.config, collector, rig.params, replay)
    copy.load_state_dict(actor.state_dict())
    for _ in range(3):
        copy.step()
    assert not copy.ready()
    assert collector.pulls == [0, 3, 6]
    assert [torch.equal(one.unroll.reward, rig.unroll(i + 1).reward) for i, one in enumerate(sent)] == [True] * 7
    assert all(len(one.item_step) for one in sent[1:])


@pytest.mark.parametrize("resumed_after", [None, 2])
def test_epsilons_fall_in_a_straight_line_to_those_of_the_ladder(resumed_after: int | None) -> None:
    keys = {"epsilon": 0.2, "epsilon_alpha": 1.0, "initial_epsilon": 1.0, "exploration_steps": 96}
    rig = Rig("apex_dqn", **keys)
    sampler = rig.module.make_sampler(rig.config, rig.network, range(4), 4)
    ladder = epsilon_ladder(0.2, 1.0, 4)
    replay: Any = SimpleNamespace(insert=lambda experience: None, can_insert=lambda: True)
    collector: Any = FakeCollector(rig, sampler)
    actor, seen = rig.module.Actor(rig.config, collector, rig.params, replay), []
    for index in range(6):
        if index == resumed_after:  # nothing but the number of unrolls says how far it is
            collector.policy.sampler = sampler = rig.module.make_sampler(rig.config, rig.network, range(4), 4)
        actor.step()
        seen.append(sampler._epsilons.tolist())
    for index, found in enumerate(seen):  # 6 steps of 4 environments an unroll
        part = min(1.0, index * 24 / 96)
        assert found == pytest.approx([1.0 + part * (rung - 1.0) for rung in ladder])
    assert rig.module.make_sampler(rig.config, rig.network, None, 4)._epsilons.tolist() == pytest.approx([0.001])


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial", [0.05, 0.1])
def test_an_epsilon_that_would_not_fall_is_refused(initial: float) -> None:
    config = apex_dqn.Config(epsilon=0.1, initial_epsilon=initial, exploration_steps=100)
    with pytest.raises(
        UserError, match=r"^key 'hyperparameters.initial_epsilon' must be above epsilon, 0\.1, to which"
    ):
        apex_dqn.check(config, DISCRETE, 1)


@pytest.mark.parametrize("keys", [{"initial_epsilon": 1.0}, {"exploration_steps": 100}])
def test_a_falling_epsilon_needs_a_beginning_and_a_length(keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^keys 'hyperparameters.initial_epsilon' and .*go together"):
        apex_dqn.check(apex_dqn.Config(**keys), DISCRETE, 1)


@pytest.mark.parametrize(
    ("keys", "spec", "num_learners", "expected"),
    [
        ({}, CONTINUOUS, 1, "'test/continuous' has continuous actions; Q-learning needs discrete ones"),
        ({}, DISCRETE, 2, "key 'topology.num_learners' must be 1 with a prioritized replay (got 2)"),
        (
            {"unroll_length": 50, "actor_update_period": 120},
            DISCRETE,
            1,
            "key 'hyperparameters.actor_update_period' must be a multiple of unroll_length, 50, since actors pull "
            "between unrolls (got 120)",
        ),
        (
            {"min_replay_size": 2001, "replay_capacity": 2000},
            DISCRETE,
            1,
            "key 'hyperparameters.min_replay_size' must be at most replay_capacity, 2,000: so many items would never "
            "be there (got 2,001)",
        ),
    ],
)
@pytest.mark.parametrize("algorithm", ["apex_dqn", "r2d2"])
def test_what_could_not_work_is_refused_in_one_line_that_names_its_key(
    algorithm: str, keys: dict[str, Any], spec: Any, num_learners: int, expected: str
) -> None:
    module = Rig(algorithm).module
    with pytest.raises(UserError, match=rf"^{re.escape(expected)}$"):
        module.check(module.Config(**keys), spec, num_learners)


@pytest.mark.parametrize("algorithm", ["apex_dqn", "r2d2"])
def test_the_defaults_are_accepted(algorithm: str) -> None:
    module = Rig(algorithm).module
    module.check(module.Config(), DISCRETE, 1)


def test_its_replay_holds_transitions_and_no_states() -> None:
    rule = apex_dqn.Config().replay
    assert (rule.cut.before, rule.cut.reach, rule.state_period) == (0, 3, None)
    assert (rule.capacity, rule.min_size, rule.batch_size) == (2_000_000, 50_000, 512)
    assert (rule.priority_exponent, rule.importance_exponent) == (0.6, 0.4)
