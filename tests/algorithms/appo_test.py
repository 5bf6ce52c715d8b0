"""APPO's loss is Sample Factory's, spelt a second time; with PPO's settings an update is PPO's, bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ddrl.algorithms import appo
from ddrl.errors import UserError
from ddrl.learners import samples
from ddrl.learners.batch_values import evaluate
from ddrl.learners.samples import Columns, Samples
from ddrl.types import Unroll
from tests.algorithms import slow
from tests.algorithms.rigs import SPECS, Rig

COSTS = {"value_cost": 0.7, "entropy_cost": 0.02, "discount": 0.97}
every_task = pytest.mark.parametrize("task", sorted(SPECS))
PPO_S = {"clip_epsilon": 0.2, "value_clip_epsilon": 0.1, "value_cost": 0.5, "entropy_cost": 0.01, "gae_lambda": 0.9}
PPO_S |= {"max_grad_norm": 0.5, "observation_normalisation": True, "reward_normalisation": True, "num_epochs": 3}
PPO_S |= {"num_minibatches": 4, "separate_value_network": True, "optimizer": {"name": "adam", "learning_rate": 1e-3}}
PPO_S |= {"initialisation": None}


@every_task
@pytest.mark.parametrize("max_ratio", [None, 20.0])
def test_without_lag_and_with_symmetric_bounds_an_update_is_ppo_s_bit_for_bit(
    task: str, max_ratio: float | None
) -> None:
    ours = Rig("appo", SPECS[task], **PPO_S, clip_bounds="symmetric", values_at="update", max_ratio=max_ratio)
    theirs = Rig("ppo", SPECS[task], **PPO_S)
    start = ours.weights()
    assert torch.equal(start, theirs.weights())
    for update in range(4):
        batch = ours.unroll(update)
        for rig in (ours, theirs):
            rig.queue.insert(batch)
        found, expected = ours.learner.step(), theirs.learner.step()
        assert torch.equal(ours.weights(), theirs.weights())
        for metric in ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm", "learning_rate"):
            assert found[metric] == expected[metric]
    assert not torch.equal(start, ours.weights())


def valued(rig: Rig, batch: Unroll, moved: float = 0.0) -> Unroll:
    """A batch with the values that its actor would have predicted, moved by a number."""
    inputs = (batch.observation, batch.last_action, batch.last_reward, batch.start)
    with torch.no_grad():
        values = rig.network(*inputs, batch.initial_state).value[:-1]
    return appo.with_values(batch, [value + moved for value in values])


def bounded(ratio: float) -> float:
    return min(max(ratio, 1 / 20), 20.0)


def surrogate(ratio: float, advantage: float, epsilon: float) -> float:
    """Sample Factory's, to be maximised: clipped to [1 / (1 + epsilon), 1 + epsilon]."""
    return min(ratio * advantage, min(max(ratio, 1 / (1 + epsilon)), 1 + epsilon) * advantage)


def standardised(numbers: dict[Any, float]) -> dict[Any, float]:
    mean = sum(numbers.values()) / len(numbers)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in numbers.values()) / len(numbers))
    return {key: (x - mean) / (deviation + 1e-8) for key, x in numbers.items()}


