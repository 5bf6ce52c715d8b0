"""PPO's keys beyond Schulman et al. 2017's clipping: memory, bounds of the divergence, epochs of the value network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ddrl.algorithms import ppo
from ddrl.errors import UserError
from ddrl.learners.samples import Columns
from tests.algorithms.rigs import SPECS, Rig

NO_STATISTICS = {"observation_normalisation": False, "reward_normalisation": False}
MEMORY = {"lstm_size": 8, "separate_value_network": False}
RAW = {"normalise_advantages": False, "max_grad_norm": None, **NO_STATISTICS}
every_task = pytest.mark.parametrize("task", sorted(SPECS))


def value_parameters(rig: Rig) -> list[torch.Tensor]:
    """The parameters of the value network."""
    modules = (rig.network.value_torso, rig.network.value)
    return [parameter.detach().clone() for module in modules for parameter in module.parameters()]


def policy_parameters(rig: Rig) -> list[torch.Tensor]:
    """All others."""
    named = rig.network.named_parameters()
    return [one.detach().clone() for name, one in named if not name.startswith(("value_torso.", "value."))]


@every_task
@pytest.mark.parametrize("keys", [MEMORY, MEMORY | {"lstm_size": 0, "feed_last_action_and_reward": True}], ids=str)
def test_minibatches_are_whole_unrolls_where_a_step_depends_on_those_before(task: str, keys: dict[str, Any]) -> None:
    rig = Rig("ppo", SPECS[task], num_epochs=2, num_minibatches=2, **keys)
    recorder, batch = rig.record(), rig.unroll()
    assert not batch.valid.all()
    rig.learner.update(batch)
    assert len(recorder.batches) == 4
    rewards = batch.reward.T.tolist()
    for first, second in (recorder.batches[:2], recorder.batches[2:]):
        assert isinstance(first, Columns)
        assert sorted([*first.unroll.reward.T.tolist(), *second.unroll.reward.T.tolist()]) == sorted(rewards)
        assert first.num_steps + second.num_steps == int(batch.valid.sum()), "dead steps are left out"


def test_a_memory_is_evaluated_from_the_state_that_acted_and_learns_through_time() -> None:
    """The network's output on a minibatch is that on the whole batch, and a late loss reaches early observations."""
    rig = Rig("ppo", num_minibatches=2, **MEMORY, **NO_STATISTICS)
    batch = rig.unroll(ends=False)
    state = tuple(torch.randn(part.shape) for part in batch.initial_state)
    batch = replace(batch, initial_state=state, observation=batch.observation.clone().requires_grad_())
    part = ppo.prepare(rig.network, batch, rig.config)
    assert isinstance(part, Columns)
    late = torch.zeros_like(part.learned)
    late[-1] = True
    loss = ppo.ppo_loss(rig.network, replace(part, learned=late), rig.config, 0.0, 1.0)[0]
    (reached,) = torch.autograd.grad(loss, [batch.observation])
    assert reached[0].abs().sum() > 0
    (own,) = part.minibatches([torch.tensor([2])])
    with torch.no_grad():
        alone = rig.network(
            own.unroll.observation,
            own.unroll.last_action,
            own.unroll.last_reward,
            own.unroll.start,
            own.unroll.initial_state,
        )
    torch.testing.assert_close(alone.value[:-1, 0], part.values[:, 2])


@every_task
def test_without_clipping_the_ratio_times_the_advantage_is_learned_from(task: str) -> None:
    keys = {"value_cost": 0.0, "clip_epsilon": None, "kl_cost": 0.5}
    rig = Rig("ppo", SPECS[task], **keys, **RAW)
    samples = ppo.prepare(rig.network, rig.unroll(drift=0.5), rig.config)
    loss, metrics = ppo.ppo_loss(rig.network, samples, rig.config, 0.0, 1.0)
    pi = rig.network.of_normalised_steps(samples.observation)[0]
    ratio = (rig.network.family.log_probability(pi, samples.action) - samples.log_mu).exp()
    assert not torch.allclose(ratio, torch.ones_like(ratio), atol=0.3), "some would be clipped"
    assert loss.item() == pytest.approx(-(ratio * samples.advantages).sum().item(), rel=1e-5)
    assert "clip_fraction" not in metrics


