"""The precision in which networks compute."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return a context in which networks on `device` compute in `precision`, float32 or bfloat16.

    In float32 there is nothing to set, and torch's own context would cost as much as a small layer.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
