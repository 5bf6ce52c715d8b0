"""Numbers and lists as a reader of the report sees them: pure functions from values to text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

MINUS = "−"
HUGE = 1e15
"""From here on a number has an exponent: no column has room for all digits."""


def number(value: str | float) -> str:
    """About four significant digits, thousands apart, a real minus; empty stays empty."""
    if value == "":
        return ""
    number = float(value)
    size = abs(number)
    if size >= HUGE:
        text = f"{number:.3g}"
    elif size >= 1000:
        text = f"{number:,.0f}".replace(",", "\u202f")
    elif number == int(number):
        text = f"{number:.0f}"
    else:
        text = f"{number:.1f}" if size >= 10 else f"{number:.2f}" if size >= 0.1 else f"{number:.2g}"
    return text.replace("-", MINUS)


def interval(low: str | float, high: str | float) -> str:
    """`[low, high]`."""
    return f"[{number(low)}, {number(high)}]"


def probability(value: str | float) -> str:
    """A p value: two significant digits, and nothing below one in a thousand; empty stays empty."""
    if value == "":
        return ""
    p = float(value)
    return "<\u202f0.001" if p < 0.001 else f"{p:.3f}" if p < 0.01 else f"{p:.2f}"


def equals(name: str, value: str) -> str:
    """`p = 0.02`, `p < 0.001`; empty where there is no value."""
    if not value:
        return ""
    return f"{name}\u00a0{value}" if value.startswith("<") else f"{name}\u00a0=\u00a0{value}"


def percent(value: str | float) -> str:
    """A share as a whole percentage: 0.408 -> 41 %."""
    return "" if value == "" else f"{number(round(100 * float(value)))}\u202f%"


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


def span(values: Iterable[str | float], form: Callable[[float], str]) -> str:
    """One value, or the smallest and the largest: `200 k`, `61 k to 402 k`."""
    found = sorted(float(value) for value in values if value != "")
    if not found:
        return ""
    low, high = form(found[0]), form(found[-1])
    return low if low == high else f"{low} to {high}"


def moment(text: str) -> datetime:
    """A time as a manifest writes it (ISO 8601), in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def counted(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(parts) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def task_name(task: str) -> str:
    """A task as a title: `space_invaders` -> `Space Invaders`; a name with capitals stays as it is."""
    if task != task.lower():
        return words(task)
    return words(task).title().replace("Dmlab", "DMLab").replace(" And ", " and ")


def words(name: str) -> str:
    """A key as words: `not_comparable` -> `not comparable`."""
    return name.replace("_", " ")


def unbroken(text: str) -> str:
    """`Table 2` and `Section 5` stay on one line."""
    for word in ("Table", "Section", "Figure", "Appendix"):
        text = text.replace(f"{word} ", f"{word}\u00a0")
    return text


def sentence(text: str) -> str:
    """`the interval is wide` -> `The interval is wide.`"""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) or not text else ".")


def with_unit(value: str | float, unit: str) -> str:
    """A published value with its unit; a return has none."""
    suffix = {"percent": "\u202f%", "return": "", "": ""}.get(unit, f" {words(unit)}")
    return number(value) + suffix
