"""Tables and texts in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return a Markdown table; the columns numbered in `right` are aligned to the right."""
    rules = ["--:" if number in right else "---" for number in range(len(titles))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rules, *map(_escaped, rows)))


def _escaped(row: Sequence[str]) -> list[str]:
    return [" ".join(text.split()).replace("|", "\\|") for text in row]


def code(text: str) -> str:
    """Return a text as inline code; an empty one stays empty."""
    return f"`{text}`" if text else ""


def plain(text: str) -> str:
    """Return a text in which Markdown finds no marks."""
    for mark in "\\`*_<[$":
        text = text.replace(mark, f"\\{mark}")
    return text
