"""What the learner computes of an actor's experience is what the actor acted on: the same network, fed the same.

Of every algorithm, with a memory, last actions and rewards where it can have them, over ends of every kind, episodes of
unequal length, dead steps, several unrolls and versions, and with statistics of observations where there are any.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.algorithms import a3c, r2d2
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.types import NetworkOutput, Unroll
from tests.algorithms.rigs import CONTINUOUS, DISCRETE, SPECS, Rig
from tests.scripted import Scripted, Watched

MEMORY: dict[str, Any] = {"lstm_size": 8, "feed_last_action_and_reward": True}
STATISTICS: dict[str, Any] = {"observation_normalisation": True}
CASES: dict[str, dict[str, Any]] = {
    "impala": MEMORY | STATISTICS,
    "a2c": MEMORY | STATISTICS,
    "impact": MEMORY | STATISTICS | {"separate_value_network": False},
    "ppo": STATISTICS,
    "appo": MEMORY | STATISTICS,
}
"""Algorithms with versions -> keys that make acting depend on as much as it can."""
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


class Outputs:
    """What a network has put out for whole unrolls, or sequences; single steps are those of a policy."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.seen: list[NetworkOutput] = []
        network.register_forward_hook(self._note)

    def _note(self, module: Any, inputs: Any, output: NetworkOutput) -> None:
        if len(output.distribution) > 1:
            self.seen.append(NetworkOutput(output.distribution.detach(), output.value.detach(), ()))


def sharpened(network: Any) -> Any:
    """A policy head so large that whatever the network is fed moves the distribution."""
    with torch.no_grad():
        network.policy.weight.mul_(100.0)
    return network


def actor_of(rig: Rig, store: Any) -> tuple[Any, Watched, Scripted]:
    """An actor of the rig's algorithm in scripted environments, with a network of its own and other weights."""
    network = rig.module.make_network(rig.spec, rig.config, torch_generator(1, "network"))
    watched, env = Watched(LocalInference(network, device=torch.device("cpu"), precision="float32")), Scripted(rig.spec)
    sample = rig.module.make_sampler(rig.config, network, range(env.num_envs), env.num_envs)
    policy = Policy(watched, env.num_envs, torch_generator(0, "policy"), sample)
    collector = UnrollCollector(
        env, policy, actor=0, on_episode=lambda episode: None, generator=numpy_generator(0, "actor-replay")
    )
    return rig.module.Actor(rig.config, collector, rig.params, store), watched, env


@pytest.mark.parametrize("task", sorted(SPECS))
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_learner_s_distributions_before_an_update_are_those_that_the_actor_stored(name: str, task: str) -> None:
    rig = Rig(name, SPECS[task], **CASES[name])
    sharpened(rig.network)
    rig.params.publish(rig.network)
    actor, _, _ = actor_of(rig, rig.store)
    outputs, compared, ends = Outputs(rig.network), 0, 0
    take = rig.store.sample
    batches: list[Unroll] = []
    rig.store.sample = lambda columns: batches.append(take(columns)) or batches[-1]
    for _ in range(6):
        if not rig.learner.ready():
            actor.step()
        outputs.seen.clear()
        batches.clear()
        version = rig.params.version
        rig.learner.step()
        if not batches:
            continue  # a batch that was learned from before: the policy has moved on
        (batch,) = batches
        assert batch.version.unique().tolist() == [version]
        torch.testing.assert_close(outputs.seen[0].distribution[:-1], batch.distribution, **CLOSE)
        compared, ends = compared + 1, ends + int((~batch.valid).sum())
    assert compared >= 3 and ends > 3
    if CASES[name].get("observation_normalisation"):
        assert float(rig.network.observation_normaliser.moments.count) > 0


def test_a_gradient_of_a3c_is_of_the_distributions_that_it_acted_with() -> None:
    for spec in (DISCRETE, CONTINUOUS):
        rig = Rig("a3c", spec, **MEMORY)
        sharpened(rig.network)
        actor, watched, _ = actor_of(rig, None)
        outputs = Outputs(watched.network)
        for _ in range(5):
            watched.put_out.clear()
            outputs.seen.clear()
            actor.step()
            acted = torch.stack([one.distribution for one in watched.put_out])
            torch.testing.assert_close(outputs.seen[0].distribution[:-1], acted, **CLOSE)
            actor.step()
        assert isinstance(actor, a3c.Actor)


@pytest.mark.parametrize("keys", [{}, {"burn_in": 0}, {"reward_input": "tanh"}, {"measure_staleness": True}], ids=str)
def test_the_values_that_r2d2_learns_from_are_those_that_the_actor_acted_on(keys: dict[str, Any]) -> None:
    rig = Rig("r2d2", **keys, error_buffer=1000.0)
    replay = rig.queue.replay
    actor, watched, env = actor_of(rig, replay)
    for _ in range(12):
        actor.step()
    values = {
        tuple(observation.tolist()): value
        for fed, out in zip(watched.fed, watched.put_out, strict=True)
        for observation, value in zip(fed.observation, out.distribution, strict=True)
    }
    assert len(values) == len(watched.fed) * env.num_envs, "no two observations are alike"
    part = replay.sample(32)
    q = r2d2.unrolled(rig.network, part).distribution
    compared, burnt_in = 0, 0
    for t, column in np.argwhere(part.valid.numpy()):
        observation = part.observation[rig.config.burn_in + t, column]
        torch.testing.assert_close(q[t, column], values[tuple(observation.tolist())], **CLOSE)
        compared += 1
        burnt_in += int(bool(part.state[0][column].any())) if part.state else 0
    assert compared > 32
    assert burnt_in > 5, "some sequences begin with a state that the actor kept"
    if part.first_state:
        for found in r2d2.q_discrepancy(rig.network, q, part):
            assert float(found.max()) < 1e-4  # float32: 1.5e-5 on one kind of processor, below 1e-5 on others
        emptied = dataclasses.replace(part, first_state=tuple(torch.zeros_like(one) for one in part.first_state))
        assert float(r2d2.q_discrepancy(rig.network, q, emptied)[0].max()) > 1e-3
