"""IMPACT's loss is the paper's; its target network and its circular store move when they should."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch

from ddrl.algorithms import impact
from ddrl.learners.all_reduce import SingleLearner
from ddrl.losses.surrogate import RATIOS
from ddrl.networks.actor_critic import ActorCritic
from ddrl.system.seeding import torch_generator
from ddrl.types import Unroll
from tests.algorithms import slow
from tests.algorithms.rigs import SPECS, Rig

every_task = pytest.mark.parametrize("task", sorted(SPECS))
every_ratio = pytest.mark.parametrize("ratio", RATIOS)


def off_policy_rig(task: str, **keywords: Any) -> tuple[Rig, ActorCritic, Unroll]:
    """A rig, a target network of other weights, and a batch of a third policy; far enough apart for every bound."""
    costs = {"value_cost": 0.7, "entropy_cost": 0.02, "gae_lambda": 0.9, "discount": 0.97}
    spread = {"initial_log_std": -0.3} if SPECS[task].action_size else {}
    rig = Rig("impact", SPECS[task], observation_normalisation=False, **spread, **costs, **keywords)
    target = impact.make_network(rig.spec, rig.config, torch_generator(1, "network"))
    with torch.no_grad():
        for network, scale in ((rig.network, 150.0), (target, 100.0)):  # heads begin near 0, where all policies agree
            network.policy.weight.mul_(scale)
    return rig, target, rig.unroll(3, drift=0.7, columns=8)


def slow_loss(rig: Rig, target_network: ActorCritic, batch: Unroll, kl_cost: float) -> tuple[float, set[str]]:
    """Section 3 a second time, from probabilities; and which bounds were reached on the way."""
    config, continuous, reached = rig.config, bool(rig.spec.action_size), set()
    inputs = (batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    with torch.no_grad():
        out, target_out = rig.network(*inputs), target_network(*inputs)
    loss = 0.0
    for b, column in enumerate(slow.columns_of(batch)):
        values = out.value[:, b].tolist()
        pi, target = (one.distribution[:, b].double().tolist() for one in (out, target_out))
        probability = [
            [math.exp(slow.log_probability(p[t], column.actions[t])) for t in range(batch.length)]
            for p in (pi, target, column.mu)
        ]
        pi_of, target_of, worker_of = probability
        weights = [target_of[t] / worker_of[t] for t in range(batch.length)]
        advantages = column.advantages(
            values,
            weights,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
        )
        for t in column.steps:
            ratio = {
                "worker": pi_of[t] / worker_of[t],
                "target": pi_of[t] / target_of[t],
                "target_worker_clipping": min(worker_of[t] / target_of[t], config.rho) * pi_of[t] / worker_of[t],
            }[config.ratio]
            reached |= {"rho"} if worker_of[t] / target_of[t] > config.rho else set()
            reached |= {"clip"} if abs(ratio - 1) > config.clip_epsilon else {"no clip"}
            reached |= {"rho_bar"} if weights[t] > config.rho_bar else set()
            loss -= slow.surrogate(ratio, advantages[t], config.clip_epsilon)
            loss += config.value_cost * 0.5 * advantages[t] ** 2
            loss -= config.entropy_cost * slow.entropy(pi[t], continuous)
            loss += kl_cost * slow.kl(target[t], pi[t], continuous)
    return loss, reached


@every_task
@every_ratio
@pytest.mark.parametrize("kl_cost", [0.0, 0.6])
def test_the_loss_is_that_of_section_3(task: str, ratio: str, kl_cost: float) -> None:
    rig, target, batch = off_policy_rig(
        task, ratio=ratio, rho=1.3 if ratio == "target_worker_clipping" else 2.0, rho_bar=1.1, c_bar=0.9
    )
    traversal, _ = impact.prepare(rig.network, target, batch, rig.config, SingleLearner())
    found = impact.impact_loss(rig.network, traversal, rig.config, kl_cost, 1.0)[0].item()
    expected, reached = slow_loss(rig, target, batch, kl_cost)
    assert found == pytest.approx(expected, rel=1e-4)
    assert reached == {"rho", "clip", "no clip", "rho_bar"}
    assert not batch.valid.all()


def test_the_ratios_differ_off_policy_and_agree_on_policy() -> None:
    losses: dict[bool, list[float]] = {True: [], False: []}
    for ratio in RATIOS:
        rig, target, batch = off_policy_rig("discrete", ratio=ratio)
        own = rig.unroll(4, columns=8)
        for on_policy, networks, unroll in (
            (True, (rig.network, rig.network), own),
            (False, (rig.network, target), batch),
        ):
            traversal, _ = impact.prepare(*networks, unroll, rig.config, SingleLearner())
            losses[on_policy].append(impact.impact_loss(rig.network, traversal, rig.config, 0.0, 1.0)[0].item())
    assert losses[True] == pytest.approx([losses[True][0]] * 3, rel=1e-5)
    assert len({round(loss, 3) for loss in losses[False]}) == 3


def test_only_the_learning_network_gets_a_gradient() -> None:
    rig, target, batch = off_policy_rig("discrete")
    traversal, _ = impact.prepare(rig.network, target, batch, rig.config, SingleLearner())
    impact.impact_loss(rig.network, traversal, rig.config, 1.0, 1.0)[0].backward()
    assert all(parameter.grad is not None for parameter in rig.network.parameters())
    assert all(parameter.grad is None for parameter in target.parameters())


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("period", [1, 3, 4, None])
def test_the_target_network_is_refreshed_every_n_updates_and_stands_still_in_between(period: int | None) -> None:
    rig = Rig("impact", num_slots=3, num_traversals=2, target_update_period=period)
    learner, n = rig.learner, period or 6  # N x K
    assert same(learner.target_network, rig.network)
    for update in range(1, 14):
        before = [parameter.clone() for parameter in learner.target_network.parameters()]
        metrics = rig.step(seed=update)
        assert metrics["target_updates"] == update // n
        assert same(learner.target_network, rig.network) == (update % n == 0)
        if update % n:
            after = list(learner.target_network.parameters())
            assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_the_target_network_sees_observations_through_the_newest_statistics() -> None:
    rig = Rig("impact", num_slots=3, num_traversals=2, observation_normalisation=True)
    rig.step(seed=1)
    target, network = rig.learner.target_network, rig.network
    assert int(network.observation_normaliser.moments.count) > 0
    for mine, its in zip(target.buffers(), network.buffers(), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize(("num_slots", "num_traversals"), [(1, 1), (2, 3), (3, 2), (4, 1), (1, 4)])
def test_batches_are_traversed_in_the_order_of_the_circular_store(num_slots: int, num_traversals: int) -> None:
    rig = Rig("impact", num_slots=num_slots, num_traversals=num_traversals)
    recorder, batches, counters = rig.record(), [], []
    for update in range(2 * num_slots * num_traversals):
        if not rig.learner.ready():
            batches.append(rig.unroll(update))
            rig.queue.insert(batches[-1])
        metrics = rig.learner.step()
        counters.append((metrics["batches_inserted"], metrics["batches_expired"]))
    used = [
        next(number for number, batch in enumerate(batches) if torch.equal(batch.reward, traversal.unroll.reward))
        for traversal in recorder.batches
    ]
    lap = list(range(num_slots)) * num_traversals
    assert used == lap + [number + num_slots for number in lap]
    assert counters[-1] == (2 * num_slots, 2 * num_slots)
    assert metrics["traversals_mean"] == num_traversals
    assert all(inserted - expired <= num_slots for inserted, expired in counters)


@every_task
@every_ratio
def test_with_one_slot_one_traversal_and_a_fresh_target_an_update_is_a_step_of_ppo(task: str, ratio: str) -> None:
    shared = {"clip_epsilon": 0.2, "kl_cost": 0.0, "kl_target": None, "discount": 0.97, "gae_lambda": 0.9}
    shared |= {"max_grad_norm": 0.5, "normalise_advantages": False, "entropy_cost": 0.01, "value_cost": 0.5}
    shared |= {"separate_value_network": True, "observation_normalisation": True, "reward_normalisation": True}
    once = {"num_slots": 1, "num_traversals": 1, "target_update_period": 1, "ratio": ratio}
    ours = Rig("impact", SPECS[task], **shared, **once)
    theirs = Rig("ppo", SPECS[task], **shared, num_epochs=1, num_minibatches=1)
    assert torch.equal(ours.weights(), theirs.weights())
    start = ours.weights()
    for update in range(3):
        batch = ours.unroll(update)
        for rig in (ours, theirs):
            rig.queue.insert(batch)
        found, expected = ours.learner.step(), theirs.learner.step()
        for metric in ("policy_loss", "value_loss", "entropy", "gradient_norm"):
            assert found[metric] == pytest.approx(expected[metric], rel=1e-3, abs=1e-5)
    moved = (ours.weights() - start).norm()
    assert (ours.weights() - theirs.weights()).norm() < 0.01 * moved


@pytest.mark.parametrize(("kl_target", "factor"), [(1e-9, 1.5), (1e9, 0.5), (None, 1.0)])
def test_the_penalty_follows_the_divergence_at_each_target_update(kl_target: float | None, factor: float) -> None:
    rig = Rig("impact", kl_cost=0.2, kl_target=kl_target, target_update_period=2, num_slots=1, num_traversals=1)
    costs = [rig.step(seed=update)["kl_cost"] for update in range(7)]
    assert costs == pytest.approx([0.2 * factor ** (update // 2) for update in range(7)])


def test_the_penalty_asks_for_the_divergence_of_the_newest_lap_alone() -> None:
    # KL is 0 right after a target update and grows: the mean over the whole period lies below that of the last lap.
    keys = {"kl_cost": 0.2, "num_slots": 2, "num_traversals": 4, "optimizer": {"learning_rate": 3e-3}}
    rig = Rig("impact", kl_target=None, **keys)
    kls = [rig.step(seed=update)["kl"] for update in range(8)]
    last_lap, period = statistics.fmean(kls[-2:]), statistics.fmean(kls)
    assert 1.2 * period < last_lap
    rig = Rig("impact", kl_target=last_lap / 2.0 * 0.99, **keys)
    costs = [rig.step(seed=n)["kl_cost"] for n in range(9)]
    assert costs[-1] == pytest.approx(1.5 * 0.2)


def test_the_learning_rate_of_the_first_update_is_the_first_rate() -> None:
    rig = Rig("impact", optimizer={"learning_rate": 1.0, "decay_frames": 10_000}, num_slots=1, num_traversals=2)
    rates = []
    for update in range(3):
        frames = rig.learner.core.env_frames
        rates.append(rig.step(seed=update)["learning_rate"])
        assert rates[-1] == pytest.approx(1 - frames / 10_000)
    assert rates[0] == 1.0 > rates[1] == rates[2]
