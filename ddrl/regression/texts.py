"""Comparison of two texts of a table: words and whole numbers exactly, decimal ones to a tolerance."""

from __future__ import annotations

import math
import re

TOLERANCE = 1e-6
"""Relative. The same curves give the same numbers except for the order of sums (1e-13)."""
ABSOLUTE = 1e-13
"""Differences below this are none: a sum that is 0 comes out as 1e-17 in another order."""
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w|\.\w)")
"""A whole number or a decimal one. `v2`, `0.12.1` and `ac9da51` are words."""
_WHOLE = re.compile(r"[-+]?\d+(?:,\d{3})*")


def same(before: str, now: str) -> bool:
    """Return whether two texts say the same: equal words and whole numbers, decimal ones to `TOLERANCE`."""
    if before == now:
        return True
    if number(before) is not None and number(now) is not None:
        return _close(before, now)
    if _NUMBER.sub("#", before) != _NUMBER.sub("#", now):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(now), strict=True)
    return all(one == other or _close(one, other) for one, other in pairs)


def _close(before: str, now: str) -> bool:
    """Return whether two numbers differ by the order of sums at most; whole ones count something, and are equal."""
    a, b = _value(before), _value(now)
    if _WHOLE.fullmatch(before) and _WHOLE.fullmatch(now):
        return a == b
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
