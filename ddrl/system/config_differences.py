"""The configuration keys in which two runs differ, and which of them make another run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl.errors import UserError

NOT_COMPARED = ("recording", "tracking", "checkpoint", "device", "evaluation.period_frames")
"""Keys, or groups of keys, that do not change what is computed."""
EXTENT = ("env_frames", "population.parallel")
"""Keys that say how long a run is and how many members train at once; with other values the same run is continued."""
LEFT_OUT: Mapping[str, Any] = {"topology.env_groups": 1, "topology.acting": "host"}
"""Keys that a written configuration leaves out at this value, as runs from before these keys do."""
MAX_KEYS = 4
"""The number of differing keys that a message lists."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as a flat one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def compared(key: str) -> bool:
    """Return whether two runs that differ in this key are different runs."""
    return not _within(key, NOT_COMPARED)


def differing(ours: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys, sorted, in which two configurations train differently; their lengths do not count."""
    own, other = (flatten(json.loads(json.dumps(values))) for values in (ours, others))
    absent = object()
    keys = sorted(key for key in own.keys() | other.keys() if compared(key) and not _within(key, EXTENT))
    return [key for key in keys if own.get(key, absent) != other.get(key, absent)]


def check_seeds(group: Sequence[tuple[int, Path]]) -> None:
    """Raise UserError where two runs of a group, as seed and directory, have one seed.

    An interval over seeds would count the same evidence twice.
    """
    seeds = [seed for seed, _ in group]
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        names = ", ".join(str(directory) for seed, directory in group if seed == twice[0])
        raise UserError(f"seed {twice[0]} is given twice ({names}); allowed: each seed once in a group")


def spelled(keys: list[str], most: int = MAX_KEYS) -> str:
    """Return the first `most` keys as text, and how many more there are."""
    more = len(keys) - most
    return ", ".join(keys[:most]) + (f" and {more} more" if more > 0 else "")


def _within(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