def slow_loss(rig: Rig, batch: Unroll, learned: torch.Tensor, *, vtrace: bool) -> float:
    """The whole loss of one minibatch that is the batch, in scalar Python."""
    config, continuous = rig.config, bool(rig.spec.action_size)
    inputs = (batch.observation, batch.last_action, batch.last_reward, batch.start)
    with torch.no_grad():
        out = rig.network(*inputs, batch.initial_state)
    advantages: dict[Any, float] = {}
    rows: dict[Any, tuple[float, float, float, float, list[float]]] = {}
    for b, column in enumerate(slow.columns_of(batch)):
        now, pi = out.value[:, b].tolist(), out.distribution[:, b].double().tolist()
        old = [*batch.values[0][:, b].tolist(), now[-1]]
        actions = enumerate(column.actions)
        ratios = [
            bounded(math.exp(slow.log_probability(pi[t], a) - slow.log_probability(column.mu[t], a)))
            for t, a in actions
        ]
        values, weights = (now, ratios) if vtrace else (old, [1.0] * batch.length)
        keys = {"discount": config.discount, "rho_bar": 1.0, "c_bar": 1.0}
        found = column.advantages(values, weights, gae_lambda=1.0 if vtrace else config.gae_lambda, **keys)
        vs = [value + advantage for value, advantage in zip(values, [*found, 0.0], strict=True)]
        for t in column.steps:
            if not learned[t, b]:
                continue
            gamma = 0.0 if column.terminated[t] else config.discount
            one = min(1.0, ratios[t]) * (column.rewards[t] + gamma * vs[t + 1] - now[t])
            advantages[t, b] = one if vtrace else found[t]
            rows[t, b] = (ratios[t], now[t], old[t], vs[t], pi[t])
    loss = 0.0
    for key, advantage in standardised(advantages).items():
        ratio, value, before, target, distribution = rows[key]
        near = before + min(max(value - before, -config.value_clip_epsilon), config.value_clip_epsilon)
        error = max((value - target) ** 2, (near - target) ** 2)
        loss -= surrogate(ratio, advantage, config.clip_epsilon)
        loss += config.value_cost * 0.5 * error - config.entropy_cost * slow.entropy(distribution, continuous)
    return loss / len(rows)


@every_task
@pytest.mark.parametrize("vtrace", [False, True])
def test_the_loss_is_sample_factory_s(task: str, vtrace: bool) -> None:
    keys: dict[str, Any] = COSTS | {"num_epochs": 1, "num_minibatches": 1, "max_policy_lag": 2}
    rig = Rig("appo", SPECS[task], vtrace=vtrace, value_clip_epsilon=0.1, **keys)
    for _ in range(5):
        rig.params.publish(rig.network)
    for seed in range(3):
        batch = valued(rig, rig.unroll(seed, drift=1.0), moved=0.3)
        batch = replace(batch, version=batch.version - torch.arange(4))  # lags of 0 to 3
        learned = batch.valid & (torch.arange(4) <= 2)
        expected = slow_loss(rig, batch, learned, vtrace=vtrace)
        recorder = rig.record()
        rig.learner._descend, descend = kept(rig), rig.learner._descend
        rig.learner.update(batch)
        rig.learner._descend = descend
        assert recorder.metrics == []
        assert rig.loss == pytest.approx(expected, rel=1e-3, abs=1e-5)


def kept(rig: Rig) -> Any:
    """What computes the loss of a minibatch where a gradient step would be made, and learns nothing."""

    def descend(minibatch: Samples | Columns, share: float) -> dict[str, float]:
        reducer = rig.learner.core.setting.reducer
        learned = None
        if isinstance(minibatch, Columns):
            output = evaluate(rig.network, minibatch.unroll, "float32")
            minibatch, learned = appo.corrected(rig.network, minibatch, output, rig.config), minibatch.learned
        size = minibatch.batch_size if learned is None else int(learned.sum())
        advantages = appo.normalised(minibatch.advantages, reducer, learned)
        part = replace(minibatch, advantages=advantages)
        rig.loss = appo.appo_loss(rig.network, part, rig.config, 1.0 / size)[0].item()
        return {}

    return descend


def test_steps_older_than_the_bound_are_left_out_and_shorten_the_step() -> None:
    rig = Rig("appo", max_policy_lag=3, num_epochs=1, num_minibatches=1, optimizer={"learning_rate": 0.01})
    for _ in range(6):
        rig.params.publish(rig.network)
    recorder, batch = rig.record(), valued(rig, rig.unroll())
    versions = torch.tensor([6, 3, 2, 0]).expand(6, 4)
    metrics = rig.learner.update(replace(batch, version=versions))
    kept_steps = int(batch.valid[:, :2].sum())
    assert recorder.batches[0].batch_size == kept_steps
    share = kept_steps / int(batch.valid.sum())
    assert metrics["stale_fraction"] == pytest.approx(1 - share)
    assert metrics["learning_rate"] == pytest.approx(0.01 * share)
    assert (metrics["policy_lag_mean"], metrics["policy_lag_max"]) == (3.25, 6.0)


