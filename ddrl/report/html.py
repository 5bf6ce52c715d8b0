"""The HTML twin of a report, from the same data: figures and styles are part of it, and tables sort with `assets/`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from ddrl.errors import UserError
from ddrl.system.files import read_file

PAGE, INDEX = "report.html.j2", "index.html.j2"
KINDS = {"paper": "Replication report", "suite": "Suite report"}
FEWEST_ROWS = 5
"""Tables with fewer rows do not sort."""
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "min": 60.0, "h": 3600.0, "d": 86_400.0}
"""What the units of a number stand for, where numbers of one column have several."""
_NUMBER = re.compile(r"(?:<\s*)?(?P<value>[+-]?\d[\d\s]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?P<unit>k|M|G|min|h|d)?\b")
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


def html_text(data: Mapping[str, Any], results: Path, root: Path, folder: Path) -> str:
    """Set `reports/report.html.j2` with `data`, as a file of `folder`; it is also well-formed XML.

    Links lead to the tables of `results` and to the scripts of figures below `root`, where these are in the same
    project or below `folder`: no other path of this machine enters a page. Raise `UserError` for a missing figure or
    template.
    """

    def link(path: str, base: Path = results) -> str:
        whole = [place.resolve() for place in (base, folder, root)]
        together = whole[0].is_relative_to(whole[1]) or all(place.is_relative_to(whole[2]) for place in whole)
        return Path(relpath(whole[0] / path, whole[1])).as_posix() if together else ""

    return _rendered(
        root,
        PAGE,
        data=data,
        drawn=lambda block: inline_svg(results / block["path"], f"figure-{block['number']}-"),
        table_link=link,
        script_link=lambda path: link(path, root),
        kind=KINDS[data["kind"]],
    )


def index_text(reports: Sequence[Mapping[str, Any]], root: Path) -> str:
    """Set `reports/index.html.j2` with the data of all reports, each with its `name`."""
    return _rendered(root, INDEX, reports=reports)


def _rendered(root: Path, name: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(root / "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {"flat": flat, "order": order, "said": said}
    environment.filters |= filters
    environment.globals["fewest_rows"] = FEWEST_ROWS
    try:
        return environment.get_template(name).render(**values)
    except TemplateError as error:
        raise UserError(f"{root / 'reports' / name}: {type(error).__name__}: {error}") from None


def inline_svg(path: Path, prefix: str) -> str:
    """Return the element `svg` of a file, with `prefix` before its ids, which are then unique in a page.

    Raise `UserError` where there is no such file.
    """
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; draw the figures first") from None
    return _IDS.sub(rf"\g<1>{prefix}", text[text.index("<svg") :].strip())


def flat(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a table as `place` and title of their `group`, its `note`, and `cells`.

    A cell that spans rows stands in each of them.
    """
    rows, count = [], len(table["columns"])
    for place, group in enumerate(table["groups"]):
        above: list[Any] = []
        for cells in group["rows"]:
            above = [*above[: count - len(cells)], *cells]
            rows.append({"place": place, "group": group["title"], "note": group["note"], "cells": above})
    return rows


def said(cell: Mapping[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(span["text"] for span in cell["spans"])


def order(text: str) -> float | None:
    """Return the first number of a text with its unit (400 k, 3 h), by which a column of numbers is sorted; or None."""
    found = _NUMBER.search(text.replace("−", "-"))
    if found is None:
        return None
    return float(re.sub(r"\s", "", found["value"])) * UNITS.get(found["unit"] or "", 1.0)
