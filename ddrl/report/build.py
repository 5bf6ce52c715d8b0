"""Reports from tables and figures: report data (JSON), PDF and HTML.

Reads only `tables/*.csv`, `tables/summary.json` and `figures/*.svg` of a folder of results. The data hold every text as
it is printed. The same tables give the same bytes: no clock, no system fonts, no path of this machine enters a report.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import Roots, folder_of
from ddrl.papers.experiments import papers as all_papers
from ddrl.papers.table_names import REFERENCE
from ddrl.report.assets import write_assets
from ddrl.report.figures import draw_figures
from ddrl.report.html import html_text, index_text
from ddrl.report.paper import report_data
from ddrl.report.sections.document import Origin, Tables
from ddrl.report.suite import SUITE, suite_data
from ddrl.system.csv_cells import read_rows
from ddrl.system.files import read_file, write_whole
from ddrl.system.text_files import read_json

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = "evidence"
"""The folder below the output of `rebuild` for tables, figures and report data."""


def read_tables(folder: Path) -> tuple[Tables, dict[str, Any]]:
    """Return every table of `folder` by name, and its summary with the digest of all tables (`digest`).

    Raise `UserError` where the summary is missing or damaged.
    """
    path = folder / "summary.json"
    if not path.exists():
        raise UserError(f"{path}: no such file; make the tables first")
    summary = read_json(path)
    tables = {}
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.csv")):
        digest.update(path.name.encode() + read_file(path))
        tables[path.stem] = read_rows(path)
    return tables, summary | {"digest": digest.hexdigest()[:16]}


def write_report(
    results: Path, data: Path, pdf: Path, html: Path, *, command: str = "", outside: str = "", root: Path = ROOT
) -> list[Path]:
    """Write data, PDF and HTML of a report on `results`, a folder with tables/ and figures/; return the last two.

    Beside the page lies `assets/`, which all pages of a folder share (`ddrl.report.assets`).

    The report names the folder of results by its path below `root`; `outside` is its name elsewhere (default: the
    folder's own). `command` says what made it. Raise `UserError` for tables that are missing or damaged.
    """
    tables, summary = read_tables(results / "tables")
    suite = "papers" in summary
    made = command or _default_command("" if suite else summary["paper"]["key"], summary["scale"])
    inside = results.resolve().is_relative_to(root.resolve())
    below = results.resolve().relative_to(root.resolve()).as_posix() if inside else outside or results.name
    origin = Origin(below, summary["digest"], made)
    content = (suite_data if suite else report_data)(tables, summary, origin)
    write_whole(data, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(pdf, pdf_bytes(content, results, root))
    write_whole(html, html_text(content, results, root, html.parent).encode())
    write_assets(html.parent, root)
    return [pdf, html]


def _default_command(paper: str, scale: str) -> str:
    """Return the usual command for such a report; `paper` is empty for the suite."""
    if scale == REFERENCE:
        return " ".join(filter(None, ["ddrl report", paper, f"--scale {scale}"]))
    return " ".join(filter(None, ["snakemake --cores", paper, "" if scale == "smoke" else f"--config scale={scale}"]))


def pdf_bytes(data: Mapping[str, Any], results: Path, root: Path = ROOT) -> bytes:
    """Typeset `reports/<kind>.typ` with `data` and its figures. Raise `UserError` where typst cannot."""
    import typst

    with _staged(data, results, root) as (source, options):
        pdf: bytes = typst.compile(
            source,
            format="pdf",
            pdf_standards=["ua-1"],
            timestamp=datetime.fromisoformat(data["finished"]),  # when the results were made
            **options,
        )
    return pdf


def body_pages(data: Mapping[str, Any], results: Path, root: Path = ROOT) -> int:
    """Return how many pages come before the appendix in the PDF of `data`. Raise `UserError` where typst cannot."""
    import typst

    with _staged(data, results, root) as (source, options):
        (first,) = json.loads(typst.query(source, "<appendix>", field="value", **options))
    return int(first) - 1


@contextmanager
def _staged(data: Mapping[str, Any], results: Path, root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give a folder with all that typst needs: the source in it, and the options of typst.

    Raise `UserError` for an error of typst.
    """
    import matplotlib
    import typst

    source = root / "reports" / f"{data['kind']}.typ"
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")  # the fonts that the figures were laid out with
    with tempfile.TemporaryDirectory(prefix="ddrl-report-") as name:
        stage = Path(name)
        for path in (source, root / "reports" / "template.typ"):
            shutil.copy(path, stage)
        if (results / "figures").is_dir():
            shutil.copytree(results / "figures", stage / "figures", ignore=shutil.ignore_patterns("*.png", ".*"))
        (stage / "report.json").write_text(json.dumps(data), encoding="utf-8")
        try:
            yield stage / source.name, {"root": stage, "font_paths": [fonts], "ignore_system_fonts": True}
        except typst.TypstError as error:
            raise UserError(f"{source}: {error.diagnostic}") from None


def write_index(data: Sequence[Path], reports: Path, root: Path = ROOT) -> Path:
    """Write `index.html` into `reports` and return it; `data` are the files of report data.

    Each report is a pair of `<name>.pdf` and `<name>.html` there, where name is that of the folder of its data.
    """
    contents = [dict(read_json(path)) | {"name": path.parent.name} for path in data]
    ordered = sorted(contents, key=lambda content: (content["kind"] != SUITE, content["name"]))
    index = reports / "index.html"
    write_whole(index, index_text(ordered, root).encode())
    return index


def rebuild(
    papers: Sequence[str] | None,
    scale: str,
    *,
    results: Path = Path("results"),
    output: Path,
    root: Path = ROOT,
    replications: Roots | None = None,
) -> list[Path]:
    """Write every report of a scale (or of `reference`) from the results that are there, without training.

    Write `<paper>.pdf`, `<paper>.html`, `suite.pdf`, `suite.html` and `index.html` with its `assets/` into `output`,
    and their tables, figures and data below `output/evidence/<scale>`; read `results` and change nothing there. A run
    that is missing or damaged is named in the report. The suite report is about `papers` (None: all) of `replications`
    (None: those of `root`). Return the PDF and HTML files, the index last. Raise `UserError` for a wrong name, and
    where none of the papers has any run.
    """
    roots = replications or root / "replications"
    known = all_papers(roots)
    for paper in papers or ():
        if paper not in known:
            raise unknown_name("paper", paper, known)
    folder = output / EVIDENCE / scale
    written: list[Path] = []
    made: list[str] = []
    refused: list[UserError] = []

    def report(name: str, command: str) -> list[Path]:
        found = folder / name
        outside = found.relative_to(output).as_posix()
        pdf, html = (output / f"{name}.{kind}" for kind in ("pdf", "html"))
        return write_report(found, found / "report.json", pdf, html, command=command, outside=outside, root=root)

    for paper in papers or known:
        try:
            _paper_evidence(paper, scale, results, folder / paper, roots)
        except UserError as error:
            refused.append(error)
            continue
        made.append(paper)
        written += report(paper, f"ddrl report {paper} --scale {scale}")
    if not written:
        raise refused[0]
    _suite_evidence(made, scale, results, folder, roots)
    written += report(SUITE, f"ddrl report{''.join(f' {paper}' for paper in papers or ())} --scale {scale}")
    return [*written, write_index([folder / name / "report.json" for name in (*made, SUITE)], output, root)]


def _paper_evidence(paper: str, scale: str, results: Path, folder: Path, roots: Roots) -> None:
    """Write tables and figures of one paper into `folder`."""
    from ddrl.analysis.figures.plots import draw
    from ddrl.analysis.tables import kept
    from ddrl.analysis.tables.build import write
    from ddrl.analysis.tables.derived import derive
    from ddrl.papers.expansion import expand
    from ddrl.papers.paper import load_paper

    replication = folder_of(paper, roots)
    planned = [] if scale == REFERENCE else expand(paper, scale, root=roots)
    evidence = kept.build(replication, scale, planned, results, allow_missing=True)
    write(evidence.tables, evidence.summary, folder / "tables")
    wanted = load_paper(replication)
    for table in wanted.derived:
        derive(replication, table, folder / "tables", folder / "tables")
    for figure in wanted.figures:
        draw(replication, figure, folder / "tables", folder / "figures")


def _suite_evidence(papers: Sequence[str], scale: str, results: Path, folder: Path, roots: Roots) -> None:
    """Write the tables and figures over papers into `folder/suite`, from the papers' tables in `folder`."""
    from ddrl.analysis.tables.build import write
    from ddrl.analysis.tables.suite import build_suite

    evidence = build_suite(roots, results, scale, folder=folder, only=papers)
    write(evidence.tables, evidence.summary, folder / SUITE / "tables")
    draw_figures(folder / SUITE / "tables", folder / SUITE / "figures")
