"""Comparison of two texts of a table: words and whole numbers exactly, decimal ones to a tolerance.

Within a sentence a number is one only where it stands alone, as measured numbers are written. What is part of a word,
such as `arXiv:1803.00933`, a DOI or a digest, is compared as the word that it is.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

TOLERANCE = 1e-6
"""Relative. The same curves give the same numbers except for the order of sums (1e-13)."""
ZERO = 1e-16
"""What is smaller equals an exact 0: a sum that is 0 comes out as 1e-17 in another order.

Two numbers that are not 0 are compared relatively, however small they are, so that p-values are. No sum in the
committed evidence that could be 0 is between 0 and 1e-7: the numbers there are p-values and settings.
"""
ROUNDED = 12
"""A number of a sentence with at most so many significant digits was rounded to them: each digit counts."""
_NUMBER = re.compile(
    r"""(?<![^\s(\[{"'“=<>±~|])[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?=[\s,;)\]}%"'”|]|[.:?!](?:\s|$)|$)"""
)
"""A whole number or a decimal one that stands alone. `v2`, `0.12.1`, `abs/1803.00933` and `ac9da51` are words."""
_WHOLE = re.compile(r"[-+−]?\d+(?:,\d{3})*")


def same(before: str, now: str) -> bool:
    """Return whether two texts say the same: equal words and whole numbers, decimal ones to `TOLERANCE`."""
    if before == now:
        return True
    if number(before) is not None and number(now) is not None:
        return _close(before, now)
    if _NUMBER.sub("#", before) != _NUMBER.sub("#", now):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(now), strict=True)
    return all(one == other or _written_alike(one, other) for one, other in pairs)


def _written_alike(before: str, now: str) -> bool:
    """Return whether two numbers of a sentence are close, and equal in all digits that the shorter one has."""
    if not _close(before, now):
        return False
    one, other = _decimal(before), _decimal(now)
    if min(len(one.as_tuple().digits), len(other.as_tuple().digits)) > ROUNDED:
        return True
    place = Decimal(1).scaleb(max(int(one.as_tuple().exponent), int(other.as_tuple().exponent)))
    return one.quantize(place) == other.quantize(place)


def _close(before: str, now: str) -> bool:
    """Return whether two numbers differ by the order of sums at most; whole ones count something, and are equal."""
    a, b = _value(before), _value(now)
    if _WHOLE.fullmatch(before) and _WHOLE.fullmatch(now):
        return a == b
    return math.isclose(a, b, rel_tol=TOLERANCE) or (0 in (a, b) and max(abs(a), abs(b)) < ZERO)


def number(text: str) -> float | None:
    """Return a finite number, or None for any other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _value(text: str) -> float:
    return float(_decimal(text))


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-"))
