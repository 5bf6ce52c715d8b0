"""The way of tensors between processes of Ray: as NumPy arrays, which it puts into shared memory and reads in place."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from ray.util import register_serializer

if TYPE_CHECKING:  # processes that only step environments need no torch
    import torch


def prepare_process() -> None:
    """Use one thread of torch, and send tensors as arrays; those that come are read-only, and are never written to.

    Called when the modules of the process have been imported, with torch where they need it.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        register_serializer(torch.Tensor, serializer=_to_array, deserializer=_to_tensor)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")


def _to_array(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy()


def _to_tensor(array: Any) -> torch.Tensor:
    import torch

    return torch.from_numpy(array)
