"""The language channel of IMPALA's networks (Espeholt et al. 2018, Figure 3): encodes an instruction as one vector.

Layers and initialisation: google-deepmind/scalable_agent, experiment.py, `_instruction`, with dm-sonnet 1.23, which its
Dockerfile pins.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.networks.recurrent import ResettingLSTM
from ddrl.system.instruction_words import BUCKETS, unpack
from ddrl.types import EnvSpec

EMBEDDING_SIZE = 20
LSTM_SIZE = 64


class InstructionChannel(nn.Module):
    """Unpacks observations (`ddrl.system.instruction_words`) into images and words, and encodes the words.

    Embeddings start truncated-normal with standard deviation 1/sqrt(BUCKETS), `snt.Embed`'s default in that version
    (later ones start at deviation 1); the LSTM as `ResettingLSTM` says.
    """

    def __init__(self, image_shape: tuple[int, int, int], generator: torch.Generator) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.size = LSTM_SIZE
        deviation = 1.0 / math.sqrt(BUCKETS)
        self.embedding = nn.Parameter(torch.empty(BUCKETS, EMBEDDING_SIZE))
        nn.init.trunc_normal_(self.embedding, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        self.core = ResettingLSTM(EMBEDDING_SIZE, LSTM_SIZE, generator)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return images [N, C, H, W] uint8 and vectors [N, 64] float32 of packed observations [N, n] uint8."""
        image, words = unpack(observation, self.image_shape)
        # An instruction stays the same for an episode, and most tasks have none: a batch holds few different ones.
        distinct, rows = torch.unique(words, dim=0, return_inverse=True)
        return image, self.encode(distinct)[rows]

    def encode(self, words: Tensor) -> Tensor:
        """Return the LSTM's output [N, 64] after the last word; zeros if there is none.

        Words [N, W] are int64; zeros follow the words of an instruction.
        """
        count, lengths = words.shape[0], (words > 0).sum(dim=1)
        words = words[:, : max(1, int(lengths.max()))]
        # Padding is embedded as word 1, but the outputs that depend on it are never used.
        embedded = F.embedding((words - 1).clamp(min=0), self.embedding).transpose(0, 1)
        start = torch.zeros(embedded.shape[:2], dtype=torch.bool, device=words.device)
        outputs, _ = self.core(embedded, start, self.core.initial_state(count))
        last: Tensor = outputs[(lengths - 1).clamp(min=0), torch.arange(count, device=words.device)]
        return last * (lengths > 0).unsqueeze(-1)


def instruction_channel(spec: EnvSpec, generator: torch.Generator) -> InstructionChannel | None:
    """Return the encoder of the instructions of `spec`; None if its observations hold none."""
    if spec.image_shape is None or spec.vector_size:
        return None
    return InstructionChannel(spec.image_shape, generator)


def as_seen_by_torso(spec: EnvSpec) -> EnvSpec:
    """Return `spec` with the image as its only observation; unchanged if nothing is packed with an image."""
    if spec.image_shape is None:
        return spec
    return replace(spec, observation_shape=spec.image_shape, image_shape=None, vector_size=0)
