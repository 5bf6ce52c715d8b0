"""D4PG's losses by hand and a second time in slow NumPy, the gradients of two optimisers, and what it refuses."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ddrl.algorithms import d4pg
from ddrl.coordinator.parameter_server import tensors_of
from ddrl.errors import UserError
from ddrl.replay.items import Transitions
from ddrl.system.seeding import torch_generator
from tests.algorithms.apex_dqn_test import drawn
from tests.algorithms.rigs import CONTINUOUS, DISCRETE, Rig
from tests.losses.categorical_test import slow_projection

SMALL: dict[str, Any] = {
    "policy_layers": (12, 8),
    "critic_layers": (16, 12),
    "n_step": 3,
    "discount": 0.9,
    "num_atoms": 11,
    "v_min": -8.0,
    "v_max": 8.0,
}


def of(**keys: Any) -> Any:
    scalar = keys.get("critic") == "mean"
    return d4pg.Config(**{key: value for key, value in SMALL.items() if not (scalar and key[0] == "v")} | keys)


def transitions(seed: int, size: int = 8, n: int = 3) -> Transitions:
    """Some end before n steps, some are terminated."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, n + 1, (size,), generator=generator)
    here = torch.arange(n).unsqueeze(-1) < steps
    terminated = torch.rand(size, generator=generator) < 0.4
    return Transitions(
        observation=torch.randn((size, 4), generator=generator),
        action=torch.rand((size, 2), generator=generator) * 2 - 1,
        reward=2 * torch.randn((n, size), generator=generator) * here,
        steps=steps,
        terminated=terminated,
        ended=terminated | (torch.arange(size) % 3 == 0),
        next_observation=torch.randn((size, 4), generator=generator),
        version=torch.zeros((1, size), dtype=torch.int64),
        td_error=torch.zeros(size),
        drawn=drawn(size, torch.rand(size, generator=generator).tolist()),
    )


def networks(config: Any) -> tuple[Any, Any]:
    """Two that differ."""
    one, other = (d4pg.make_network(CONTINUOUS, config, torch_generator(seed, "network")) for seed in (0, 1))
    return one, other


def returns_and_scales(batch: Transitions, config: Any) -> tuple[Any, Any]:
    """The discounted rewards and the discount of what follows, one transition and one step at a time."""
    returns, scales = [], []
    for i in range(batch.batch_size):
        total, scale = 0.0, 1.0
        for k in range(int(batch.steps[i])):
            reward = float(batch.reward[k, i])
            total += scale * (min(max(reward, -1.0), 1.0) if config.reward_clipping == "abs_one" else reward)
            scale *= config.discount
        over = batch.ended if config.time_limits == "terminal" else batch.terminated
        returns.append(total)
        scales.append(0.0 if over[i] else scale)
    return np.array(returns), np.array(scales)


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


CLIPS = pytest.mark.parametrize("reward_clipping", ["abs_one", "none"])
LIMITS = pytest.mark.parametrize("time_limits", ["bootstrap", "terminal"])


