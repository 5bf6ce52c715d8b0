"""Lists, names and sentences as a report prints them."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """Return `1 seed` or `3 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(parts: Iterable[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    *first, last = list(parts) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def seeds_listed(seeds: Iterable[int]) -> str:
    """Return distinct seeds in order, three or more in a row by their ends: `1, 2, 5 to 9 and 12`."""
    rows: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if rows and seed == rows[-1][-1] + 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    return listed(part for row in rows for part in ([f"{row[0]} to {row[-1]}"] if len(row) > 2 else map(str, row)))


def task_name(task: str) -> str:
    """Return a task as a title: `space_invaders` -> `Space Invaders`. A name with capitals keeps them."""
    if task != task.lower():
        return words(task)
    return words(task).title().replace("Dmlab", "DMLab").replace(" And ", " and ")


def words(name: str) -> str:
    """Return a key as words: `not_comparable` -> `not comparable`."""
    return name.replace("_", " ")


def unbroken(text: str) -> str:
    """Replace the blank in `Table 2`, `Section 5` and the like by one at which no line breaks."""
    for word in ("Table", "Section", "Figure", "Appendix"):
        text = text.replace(f"{word} ", f"{word}\u00a0")
    return text


def sentence(text: str) -> str:
    """Return `The interval is wide.` for `the interval is wide`."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) or not text else ".")
