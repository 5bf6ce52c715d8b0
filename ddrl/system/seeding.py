"""Random streams named by (run seed, role, index): there is no global generator, and no two roles share a stream."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

from ddrl.types import Array

if TYPE_CHECKING:
    import torch


def seed_for(run_seed: int, role: str, index: int = 0) -> int:
    """Return the seed of a stream, in [0, 2**31): the first 31 bits of a SHA-256."""
    digest = hashlib.sha256(f"{run_seed}/{role}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def numpy_generator(run_seed: int, role: str, index: int = 0) -> np.random.Generator:
    """Return a NumPy generator for a stream."""
    return np.random.Generator(np.random.PCG64(seed_for(run_seed, role, index)))


def torch_generator(run_seed: int, role: str, index: int = 0, device: torch.device | None = None) -> torch.Generator:
    """Return a torch generator for a stream, which draws on `device`; None: the CPU. Devices draw other numbers."""
    import torch  # here, since processes that only step environments need no torch

    return torch.Generator(device or "cpu").manual_seed(seed_for(run_seed, role, index))


def generator_state(generator: np.random.Generator) -> str:
    """Return the state of a NumPy generator as JSON."""
    return json.dumps(generator.bit_generator.state)


def set_generator_state(generator: np.random.Generator, state: str) -> None:
    """Restore a state from `generator_state`."""
    generator.bit_generator.state = json.loads(state)


def mixed(value: Array) -> Array:
    """Apply SplitMix64's step (Steele et al. 2014): a bijection of integers uint64 whose outputs look independent.

    It draws for many environments at once, where a generator for each would cost more than the step.
    """
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Array = value ^ (value >> np.uint64(31))
    return result