@CLIPS
@LIMITS
def test_the_critic_s_loss_is_the_cross_entropy_with_the_projected_target(
    reward_clipping: str, time_limits: str
) -> None:
    config = of(reward_clipping=reward_clipping, time_limits=time_limits)
    (network, target), batch = networks(config), transitions(1)
    with torch.no_grad():
        after = softmax(target.critic(batch.next_observation, target.actions(batch.next_observation)).numpy())
        found = softmax(network.critic(batch.observation, batch.action).numpy())
    wanted = slow_projection(after, *returns_and_scales(batch, config), config.v_min, config.v_max)
    entropy = -(wanted * np.log(np.maximum(wanted, 1e-30))).sum(axis=1)
    loss, error, value = d4pg.critic_losses(network, target, batch, config)
    np.testing.assert_allclose(loss.detach(), -(wanted * np.log(found)).sum(axis=1), rtol=1e-3)
    np.testing.assert_allclose(error, -(wanted * np.log(found)).sum(axis=1) - entropy, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(value, found @ np.linspace(config.v_min, config.v_max, 11), rtol=1e-4, atol=1e-5)
    assert set(batch.steps.tolist()) == {1, 2, 3} and {True, False} == set(batch.terminated.tolist())
    assert (batch.ended & ~batch.terminated).any()


@CLIPS
@LIMITS
def test_the_critic_of_the_mean_has_half_the_squared_error(reward_clipping: str, time_limits: str) -> None:
    config = of(critic="mean", num_atoms=51, reward_clipping=reward_clipping, time_limits=time_limits)
    (network, target), batch = networks(config), transitions(2)
    with torch.no_grad():
        after = target.critic(batch.next_observation, target.actions(batch.next_observation)).numpy()[:, 0]
        found = network.critic(batch.observation, batch.action).numpy()[:, 0]
    returns, scales = returns_and_scales(batch, config)
    loss, error, value = d4pg.critic_losses(network, target, batch, config)
    np.testing.assert_allclose(error, returns + scales * after - found, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss.detach(), np.square(error.numpy()) / 2, rtol=1e-5)
    np.testing.assert_allclose(value, found, rtol=1e-5)


def gradients(network: Any) -> list[Tensor]:
    found = []
    for parameter in network.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad.clone())
        parameter.grad = None
    return found


def policy_parts(network: Any) -> list[Tensor]:
    return [*network.torso.parameters(), *network.policy.parameters()]


@pytest.mark.parametrize("critic", ["categorical", "mean"])
@pytest.mark.parametrize("policy_gradient_at", ["observation", "next_observation"])
def test_one_loss_has_the_gradients_of_two_separate_optimisers(critic: str, policy_gradient_at: str) -> None:
    config = of(
        critic=critic,
        num_atoms=11 if critic == "categorical" else 51,
        policy_gradient_at=policy_gradient_at,
        action_gradient_bound=None,
    )
    (network, target), batch = networks(config), transitions(3)
    loss, _ = d4pg.d4pg_loss(network, target, batch, config, 0.125)
    loss.backward()  # type: ignore[no-untyped-call]
    together = gradients(network)

    apart = copy.deepcopy(network)
    critic_loss, _, _ = d4pg.critic_losses(apart, target, batch, config)
    own = torch.autograd.grad(0.125 * (batch.drawn.weight * critic_loss).sum(), list(apart.critic.parameters()))
    observation = batch.next_observation if policy_gradient_at == "next_observation" else batch.observation
    value = d4pg.values(apart.critic(observation, apart.actions(observation)), config)
    up = torch.autograd.grad(-0.125 * value.sum(), policy_parts(apart))
    by_name = dict(zip([name for name, _ in network.named_parameters()], together, strict=True))
    for name, expected in zip([name for name, _ in network.critic.named_parameters()], own, strict=True):
        torch.testing.assert_close(by_name[f"critic.{name}"], expected)
    names = [name for name in by_name if not name.startswith("critic.")]
    for name, expected in zip(names, up, strict=True):
        torch.testing.assert_close(by_name[name], expected, rtol=1e-4, atol=1e-7)
    assert all(float(part.abs().max()) > 0 for part in up)


