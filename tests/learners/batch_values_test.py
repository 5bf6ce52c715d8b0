"""What a learner computes before it learns: in pieces as in one go, and over several learners as over one."""

from __future__ import annotations

import pytest
import torch

from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.batch_values import evaluate, explained_variance, normalised
from ddrl.networks.actor_critic import ActorCritic
from ddrl.types import EnvSpec
from tests.unrolls import make_unroll

ALONE = SingleLearner()


class Peers:
    """Adds what the other learners have, as an all-reduce would."""

    rank = 0
    size = 2

    def __init__(self, others: torch.Tensor) -> None:
        self.others = others

    def sum_(self, tensors: list[torch.Tensor]) -> None:
        sums = [float(len(self.others)), float(self.others.sum()), float(self.others.square().sum())]
        tensors[0].add_(torch.tensor(sums))


@pytest.mark.parametrize("piece_steps", [1, 8, 10_000])
def test_pieces_give_what_the_whole_gives(piece_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("toy/test", (4,), "float32", 3, 1, "test")
    network = ActorCritic(spec, network="mlp", generator=torch.Generator().manual_seed(0))
    batch = make_unroll(length=3, columns=5)
    monkeypatch.setattr(network, "piece_steps", piece_steps)
    found = evaluate(network, batch, "float32")
    whole = network(batch.observation, batch.last_action, batch.last_reward, batch.start, ())
    torch.testing.assert_close(found.distribution, whole.distribution)
    torch.testing.assert_close(found.value, whole.value)
    assert not found.value.requires_grad


@pytest.mark.parametrize(("piece_steps", "expected"), [(3, [1] * 6), (7, [2, 1, 1, 2]), (8, [2] * 3), (24, [6])])
def test_there_are_as_many_pieces_as_the_observations_fill_but_no_column_is_divided(
    piece_steps: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of 3 steps has 4 observations; 24 are in the batch."""
    spec = EnvSpec("toy/test", (4,), "float32", 3, 1, "test")
    network = ActorCritic(spec, network="mlp", generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(network, "piece_steps", piece_steps)
    columns: list[int] = []
    network.register_forward_pre_hook(lambda _, inputs: columns.append(inputs[0].shape[1]))
    evaluate(network, make_unroll(length=3, columns=6), "float32")
    assert columns == expected


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_valid_steps() -> None:
    advantages, valid = torch.tensor([[1.0, 2.0], [3.0, 100.0]]), torch.tensor([[True, True], [True, False]])
    found = normalised(advantages, ALONE, valid)
    assert float(found[valid].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(found[valid].std(correction=0)) == pytest.approx(1.0, rel=1e-5)
    assert float(found[1, 1]) == 0.0


def test_two_learners_normalise_as_one_with_both_their_steps() -> None:
    mine, theirs = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([-3.0, 10.0])
    together = normalised(torch.cat([mine, theirs]), ALONE)
    torch.testing.assert_close(normalised(mine, Peers(theirs)), together[:3])


def test_equal_advantages_become_zero() -> None:
    assert torch.equal(normalised(torch.full((4,), 2.5), ALONE), torch.zeros(4))


def test_a_single_step_becomes_zero() -> None:
    assert float(normalised(torch.tensor([[2.5]]), ALONE)) == 0.0
    advantages, valid = torch.tensor([[2.5, 7.0]]), torch.tensor([[True, False]])
    assert torch.equal(normalised(advantages, ALONE, valid), torch.zeros(1, 2))


def test_a_deviation_as_small_as_epsilon_is_divided_by_twice_as_much() -> None:
    advantages = torch.tensor([-1e-8, 1e-8])
    torch.testing.assert_close(normalised(advantages, ALONE), torch.tensor([-0.5, 0.5]))


def test_explained_variance_is_one_for_a_perfect_fit_and_zero_for_a_constant() -> None:
    targets = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(torch.full((3,), 7.0), targets) == 0.0
    assert explained_variance(targets, torch.ones(3)) == 0.0
