"""Words around numbers."""

from __future__ import annotations


def counted(number: int, word: str) -> str:
    """Return a number with its word, in the plural unless it is one: `1 run`, `2,000 runs`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
