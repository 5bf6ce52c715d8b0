"""The controls: runs of scale workstation can get a verdict in every cell, and do if they end as the libraries' do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddrl.analysis.tables.build import make
from ddrl.papers.experiments import PlannedRun
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published, matching
from ddrl.training.config.experiments import expand
from tests.analysis.fakes import assert_figures_are_drawn, write_run

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "controls_2026")
WORKSTATION = expand(PAPER.key, "workstation", root=ROOT)
EXACT = {"openai/baselines PPO", "SB3 zoo PPO", "SB3 zoo A2C"}
"""Systems with cells whose published number counts as exact: there is one run, or the number of runs is not printed."""


def finals() -> dict[tuple[str, str, str], float]:
    """A published return for each experiment, variant and environment: that of its first cell."""
    published = load_published(PAPER.directory)
    found: dict[tuple[str, str, str], float] = {}
    for rule in PAPER.cells:
        for row in matching(published, rule.published).to_dict("records"):
            environment = str(rule.environment).replace("{task}", row["task"])
            found.setdefault((rule.experiment, str(rule.variant), environment), float(row["value"]))
    return found


def plant(runs: list[PlannedRun], results: Path, origin: str = "run") -> None:
    """Write runs that end within 1 % of what is published."""
    known = finals()
    for run in runs:
        final = known[run.experiment, run.variant, run.environment] * (1 + 0.002 * (run.seed % 5 - 2))
        write_run(run, results, start=final * 0.99, final=final, origin=origin)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    results = tmp_path_factory.mktemp("controls")
    plant(WORKSTATION, results)
    return make(["cells"], PAPER.directory, "workstation", WORKSTATION, results)["cells"]


def test_every_cell_is_of_runs_that_nothing_but_their_versions_tells_apart(cells: pd.DataFrame) -> None:
    assert set(cells["verdict"]).isdisjoint({"not_run", "not_comparable"})
    assert (cells["seeds"] == 5).all()
    assert (cells["margin"] > 0).all()
    names = {flag.partition("(")[0] for flags in cells["flags"] for flag in str(flags).split(";") if flag}
    assert names <= {"env_version_gap", "published_n_unknown"}


def test_every_run_of_scale_workstation_is_in_a_cell() -> None:
    assert {(run.experiment, run.variant, run.environment) for run in WORKSTATION} == set(finals())


def test_runs_that_end_as_published_are_equivalent_where_the_published_runs_allow_it(
    cells: pd.DataFrame,
) -> None:
    first = cells.drop_duplicates(["experiment", "variant", "environment"])
    assert set(first["verdict"]) <= {"equivalent", "consistent", "inconclusive"}
    exact = first[first["system"].isin(EXACT)]
    assert (exact["verdict"] == "equivalent").all(), exact[exact["verdict"] != "equivalent"].to_string()
    assert (first["verdict"] == "equivalent").sum() >= 30
    assert first["system"][first["verdict"] == "equivalent"].nunique() >= 5


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(expand(PAPER.key, "smoke", root=ROOT), tmp_path)
    plant(WORKSTATION, tmp_path, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)
