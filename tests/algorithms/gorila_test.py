"""GORILA: DQN's loss by hand, a replay and a target network in each bundle, a parameter server in shards."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddrl.actors.unroll import UnrollCollector
from ddrl.algorithms import gorila
from ddrl.coordinator.shared_parameters import LiveParameters
from ddrl.errors import UserError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import Setting
from ddrl.learners.shared_updates import shards
from ddrl.replay.items import Transitions
from ddrl.system.seeding import numpy_generator
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import parse_run_config
from tests.algorithms.apex_dqn_test import Table, drawn
from tests.algorithms.rigs import CONTINUOUS
from tests.runs import BASE, merged, small


class Rig:
    """Some bundles of one environment each, and their parameter server."""

    def __init__(self, actors: int = 2, parameter_shards: int = 2, **hyperparameters: Any) -> None:
        values = merged(BASE, {"algorithm": "gorila", "topology": {"num_actors": actors, "envs_per_actor": 1}})
        values |= {"hyperparameters": small("gorila") | hyperparameters}
        chosen = parse_run_config(values)
        self.config = chosen.hyperparameters
        builder = Builder(chosen, torch.device("cpu"))
        self.network: Any = builder.network()
        self.params = LiveParameters(self.network)
        setting = Setting(
            frame_skip=4,
            device=torch.device("cpu"),
            precision="float32",
            num_threads=1,
            generator=numpy_generator(0, "replay"),
            reducer=SingleLearner(),
            parameter_shards=parameter_shards,
        )
        self.learner = gorila.Learner(self.config, self.network, self.params, self.params, setting)  # type: ignore
        self.collectors: list[UnrollCollector] = [builder.collector(i, lambda *_: None) for i in range(actors)]
        self.actors = [gorila.Actor(self.config, one, self.params, None) for one in self.collectors]  # type: ignore

    @property
    def shared(self) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1).clone() for parameter in self.network.parameters()])

    def until_gradient(self, index: int = 0) -> gorila.Actor:
        """An actor that has just computed one."""
        actor = self.actors[index]
        while actor._gradients is None:
            actor.step()
        return actor


def transitions(size: int, seed: int = 0) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    return Transitions(
        observation=torch.randint(5, (size,), generator=generator),
        action=torch.randint(3, (size,), generator=generator),
        reward=3 * torch.randn((1, size), generator=generator),
        steps=torch.ones(size, dtype=torch.int64),
        terminated=(terminated := torch.rand(size, generator=generator) < 0.4),
        ended=terminated,
        next_observation=torch.randint(5, (size,), generator=generator),
        version=torch.zeros((1, size), dtype=torch.int64),
        td_error=torch.zeros(size),
        drawn=drawn(size),
    )


def slow_loss(q: torch.Tensor, target_q: torch.Tensor, part: Transitions, config: gorila.Config) -> float:
    """Eq. 2 of Mnih et al. 2015 in scalars; the slope of each error's square is at most the bound."""
    loss = 0.0
    for j in range(part.batch_size):
        reward = min(1.0, max(-1.0, float(part.reward[0, j])))
        best = max(target_q[int(part.next_observation[j])].tolist())
        wanted = reward if part.terminated[j] else reward + config.discount * best
        error = abs(wanted - float(q[int(part.observation[j]), int(part.action[j])]))
        bound = config.error_clipping
        loss += error**2 / 2 if bound is None or error <= bound else bound * error - bound**2 / 2
    return loss


@pytest.mark.parametrize("error_clipping", [1.0, 0.3, None])
def test_the_loss_is_that_of_dqn(error_clipping: float | None) -> None:
    generator = torch.Generator().manual_seed(1)
    tables = [Table(torch.randn(5, 3, generator=generator).tolist()) for _ in range(2)]
    config, part = gorila.Config(error_clipping=error_clipping, discount=0.9), transitions(64)
    loss, _ = gorila.dqn_loss(*tables, part, config)
    assert loss.item() == pytest.approx(
        slow_loss(tables[0].rows.detach(), tables[1].rows.detach(), part, config), rel=1e-5
    )
    loss.backward()
    counts = torch.zeros(5, 3)
    counts.index_put_((part.observation, part.action), torch.ones(64), accumulate=True)
    if error_clipping is not None:
        assert (tables[0].rows.grad.abs() <= error_clipping * counts + 1e-6).all()
    assert tables[1].rows.grad is None


def test_an_update_goes_to_the_server_and_the_next_begins_from_its_parameters() -> None:
    rig = Rig()
    for update in range(1, 5):
        actor = rig.until_gradient(update % 2)
        before = rig.shared
        actor.step()
        assert rig.params.version == update
        assert not torch.equal(rig.shared, before)
        rig.until_gradient(update % 2)
        own = rig.collectors[update % 2].policy.inference.network
        assert torch.equal(torch.cat([parameter.detach().reshape(-1) for parameter in own.parameters()]), rig.shared)


