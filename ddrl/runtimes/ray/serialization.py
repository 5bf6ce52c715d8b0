"""Conversion of messages to NumPy arrays, which Ray puts into its object store and which are read there in place."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np


class Packed(NamedTuple):
    """A dataclass."""

    kind: type
    fields: dict[str, Any]


def to_arrays(sent: Any) -> Any:
    """Replace tensors by arrays that share their memory, also within tuples, lists, dicts and dataclasses."""
    import torch  # not in processes that only step environments

    if isinstance(sent, torch.Tensor):
        return sent.cpu().numpy()
    if is_dataclass(sent) and not isinstance(sent, type):
        return Packed(type(sent), {field.name: to_arrays(getattr(sent, field.name)) for field in fields(sent)})
    return _with_parts(to_arrays, sent)


def from_arrays(arrays: Any) -> Any:
    """Undo `to_arrays`. The tensors share the arrays' memory, which is read-only in the object store."""
    if isinstance(arrays, np.ndarray):
        import torch  # not in processes that only step environments

        return torch.from_numpy(arrays)
    if isinstance(arrays, Packed):
        return arrays.kind(**_with_parts(from_arrays, arrays.fields))
    return _with_parts(from_arrays, arrays)


def _with_parts(convert: Callable[[Any], Any], container: Any) -> Any:
    """Return a tuple, list or dict with its parts converted, and anything else as it is."""
    if isinstance(container, tuple):
        return tuple(convert(part) for part in container)
    if isinstance(container, list):
        return [convert(part) for part in container]
    if isinstance(container, dict):
        return {name: convert(part) for name, part in container.items()}
    return container


def prepare_process() -> None:
    """Use one thread of torch, and show no warning that arrays are read-only: they are never written to.

    Called when the modules of the process have been imported, with torch where they need it.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
