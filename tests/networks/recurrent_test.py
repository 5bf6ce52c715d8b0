"""The LSTM against torch's own, and its resets against separate runs."""

from __future__ import annotations

import torch
from torch import nn

from ddrl.networks.recurrent import ResettingLSTM

T, B, F, H = 6, 3, 5, 4


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lstm() -> ResettingLSTM:
    return ResettingLSTM(F, H, generator(0))


def inputs() -> torch.Tensor:
    return torch.randn(T, B, F, generator=generator(1))


def state() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(B, H, generator=generator(2)), torch.randn(B, H, generator=generator(3))


NEVER = torch.zeros(T, B, dtype=torch.bool)


def test_without_resets_it_is_torchs_lstm() -> None:
    ours, reference = lstm(), nn.LSTM(F, H)
    with torch.no_grad():
        for name, value in (
            ("weight_ih_l0", ours.input_weight),
            ("weight_hh_l0", ours.state_weight),
            ("bias_ih_l0", ours.bias),
            ("bias_hh_l0", torch.zeros(4 * H)),
        ):
            getattr(reference, name).copy_(value)
    hidden, cell = state()
    expected, (last_hidden, last_cell) = reference(inputs(), (hidden[None], cell[None]))
    outputs, after = ours(inputs(), NEVER, (hidden, cell))
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, (last_hidden[0], last_cell[0]))


def test_a_reset_equals_two_separate_runs() -> None:
    core, x, k = lstm(), inputs(), 4
    start = NEVER.clone()
    start[k, 1] = True
    outputs, after = core(x, start, state())
    unbroken, after_unbroken = core(x, NEVER, state())
    fresh, after_fresh = core(x[k:], NEVER[k:], core.initial_state(B))
    torch.testing.assert_close(outputs[:, [0, 2]], unbroken[:, [0, 2]], rtol=0, atol=0)
    torch.testing.assert_close(outputs[:k, 1], unbroken[:k, 1], rtol=0, atol=0)
    torch.testing.assert_close(outputs[k:, 1], fresh[:, 1])
    torch.testing.assert_close(after[1][1], after_fresh[1][1])
    torch.testing.assert_close(after[1][0], after_unbroken[1][0])


def test_no_gradient_crosses_a_reset() -> None:
    core, x, k = lstm(), inputs().requires_grad_(), 3
    start = NEVER.clone()
    start[k] = True
    outputs, _ = core(x, start, state())
    outputs[k:].sum().backward()
    assert x.grad is not None
    assert not x.grad[:k].any()
    assert x.grad[k:].any()


def test_the_forget_gate_starts_open_and_other_biases_at_zero() -> None:
    assert lstm().bias.tolist() == [0.0] * H + [1.0] * H + [0.0] * (2 * H)


def test_there_is_one_bias_per_gate_as_in_the_authors_cell() -> None:
    assert sum(parameter.numel() for parameter in lstm().parameters()) == 4 * H * (F + H + 1)
