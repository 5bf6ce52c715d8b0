"""What the template of all reports makes of a table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import typst

from ddrl.regression.pdf_text import text_of

TEMPLATE = Path(__file__).parents[2] / "reports" / "template.typ"
SOURCE = """
#import "template.typ": booktabs
#set page(width: 230pt, height: auto, margin: 10pt)
#booktabs(json("table.json"))
"""


def typeset(folder: Path, *cells: str) -> list[str]:
    """Set one row in columns of 70 pt; return the lines of the page."""
    columns = [{"title": f"C{number}", "width": "1fr", "align": "left"} for number in range(len(cells))]
    row = [{"rowspan": 1, "spans": [{"style": "", "text": text}]} for text in cells]
    groups = [{"title": "", "note": "", "rows": [row]}]
    shutil.copy(TEMPLATE, folder)
    (folder / "table.json").write_text(json.dumps({"size": 8, "ruled": False, "columns": columns, "groups": groups}))
    (folder / "page.typ").write_text(SOURCE)
    (folder / "page.pdf").write_bytes(typst.compile(folder / "page.typ", root=folder))
    (page,) = text_of(folder / "page.pdf")
    return page.replace("\u200b", "").split()


def test_a_name_that_is_wider_than_its_column_breaks_between_its_words(tmp_path: Path) -> None:
    lines = typeset(tmp_path, "InvertedDoublePendulum-v4", "8,990", "4,634")
    assert "InvertedDoublePendulum" in "".join(lines)
    assert "InvertedDoublePendulum" not in " ".join(lines)


def test_a_name_that_fits_stays_whole(tmp_path: Path) -> None:
    assert typeset(tmp_path, "HalfCheetah-v4", "8,990", "4,634")[3:5] == ["HalfCheetah-v4", "8,990"]
