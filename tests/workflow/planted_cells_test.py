"""Runs whose cells must come out as planted, from their directories to tables, figures, HTML and PDF.

The runs are at scale paper, with the paper's settings and budget: nothing else gets a verdict.
"""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from ddrl.analysis.__main__ import main as analyse
from ddrl.analysis.tables.build import read
from ddrl.papers.own_code import own_function
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published, load_references
from ddrl.regression.pdf_text import text_of
from ddrl.report.__main__ import main as report
from ddrl.training.config.experiments import PlannedRun, expand
from tests.analysis.fakes import write_run

ROOT = Path(__file__).parents[2]
PAPER = "impala_2018"
PLANTED = {
    # task: how far our mean lies from the published score, and the deviation between seeds, both in margins; verdict
    "pong": (0.0, 0.1, "equivalent"),
    "breakout": (-3.0, 0.2, "below"),
    "space_invaders": (3.0, 0.2, "above"),
    "qbert": (0.7, 0.4, "consistent"),
    "seaquest": (0.0, 3.0, "inconclusive"),
    "beam_rider": (0.0, 0.1, "not_comparable"),  # of half the budget
    "enduro": (0.0, 0.1, "not_comparable"),  # of twice the budget
}
FRAMES = {"beam_rider": 100_000_000, "enduro": 400_000_000}
NUMBERS = {"pong": ("20.4", "20.4"), "breakout": ("640.4", "448.8"), "space_invaders": ("1 726", "2 200")}
"""Published and ours, as reports print them."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the paper, one of its figures, and five seeds of each planted task, made into a report."""
    root = tmp_path_factory.mktemp("planted")
    shutil.copytree(ROOT / "reports", root / "reports", ignore=shutil.ignore_patterns("*.pdf", "*.html"))
    for name in (PAPER, "references"):
        shutil.copytree(ROOT / "replications" / name, root / "replications" / name)
    file = root / "replications" / PAPER / "paper.yaml"
    facts = yaml.safe_load(file.read_text())
    facts["figures"] = [one for one in facts["figures"] if one["name"] == "learning_curves"]
    file.write_text(yaml.safe_dump(facts))
    only = {"experiments": ["atari"], "variants": ["shallow"], "environments": [f"atari/{task}" for task in PLANTED]}
    for run in expand(PAPER, "paper", root=root / "replications", **only):
        plant(run, root)
    tables, folders = root / "results/paper" / PAPER / "tables", ["--replications", str(root / "replications")]
    filters = [word for key, values in only.items() for word in (f"--{key}", *values)]
    results = ["--scale", "paper", "--results", str(root / "results"), *filters]
    assert analyse(["aggregate", "--paper", PAPER, *results, *folders]) == 0
    drawn = ["--name", "learning_curves", "--tables", str(tables), "--output", str(tables.parent / "figures")]
    assert analyse(["figure", "--paper", PAPER, *drawn, *folders]) == 0
    written = ["--data", str(root / "report.json"), "--pdf", str(root / "report.pdf"), "--root", str(root)]
    assert report(["--results", str(tables.parent), *written]) == 0
    return root


def plant(run: PlannedRun, root: Path) -> None:
    """Writes a run that ends where `PLANTED` says."""
    paper = root / "replications" / PAPER
    task = run.environment.partition("/")[2]
    away, deviation, _ = PLANTED[task]
    bounds = load_references(load_paper(paper)).set_index("environment").loc[run.environment]
    printed = float(load_published(paper).set_index("cell").loc[f"c1.impala.shallow_experts.{task}", "value"])
    margin = 0.1 * max(abs(printed - bounds["random"]), abs(bounds["human"] - bounds["random"]))
    shape = np.linspace(-1.0, 1.0, 5)
    final = printed + margin * (away + deviation * float(shape[run.seed - 1] / shape.std(ddof=1)))
    frames = FRAMES.get(task)
    write_run(run, root / "results", start=float(bounds["random"]), final=final, noisiness=0.0, frames=frames)


def cells(project: Path) -> pd.DataFrame:
    table = pd.read_parquet(project / "results/paper" / PAPER / "tables/cells.parquet")
    own = table[(table["item"] == "Table C.1") & (table["published_variant"] == "shallow, experts")]
    return own[own["ours"].notna() & (own["task"] != "")].set_index("task")


