"""A2C is A3C with a batch: one step down the mean of its losses, from unrolls of the newest parameters alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ddrl.algorithms import a2c, a3c
from ddrl.api.launch import train
from ddrl.errors import UserError
from ddrl.learners.batch_values import evaluate
from ddrl.training.config.run_config import parse_run_config
from tests.algorithms.rigs import SPECS, Rig
from tests.runs import BASE, curves, merged, small

FORMS: dict[str, dict[str, Any]] = {
    "synchronous steps": {"num_actors": 1, "envs_per_actor": 8},
    "synchronous trajectories": {"num_actors": 4, "envs_per_actor": 2},
    "dynamic batching": {"num_actors": 4, "envs_per_actor": 2, "inference": "central"},
}
"""Of Espeholt et al. 2018, Table 1."""


@pytest.mark.parametrize("task", sorted(SPECS))
def test_the_gradient_is_the_mean_of_those_that_actors_of_a3c_would_send(task: str) -> None:
    rig = Rig("a2c", SPECS[task], max_grad_norm=None)
    batch = rig.unroll()
    rig.learner.update(batch)
    sums = [torch.zeros_like(parameter) for parameter in rig.network.parameters()]
    gradient = [parameter.grad.clone() for parameter in rig.network.parameters()]
    reference = Rig("a2c", SPECS[task])
    for column in range(batch.batch_size):
        reference.network.zero_grad()
        loss, _ = a3c.advantage_loss(reference.network, batch.columns(column, column + 1), rig.config, 1.0)
        loss.backward()
        for total, parameter in zip(sums, reference.network.parameters(), strict=True):
            total += parameter.grad
    for total, mean in zip(sums, gradient, strict=True):
        torch.testing.assert_close(total / batch.valid.sum(), mean, rtol=1e-4, atol=1e-6)


def test_the_sum_is_that_many_times_the_mean() -> None:
    gradients = {}
    for reduction in ("sum", "mean"):
        rig = Rig("a2c", loss_reduction=reduction, max_grad_norm=None)
        batch = rig.unroll()
        rig.learner.update(batch)
        gradients[reduction] = torch.cat([parameter.grad.reshape(-1) for parameter in rig.network.parameters()])
    torch.testing.assert_close(gradients["sum"] / batch.valid.sum(), gradients["mean"])


def scaled(deviation: float) -> tuple[Rig, Rig]:
    """Two rigs of the same values and policy: one measures values as they are, one in this deviation of returns."""
    keys = {"max_grad_norm": None, "separate_value_network": True, "network": "mlp", "gae_lambda": 0.9}
    plain, other = Rig("a2c", **keys), Rig("a2c", return_scaling=True, **keys)
    other.network.load_state_dict(plain.network.state_dict(), strict=False)
    with torch.no_grad():
        other.network.return_scale.deviation.fill_(deviation)
        for parameter in other.network.value.parameters():
            parameter /= deviation
    return plain, other


def test_values_in_a_deviation_of_returns_leave_the_policy_gradient_as_it_is() -> None:
    plain, other = scaled(4.0)
    losses = [rig.learner.update(plain.unroll())["value_loss"] for rig in (plain, other)]
    for one, same in zip(plain.network.policy.parameters(), other.network.policy.parameters(), strict=True):
        assert one.grad.abs().max() > 0
        torch.testing.assert_close(same.grad, one.grad)
    assert losses[1] == pytest.approx(losses[0] / 16, rel=1e-4)


def test_the_deviation_is_that_of_the_returns_so_far_and_an_update_uses_the_one_before() -> None:
    plain, other = scaled(4.0)
    first, second = plain.unroll(1), plain.unroll(2)
    seen = []
    for batch in (first, second):
        values = evaluate(other.network, batch, "float32").value
        seen.append(a3c.returns_of(other.network, values, batch, other.config, "bootstrap", 0.9)[batch.valid])
        other.learner.update(batch)
        expected = torch.cat(seen).double().std(correction=0).item()
        assert other.network.return_scale.deviation.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_every_form_learns_from_the_newest_parameters_alone(tmp_path: Path, form: str, runtime: str) -> None:
    topology = FORMS[form] | {"runtime": runtime, "schedule": "synchronous"}
    values = merged(BASE, {"algorithm": "a2c", "env_frames": 800, "topology": topology})
    values |= {"hyperparameters": small("a2c"), "evaluation": {"final_episodes": 2}}
    assert train(parse_run_config(values), tmp_path, quiet=True) == "budget_reached"
    table = curves(tmp_path)
    assert table[table.metric == "policy_lag_max"].value.max() == 0
    assert table.updates.max() >= 800 / 40


@pytest.mark.parametrize("schedule", [{"schedule": "asynchronous"}, {"schedule": "bounded_lag", "max_policy_lag": 2}])
def test_a_schedule_with_lag_is_refused(schedule: dict[str, Any]) -> None:
    values = merged(BASE, {"algorithm": "a2c", "topology": schedule}) | {"hyperparameters": small("a2c")}
    with pytest.raises(UserError, match=r"key 'topology\.schedule' must be synchronous with algorithm a2c"):
        parse_run_config(values)


def test_it_starts_as_the_authors_code_does() -> None:
    """Orthogonal layers, and a policy head so small that the first policy is nearly uniform."""
    network = a2c.make_network(SPECS["discrete"], a2c.Config(network="mlp"), torch.Generator().manual_seed(0))
    observation = torch.randn(1, 64, 4, generator=torch.Generator().manual_seed(1))
    zeros = torch.zeros(1, 64)
    output = network(observation, zeros.long(), zeros, zeros.bool(), ())
    assert output.distribution.softmax(-1).amax().item() < 0.36


@pytest.mark.parametrize("gae_lambda", [0.0, 0.95])
def test_with_a_lambda_below_1_it_learns_from_the_estimates_of_gae(gae_lambda: float) -> None:
    rig = Rig("a2c", gae_lambda=gae_lambda, max_grad_norm=None, entropy_cost=0.0)
    batch = rig.unroll()
    with torch.no_grad():
        values = rig.network(
            batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state
        ).value
    rewards, valid = batch.reward.clamp(-1, 1), batch.valid
    gammas = rig.config.discount * (~batch.terminated).float()
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(values[0])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gammas[t] * values[t + 1] - values[t]
        following = torch.where(valid[t], delta + gammas[t] * gae_lambda * following, torch.zeros_like(delta))
        advantages[t] = following
    metrics = rig.learner.update(batch)
    expected = (advantages[valid].square() / 2).mean().item()
    assert metrics["value_loss"] == pytest.approx(expected, rel=1e-4)
