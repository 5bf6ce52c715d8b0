"""What actors in other processes send, as arrays: Ray puts these into its object store, and they are read in place."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from ddrl.types import Experience, Unroll


def to_arrays(sent: Unroll | Experience) -> dict[str, Any]:
    """Field -> array (a tuple of them for recurrent states, a mapping for an unroll within), sharing memory."""
    arrays: dict[str, Any] = {}
    for field in fields(sent):
        value = getattr(sent, field.name)
        if isinstance(value, Unroll):
            arrays[field.name] = to_arrays(value)
        else:
            arrays[field.name] = value.numpy() if isinstance(value, torch.Tensor) else tuple(p.numpy() for p in value)
    return arrays


def from_arrays(arrays: dict[str, Any]) -> Unroll | Experience:
    """What `to_arrays` was given, sharing memory: read-only where it lies in the object store."""
    parts: dict[str, Any] = {}
    for name, value in arrays.items():
        if isinstance(value, dict):
            parts[name] = from_arrays(value)
        else:
            one = not isinstance(value, tuple)
            parts[name] = torch.from_numpy(value) if one else tuple(torch.from_numpy(part) for part in value)
    return Experience(**parts) if "unroll" in parts else Unroll(**parts)
