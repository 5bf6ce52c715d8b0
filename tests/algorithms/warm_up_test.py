"""The statistics of observations warm up: what fills them is counted and not learned from."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from ddrl.errors import UserError
from tests.algorithms.rigs import CONTINUOUS, Rig

NORMALISING = ("a2c", "appo", "impact", "impala", "ppo")
KEYS = {"observation_normalisation": True, "observation_warm_up": 30}


@pytest.mark.parametrize("algorithm", NORMALISING)
def test_the_first_batches_fill_the_statistics_and_leave_the_parameters(algorithm: str) -> None:
    rig = Rig(algorithm, CONTINUOUS, **KEYS)
    before, core = rig.weights(), rig.learner.core
    steps = 0.0
    while core.agent_steps < 30:
        metrics = rig.step(seed=core.agent_steps)
        assert metrics["policy_lag_mean"] == 0.0
        assert "policy_loss" not in metrics
        assert torch.equal(rig.weights(), before)
        steps += 1
    moments = rig.network.observation_normaliser.moments
    assert (float(moments.count), core.updates) == (core.agent_steps, 0)
    assert steps == rig.params.version >= 2
    assert "policy_loss" in rig.step(seed=7)
    assert core.updates == 1
    assert not torch.equal(rig.weights(), before)


@pytest.mark.parametrize("algorithm", NORMALISING)
def test_the_first_update_sees_what_the_statistics_of_the_warm_up_make_of_observations(algorithm: str) -> None:
    rig = Rig(algorithm, CONTINUOUS, **KEYS)
    while rig.learner.core.agent_steps < 30:
        rig.queue.insert(rig.unroll(rig.learner.core.agent_steps))
        rig.learner.step()
    normaliser = rig.network.observation_normaliser
    seen = normaliser(torch.full((4,), 2.0))
    expected = (2.0 - normaliser.moments.mean) / (normaliser.moments.variance + 1e-8).sqrt()
    assert torch.allclose(seen.double(), expected, atol=1e-6)
    assert math.isclose(float(normaliser.moments.count), rig.learner.core.agent_steps)


@pytest.mark.parametrize("algorithm", NORMALISING)
def test_a_resumed_run_goes_on_warming_up_where_it_was(algorithm: str) -> None:
    rig = Rig(algorithm, CONTINUOUS, **KEYS)
    rig.step(seed=1)
    again = Rig(algorithm, CONTINUOUS, **KEYS)
    again.learner.load_state_dict(copy.deepcopy(rig.learner.state_dict()))
    assert again.learner.core.warms_up
    for one in (rig, again):
        for turn in range(3):
            one.step(seed=2 + turn)
    assert torch.equal(rig.weights(), again.weights())
    assert rig.learner.core.updates == again.learner.core.updates == 2


@pytest.mark.parametrize("algorithm", NORMALISING)
def test_a_warm_up_without_statistics_is_refused(algorithm: str) -> None:
    with pytest.raises(UserError, match=r"observation_warm_up.*observation_normalisation: true"):
        Rig(algorithm, CONTINUOUS, observation_normalisation=False, observation_warm_up=30)
