"""PPO's loss is the paper's, and its epochs and minibatches do what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from ddrl.algorithms import ppo
from ddrl.errors import UserError
from ddrl.learners.samples import Samples
from ddrl.types import Unroll
from tests.algorithms import slow
from tests.algorithms.rigs import SPECS, Rig

COSTS = {"value_cost": 0.7, "entropy_cost": 0.02, "gae_lambda": 0.9, "discount": 0.97}
NO_STATISTICS = {"observation_normalisation": False, "reward_normalisation": False}
MEMORY = {"lstm_size": 8, "feed_last_action_and_reward": True, "separate_value_network": False}
every_task = pytest.mark.parametrize("task", sorted(SPECS))


def loss_of(rig: Rig, samples: Samples, kl_cost: float = 0.0) -> float:
    return ppo.ppo_loss(rig.network, samples, rig.config, kl_cost, 1.0)[0].item()


def slow_loss(rig: Rig, batch: Unroll, kl_cost: float, old_values_moved_by: float = 0.0) -> float:
    """Sections 3 to 5 a second time: GAE (eq. 11), the clipped surrogate (eq. 7), the whole objective (eq. 9)."""
    config, continuous = rig.config, bool(rig.spec.action_size)
    with torch.no_grad():
        out = rig.network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    loss = 0.0
    for b, column in enumerate(slow.columns_of(batch)):
        values, pi = out.value[:, b].tolist(), out.distribution[:, b].double().tolist()
        on_policy = [1.0] * batch.length
        advantages = column.advantages(
            values, on_policy, discount=config.discount, gae_lambda=config.gae_lambda, rho_bar=1.0, c_bar=1.0
        )
        for t in column.steps:
            log_pi, log_mu = (slow.log_probability(p[t], column.actions[t]) for p in (pi, column.mu))
            loss -= slow.surrogate(math.exp(log_pi - log_mu), advantages[t], config.clip_epsilon)
            target, old = values[t] + advantages[t], values[t] + old_values_moved_by
            error = (values[t] - target) ** 2
            if config.value_clip_epsilon is not None:
                near = old + min(max(values[t] - old, -config.value_clip_epsilon), config.value_clip_epsilon)
                error = max(error, (near - target) ** 2)
            loss += config.value_cost * 0.5 * error - config.entropy_cost * slow.entropy(pi[t], continuous)
            loss += kl_cost * slow.kl(column.mu[t], pi[t], continuous)
    return loss


@every_task
@pytest.mark.parametrize(("value_clip", "kl_cost"), [(None, 0.0), (0.1, 0.0), (None, 0.8)])
@pytest.mark.parametrize("keys", [{}, MEMORY], ids=["steps", "unrolls"])
def test_the_loss_is_equation_9(task: str, value_clip: float | None, kl_cost: float, keys: dict[str, Any]) -> None:
    rig = Rig("ppo", SPECS[task], value_clip_epsilon=value_clip, **COSTS, **NO_STATISTICS, **keys)
    for seed in range(3):
        batch = rig.unroll(seed, drift=0.3)
        samples = ppo.prepare(rig.network, batch, rig.config)
        moved = replace(samples, values=samples.values + 0.4)
        assert loss_of(rig, samples, kl_cost) == pytest.approx(slow_loss(rig, batch, kl_cost), rel=1e-4)
        assert loss_of(rig, moved, kl_cost) == pytest.approx(slow_loss(rig, batch, kl_cost, 0.4), rel=1e-4)
        assert (loss_of(rig, moved) != loss_of(rig, samples)) == (value_clip is not None)


@every_task
def test_a_divergence_that_costs_nothing_is_measured_and_not_learned_from(task: str) -> None:
    rig = Rig("ppo", SPECS[task])
    samples = ppo.prepare(rig.network, rig.unroll(drift=0.3), rig.config)
    far = replace(samples, distribution=samples.distribution * torch.inf)  # as an action that is impossible now
    loss, metrics = ppo.ppo_loss(rig.network, far, rig.config, 0.0, 1.0)
    assert loss.item() == loss_of(rig, samples)
    assert not math.isfinite(metrics["kl"])


@every_task
def test_a_minibatch_s_parts_add_up(task: str) -> None:
    rig = Rig("ppo", SPECS[task])
    samples = ppo.prepare(rig.network, rig.unroll(drift=0.3), rig.config)
    parts = loss_of(rig, samples.columns(0, 5)) + loss_of(rig, samples.columns(5, samples.batch_size))
    assert parts == pytest.approx(loss_of(rig, samples), rel=1e-5)


@every_task
def test_the_first_minibatch_of_every_synchronous_batch_has_ratio_1(task: str) -> None:
    rig = Rig("ppo", SPECS[task])  # with statistics, which change between batches
    recorder = rig.record()
    for update in range(4):
        rig.step(seed=update)
    for first, second in zip(recorder.metrics[::6], recorder.metrics[1::6], strict=True):
        assert first["kl"] == pytest.approx(0.0, abs=1e-6)
        assert first["clip_fraction"] == 0.0
        assert second["kl"] > 0.0


@every_task
def test_at_ratio_1_the_gradient_is_that_of_advantage_actor_critic(task: str) -> None:
    rig = Rig("ppo", SPECS[task], **COSTS, **NO_STATISTICS)
    batch = rig.unroll()
    samples = ppo.prepare(rig.network, batch, rig.config)
    parameters = list(rig.network.parameters())
    found = torch.autograd.grad(ppo.ppo_loss(rig.network, samples, rig.config, 0.0, 1.0)[0], parameters)
    out = rig.network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    pi, values = out.distribution[:-1][batch.valid], out.value[:-1][batch.valid]
    log_pi = rig.network.family.log_probability(pi, samples.action)
    plain = -(log_pi * samples.advantages) + 0.7 * 0.5 * (values - samples.value_targets).square()
    expected = torch.autograd.grad((plain - 0.02 * rig.network.family.entropy(pi)).sum(), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("num_epochs", "num_minibatches"), [(1, 1), (3, 1), (1, 4), (4, 3)])
def test_a_batch_gives_epochs_times_minibatches_gradient_steps_and_one_version(
    num_epochs: int, num_minibatches: int
) -> None:
    rig = Rig("ppo", num_epochs=num_epochs, num_minibatches=num_minibatches)
    recorder = rig.record()
    for update in range(2):
        rig.step(seed=update)
    assert len(recorder.batches) == 2 * num_epochs * num_minibatches
    assert rig.params.version == 2


def rows(minibatches: list[Samples]) -> list[list[float]]:
    return [row for minibatch in minibatches for row in minibatch.observation.tolist()]


def test_the_minibatches_of_an_epoch_partition_the_valid_steps_in_a_new_order() -> None:
    rig = Rig("ppo", num_epochs=3, num_minibatches=5)
    recorder, batch = rig.record(), rig.unroll()
    assert not batch.valid.all()
    rig.queue.insert(batch)
    rig.learner.step()
    epochs = [recorder.batches[start : start + 5] for start in (0, 5, 10)]
    valid = batch.observation[:-1][batch.valid].tolist()
    for epoch in epochs:
        assert sorted(rows(epoch)) == sorted(valid)
        sizes = [minibatch.batch_size for minibatch in epoch]
        assert max(sizes) - min(sizes) <= 1
    orders = [rows(epoch) for epoch in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0] != valid


def test_advantages_are_standardised_within_each_minibatch_if_at_all() -> None:
    for normalise in (True, False):
        rig = Rig("ppo", normalise_advantages=normalise, num_epochs=1)
        recorder = rig.record()
        batch = rig.unroll()
        raw = ppo.prepare(rig.network, batch, rig.config).advantages
        rig.queue.insert(batch)
        rig.learner.update(batch)
        for minibatch in recorder.batches:
            standardised = abs(float(minibatch.advantages.mean())) < 1e-6
            assert standardised == normalise
            if normalise:
                assert float(minibatch.advantages.std(correction=0)) == pytest.approx(1.0, rel=1e-4)
        if not normalise:
            used = torch.cat([minibatch.advantages for minibatch in recorder.batches])
            torch.testing.assert_close(used.sort().values, raw.sort().values)


def test_advantages_are_standardised_once_over_the_batch_if_the_key_says_so() -> None:
    rig = Rig("ppo", normalise_advantages_over="batch", num_epochs=2)
    recorder = rig.record()
    batch = rig.unroll()
    raw = ppo.prepare(rig.network, batch, rig.config).advantages
    rig.learner.update(batch)
    once = (raw - raw.mean()) / raw.std(correction=0)
    for epoch in (recorder.batches[:3], recorder.batches[3:]):
        used = torch.cat([minibatch.advantages for minibatch in epoch])
        torch.testing.assert_close(used.sort().values, once.sort().values)


def test_over_what_advantages_are_standardised_is_read_only_where_they_are() -> None:
    config = ppo.Config(normalise_advantages=False, normalise_advantages_over="batch")
    with pytest.raises(UserError, match="normalise_advantages_over"):
        ppo.check(config, SPECS["continuous"], 1)


@pytest.mark.parametrize(("kl_target", "factor"), [(1e-9, 1.5), (1e9, 0.5), (None, 1.0)])
def test_the_penalty_follows_the_divergence_after_each_batch(kl_target: float | None, factor: float) -> None:
    rig = Rig("ppo", kl_cost=0.2, kl_target=kl_target)
    costs = [rig.step(seed=update)["kl_cost"] for update in range(3)]
    assert costs == pytest.approx([0.2 * factor**n for n in (1, 2, 3)])


def test_rewards_are_clipped_only_where_the_key_says_so() -> None:
    clipped, raw = Rig("ppo", reward_clipping="abs_one", **NO_STATISTICS), Rig("ppo", **NO_STATISTICS)
    batch = raw.unroll()
    loud = replace(batch, reward=5.0 * batch.reward.sign())
    quiet = replace(batch, reward=batch.reward.sign())
    prepared = [
        ppo.prepare(rig.network, one, rig.config).advantages
        for rig, one in ((clipped, loud), (raw, quiet), (raw, loud))
    ]
    assert torch.equal(prepared[0], prepared[1])
    assert not torch.equal(prepared[0], prepared[2])


@pytest.mark.parametrize(
    ("keys", "num_learners", "words"),
    [
        ({"unroll_length": 5, "batch_size": 2, "num_minibatches": 5}, 1, "1 to 4"),
        ({"unroll_length": 16, "batch_size": 4, "num_minibatches": 33}, 4, "1 to 32"),
        ({"kl_target": 0.01}, 1, "kl_cost"),
    ],
)
def test_what_could_not_be_learned_from_or_would_not_be_read_is_refused(
    keys: dict[str, Any], num_learners: int, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        ppo.check(ppo.Config(**keys), SPECS["discrete"], num_learners)


@pytest.mark.parametrize("num_learners", [1, 2, 4])
def test_as_many_minibatches_are_allowed_with_several_learners_as_with_one(num_learners: int) -> None:
    ppo.check(ppo.Config(unroll_length=16, batch_size=4, num_minibatches=32), SPECS["discrete"], num_learners)


def test_advantages_are_those_of_the_present_values_in_every_epoch_if_the_key_says_so() -> None:
    """With one minibatch an epoch, the targets of the second epoch are those of a learner that begins there."""
    found = {}
    for recompute in (False, True):
        rig = Rig("ppo", recompute_advantages=recompute, num_epochs=2, num_minibatches=1, reward_normalisation=False)
        batch = rig.unroll()
        first = ppo.prepare(rig.network, batch, rig.config)
        recorder = rig.record()
        rig.learner.update(batch)
        seen = [minibatch.value_targets.sort().values for minibatch in recorder.batches]
        assert torch.equal(seen[0], first.value_targets.sort().values)
        found[recompute] = torch.equal(seen[0], seen[1])
    assert found == {False: True, True: False}


def test_values_in_a_deviation_of_returns_leave_advantages_as_they_are() -> None:
    keys = {"reward_normalisation": False, "observation_normalisation": False, "normalise_advantages": False}
    plain, other = Rig("ppo", **keys), Rig("ppo", return_scaling=True, **keys)
    other.network.load_state_dict(plain.network.state_dict(), strict=False)
    batch = plain.unroll()
    with torch.no_grad():
        other.network.return_scale.deviation.fill_(4.0)
        for parameter in other.network.value.parameters():
            parameter /= 4.0
    one, same = (ppo.prepare(rig.network, batch, rig.config) for rig in (plain, other))
    torch.testing.assert_close(same.advantages, one.advantages, rtol=1e-4, atol=1e-5)
    for name in ("values", "value_targets"):
        torch.testing.assert_close(4.0 * getattr(same, name), getattr(one, name), rtol=1e-4, atol=1e-5)
    other.learner.update(batch)
    expected = one.value_targets.double().std(correction=0).item()
    assert other.network.return_scale.deviation.item() == pytest.approx(expected, rel=1e-4)
