"""IMPALA's loss and learner do what the paper's lines say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.algorithms import impala
from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.environments.base import registry
from ddrl.errors import NonFiniteError, UserError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import Setting
from ddrl.replay.queue import UnrollQueue
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.types import Episode, NetworkOutput, Unroll
from tests.algorithms.rigs import SPECS

SPEC = registry.spec_for("toy/catch")


class Rig:
    """One actor and one learner, joined by hand."""

    def __init__(self, *, columns: int = 4, num_threads: int = 1, **hyperparameters: Any) -> None:
        self.config = impala.Config(network="mlp", unroll_length=6, batch_size=columns, **hyperparameters)
        self.network = impala.make_network(SPEC, self.config, torch_generator(0, "network"))
        self.params = ParameterServer(self.network, ScheduleRule(None, columns, columns, self.config.first_update))
        self.queue = UnrollQueue(capacity=4)
        policy_network = impala.make_network(SPEC, self.config, torch_generator(1, "network"))
        device = torch.device("cpu")
        inference = LocalInference(policy_network, device=device, precision="float32")
        policy = Policy(inference, columns, torch_generator(0, "policy"), inference.network.family.sample)
        env = registry.make("toy/catch", num_envs=columns, seed=0)
        self.episodes: list[Episode] = []
        self.collector = UnrollCollector(env, policy, actor=0, on_episode=self.episodes.append)
        self.actor = impala.Actor(self.config, self.collector, self.params, self.queue)
        self.learner = impala.Learner(
            self.config,
            self.network,
            self.params,
            self.queue,
            Setting(
                frame_skip=4,
                device=device,
                precision="float32",
                num_threads=num_threads,
                generator=numpy_generator(0, "replay"),
                reducer=SingleLearner(),
            ),
        )


def slow_loss(network: torch.nn.Module, batch: Unroll, config: impala.Config) -> float:
    """Sections 4.1 and 4.2 a second time, in scalar loops, with eq. 1 as the printed sum of products."""
    with torch.no_grad():
        out = network(batch.observation, batch.last_action, batch.last_reward, batch.start, batch.initial_state)
    return sum(_slow_column_loss(out, batch, config, column) for column in range(batch.batch_size))


def _slow_column_loss(out: NetworkOutput, batch: Unroll, config: impala.Config, b: int) -> float:
    values = [float(value) for value in out.value[:, b]]
    steps = range(batch.length)
    pi = [out.distribution[t, b].double().softmax(0).tolist() for t in steps]
    mu = [batch.distribution[t, b].double().softmax(0).tolist() for t in steps]
    action = batch.action[:, b].tolist()
    dead = [not valid for valid in batch.valid[:, b].tolist()]
    gamma = [0.0 if terminated else config.discount for terminated in batch.terminated[:, b].tolist()]
    reward = [min(1.0, max(-1.0, r)) for r in batch.reward[:, b].tolist()]
    ratio = [pi[t][action[t]] / mu[t][action[t]] for t in steps]
    rho = [0.0 if dead[t] else min(config.rho_bar, ratio[t]) for t in steps]
    c = [0.0 if dead[t] else config.lambda_ * min(config.c_bar, ratio[t]) for t in steps]

    def target(s: int) -> float:
        if s == batch.length:
            return values[s]
        total = values[s]
        for t in range(s, batch.length):
            weight = math.prod(gamma[i] * c[i] for i in range(s, t))
            total += weight * rho[t] * (reward[t] + gamma[t] * values[t + 1] - values[t])
        return total

    loss = 0.0
    for t in steps:
        if dead[t]:
            continue
        advantage = reward[t] + gamma[t] * target(t + 1) - values[t]
        policy = -min(config.pg_rho_bar, ratio[t]) * math.log(pi[t][action[t]]) * advantage
        value = 0.5 * (target(t) - values[t]) ** 2
        loss += policy + config.value_cost * value + config.entropy_cost * sum(p * math.log(p) for p in pi[t])
    return loss


@pytest.mark.parametrize("bounds", [(1.0, 1.0, 1.0), (3.7, 2.2, 1.5)])
def test_the_loss_is_that_of_sections_4_1_and_4_2_on_real_unrolls(bounds: tuple[float, float, float]) -> None:
    rho_bar, c_bar, pg_rho_bar = bounds
    rig = Rig(rho_bar=rho_bar, c_bar=c_bar, pg_rho_bar=pg_rho_bar, lambda_=0.9)
    dead = 0
    for _ in range(3):
        unroll = rig.collector.collect(6)
        dead += int((~unroll.valid).sum())
        loss, _ = impala.impala_loss(rig.network, unroll, rig.config, 1.0)
        assert loss.item() == pytest.approx(slow_loss(rig.network, unroll, rig.config), rel=1e-4)
    assert dead > 0


def test_consecutive_unrolls_overlap_by_one_observation() -> None:
    rig = Rig()
    first, second = rig.collector.collect(6), rig.collector.collect(6)
    for name in ("observation", "last_action", "last_reward", "start"):
        assert torch.equal(getattr(first, name)[-1], getattr(second, name)[0])
    assert second.index.tolist() == [1] * 4


def test_last_action_and_reward_are_those_of_the_step_before_and_zero_at_a_start() -> None:
    rig = Rig()
    for _ in range(4):
        unroll = rig.collector.collect(6)
        start = unroll.start[1:]
        assert torch.equal(unroll.last_action[1:], unroll.action.masked_fill(start, 0))
        assert torch.equal(unroll.last_reward[1:], unroll.reward.masked_fill(start, 0.0))


def test_a_dead_step_follows_every_end_and_begins_an_episode() -> None:
    rig = Rig()
    long = rig.collector.collect(60)
    ends = long.terminated | long.truncated
    assert ends.any()
    assert torch.equal(ends[:-1], ~long.valid[1:])
    assert torch.equal(~long.valid, long.start[1:])


def test_learner_publishes_what_it_learned() -> None:
    rig = Rig()
    rig.actor.step()
    rig.learner.step()
    rig.actor.step()
    acting = rig.collector.policy.inference.network
    for acted, learned in zip(acting.parameters(), rig.network.parameters(), strict=True):
        assert torch.equal(acted, learned)
    assert rig.collector.collect(1).version.unique().tolist() == [1]


def test_lag_is_counted_in_updates_since_the_acting_version() -> None:
    rig = Rig()
    for _ in range(3):
        rig.actor.step()
    assert [rig.learner.step()["policy_lag_max"] for _ in range(3)] == [0.0, 1.0, 2.0]


def test_env_frames_count_fresh_valid_steps_before_frame_skip() -> None:
    rig = Rig(replay_fraction=0.5)
    valid = 0
    for _ in range(4):
        rig.actor.step()
        valid += int(rig.queue._ready[0].valid.sum())
        rig.learner.step()
        rig.learner.step()  # batches of 2 fresh and 2 replayed columns
    assert valid < 4 * 4 * 6
    assert rig.learner.core.agent_steps == valid
    assert rig.learner.core.env_frames == 4 * valid
    assert len(rig.learner._replay) == 16


def test_the_mean_reduction_divides_the_gradient_by_the_number_of_valid_steps() -> None:
    gradients = []
    for reduction in ("sum", "mean"):
        rig = Rig(loss_reduction=reduction, max_grad_norm=1e9, optimizer={"learning_rate": 1e-12})
        batch = rig.collector.collect(6)
        rig.learner.update(batch)
        gradients.append(torch.cat([p.grad.reshape(-1) for p in rig.network.parameters()]))
    torch.testing.assert_close(gradients[0] / batch.valid.sum(), gradients[1])


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_gradient_threads_give_the_gradient_of_the_whole_batch(num_threads: int) -> None:
    gradients = []
    for threads in (1, num_threads):
        rig = Rig(num_threads=threads, optimizer={"learning_rate": 1e-12})
        metrics = rig.learner.update(rig.collector.collect(6))
        gradients.append((torch.cat([p.grad.reshape(-1) for p in rig.network.parameters()]), metrics))
        rig.learner.core.close()
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    for name, value in gradients[0][1].items():
        assert gradients[1][1][name] == pytest.approx(value, rel=1e-4, abs=1e-5)


def test_a_nan_reward_stops_the_learner_and_names_the_loss() -> None:
    rig = Rig(reward_clipping="none")
    unroll = rig.collector.collect(6)
    unroll.reward[2, 1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"update 1.*loss"):
        rig.learner.update(unroll)


def test_raw_rewards_are_stored_and_clipped_only_in_the_loss() -> None:
    rig = Rig()
    unroll = rig.collector.collect(6)
    unroll.reward[:] = 7.0
    clipped = impala.impala_loss(rig.network, unroll, rig.config, 1.0)[0].item()
    unroll.reward[:] = 1.0
    assert impala.impala_loss(rig.network, unroll, rig.config, 1.0)[0].item() == clipped
    assert rig.collector.collect(6).reward.abs().max() <= 1


@pytest.mark.parametrize("correction", ["v_trace", "one_step_is", "no_correction", "epsilon_correction"])
@pytest.mark.parametrize("task", sorted(SPECS))
def test_probabilities_are_corrected_only_where_actions_are_discrete(task: str, correction: Any) -> None:
    config = impala.Config(correction=correction)
    if (task, correction) == ("continuous", "epsilon_correction"):
        with pytest.raises(UserError, match=r"^key 'hyperparameters.correction'.*allowed: v_trace, one_step_is, no_c"):
            impala.check(config, SPECS[task], 1)
    else:
        impala.check(config, SPECS[task], 1)


def test_the_learning_rate_falls_with_env_frames() -> None:
    rig = Rig(optimizer={"learning_rate": 1.0, "decay_frames": 960})
    rates = []
    for _ in range(3):
        rig.actor.step()
        frames = rig.learner.core.env_frames
        rates.append(rig.learner.step()["learning_rate"])
        assert rates[-1] == pytest.approx(1 - frames / 960)
    assert rates[0] == 1.0 > rates[1] > rates[2]
