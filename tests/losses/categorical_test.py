"""The projection onto the atoms by hand and again in slow NumPy; cross entropy, divergence and mean by loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.losses.categorical import cross_entropy, divergence, mean_return, projection
from ddrl.types import Array


def slow_projection(probabilities: Array, returns: Array, scale: Array, v_min: float, v_max: float) -> Array:
    """One atom at a time: the share of target atom i of a shifted atom is 1 - distance / width, at least 0."""
    batch, num_atoms = probabilities.shape
    width = (v_max - v_min) / (num_atoms - 1)
    found = np.zeros((batch, num_atoms))
    for b in range(batch):
        for j in range(num_atoms):
            moved = min(max(returns[b] + scale[b] * (v_min + j * width), v_min), v_max)
            for i in range(num_atoms):
                found[b, i] += probabilities[b, j] * max(0.0, 1.0 - abs(moved - (v_min + i * width)) / width)
    return found


def by_hand(returns: float, scale: float) -> list[float]:
    """Of probabilities 1/2, 1/3, 1/6 on the atoms 0, 1, 2."""
    inputs = torch.tensor([[1 / 2, 1 / 3, 1 / 6]]), torch.tensor([returns]), torch.tensor([scale])
    found: list[float] = projection(*inputs, v_min=0.0, v_max=2.0)[0].tolist()
    return found


def test_a_shifted_atom_is_shared_by_its_neighbours_the_nearer_one_gets_more() -> None:
    # Atoms at 0.25, 0.75, 1.25: three quarters of 1/2, a quarter of 1/3 fall on 0; three quarters of 1/6 on 1.
    assert by_hand(0.25, 0.5) == pytest.approx([3 / 8 + 1 / 12, 1 / 8 + 1 / 4 + 1 / 8, 1 / 24])


def test_what_is_beyond_the_ends_falls_on_them() -> None:
    assert by_hand(1.5, 1.0) == pytest.approx([0.0, 1 / 4, 1 / 4 + 1 / 3 + 1 / 6])
    assert by_hand(-5.0, 1.0) == pytest.approx([1.0, 0.0, 0.0])
    assert by_hand(9.0, 1.0) == pytest.approx([0.0, 0.0, 1.0])


def test_after_a_terminal_state_the_return_is_the_reward() -> None:
    assert by_hand(1.0, 0.0) == pytest.approx([0.0, 1.0, 0.0])
    assert by_hand(1.25, 0.0) == pytest.approx([0.0, 0.75, 0.25])


def test_a_distribution_that_is_not_moved_stays() -> None:
    assert by_hand(0.0, 1.0) == pytest.approx([1 / 2, 1 / 3, 1 / 6])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(2, 60), st.floats(-200.0, 50.0), st.floats(0.1, 300.0), st.floats(0.0, 1.0))
def test_the_projection_is_that_of_the_loops_keeps_the_sum_and_without_cuts_the_mean(
    seed: int, num_atoms: int, v_min: float, width: float, scale: float
) -> None:
    generator, v_max = np.random.default_rng(seed), v_min + width
    probabilities = generator.dirichlet(np.ones(num_atoms), 5)
    returns = generator.uniform(v_min - width, v_max + width, 5)
    scales = np.full(5, scale)
    inputs = (torch.from_numpy(part).float() for part in (probabilities, returns, scales))
    found = projection(*inputs, v_min=v_min, v_max=v_max).numpy()
    np.testing.assert_allclose(found, slow_projection(probabilities, returns, scales, v_min, v_max), atol=2e-3)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
    assert (found >= 0).all()
    atoms = np.linspace(v_min, v_max, num_atoms)
    moved = returns[:, None] + scale * atoms
    uncut = (moved.min(axis=1) >= v_min) & (moved.max(axis=1) <= v_max)
    np.testing.assert_allclose((found @ atoms)[uncut], (probabilities * moved).sum(axis=1)[uncut], atol=2e-3 * width)


def test_each_row_is_projected_by_itself() -> None:
    probabilities = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    found = projection(probabilities, torch.tensor([1.0, -1.0]), torch.tensor([1.0, 0.5]), 0.0, 2.0)
    assert found.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


TARGET = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
LOGITS = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]])


def test_cross_entropy_and_divergence_are_their_sums() -> None:
    for row in range(2):
        powers = [math.exp(logit) for logit in LOGITS[row].tolist()]
        log_q = [math.log(power / sum(powers)) for power in powers]
        p = TARGET[row].tolist()
        expected = -sum(a * b for a, b in zip(p, log_q, strict=True))
        entropy = -sum(a * math.log(a) for a in p if a)
        assert cross_entropy(TARGET, LOGITS)[row].item() == pytest.approx(expected, rel=1e-5)
        assert divergence(TARGET, LOGITS)[row].item() == pytest.approx(expected - entropy, rel=1e-5)


def test_the_divergence_of_equal_distributions_is_0_and_never_less() -> None:
    logits = torch.randn((200, 51), generator=torch.Generator().manual_seed(0))
    found = divergence(logits.softmax(dim=-1), logits)
    assert float(found.min()) >= 0.0
    assert float(found.max()) < 1e-5


def test_the_mean_weighs_atoms_that_are_equally_far_apart() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(0.2), math.log(0.3), math.log(0.5)]])
    assert mean_return(logits, -3.0, 5.0).tolist() == pytest.approx([1.0, -3 * 0.2 + 1 * 0.3 + 5 * 0.5])
