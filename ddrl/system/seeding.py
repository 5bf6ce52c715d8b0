"""Every random stream is named by (run seed, role, index): no global generator, no stream shared by two roles."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def seed_for(run_seed: int, role: str, index: int = 0) -> int:
    """A seed in [0, 2**31) for one stream, independent between roles and indices (first 31 bits of SHA-256)."""
    digest = hashlib.sha256(f"{run_seed}/{role}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def numpy_generator(run_seed: int, role: str, index: int = 0) -> np.random.Generator:
    """An independent NumPy generator for one stream."""
    return np.random.Generator(np.random.PCG64(seed_for(run_seed, role, index)))


def torch_generator(run_seed: int, role: str, index: int = 0, device: str = "cpu") -> torch.Generator:
    """An independent torch generator for one stream."""
    import torch  # not by who steps environments alone

    return torch.Generator(device=device).manual_seed(seed_for(run_seed, role, index))


def generator_state(generator: np.random.Generator) -> str:
    """Where a NumPy generator stands, as JSON."""
    return json.dumps(generator.bit_generator.state)


def set_generator_state(generator: np.random.Generator, state: str) -> None:
    """Continues where `state` was taken."""
    generator.bit_generator.state = json.loads(state)
