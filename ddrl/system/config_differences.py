"""What makes two runs different ones: keys of their configurations. No torch here, and nothing of the analysis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

NOT_COMPARED = ("recording", "checkpoint", "device", "evaluation.period_frames")
"""Keys, or what they begin with, that say how often something is recorded or where it is computed, and no more."""
EXTENT = ("env_frames", "population.parallel")
"""Keys that say how long a run is, and how many members train at once: with others the same run goes on."""
MAX_KEYS = 4
"""So many differing keys are spelled out in one line."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def compared(key: str) -> bool:
    """Whether two runs that differ in this key are different runs."""
    return not _within(key, NOT_COMPARED)


def differing(ours: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """The dotted keys, sorted, in which two configurations would not train the same, however long each is."""
    own, other = (flatten(json.loads(json.dumps(values))) for values in (ours, others))
    absent = object()
    keys = sorted(key for key in own.keys() | other.keys() if compared(key) and not _within(key, EXTENT))
    return [key for key in keys if own.get(key, absent) != other.get(key, absent)]


def spelled(keys: list[str]) -> str:
    """The first few of them."""
    more = len(keys) - MAX_KEYS
    return ", ".join(keys[:MAX_KEYS]) + (f" and {more} more" if more > 0 else "")


def _within(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
