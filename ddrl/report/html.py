"""One HTML file from report data; figures and styles are part of the file, and it loads nothing."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from ddrl.errors import UserError
from ddrl.system.files import read_file

TEMPLATE = "report.html.j2"
KINDS = {"paper": "Replication report", "suite": "Suite report"}


def render(data: dict[str, Any], results: Path, folder: Path) -> str:
    """Return a report as HTML that is also well-formed XML; `folder` holds the template, `results` the figures.

    Raise `UserError` for a missing figure or template.
    """
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def inlined(path: str) -> str:
        try:
            content = read_file(results / path)
        except FileNotFoundError:
            raise UserError(f"{results / path}: no such file; draw the figures first") from None
        return f"data:image/svg+xml;base64,{base64.b64encode(content).decode('ascii')}"

    try:
        template = environment.get_template(TEMPLATE)
        return template.render(data=data, inlined=inlined, kind=KINDS[data["kind"]])
    except TemplateError as error:
        raise UserError(f"{folder / TEMPLATE}: {type(error).__name__}: {error}") from None
