"""Words around numbers, and texts of any length in one short line."""

from __future__ import annotations

LONGEST = 160
"""Letters of an error or a value that one line shows."""


def counted(number: int, word: str) -> str:
    """Return a number with its word, in the plural unless it is one: `1 run`, `2,000 runs`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def shortened(text: object, most: int = LONGEST) -> str:
    """Return a text in one line of at most `most` letters; dots stand for what is left out."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."
