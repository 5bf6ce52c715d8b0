"""GA3C: returns fixed when acting, predictors and trainers on one network, epsilon in the logarithms."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.algorithms import ga3c
from ddrl.coordinator.shared_parameters import LiveParameters
from ddrl.environments.base import registry
from ddrl.errors import Closed, UserError
from ddrl.inference.central import CentralInference
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import Setting
from ddrl.losses.returns import n_step_returns
from ddrl.replay.queue import UnrollQueue
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.training.config.run_config import parse_run_config
from ddrl.types import PolicyInput, Unroll
from tests.runs import BASE, config, merged, small

SPEC = registry.spec_for("toy/catch")
CPU = torch.device("cpu")


class Rig:
    """One agent with several environments, a predictor and trainers, joined by hand."""

    def __init__(self, *, columns: int = 4, num_trainers: int = 1, **hyperparameters: Any) -> None:
        self.config = ga3c.Config(network="mlp", batch_size=columns, **hyperparameters)
        self.network = ga3c.make_network(SPEC, self.config, torch_generator(0, "network"))
        self.params = LiveParameters(self.network)
        self.queue = UnrollQueue(capacity=100)
        setting = Setting(4, CPU, "float32", 1, numpy_generator(0, "replay"), SingleLearner(), num_trainers)
        self.learner = ga3c.Learner(self.config, self.network, self.params, self.queue, setting)
        predictor = LocalInference(self.make_network(1), device=CPU, precision="float32")
        self.params.lend(predictor.network)
        self.central = CentralInference([predictor], self.params, None)
        policy = Policy(self.central, columns, torch_generator(0, "policy"), self.network.family.sample)
        env = registry.make("toy/catch", num_envs=columns, seed=0)
        self.collector = UnrollCollector(env, policy, actor=0, on_episode=lambda *_: None)
        self.actor = ga3c.Actor(self.config, self.collector, self.params, self.queue)

    def make_network(self, seed: int) -> Any:
        return ga3c.make_network(SPEC, self.config, torch_generator(seed, "network"))

    def values(self, unroll: Unroll) -> torch.Tensor:
        """V [T+1, B] with the present parameters."""
        inputs = (unroll.observation, unroll.last_action, unroll.last_reward, unroll.start)
        with torch.no_grad():
            values: torch.Tensor = self.network(*inputs, unroll.initial_state).value
        return values

    def queued(self) -> Unroll:
        self.actor.step()
        return self.queue.sample(self.config.batch_size)


def returns_of(unroll: Unroll, values: torch.Tensor) -> torch.Tensor:
    discounts = 0.99 * (~unroll.terminated).float()
    return n_step_returns(values[:-1], values[-1], unroll.reward.clamp(-1, 1), discounts, unroll.valid)


def slow_loss(rig: Rig, unroll: Unroll) -> float:
    """Section 5.3 in scalars: log(pi + epsilon) (R - V), epsilon in the entropy too, half the squared error."""
    inputs = (unroll.observation, unroll.last_action, unroll.last_reward, unroll.start)
    with torch.no_grad():
        out = rig.network(*inputs, unroll.initial_state)
    loss, epsilon = 0.0, rig.config.log_epsilon
    for t in range(unroll.length):
        for b in range(unroll.batch_size):
            if not unroll.valid[t, b]:
                continue
            pi = out.distribution[t, b].double().softmax(0).tolist()
            advantage = float(unroll.returns[0][t, b] - out.value[t, b])
            loss -= math.log(pi[int(unroll.action[t, b])] + epsilon) * advantage
            loss += rig.config.value_cost * advantage**2 / 2
            loss += rig.config.entropy_cost * sum(p * math.log(p + epsilon) for p in pi)
    return loss


@pytest.mark.parametrize("log_epsilon", [0.0, 1e-6, 0.05])
def test_the_loss_is_that_of_section_5_3_on_real_unrolls(log_epsilon: float) -> None:
    rig, dead = Rig(log_epsilon=log_epsilon), 0
    for _ in range(4):
        unroll = rig.queued()
        dead += int((~unroll.valid).sum())
        loss, _ = ga3c.ga3c_loss(rig.network, unroll, rig.config, 1.0)
        assert loss.item() == pytest.approx(slow_loss(rig, unroll), rel=1e-4)
    assert dead > 0


def test_returns_are_those_of_the_values_when_it_acted_whatever_the_network_has_learned_since() -> None:
    rig = Rig()
    for _ in range(3):
        unroll = rig.queued()
        acted = rig.values(unroll)
        torch.testing.assert_close(unroll.returns[0], returns_of(unroll, acted))
        with torch.no_grad():
            for parameter in rig.network.parameters():
                parameter.mul_(1.5)
        assert not torch.allclose(unroll.returns[0], returns_of(unroll, rig.values(unroll)))
        with torch.no_grad():
            for parameter in rig.network.parameters():
                parameter.div_(1.5)


def test_the_last_value_is_of_the_prediction_that_the_next_unroll_begins_with() -> None:
    """An agent asks once for each observation: what it bootstraps from is what it acts on next."""
    rig, asked = Rig(), []
    infer = rig.central.infer

    def counted(inputs: PolicyInput) -> Any:
        asked.append(inputs.observation.clone())
        return infer(inputs)

    rig.central.infer = counted  # type: ignore[method-assign]
    first, second = rig.queued(), rig.queued()
    assert len(asked) == 2 * 5 + 1
    assert torch.equal(asked[5], first.observation[-1])
    assert torch.equal(first.observation[-1], second.observation[0])
    assert second.version[0].unique().tolist() == [0]


def test_predictors_and_trainers_have_the_network_itself_and_no_copies() -> None:
    rig = Rig(num_trainers=2)
    live = [parameter.data_ptr() for parameter in rig.network.parameters()]
    networks = [rig.central.network, *(trainer._network for trainer in rig.learner.trainers)]
    for network in networks:
        assert [parameter.data_ptr() for parameter in network.parameters()] == live
    assert len({id(network) for network in networks}) == 3, "but gradients of their own"
    rig.actor.step()
    rig.learner.step()
    rig.actor.step()
    assert rig.collector.collect(1).version.unique().tolist() == [1]


def test_an_update_bit_for_bit_is_that_of_one_trainer_whichever_of_them_makes_it() -> None:
    rigs = [Rig(num_trainers=2) for _ in range(2)]
    for number, rig in enumerate(rigs):
        rig.actor.step()
        rig.learner.trainers[number].step()
    one, two = ([*rig.network.parameters()] for rig in rigs)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_trainers_beside_each_other_take_every_unroll_once() -> None:
    rig, unrolls = Rig(num_trainers=3), 30
    for _ in range(unrolls):
        rig.actor.step()
    steps = sum(int(unroll.valid.sum()) for unroll in rig.queue._ready)

    def train(trainer: Any) -> None:
        try:
            while True:
                trainer.step()
        except Closed:
            pass

    workers = [threading.Thread(target=train, args=[trainer]) for trainer in rig.learner.trainers]
    for worker in workers:
        worker.start()
    while rig.learner.core.updates < unrolls:
        threading.Event().wait(0.01)
    rig.queue.close()
    for worker in workers:
        worker.join(10)
    assert (rig.learner.core.updates, rig.learner.core.agent_steps) == (unrolls, steps)


@pytest.mark.parametrize(("log_epsilon", "logarithm"), [(1e-6, math.log(1e-6)), (0.0, -400.0)])
def test_the_epsilon_bounds_what_an_action_costs_that_the_policy_now_excludes(
    log_epsilon: float, logarithm: float
) -> None:
    rig = Rig(log_epsilon=log_epsilon)
    unroll = rig.queued()
    unroll = replace(unroll, action=torch.ones_like(unroll.action), returns=(torch.ones_like(unroll.reward),))
    with torch.no_grad():
        rig.network.value.weight.zero_()
        rig.network.policy.weight.zero_()
        rig.network.policy.bias.copy_(torch.tensor([200.0, -200.0, -200.0]))
    _, metrics = ga3c.ga3c_loss(rig.network, unroll, rig.config, 1.0)
    assert metrics["policy_loss"] / int(unroll.valid.sum()) == pytest.approx(-logarithm)


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(UserError, match=r"adds an epsilon to probabilities.*toy/track.*allowed: tasks with discrete"):
        ga3c.check(ga3c.Config(), registry.spec_for("toy/track"), 1)


@pytest.mark.parametrize(
    ("algorithm", "topology", "words"),
    [
        ("impala", {"runtime": "threads", "num_trainers": 2}, "algorithm impala, which has one trainer"),
        ("ga3c", {"num_trainers": 2}, "whose parameters are shared"),
        ("ga3c", {"runtime": "threads", "learner_threads": 2}, "whose parameters are shared"),
        ("ga3c", {"parameter_delay": 1}, "whose parameters are shared"),
    ],
)
def test_a_topology_that_does_not_go_with_the_algorithm_is_refused(
    algorithm: str, topology: dict[str, Any], words: str
) -> None:
    key = next(key for key in topology if key != "runtime")
    with pytest.raises(UserError, match=rf"key 'topology\.{key}' must be .*{words}"):
        parse_run_config(
            merged(BASE, {"algorithm": algorithm, "topology": topology}) | {"hyperparameters": small(algorithm)}
        )
    assert config().topology.num_trainers == 1
