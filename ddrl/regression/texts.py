"""Comparison of two texts of a table: words exactly, numbers as numbers, also those within a sentence."""

from __future__ import annotations

import math
import re

TOLERANCE = 1e-6
"""Relative. The same curves give the same numbers except for the order of sums (1e-13)."""
ABSOLUTE = 1e-13
"""Differences below this are none: a sum that is 0 comes out as 1e-17 in another order."""
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w|\.\w)")
"""A whole number or a decimal one. `v2`, `0.12.1` and `ac9da51` are words."""


def same(before: str, now: str) -> bool:
    """Return whether two texts say the same: equal words, and numbers that differ by `TOLERANCE` at most."""
    if before == now:
        return True
    a, b = number(before), number(now)
    if a is not None and b is not None:
        return close(a, b)
    if _NUMBER.sub("#", before) != _NUMBER.sub("#", now):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(now), strict=True)
    return all(one == other or close(_value(one), _value(other)) for one, other in pairs)


def close(a: float, b: float) -> bool:
    """Return whether two numbers differ by the order of sums at most."""
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=ABSOLUTE)


def number(text: str) -> float | None:
    """Return a finite number, or None for any other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _value(text: str) -> float:
    return float(text.replace(",", ""))
