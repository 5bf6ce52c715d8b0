"""How tables of a page sort, how cells that span rows become flat, and how DataTables becomes a classic script."""

from __future__ import annotations

from typing import Any

import pytest

from ddrl.errors import UserError
from ddrl.report.assets import classic
from ddrl.report.html import flat, inline_svg, order


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("−20.7", -20.7),
        ("43\u202f596", 43_596.0),
        ("400\u202fk", 400_000.0),
        ("1.5\u202fM", 1_500_000.0),
        ("12 min", 720.0),
        ("3 h 20 min", 10_800.0),
        ("41\u202f%", 41.0),
        ("<\u202f0.001", 0.001),
        ("5 [1, 9]", 5.0),
        ("below 15", 15.0),
        ("–", None),
        ("", None),
    ],
)
def test_a_number_sorts_by_its_value_with_its_unit(text: str, number: float | None) -> None:
    assert order(text) == number


def test_a_cell_that_spans_rows_stands_in_each_of_them() -> None:
    def cell(text: str) -> dict[str, Any]:
        return {"spans": [{"text": text}]}

    groups = [{"title": "G", "note": "n", "rows": [[cell("claim"), cell("1")], [cell("2")]]}]
    rows = flat({"columns": [{}, {}], "groups": groups})
    assert [[part["spans"][0]["text"] for part in row["cells"]] for row in rows] == [["claim", "1"], ["claim", "2"]]
    assert {(row["place"], row["group"], row["note"]) for row in rows} == {(0, "G", "n")}


def test_two_figures_of_a_page_share_no_id(tmp_path: Any) -> None:
    path = tmp_path / "a.svg"
    path.write_text('<?xml version="1.0"?>\n<svg><path id="p"/><use href="#p" clip-path="url(#c)"/></svg>\n')
    assert inline_svg(path, "f1-") == '<svg><path id="f1-p"/><use href="#f1-p" clip-path="url(#f1-c)"/></svg>'
    with pytest.raises(UserError, match="draw the figures first"):
        inline_svg(tmp_path / "b.svg", "f1-")


def test_a_module_becomes_a_script_that_names_what_it_exports() -> None:
    assert classic("var a=1;export{a as default,b as jQuery};/*licence*/") == (
        '(()=>{var a=1;window.dataTables={"default":a,"jQuery":b};/*licence*/})();\n'
    )
    with pytest.raises(UserError, match="exports nothing"):
        classic("var a=1;")
