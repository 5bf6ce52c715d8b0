"""A time-major LSTM whose state is set to zero where an episode starts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.types import RecurrentState


class ResettingLSTM(nn.Module):
    """LSTM with one bias per gate, as TensorFlow's `LSTMBlockCell` in IMPALA's code (torch's LSTM has two).

    As that cell by default, weights start Glorot-uniform over the joint kernel [4 size, inputs + size] and biases at 0,
    but the forget gate's at 1.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size = size
        bound = math.sqrt(6.0 / (inputs + size + 4 * size))
        # Gate order: input, forget, cell, output.
        self.input_weight = nn.Parameter(torch.empty(4 * size, inputs).uniform_(-bound, bound, generator=generator))
        self.state_weight = nn.Parameter(torch.empty(4 * size, size).uniform_(-bound, bound, generator=generator))
        bias = torch.zeros(4, size)
        bias[1] = 1.0
        self.bias = nn.Parameter(bias.flatten())

    def forward(self, inputs: Tensor, start: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return outputs [T, B, size] and the next state; inputs [T, B, F], start [T, B] bool, state 2 x [B, size]."""
        hidden, cell = state
        # Project all inputs in one product; only the recurrent projection depends on the step before.
        projected = F.linear(inputs, self.input_weight, self.bias)
        keep = (~start).unsqueeze(-1).to(torch.float32)
        outputs = []
        for t in range(inputs.shape[0]):
            hidden, cell = hidden * keep[t], cell * keep[t]
            gates = projected[t] + F.linear(hidden, self.state_weight)
            entry, forget, candidate, exit_ = gates.float().chunk(4, dim=-1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(candidate)
            hidden = torch.sigmoid(exit_) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs), (hidden, cell)

    def initial_state(self, batch_size: int) -> RecurrentState:
        """Return zeros (hidden, cell), each [batch_size, size], on the weights' device."""
        zeros = torch.zeros(batch_size, self.size, device=self.bias.device)
        return (zeros, zeros.clone())
