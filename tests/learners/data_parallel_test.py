"""A learner's share of a batch may be empty: it then has a gradient of 0 everywhere, not none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddrl.algorithms import ppo
from ddrl.learners.data_parallel import ColumnParallel, split
from ddrl.networks.torsos import NETWORKS
from ddrl.system.seeding import torch_generator
from ddrl.types import EnvSpec

PIXELS = EnvSpec("test/pixels", (4, 42, 42), "uint8", num_actions=3, frame_skip=4, protocol="test")
NUMBERS = EnvSpec("test/numbers", (4,), "float32", num_actions=0, frame_skip=1, protocol="test", action_size=2)
SPECS = {"tanh_mlp": NUMBERS}


def samples(spec: EnvSpec, count: int) -> ppo.Samples:
    """PPO's samples of a task."""
    generator = torch.Generator().manual_seed(0)
    observation: Tensor = torch.randint(0, 255, (count, *spec.observation_shape), generator=generator)
    action = torch.zeros(count, spec.action_size) if spec.action_size else torch.zeros(count, dtype=torch.int64)
    return ppo.Samples(
        observation.to(getattr(torch, spec.observation_dtype)),
        action,
        torch.randn(count, spec.distribution_size, generator=generator),
        *torch.randn(3, count, generator=generator),
    )


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("network", NETWORKS)
def test_no_sample_is_a_gradient_of_zero_wherever_samples_have_one(network: str, num_threads: int) -> None:
    spec = SPECS.get(network, PIXELS)
    normalisation = {"observation_normalisation": spec is NUMBERS, "reward_normalisation": spec is NUMBERS}
    config = ppo.Config(network=network, **normalisation)
    made = ppo.make_network(spec, config, torch_generator(0, "network"))
    parallel = ColumnParallel(made, num_threads, piece_columns=4)
    with_gradient, metrics = [], []
    for count in (9, 0):
        metrics.append(
            parallel.backward(lambda net, part: ppo.ppo_loss(net, part, config, 0.1, 1.0), samples(spec, count))
        )
        with_gradient.append([name for name, parameter in made.named_parameters() if parameter.grad is not None])
    parallel.close()
    assert with_gradient[0] == with_gradient[1] != []
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in made.parameters())
    assert list(metrics[1]) == list(metrics[0])
    assert set(metrics[1].values()) == {0.0}


def test_parts_are_empty_only_where_the_batch_is() -> None:
    whole = samples(NUMBERS, 5)
    assert [part.batch_size for part in split(whole, 8)] == [1] * 5
    assert [part.batch_size for part in split(whole, 2)] == [2, 3]
    assert [part.batch_size for part in split(whole.columns(0, 0), 3)] == [0]