@pytest.mark.parametrize(("vtrace", "steps"), [(True, [1, 1]), (False, [1, 1, 1])])
def test_no_minibatch_is_without_a_step_that_is_young_enough(vtrace: bool, steps: list[int]) -> None:
    rig = Rig("appo", max_policy_lag=0, num_epochs=1, num_minibatches=4, vtrace=vtrace)
    rig.params.publish(rig.network)
    recorder, batch = rig.record(), valued(rig, rig.unroll())
    valid = torch.ones_like(batch.valid)
    versions = torch.zeros_like(batch.version)
    if vtrace:  # two unrolls of four, one step of each
        versions[0, :2] = 1
    else:  # three steps for four minibatches
        versions[0, :3] = 1
    rig.learner.update(replace(batch, version=versions, valid=valid))
    sizes = [int(part.learned.sum()) if isinstance(part, Columns) else part.batch_size for part in recorder.batches]
    assert sizes == steps


@pytest.mark.parametrize("vtrace", [False, True])
def test_a_batch_that_is_too_old_teaches_nothing_and_still_makes_a_version(vtrace: bool) -> None:
    rig = Rig("appo", max_policy_lag=0, vtrace=vtrace)
    batch, before = rig.unroll(), rig.weights()
    rig.params.publish(rig.network)
    rig.queue.insert(batch)
    metrics = rig.learner.step()
    assert torch.equal(rig.weights(), before)
    assert metrics["stale_fraction"] == 1.0
    assert "policy_loss" not in metrics
    assert (rig.params.version, rig.learner.core.updates) == (2, 1)
    assert rig.learner.core.agent_steps == int(batch.valid.sum())


def test_a_run_that_learns_nothing_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig("appo", max_policy_lag=0)
    batch = valued(rig, rig.unroll())
    rig.params.publish(rig.network)
    for _ in range(2 * appo.STALE_BATCHES):
        rig.learner.update(batch)
    rig.learner.update(replace(batch, version=batch.version + 1))  # here it learns
    for _ in range(2 * appo.STALE_BATCHES):
        rig.learner.update(batch)
    line = "nothing is learned: in 20 batches every step was older, in updates, than hyperparameters.max_policy_lag, 0"
    assert capsys.readouterr().err == line + "\n"


def test_nothing_is_too_old_without_a_bound() -> None:
    rig = Rig("appo", max_policy_lag=None)
    for _ in range(3000):
        rig.params.publish(rig.network)
    batch = valued(rig, replace(rig.unroll(), version=torch.zeros(6, 4, dtype=torch.int64)))
    assert rig.learner.update(batch)["stale_fraction"] == 0.0


@every_task
@pytest.mark.parametrize("keys", [{"vtrace": True}, {"lstm_size": 8, "feed_last_action_and_reward": True}, {}], ids=str)
def test_minibatches_are_of_whole_unrolls_where_the_order_of_steps_counts(task: str, keys: dict[str, Any]) -> None:
    rig = Rig("appo", SPECS[task], num_epochs=2, num_minibatches=2, **keys)
    recorder = rig.record()
    batch = rig.unroll(drift=0.3)
    rig.queue.insert(batch)
    rig.learner.step()
    assert len(recorder.batches) == 4
    whole = {isinstance(part, Columns) for part in recorder.batches}
    assert whole == {bool(keys)}
    if keys:
        for epoch in (recorder.batches[:2], recorder.batches[2:]):
            columns = [row.tolist() for part in epoch for row in part.unroll.reward.T]
            assert sorted(columns) == sorted(batch.reward.T.tolist())


