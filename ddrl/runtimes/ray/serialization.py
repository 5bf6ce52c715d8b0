"""What processes of runtime `ray` send, as arrays: Ray puts these into its object store, and they are read in place."""

from __future__ import annotations

import sys
import warnings
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np


class Packed(NamedTuple):
    """A dataclass."""

    kind: type
    fields: dict[str, Any]


def to_arrays(sent: Any) -> Any:
    """A dataclass, and those within, whose tensors (also in tuples, lists and dicts) are arrays that share memory."""
    import torch  # not by who steps environments alone

    if isinstance(sent, torch.Tensor):
        return sent.cpu().numpy()
    if isinstance(sent, tuple):
        return tuple(to_arrays(part) for part in sent)
    if isinstance(sent, list):
        return [to_arrays(part) for part in sent]
    if isinstance(sent, dict):
        return {name: to_arrays(part) for name, part in sent.items()}
    if is_dataclass(sent) and not isinstance(sent, type):
        return Packed(type(sent), {field.name: to_arrays(getattr(sent, field.name)) for field in fields(sent)})
    return sent


def from_arrays(arrays: Any) -> Any:
    """What `to_arrays` was given, sharing memory: read-only where it lies in the object store."""
    if isinstance(arrays, np.ndarray):
        import torch  # not by who steps environments alone

        return torch.from_numpy(arrays)
    if isinstance(arrays, Packed):
        return arrays.kind(**{name: from_arrays(value) for name, value in arrays.fields.items()})
    if isinstance(arrays, tuple):
        return tuple(from_arrays(part) for part in arrays)
    if isinstance(arrays, list):
        return [from_arrays(part) for part in arrays]
    if isinstance(arrays, dict):
        return {name: from_arrays(part) for name, part in arrays.items()}
    return arrays


def prepare_process() -> None:
    """For a process that gets such arrays: no warning that they are not to be written to, and one thread of torch.

    Called when what the process is made of has been imported, with torch where that needs it.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to them
