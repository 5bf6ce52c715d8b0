"""Numbers, times and units as a report prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from ddrl.report.sections.text import words

MINUS = "−"
HUGE = 1e15
"""Numbers from here on are printed with an exponent: no column has room for all digits."""


def number(value: str | float) -> str:
    """Return a number with about four significant digits, spaced thousands and a real minus; an empty text for none."""
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
    """Return `[low, high]`."""
    return f"[{number(low)}, {number(high)}]"


def probability(value: str | float) -> str:
    """Return a p value with two significant digits, or `< 0.001`; an empty text for none."""
    if value == "":
        return ""
    p = float(value)
    return "<\u202f0.001" if p < 0.001 else f"{p:.3f}" if p < 0.01 else f"{p:.2f}"


def equals(name: str, value: str) -> str:
    """Return `p = 0.02` or `p < 0.001`; an empty text where there is no value."""
    if not value:
        return ""
    return f"{name}\u00a0{value}" if value.startswith("<") else f"{name}\u00a0=\u00a0{value}"


def p_value(name: str, p: str, holm: str = "") -> str:
    """Return `p = 0.02 (Holm 0.04)`: a p value, and the same after Holm's correction; empty where there is no p."""
    stated, corrected = equals(name, probability(p)), probability(holm)
    return f"{stated} (Holm {corrected})" if stated and corrected else stated


def percent(value: str | float) -> str:
    """Return a share as a whole percentage: 0.408 -> 41 %."""
    return "" if value == "" else f"{number(round(100 * float(value)))}\u202f%"


def frames(value: str | float) -> str:
    """Return a count of environment frames with a unit: 400 k, 1.5 M, 200 M, 2 G."""
    if value == "":
        return ""
    count = float(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}\u202f{name}"
    return f"{count:.0f}"


def ratio(value: float) -> str:
    """Return a share in per cent with two significant digits."""
    share = 100 * value
    return f"{share:.0f}\u202f%" if share >= 10 else f"{share:.2g}\u202f%"


def duration(value: str | float) -> str:
    """Return a time in seconds as 40 s, 12 min, 3 h 20 min or 2 d 4 h."""
    seconds = float(value)
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
    """Return the one value, or the smallest and the largest: `200 k`, `61 k to 402 k`."""
    found = sorted(float(value) for value in values if value != "")
    if not found:
        return ""
    return " to ".join(dict.fromkeys((form(found[0]), form(found[-1]))))


def moment(text: str) -> datetime:
    """Parse a time as manifests write it (ISO 8601) and convert it to UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def with_unit(value: str | float, unit: str) -> str:
    """Return a published value with its unit; a return has none."""
    suffix = {"percent": "\u202f%", "return": "", "": ""}.get(unit, f" {words(unit)}")
    return number(value) + suffix