def test_each_bundle_draws_from_what_it_has_seen_itself() -> None:
    rig = Rig()
    for _ in range(8):
        rig.actors[0].step()
    assert rig.actors[0].replay.inserted_steps > 0
    assert rig.actors[1].replay.inserted_steps == 0
    assert rig.actors[1]._gradients is None


def test_steps_before_the_replay_holds_enough_are_counted_with_the_first_gradient() -> None:
    rig, acted = Rig(actors=1, min_replay_size=50), 0
    while rig.actors[0]._gradients is None:
        rig.actors[0].step()
        acted = rig.collectors[0].agent_steps
    assert acted >= 50
    assert rig.actors[0]._gradients.steps == acted
    rig.actors[0].step()
    assert (rig.learner.core.agent_steps, rig.learner.core.env_frames) == (acted, 4 * acted)


def test_thetarget_network_follows_the_server_at_its_count_of_updates() -> None:
    rig = Rig(actors=1, target_update_period=3)
    followed = []
    for _ in range(8):
        actor = rig.until_gradient()
        own = rig.collectors[0].policy.inference.network.state_dict()
        target = actor.target_network.state_dict()
        followed.append((rig.params.version, all(torch.equal(own[name], target[name]) for name in own)))
        actor.step()
    assert followed == [(version, version % 3 == 0) for version in range(8)]


def test_epsilon_falls_over_the_actors_own_steps_and_not_in_an_evaluation() -> None:
    rig, seen = Rig(actors=1, exploration_steps=20, initial_epsilon=0.9, final_epsilon=0.1), []
    sampler: Any = rig.collectors[0].policy.sampler
    while len(seen) < 8:
        if rig.actors[0]._gradients is None:
            rig.actors[0].step()
            seen.append(float(sampler._epsilons[0]))
        else:
            rig.actors[0].step()
    assert seen == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1])
    evaluating: Any = gorila.make_sampler(rig.config, None, None, 1)
    assert evaluating._epsilons.tolist() == pytest.approx([0.05])


@pytest.mark.parametrize("number", [1, 2, 3, 5, 50])
def test_shards_hold_every_parameter_once_and_are_about_as_large(number: int) -> None:
    parameters = list(Rig().network.parameters())
    parts = shards(parameters, number)
    assert [id(one) for _, part in parts for one in part] == [id(one) for one in parameters]
    assert [one for place, _ in parts for one in range(len(parameters))[place]] == list(range(len(parameters)))
    assert 1 <= len(parts) <= min(number, len(parameters))
    largest = max(parameter.numel() for parameter in parameters)
    total = sum(parameter.numel() for parameter in parameters)
    assert all(sum(one.numel() for one in part) <= total / number + largest for _, part in parts)


def test_the_number_of_shards_changes_no_bit() -> None:
    rigs = [Rig(actors=1, parameter_shards=number) for number in (1, 2, 4)]
    for _ in range(5):
        for rig in rigs:
            rig.until_gradient().step()
    assert all(torch.equal(rigs[0].shared, rig.shared) for rig in rigs[1:])


def test_a_shard_applies_one_gradient_at_a_time_beside_the_other_shards() -> None:
    rig = Rig(parameter_shards=3)
    gradients = rig.until_gradient()._gradients
    assert gradients is not None
    core, inside, most, beside = rig.learner.core, [0, 0, 0], [0, 0, 0], []

    def watched(index: int, apply: Any) -> Any:
        def slowly(*arguments: Any) -> None:
            inside[index] += 1
            most[index] = max(most[index], inside[index])
            beside.append(sum(inside))
            time.sleep(0.01)
            apply(*arguments)
            inside[index] -= 1

        return slowly

    slow: Any = [SimpleNamespace(apply=watched(index, one.apply)) for index, (_, one) in enumerate(core._shards)]
    core._shards = [(part, one) for (part, _), one in zip(core._shards, slow, strict=True)]
    workers = [threading.Thread(target=rig.params.apply, args=[gradients]) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert core.updates == 6
    assert most == [1, 1, 1]
    assert max(beside) > 1


def test_what_cannot_be_learned_or_is_not_its_own_is_refused() -> None:
    with pytest.raises(UserError, match="continuous actions; Q-learning needs discrete ones"):
        gorila.check(gorila.Config(), CONTINUOUS, 1)
    with pytest.raises(UserError, match=r"min_replay_size' must be at most replay_capacity, 100: .* \(got 200\)"):
        gorila.check(gorila.Config(replay_capacity=100, min_replay_size=200), Rig().collectors[0].env.spec, 1)
    values = merged(BASE, {"algorithm": "a3c", "topology": {"parameter_shards": 2}}) | {"hyperparameters": small("a3c")}
    with pytest.raises(UserError, match=r"key 'topology\.parameter_shards' must be 1 with algorithm a3c"):
        parse_run_config(values)
