"""Policies sample what the network says, from their own generator, and own the recurrent state."""

import numpy as np
import torch
from scipy.stats import chisquare

from ddrl.actors.policy import LocalInference, Policy
from ddrl.environments.base import registry
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.distributions import CATEGORICAL
from ddrl.system.seeding import torch_generator
from ddrl.types import EnvStep


def make_policy(columns: int, *, lstm_size: int = 0) -> Policy:
    spec = registry.spec_for("toy/memory")
    network = ActorCritic(
        spec,
        network="mlp",
        lstm_size=lstm_size,
        feed_last_action_and_reward=lstm_size > 0,
        generator=torch_generator(0, "network"),
    )
    inference = LocalInference(network, device=torch.device("cpu"), precision="float32")
    return Policy(inference, columns, torch_generator(0, "policy"), inference.network.family.sample)


def test_actions_are_drawn_with_the_probabilities_of_the_logits() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    actions = CATEGORICAL.sample(probabilities.log().float().expand(20_000, 4), torch_generator(0, "test"))
    counts = np.bincount(actions.numpy(), minlength=4)
    assert chisquare(counts, 20_000 * probabilities.numpy()).pvalue > 1e-3


def test_the_same_generator_gives_the_same_actions() -> None:
    env = registry.make("toy/memory", num_envs=3, seed=0)
    step = env.reset()
    assert torch.equal(make_policy(3).act(step).action, make_policy(3).act(step).action)


def test_the_recurrent_state_is_reset_only_where_an_episode_starts() -> None:
    env = registry.make("toy/memory", num_envs=2, seed=0)
    policy = make_policy(2, lstm_size=8)
    step = env.reset()
    policy.act(step)
    step = env.step(np.zeros(2, dtype=np.int64))
    restarted = EnvStep(*step)._replace(start=np.array([True, False]))
    saved = policy.state_dict()
    continued = policy.act(step).distribution
    policy.load_state_dict(saved)
    begun = policy.act(restarted).distribution
    assert torch.equal(continued[1], begun[1])
    assert not torch.equal(continued[0], begun[0])