def test_each_planted_cell_has_its_verdict_in_the_tables(project: Path) -> None:
    found = cells(project)
    assert found["verdict"].to_dict() == {task: verdict for task, (_, _, verdict) in PLANTED.items()}
    away = (found["ours"] - found["published"]) / found["margin"]
    assert away.to_dict() == pytest.approx({task: distance for task, (distance, _, _) in PLANTED.items()}, abs=1e-9)
    half = (found["ci90_high"] - found["ci90_low"]) / 2 / found["margin"]
    student = 2.1318 / np.sqrt(5)  # the 95 % quantile at four degrees of freedom
    assert half.to_dict() == pytest.approx(
        {task: student * spread for task, (_, spread, _) in PLANTED.items()}, rel=1e-4
    )
    assert (found["seeds"] == 5).all()
    for task, flag in (("beam_rider", "reduced_budget(0.5)"), ("enduro", "larger_budget(2)")):
        assert flag in found.loc[task, "flags"]
    csv = pd.read_csv(project / "results/paper" / PAPER / "tables/cells.csv").set_index("cell")
    assert csv.loc["c1.impala.shallow_experts.pong", "verdict"] == "equivalent"


def test_the_suite_of_seven_games_of_57_gets_no_verdict(project: Path) -> None:
    table = pd.read_parquet(project / "results/paper" / PAPER / "tables/cells.parquet")
    aggregates = table[table["ours"].notna() & ~table.index.isin(table[table["task"].isin(PLANTED)].index)]
    assert set(aggregates["verdict"]) == {"not_comparable"}
    assert aggregates["flags"].str.contains("reduced_suite").all()


def test_the_figure_has_the_published_scores_at_their_frames(project: Path) -> None:
    paper = load_paper(project / "replications" / PAPER)
    (figure,) = paper.figures
    tables = read(project / "results/paper" / PAPER / "tables", figure.tables)
    canvas = own_function(paper.directory, "figures.py", figure.name)(**tables)
    (pong,) = (axes for axes in canvas.axes if axes.get_title() == "Pong")
    points = {(x, round(y, 6)) for line in pong.lines for x, y in np.asarray(line.get_xydata(), dtype=float)}
    assert (200_000_000.0, 20.4) in points or (200.0, 20.4) in points
    svg = project / "results/paper" / PAPER / "figures/learning_curves.svg"
    assert ET.parse(svg).getroot().tag.endswith("svg")


def line_of(text: str, task: str) -> str:
    """What stands between a task's name and the next verdict, in the table of cells."""
    cells = text[text.index("Table C.1: IMPALA, shallow, experts") :]
    words = "equivalent|consistent|below|above|inconclusive|not comparable"
    found = re.search(rf"\b{task}\b(.*?)\b({words})\b", cells, re.DOTALL)
    assert found is not None
    return found.group(1).replace("\u202f", " ").replace("\u00a0", " ") + found.group(2)


@pytest.mark.parametrize("kind", ["html", "pdf"])
def test_each_planted_cell_has_its_verdict_in_the_report(project: Path, kind: str) -> None:
    if kind == "pdf":
        text = "\n".join(text_of(project / "report.pdf"))
    else:
        text = "\n".join(ET.fromstring((project / "report.html").read_text()).itertext())
    for task, (_, _, verdict) in PLANTED.items():
        line = line_of(text, task.replace("_", " ").title())
        assert line.endswith(verdict.replace("_", " ")), line
        for number in NUMBERS.get(task, ()):
            assert number in line
    assert "needs 79 seeds" in line_of(text, "Seaquest").replace("\n", " ")
    assert "Equivalent: our interval lies within the margin" in text.replace("\u00a0", " ").replace("\n", " ")


def test_the_first_page_counts_the_planted_verdicts(project: Path) -> None:
    summary = json.loads((project / "results/paper" / PAPER / "tables/summary.json").read_text())
    counts = dict.fromkeys(("equivalent", "below", "above", "consistent", "inconclusive"), 1)
    assert {name: count for name, count in summary["cells"].items() if name in counts} == counts