def test_v_trace_is_computed_anew_in_every_minibatch() -> None:
    rig = Rig("appo", vtrace=True, num_epochs=2, num_minibatches=1, optimizer={"learning_rate": 0.05})
    recorder = rig.record()
    rig.step(drift=0.5)
    first, second = recorder.batches
    order = [[part.unroll.reward[:, b].tolist() for b in range(4)] for part in (first, second)]
    again = [order[1].index(column) for column in order[0]]
    assert not torch.allclose(first.value_targets, second.value_targets[:, again])
    assert torch.equal(first.values, second.values[:, again])  # those of the clipping stay


@every_task
@pytest.mark.parametrize("keys", [{}, {"lstm_size": 8}], ids=str)
def test_v_trace_evaluates_a_minibatch_once_where_its_activations_may_be_kept(
    task: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, evaluations = [], []
    for kept_steps in (10**6, 0):
        counting = Mock(side_effect=evaluate)
        monkeypatch.setattr(samples, "evaluate", counting)
        rig = Rig("appo", SPECS[task], vtrace=True, num_epochs=2, num_minibatches=2, **keys)
        rig.network.kept_steps = kept_steps
        for update in range(3):
            rig.learner.update(valued(rig, rig.unroll(update, drift=0.3), moved=0.2))
        weights.append(rig.weights())
        evaluations.append(counting.call_count)
    assert evaluations == [0, 12]
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


@every_task
def test_no_gradient_flows_through_advantages_targets_or_old_values(task: str) -> None:
    rig = Rig("appo", SPECS[task], num_minibatches=1)
    batch = valued(rig, rig.unroll(drift=0.3), moved=0.2)
    part = appo.prepare(rig.network, batch, batch.valid, rig.config)
    assert isinstance(part, Samples)
    leaves = {
        name: getattr(part, name).clone().requires_grad_(True) for name in ("advantages", "value_targets", "values")
    }
    appo.appo_loss(rig.network, replace(part, **leaves), rig.config, 1.0)[0].backward()
    assert all(leaf.grad is None or not leaf.grad.any() for leaf in leaves.values())
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in rig.network.parameters())


def test_the_penalty_draws_the_policy_to_the_uniform_one() -> None:
    rig = Rig("appo", exploration="symmetric_kl", entropy_cost=5.0, value_cost=0.0, optimizer={"learning_rate": 0.01})
    with torch.no_grad():
        rig.network.policy.weight.mul_(20.0)
    divergences = [rig.step(seed=update)["kl_to_uniform"] for update in range(10)]
    assert divergences[0] > 0.1
    assert divergences[-1] < 0.5 * divergences[0]


def test_values_at_collection_are_sent_and_others_are_not() -> None:
    batch = Rig("appo").unroll()
    assert batch.values == ()
    values = [torch.full((4,), float(t)) for t in range(6)]
    assert appo.with_values(batch, values).values[0][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("keys", "task", "words"),
    [
        ({"exploration": "symmetric_kl"}, "continuous", r"exploration': symmetric_kl .* allowed: entropy$"),
        ({"num_minibatches": 5, "vtrace": True}, "discrete", r"num_minibatches': 5 .* allowed: 1 to 4 unrolls$"),
        ({"num_minibatches": 13}, "discrete", r"num_minibatches': 13 .* allowed: 1 to 12 steps, as every other"),
        ({"max_ratio": 1.1}, "discrete", r"max_ratio' would bound ratios .* above 1 \+ clip_epsilon, 1.1 \(got 1.1\)$"),
        ({"max_ratio": 0.5}, "discrete", r"max_ratio' would bound ratios"),
        ({"vtrace": True, "gae_lambda": 0.5}, "discrete", r"gae_lambda': 0.5 .* it goes with vtrace: false"),
        ({"rho_bar": 2.0}, "discrete", r"rho_bar': 2.0 .* it goes with vtrace: true"),
        (
            {"vtrace": True, "value_clip_epsilon": None, "values_at": "update"},
            "discrete",
            r"values_at': \"update\" would not be read",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], task: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Rig("appo", SPECS[task], **{"num_minibatches": 2} | keys)
