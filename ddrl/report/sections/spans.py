"""Styled text in a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Span:
    """A piece of text; `kind` is the verdict of a tag, or the title of what is shown on demand (more).

    Styles: none (empty), strong, emphasis, small, code, key, link, tag, break, more.
    """

    text: str
    style: str = ""
    kind: str = ""


Inline = tuple[Span, ...]
BREAK = Span("", "break")


def _styled(text: str, style: str) -> Inline:
    """Return one span of text; none for an empty text."""
    return (Span(text, style),) if text else ()


plain = partial(_styled, style="")
strong = partial(_styled, style="strong")
small = partial(_styled, style="small")
code = partial(_styled, style="code")


def tag(kind: str, text: str) -> Inline:
    """Return a word on the colour of a verdict."""
    return (Span(text, "tag", kind),)


def more(title: str, text: str) -> Inline:
    """Return what the page shows on demand under a title, and the PDF leaves to the files of the results."""
    return (Span(text, "more", title),)


def joined(parts: Iterable[Inline], between: Inline = (BREAK,)) -> Inline:
    """Return the parts that are not empty, with `between` between them."""
    found: list[Span] = []
    for part in filter(None, parts):
        found += [*(between if found else ()), *part]
    return tuple(found)