@pytest.mark.parametrize(("clipping", "bound"), [("value", 0.001), ("norm", 0.001)])
def test_the_slope_that_moves_the_policy_is_bounded(clipping: str, bound: float) -> None:
    config = of(action_gradient_clipping=clipping, action_gradient_bound=bound)
    (network, _), batch = networks(config), transitions(4)
    loss, value = d4pg.policy_losses(network, batch, config)
    with torch.no_grad():
        actions = network.actions(batch.observation)
    chosen = actions.clone().requires_grad_()
    (slope,) = torch.autograd.grad(d4pg.values(network.critic(batch.observation, chosen), config).sum(), chosen)
    assert float(slope.abs().min()) > bound, "else nothing is cut"
    cut = bound * (slope.sign() if clipping == "value" else slope / slope.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(loss.detach(), -(cut * actions).sum(dim=-1), rtol=1e-4, atol=1e-8)
    assert not value.requires_grad


def test_a_loss_is_the_sum_over_its_parts_which_fill_in_their_errors_and_weights_are_the_critic_s_alone() -> None:
    config = of()
    (network, target), batch = networks(config), transitions(5)
    whole, metrics = d4pg.d4pg_loss(network, target, batch, config, 0.5)
    errors = batch.td_error.clone()
    batch.td_error.zero_()
    parts = [d4pg.d4pg_loss(network, target, batch.columns(*edge), config, 0.5) for edge in ((0, 3), (3, 8))]
    assert sum(float(loss) for loss, _ in parts) == pytest.approx(float(whole), rel=1e-5)
    torch.testing.assert_close(batch.td_error, errors)  # batches of other sizes are summed in another order
    assert float(errors.min()) > 0
    for name, value in metrics.items():
        assert sum(part[name] for _, part in parts) == pytest.approx(value, rel=1e-4), name
    critic, _, _ = d4pg.critic_losses(network, target, batch, config)
    policy, values = d4pg.policy_losses(network, batch, config)
    weighted = float((batch.drawn.weight * critic).sum())
    assert metrics["critic_loss"] == pytest.approx(weighted, rel=1e-5)
    assert metrics["policy_loss"] == pytest.approx(-float(values.sum()), rel=1e-5)
    assert float(whole) == pytest.approx(0.5 * (weighted + float(policy.sum())), rel=1e-4)
    assert torch.equal(d4pg.new_priorities(batch, config), batch.td_error.abs())


def test_each_network_has_its_own_optimizer_and_its_own_bound() -> None:
    def moved(**keys: Any) -> tuple[float, float, Any]:
        rig = Rig("d4pg", **keys)
        before = [parameter.detach().clone() for parameter in rig.network.parameters()]
        metrics = rig.step()
        critic = {id(parameter) for parameter in rig.network.critic.parameters()}
        sizes = [0.0, 0.0]
        for old, new in zip(before, rig.network.parameters(), strict=True):
            sizes[id(new) in critic] = max(sizes[id(new) in critic], float((new - old).detach().abs().max()))
        return sizes[0], sizes[1], metrics

    rates = {"optimizer": {"learning_rate": 1e-3}, "policy_optimizer": {"learning_rate": 1e-5}}
    policy, critic, metrics = moved(**rates)
    assert (policy, critic) == (pytest.approx(1e-5, rel=0.1), pytest.approx(1e-3, rel=0.1)), "a first step of Adam"
    assert (metrics["learning_rate"], metrics["learning_rate_policy"]) == (1e-3, 1e-5)
    both = metrics["gradient_norm_critic"], metrics["gradient_norm_policy"]
    assert metrics["gradient_norm"] == pytest.approx(math.hypot(*both))
    slow = {"name": "rmsprop", "learning_rate": 1.0, "epsilon": 1e6, "decay_frames": None}  # moves by the gradient
    unbounded = moved(optimizer=slow, policy_optimizer=slow)
    for key, changed in (("max_grad_norm", 1), ("policy_max_grad_norm", 0)):
        bounded = moved(optimizer=slow, policy_optimizer=slow, **{key: 1e-3})
        assert bounded[changed] < 0.5 * unbounded[changed]
        assert bounded[1 - changed] == pytest.approx(unbounded[1 - changed])


@pytest.mark.parametrize("act_with", ["policy", "target_policy"])
def test_actors_get_the_parameters_of_the_policy_or_of_the_target_policy(act_with: str) -> None:
    rig, other = Rig("d4pg", act_with=act_with, target_update_period=3), Rig("d4pg", seed=1)
    for update in range(1, 6):
        rig.step(seed=update)
        assert rig.params.pull_newest(other.network) == update
        wanted = rig.learner.target_network if act_with == "target_policy" else rig.network
        assert all(torch.equal(a, b) for a, b in zip(tensors_of(other.network), tensors_of(wanted), strict=True))
        same = all(torch.equal(a, b) for a, b in zip(rig.network.parameters(), wanted.parameters(), strict=True))
        assert same == (act_with == "policy" or update == 3)


@pytest.mark.parametrize("prioritized", [True, False])
def test_new_transitions_have_the_largest_priority_so_far_or_all_have_the_same(prioritized: bool) -> None:
    rig = Rig("d4pg", prioritized=prioritized, samples_per_insert=None, error_buffer=3200.0, min_replay_size=8)
    rig.step(seed=0)
    replay = rig.queue.replay
    batch = replay.sample(4)
    replay.update(batch.drawn, torch.tensor([9.0] * 4))
    once = replay.sample(1)  # of the largest, most likely
    replay.update(once.drawn, torch.tensor([0.5]))
    known = probabilities(replay)
    rig.queue.insert(rig.unroll(1))
    found = probabilities(replay)
    new, halved = set(found) - set(known), found[int(once.drawn.slot), int(once.drawn.step)]
    assert len(new) > 4
    for place in new:
        assert found[place] / halved == pytest.approx((9.0 / 0.5) ** 0.6 if prioritized else 1.0, rel=1e-4)
    assert max(found.values()) == pytest.approx(found[min(new)])
    assert prioritized or batch.drawn.weight.tolist() == [1.0] * 4


def probabilities(replay: Any) -> dict[tuple[int, int], float]:
    """(slot, step) -> probability of an item."""
    streams, steps, found = replay.probabilities()
    slots = replay._history.slots(streams, steps)
    return {(int(slot), int(step)): float(p) for slot, step, p in zip(slots, steps, found, strict=True)}


def test_what_an_actor_sends_is_as_it_was_acted_and_dead_steps_are_no_items() -> None:
    rig = Rig("d4pg", min_replay_size=100, n_step=2)
    unrolls = [rig.unroll(seed) for seed in range(3)]
    for unroll in unrolls:
        rig.queue.insert(unroll)
    replay = rig.queue.replay
    streams, steps, _ = replay.probabilities()
    valid = torch.cat([unroll.valid for unroll in unrolls])
    assert {(int(step), int(stream)) for stream, step in zip(streams, steps, strict=True)} == {
        (int(t), int(column)) for t, column in valid.nonzero().tolist() if t < len(valid) - 2
    }
    drawing = replay._rule.cut.gather(replay._history, streams, steps, drawn(len(steps)))
    actions = torch.cat([unroll.action for unroll in unrolls])
    assert torch.equal(drawing.action, actions[torch.from_numpy(steps), torch.from_numpy(streams)])
    assert drawing.action.dtype == torch.float32 and drawing.action.shape[-1] == 2


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"critic": "mean", "num_atoms": 11}, r"num_atoms': 11 would not be read; it goes with critic: categorical"),
        ({"critic": "mean", "v_max": 11.0}, r"v_max': 11.0 would not be read; it goes with critic: categorical"),
        ({"prioritized": False, "priority_exponent": 0.5}, "would not be read; it goes with prioritized: true"),
        ({"prioritized": False, "importance_exponent": 0.5}, "would not be read; it goes with prioritized: true"),
        ({"samples_per_insert": None, "error_buffer": 9.0}, "would not be read; it goes with samples_per_insert"),
        (
            {"action_gradient_bound": None, "action_gradient_clipping": "norm"},
            "would not be read; it goes with action_gradient_bound",
        ),
        ({"v_min": 1.0, "v_max": 1.0}, r"v_min below v_max, both from -1e\+09 to 1e\+09 \(got 51, 1 and 1\)$"),
        ({"num_atoms": 1}, r"at least 2 atoms, .* \(got 1, -150 and 150\)$"),
        ({"v_max": 1e10}, r"both from -1e\+09 to 1e\+09 \(got 51, -150 and 1e\+10\)$"),
        ({"v_min": -3e38}, r"both from -1e\+09 to 1e\+09 \(got 51, -3e\+38 and 150\)$"),
        ({"critic_layers": (8,)}, r"critic_layers' must have at least 2 layers with action_input: second_layer"),
        ({"largest_noise": 0.3}, r"largest_noise' must be above noise, 0.3, from which it grows \(got 0.3\)$"),
    ],
)
def test_what_could_not_work_is_refused_in_one_line_that_names_its_key(keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        d4pg.check(d4pg.Config(**keys), CONTINUOUS, 1)


def test_what_just_works_is_accepted_and_discrete_actions_and_several_learners_are_not() -> None:
    for keys in ({}, {"critic_layers": (8,), "action_input": "first_layer"}, {"num_atoms": 2}, {"largest_noise": 0.4}):
        d4pg.check(d4pg.Config(**keys), CONTINUOUS, 1)
    with pytest.raises(UserError, match=r"^'test/discrete' has discrete actions; a deterministic policy needs"):
        d4pg.check(d4pg.Config(), DISCRETE, 1)
    with pytest.raises(UserError, match=r"num_learners' must be 1"):
        d4pg.check(d4pg.Config(), CONTINUOUS, 2)


def test_layers_are_lists_of_units() -> None:
    for wrong in ([], [8, 0], 8, [8, True], "8"):
        with pytest.raises(ValueError, match="must be a list of numbers of units above 0, one for each layer"):
            d4pg.Config(policy_layers=wrong)


WIDE: dict[str, Any] = {"v_min": -150.0, "v_max": 150.0}
"""The default support, which a critic of the mean does not read."""


def bandit(update: int, columns: int) -> Transitions:
    """One step, of reward 1 - |a - a*|^2 with a* = (0.5, -0.25) x the sign of the observation's first number."""
    generator = torch.Generator().manual_seed(update)
    observation = torch.randn((columns, 4), generator=generator)
    action = torch.rand((columns, 2), generator=generator) * 2 - 1
    best = torch.tensor([0.5, -0.25]) * observation[:, :1].sign()
    yes = torch.ones(columns, dtype=torch.bool)
    return Transitions(
        observation=observation,
        action=action,
        reward=(1 - (action - best).square().sum(dim=-1)).unsqueeze(0),
        steps=torch.ones(columns, dtype=torch.int64),
        terminated=yes,
        ended=yes,
        next_observation=torch.randn((columns, 4), generator=generator),
        version=torch.zeros((1, columns), dtype=torch.int64),
        td_error=torch.zeros(columns),
        drawn=drawn(columns),
    )


@pytest.mark.parametrize("critic", ["categorical", "mean"])
def test_a_bandit_with_continuous_actions_is_learned(critic: str) -> None:
    """Its best action is known: the policy comes to within 0.1 of it, from far away."""
    support = {"v_min": -4.0, "v_max": 1.5} if critic == "categorical" else WIDE
    rates = {"optimizer": {"learning_rate": 3e-3}, "policy_optimizer": {"learning_rate": 1e-3}}
    sizes = {"n_step": 1, "policy_layers": (32, 32), "critic_layers": (64, 64), "action_input": "first_layer"}
    rig = Rig("d4pg", critic=critic, **sizes | support | rates)

    def distance() -> float:
        observation = torch.randn((500, 4), generator=torch.Generator().manual_seed(99))
        observation = observation[observation[:, 0].abs() > 0.3]
        best = torch.tensor([0.5, -0.25]) * observation[:, :1].sign()
        with torch.no_grad():
            return float((rig.network.actions(observation) - best).abs().mean())

    assert distance() > 0.3
    for update in range(1000):
        rig.learner.update(bandit(update, 64))
    assert distance() < 0.1


def test_an_actor_is_made_without_a_collector_s_help_and_pulls_every_so_many_unrolls() -> None:
    pulled: list[int] = []
    policy = SimpleNamespace(pull=lambda params, index: pulled.append(index))
    rig = Rig("d4pg", unroll_length=6, actor_update_period=12, min_replay_size=300)
    collector: Any = SimpleNamespace(policy=policy, next_index=0)

    def collect(length: int, states: Any) -> Any:
        collector.next_index += 1
        return replace(rig.unroll(collector.next_index), index=torch.full((4,), collector.next_index))

    collector.collect = collect
    actor = d4pg.Actor(rig.config, collector, rig.params, rig.queue.replay)
    for _ in range(5):
        actor.step()
    assert pulled == [0, 2, 4]
