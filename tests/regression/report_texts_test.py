"""The sentences of a report are lines of a table, so that another word is a difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typst

from ddrl.errors import UserError
from ddrl.regression import report_texts, snapshot
from ddrl.regression.report_texts import INDEX, PAGE, PDF, page_lines, pdf_lines

HTML = """<!DOCTYPE html><html lang="en"><head><title>T</title><style>p {}</style></head><body><h1>A <em>title</em></h1>
<section id="claims"><h2>Claims</h2><p>It was
measured: 1.25 [1.1, 1.4].</p>
<table><tr><th>speed</th><td title="on Pong">holds</td></tr></table></section>
<section id="methods"><svg><title>drawn</title><path d="M0"/><text>no text</text></svg><p>Five seeds.</p></section>
<footer>sha256 <code>0123456789abcdef</code></footer></body></html>"""


def write(folder: Path, html: str = HTML, pdf: str = "= Claims\n\nFive seeds.\n") -> Path:
    """A paper's reports and its evidence."""
    evidence = folder / "evidence" / "paper_2018"
    (evidence / "tables").mkdir(parents=True, exist_ok=True)
    (evidence / "report.json").write_text(json.dumps({"origin": {"digest": "0123456789abcdef"}}))
    (folder / "paper_2018.html").write_text(html)
    (folder / "paper_2018.pdf").write_bytes(typst.compile(pdf.encode(), format="pdf"))
    return evidence


def test_a_page_is_told_line_by_line_and_section_by_section(tmp_path: Path) -> None:
    write(tmp_path)
    assert page_lines(tmp_path / "paper_2018.html") == {
        "top 1": "T",
        "top 2": "A title",
        "top 3": "sha256 0123456789abcdef",
        "claims 1": "Claims",
        "claims 2": "It was measured: 1.25 [1.1, 1.4].",
        "claims 3": "speed | holds (on Pong)",
        "methods 1": "drawn",
        "methods 2": "Five seeds.",
    }
    assert "Five seeds." in pdf_lines(tmp_path / "paper_2018.pdf").values()


@pytest.mark.parametrize(
    ("html", "pdf", "said"),
    [
        (("Five seeds", "Six seeds"), ("", ""), f"{PAGE}: methods 2: text Five seeds. -> Six seeds."),
        (("1.25 [", "1.26 ["), ("", ""), f"{PAGE}: claims 2: text It was measured: 1.25 [1.1, 1.4]. -> It was"),
        (("<td", "<td>x</td><td"), ("", ""), f"{PAGE}: claims 3: text speed | holds (on Pong) -> speed | x | holds"),
        (("<p>Five seeds.</p>", ""), ("", ""), f"{PAGE}: methods 2: the row is gone"),
        (("", ""), ("Five", "Six"), f"{PDF}: page 1 line 2: text Five seeds. -> Six seeds."),
        (("", ""), ("Five", "#pagebreak()\nFive"), f"{PDF}: page 1 line 2: the row is gone"),
    ],
)
def test_another_word_in_a_section_of_a_report_is_a_difference(
    tmp_path: Path, html: tuple[str, str], pdf: tuple[str, str], said: str
) -> None:
    before = snapshot.made(write(tmp_path), tmp_path)
    text = "= Claims\n\nFive seeds.\n"
    after = snapshot.made(write(tmp_path, HTML.replace(*html), text.replace(*pdf)), tmp_path)
    assert snapshot.differences(before, after).changed[0].startswith(said)
    snapshot.write(before, tmp_path / "accepted", (), "command")
    accepted = snapshot.read(tmp_path / "accepted" / "evidence.json")
    assert accepted is not None and not snapshot.differences(accepted[0], before), "it is read as it was written"


def test_rounding_and_the_digest_of_the_tables_are_no_difference(tmp_path: Path) -> None:
    evidence = write(tmp_path)
    before = snapshot.made(evidence, tmp_path)
    write(tmp_path, HTML.replace("1.25", "1.2500000001").replace("0123456789abcdef", "f" * 16))
    (evidence / "report.json").write_text(json.dumps({"origin": {"digest": "f" * 16}}))
    assert not snapshot.differences(before, snapshot.made(evidence, tmp_path))


def test_the_text_of_a_pdf_is_compared_only_with_the_version_of_typst_that_set_it(tmp_path: Path) -> None:
    before = snapshot.made(write(tmp_path), tmp_path)
    after = snapshot.made(write(tmp_path, pdf="Other"), tmp_path)
    assert snapshot.differences(before, after)
    newer = snapshot.Snapshot(after.tables, after.digests, {**after.packages, "typst": "9"})
    assert not snapshot.differences(before, newer)


def test_reports_that_are_new_need_no_changelog_entry_and_the_index_is_of_the_suite(tmp_path: Path) -> None:
    after = snapshot.made(write(tmp_path), tmp_path)
    found = snapshot.differences(snapshot.Snapshot({}, {}, after.packages), after)
    assert list(found.added) == [f"{PAGE}: the table is new", f"{PDF}: the table is new"] and not found.changed
    (tmp_path / "index.html").write_text(HTML)
    assert set(report_texts.made("suite", tmp_path, tmp_path / "none")) == {INDEX}


def test_a_page_that_is_not_well_formed_is_named(tmp_path: Path) -> None:
    evidence = write(tmp_path, "<html><p></html>")
    with pytest.raises(UserError, match=r"paper_2018\.html: is not well-formed"):
        snapshot.made(evidence, tmp_path)
