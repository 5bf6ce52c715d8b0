"""The suite report, and Snakemake's own report over everything that was made."""

import json
import re
from collections import Counter

import pytest

from ddrl.report.build import read_tables
from ddrl.report.sections.document import Origin
from ddrl.report.suite import suite_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(made):
    return json.loads((made.root / "results/smoke/suite/report.json").read_text())


def section(data, name):
    return next(part for part in data["sections"] if part["id"] == name)


def rows(data, name, index=0):
    tables = [block for block in section(data, name)["blocks"] if block["type"] == "table"]
    return [row for group in tables[index]["groups"] for row in group["rows"]]


def text(cell):
    return "".join(span["text"] for span in cell["spans"])


def test_the_suite_report_has_its_parts_in_order(data):
    parts = [
        "papers",
        "coverage",
        "preface",
        "claims",
        "experiments",
        "cells",
        "compute",
        "throughput",
        "lag",
        "provenance",
        "systems",
    ]
    assert [part["id"] for part in data["sections"]] == parts
    assert [part["id"] for part in data["sections"] if part["wide"]] == ["systems"]


def test_every_claim_stands_in_the_ledger_and_is_counted(made, data):
    paper = json.loads((made.root / "results/smoke/impala_2018/report.json").read_text())
    ledger = {text(row[0]) for row in rows(data, "claims") if len(row) == 3}
    assert data["tallies"] == paper["tallies"]
    assert sum(int(count["text"].split()[0]) for count in data["tallies"][0]["counts"]) == len(ledger) > 10


def test_page_one_counts_each_claim_once_with_the_verdict_of_its_line(made):
    tables, summary = read_tables(made.root / "results/smoke/suite/tables")
    decided = next(row for row in tables["claims"] if row["origin"] == "run") | {"origin": "reference"}
    claims = [*tables["claims"], decided | {"verdict": "supported"}]
    page = suite_data({**tables, "claims": claims}, summary, Origin("results", "0", ""))
    lines = Counter()
    for row in (row for group in page["answers"] for row in group["rows"]):
        lines[row["verdict"]] += len(row["title"].split("; ")) if row["verdict"] == "not_run" else 1
    counts = {count["kind"]: int(count["text"].split()[0]) for count in page["tallies"][0]["counts"]}
    assert counts == lines
    assert counts["supported"] > 0
    tags = [span["text"] for row in rows(page, "papers") for cell in row for span in cell["spans"]]
    assert sum(int(text.split()[0]) for text in tags if text.endswith(" supported")) == counts["supported"]


def test_what_has_not_been_run_is_shown_as_such(data):
    experiments = {text(row[0]): text(row[1]) for row in rows(data, "experiments")}
    absent = [title for title, status in experiments.items() if status == "not run"]
    assert absent
    assert all(title.endswith("not written yet") for title in absent)
    assert "atari multitask not written yet" in absent
    (heat_map,) = section(data, "coverage")["blocks"]
    assert "atari multitask" in heat_map["caption"]
    assert heat_map["path"] == "figures/coverage_impala_2018.svg"


def test_every_system_of_the_topologies_has_a_row(made, data):
    lines = (made.root / "results/smoke/suite/tables/systems.csv").read_text().splitlines()
    assert len(rows(data, "systems")) == len(lines) - 1 > 0


def test_a_suite_without_own_runs_is_dated_by_its_reference_runs(made, data):
    folder = made.root / "results/smoke/suite/tables"
    summary = json.loads((folder / "summary.json").read_text())
    nothing = {"finished": None, "runs": 0, "hardware": [], "reference": None}
    tables = {"claims": [], "problems": [], "coverage": []}
    with pytest.raises(Exception, match="no finished run"):
        suite_data(tables, summary | nothing, Origin("results", "0", ""))


def test_one_paper_makes_only_its_own_report(made):
    code, output = made.snakemake("--dry-run", "--forceall", "--configfile", "narrow.yaml", "--", "impala_2018")
    assert code == 0, output
    assert "report_suite" not in output
    assert "reports/impala_2018.pdf" in output


def test_snakemakes_own_report_holds_figures_tables_and_reports_and_loads_nothing(made, tmp_path):
    path = tmp_path / "results.html"
    code, output = made.snakemake("--configfile", "narrow.yaml", "--report", str(path))
    assert code == 0, output
    html = path.read_text()
    for name in (
        "reports/impala_2018.pdf",
        "reports/suite.html",
        "suite/figures/coverage_impala_2018.svg",
        "tables/claims.csv",
    ):
        assert name in html
    assert "claims ledger" in html  # a caption
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=.https?:", html)
