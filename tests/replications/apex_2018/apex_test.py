"""The Ape-X replication: every claim that can run decided by planted runs, both ways round; its figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_references
from ddrl.training.config.experiments import PlannedRun, expand
from tests.analysis.fakes import assert_figures_are_drawn, decided, write_timed

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "apex_2018")
EXPERIMENTS = load_experiments(PAPER.directory)
REFERENCES = load_references(PAPER).set_index("environment")
NOT_RUN = {"median_with_human_starts", "higher_than_rainbow"}
"""Claims about human starts, which the suite does not have, and about another agent."""
CLAIMS = [claim.name for claim in PAPER.claims if claim.name not in NOT_RUN]
CORES = 16

Planted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Experiment -> variant -> final return (on Atari the part of the way to human play), frames per second."""

AS_THE_PAPER_SAYS: Planted = {
    "atari": {"ape_x": (5.0, 1000.0)},
    "actors": {
        "times_1": (1.0, 1000.0),
        "times_2": (1.5, 2000.0),
        "times_4": (2.0, 4000.0),
        "times_8": (2.5, 8000.0),
        "stored_8_times": (1.0, 1000.0),
    },
    "capacity": {"whole": (3.0, 1000.0), "half": (2.5, 1000.0), "quarter": (2.0, 1000.0), "eighth": (1.5, 1000.0)},
}
THE_OTHER_WAY_ROUND: Planted = {
    "atari": {"ape_x": (2.0, 1000.0)},
    "actors": {
        "times_1": (3.0, 1000.0),
        "times_2": (2.5, 1500.0),
        "times_4": (1.5, 2000.0),
        "times_8": (0.5, 3000.0),
        "stored_8_times": (3.0, 1000.0),
    },
    "capacity": {"whole": (1.0, 1000.0), "half": (2.5, 1000.0), "quarter": (2.0, 1000.0), "eighth": (3.0, 1000.0)},
}


def plant(
    planned: list[PlannedRun], planted: Planted, results: Path, cores: int = CORES, origin: str = "run"
) -> list[PlannedRun]:
    for run in planned:
        final, speed = planted[run.experiment][run.variant]
        level = REFERENCES.loc[run.environment]
        if run.environment.startswith("atari/"):
            final = float(level["random"]) + final * float(level["human"] - level["random"])
        options = {"start": float(level["random"]), "cores": cores, "noisiness": 0.02, "origin": origin}
        write_timed(run, results, final=final * (1 + 0.01 * (run.seed % 10)), speed=speed, gpu="a GPU", **options)
    return planned


def verdicts(planted: Planted, results: Path, cores: int = CORES) -> pd.DataFrame:
    """The claims on runs at scale workstation, and on all 57 games, where a claim is about them."""
    workstation = expand(PAPER.key, "workstation", root=ROOT, experiments=["actors", "capacity"])
    games = expand(PAPER.key, "paper", root=ROOT, experiments=["atari"], seeds=[1, 2, 3])
    return decided(PAPER, EXPERIMENTS, plant([*workstation, *games], planted, results, cores), results)


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_as_the_paper_says_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "supported", supporting.loc[name, "detail"]


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    # The runs on all 57 games are those of scale paper: they differ from the paper's setting in nothing.
    verdict = "contradicted" if name == "median_over_57_games" else "contradicted_here"
    assert contradicting.loc[name, "verdict"] == verdict, contradicting.loc[name, "detail"]


@pytest.mark.parametrize("name", sorted(NOT_RUN))
def test_what_the_suite_does_not_have_is_said_not_to_have_run(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "not_run"


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(expand(PAPER.key, "smoke", root=ROOT), AS_THE_PAPER_SAYS, tmp_path)
    plant(expand(PAPER.key, "workstation", root=ROOT), AS_THE_PAPER_SAYS, tmp_path, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)
