"""Numbers and lists as a reader of the report sees them: pure functions from values to text."""

from __future__ import annotations

from collections.abc import Iterable

MINUS = "−"


def number(value: str | float) -> str:
    """About four significant digits, thousands apart, a real minus; empty stays empty."""
    if value == "":
        return ""
    number = float(value)
    size = abs(number)
    if size >= 1000:
        text = f"{number:,.0f}".replace(",", "\u202f")
    elif number == int(number):
        text = f"{number:.0f}"
    else:
        text = f"{number:.1f}" if size >= 10 else f"{number:.2f}" if size >= 0.1 else f"{number:.2g}"
    return text.replace("-", MINUS)


def interval(low: str | float, high: str | float) -> str:
    """`[low, high]`."""
    return f"[{number(low)}, {number(high)}]"


def frames(value: str | float) -> str:
    """A count of environment frames: 400 k, 1.5 M, 200 M, 2 G."""
    if value == "":
        return ""
    count = float(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}\u202f{name}"
    return f"{count:.0f}"


def ratio(value: float) -> str:
    """A share in per cent with two significant digits."""
    share = 100 * value
    return f"{share:.0f}\u202f%" if share >= 10 else f"{share:.2g}\u202f%"


def duration(seconds: float) -> str:
    """40 s, 12 min, 3 h 20 min, 2 d 4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def counted(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(parts) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def task_name(task: str) -> str:
    """A task as a title: `space_invaders` -> `Space Invaders`."""
    return words(task).title().replace("Dmlab", "DMLab")


def words(name: str) -> str:
    """A key as words: `not_comparable` -> `not comparable`."""
    return name.replace("_", " ")