@every_task
@pytest.mark.parametrize("memory", [False, True])
def test_a_divergence_beyond_twice_its_target_costs_its_square(task: str, memory: bool) -> None:
    """Heess et al. 2017: the gradient of lambda KL + xi max(0, KL - 2 target)^2, of the minibatch's mean KL."""
    keys: dict[str, Any] = {"kl_cost": 0.3, "kl_target": 0.01, "kl_excess_cost": 50.0, **RAW}
    rig = Rig("ppo", SPECS[task], num_epochs=1, num_minibatches=1, **keys, **(MEMORY if memory else {}))
    batch = rig.unroll(drift=0.5)
    part = ppo.prepare(rig.network, batch, rig.config)
    out = rig.network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    kl = rig.network.family.kl(batch.distribution, out.distribution[:-1])[batch.valid].mean()
    assert kl > 0.02
    plain = ppo.ppo_loss(rig.network, part, rig.config, 0.3, 1.0 / int(batch.valid.sum()))[0]
    excess = 50.0 * (kl - 2 * 0.01).clamp(min=0.0).square()
    parameters = list(rig.network.parameters())
    expected = torch.autograd.grad(plain + excess, parameters)
    rig.learner.update(batch)
    torch.testing.assert_close([parameter.grad for parameter in parameters], list(expected), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("kept_steps", [10**6, 0])
def test_epochs_stop_before_the_step_whose_minibatch_has_diverged_too_far(memory: bool, kept_steps: int) -> None:
    keys = {"num_epochs": 6, "num_minibatches": 2, "optimizer": {"learning_rate": 0.003}, **(MEMORY if memory else {})}
    made, weights, kls = {}, {}, {}
    for most in (None, 1e9, "some", 1e-9):
        bound = max(kls[None][:4]) if most == "some" else most
        rig = Rig("ppo", max_kl=bound, **keys)
        rig.network.kept_steps = kept_steps
        recorder = rig.record()
        made[most], weights[most] = rig.learner.update(rig.unroll()), rig.weights()
        kls[most] = [step["kl"] for step in recorder.metrics]
    torch.testing.assert_close(weights[1e9], weights[None], rtol=1e-5, atol=1e-6)
    count = next(number for number, kl in enumerate(kls[None]) if kl > max(kls[None][:4]))
    assert 4 <= count < 12
    assert kls["some"] == pytest.approx(kls[None][:count], rel=1e-3, abs=1e-7)
    assert [made[most].get("policy_steps") for most in made] == [None, 12, count, 1], "the first step is always made"


def test_a_stop_by_divergence_raises_the_penalty() -> None:
    keys: dict[str, Any] = {"num_epochs": 6, "num_minibatches": 1, "optimizer": {"learning_rate": 0.05}, "kl_cost": 1.0}
    rig = Rig("ppo", max_kl=0.03, kl_target=0.01, **keys)
    metrics = rig.learner.update(rig.unroll())
    assert metrics["policy_steps"] < 6
    assert metrics["kl_cost"] == 1.5
    assert metrics["kl"] < 0.03, "of the steps that were made"


@every_task
def test_the_value_network_has_epochs_of_its_own(task: str) -> None:
    rig = Rig("ppo", SPECS[task], num_epochs=2, num_minibatches=3, value_epochs=4)
    for update in range(2):  # in the second one both optimizers have momentum
        recorder, before = rig.record(), (policy_parameters(rig), value_parameters(rig))
        seen: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        step = recorder.step

        def noted(*words: Any, step: Any = step, seen: Any = seen, **keywords: Any) -> Any:
            made = step(*words, **keywords)
            seen.append((policy_parameters(rig), value_parameters(rig)))
            return made

        recorder.step = noted  # type: ignore[method-assign]
        metrics = rig.learner.update(rig.unroll(update))
        assert len(seen) == 2 * 3 + 4 * 3
        torch.testing.assert_close(seen[5][1], before[1], rtol=0, atol=0)
        torch.testing.assert_close(seen[-1][0], seen[5][0], rtol=0, atol=0)
        assert any(not torch.equal(one, other) for one, other in zip(seen[5][0], before[0], strict=True))
        assert any(not torch.equal(one, other) for one, other in zip(seen[-1][1], before[1], strict=True))
        values = recorder.metrics[6:]
        assert metrics["value_loss"] == pytest.approx(sum(step["value_loss"] for step in values) / 12)
        assert metrics["gradient_norm_value"] > 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"clip_epsilon": None}, "clip_epsilon.*nothing bounds"),
        ({"kl_excess_cost": 1.0}, "kl_excess_cost.*kl_target"),
        ({"value_epochs": 2, "separate_value_network": False}, "value_epochs.*separate_value_network"),
        ({"num_minibatches": 5, **MEMORY}, "num_minibatches.*allowed: 1 to 4 whole unrolls"),
    ],
)
def test_keys_that_would_learn_nothing_or_not_be_read_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Rig("ppo", **keys)
