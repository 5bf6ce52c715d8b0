"""Text of the reports, as it is compared and committed: every line of the HTML page and of the PDF.

A line of a page is a paragraph, a row of a table, a caption or a heading, and is named by its section. A line of a PDF
is a text object, and is named by its page. Drawings are compared as figures, not here. The digest of the tables, which
a report prints, is left out: the tables are compared themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from ddrl.errors import UserError
from ddrl.regression.pdf_text import text_of
from ddrl.report.suite import SUITE
from ddrl.system.files import read_file
from ddrl.system.text_files import read_json

PAGE, PDF, INDEX = "report_page", "report_pdf", "report_index"
"""Names of the tables: the text of the HTML page, of the PDF, and of the index of all reports."""
DIGEST = "(digest of the tables)"
INLINE = {"a", "br", "code", "em", "small", "span", "strong", "title"}
"""Elements that are part of a line."""
CELLS = {"dd", "dt", "td", "th"}
"""Elements that are part of a line, with a bar before them."""
HIDDEN = {"script", "style"}
Texts = Mapping[str, Mapping[str, Mapping[str, str]]]


def made(name: str, reports: Path, evidence: Path) -> Texts:
    """Return table -> row -> column `text` of the reports on `name` in the folder `reports`; no table without a report.

    `evidence` is the folder with the report data. Raise `UserError` for a report that cannot be read.
    """
    data = evidence / "report.json"
    digest = read_json(data)["origin"]["digest"] if data.exists() else DIGEST
    page, pdf, index = reports / f"{name}.html", reports / f"{name}.pdf", reports / "index.html"
    found = {}
    if page.exists():
        found[PAGE] = page_lines(page)
    if pdf.exists():
        found[PDF] = pdf_lines(pdf)
    if name == SUITE and index.exists():
        found[INDEX] = page_lines(index)
    return {
        table: {row: {"text": text.replace(digest, DIGEST)} for row, text in lines.items()}
        for table, lines in found.items()
    }


def page_lines(path: Path) -> dict[str, str]:
    """Return the lines of an HTML page by `<section> <number>`; what is in no section is in section `top`.

    Raise `UserError` where the page is not well-formed.
    """
    try:
        root = ElementTree.fromstring(read_file(path))
    except ElementTree.ParseError as error:
        raise UserError(f"{path}: is not well-formed: {error}") from None
    parts: dict[str, list[str]] = {"top": []}
    _walk(root, "top", parts)
    lines: dict[str, str] = {}
    for section, texts in parts.items():
        said = (" ".join(line.split()).removeprefix("| ") for line in "".join(texts).split("\n"))
        lines |= {f"{section} {number}": line for number, line in enumerate(filter(None, said), 1)}
    return lines


def _walk(element: ElementTree.Element, section: str, parts: dict[str, list[str]]) -> None:
    """Add the texts below an element to the parts of its section, with a line break around each block."""
    tag = element.tag.rpartition("}")[2]
    if tag in HIDDEN:
        return
    own = element.get("id", section) if tag == "section" else section
    texts = parts.setdefault(own, [])
    around = "" if tag in INLINE else " " if tag in CELLS else "\n"
    texts.append(" | " if tag in CELLS else around)
    if tag == "svg":
        texts += [" ".join((child.text or "").split()) for child in element if child.tag.endswith("title")]
    else:
        texts += [_blanks(element.text), " " if tag == "br" else ""]
        for child in element:
            _walk(child, own, parts)
            texts.append(_blanks(child.tail))
        texts.append(f" ({element.get('title')})" if element.get("title") else "")
    texts.append(around)


def _blanks(text: str | None) -> str:
    """Return a text without line breaks, which mean nothing in HTML."""
    return (text or "").replace("\n", " ")


def pdf_lines(path: Path) -> dict[str, str]:
    """Return the lines of a PDF by `page <number> line <number>`."""
    return {
        f"page {page} line {number}": line
        for page, text in enumerate(text_of(path), 1)
        for number, line in enumerate(filter(None, (" ".join(line.split()) for line in text.split("\n"))), 1)
    }
