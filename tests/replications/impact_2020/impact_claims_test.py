"""Every claim of the IMPACT replication, decided by planted runs: as the paper has it, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_references
from ddrl.training.config.experiments import expand
from tests.analysis.fakes import decided, write_timed

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "impact_2020")
EXPERIMENTS = load_experiments(PAPER.directory)
REFERENCES = load_references(PAPER)
SEEDS = {claim.name: len(EXPERIMENTS[claim.experiment].scales["workstation"].seeds) for claim in PAPER.claims}
CORES = 16

Planted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Experiment -> variant -> final return (on Atari the part of the way from random to human play), frames per second."""
MULTIPLES = ("multiple_1_16", "multiple_1_4", "multiple_1", "multiple_4", "multiple_16")
FEW = ("n_1", "n_2", "n_3", "n_4")

AS_THE_PAPER_SAYS: Planted = {
    "continuous_author": {"impact": (3000.0, 4000.0), "ppo": (2200.0, 2000.0), "impala": (900.0, 6000.0)},
    "discrete_author": {"impact": (1.3, 5000.0), "ppo": (1.0, 4000.0), "impala": (1.1, 4000.0)},
    "target_clipping": {"r1": (2000.0, 3000.0), "r2": (1500.0, 3000.0), "r3": (3000.0, 3000.0)},
    "target_frequency": dict.fromkeys(MULTIPLES, (2000.0, 3000.0)) | dict.fromkeys(FEW, (300.0, 3000.0)),
    "circular_buffer": {
        "k_1": (2000.0, 5000.0),
        "k_2": (3000.0, 4500.0),
        "k_4": (2000.0, 3500.0),
        "k_16": (2000.0, 1500.0),
        "k_32": (2000.0, 800.0),
    },
    "workers": {
        "workers_1": (1400.0, 2000.0),
        "workers_2": (1800.0, 3600.0),
        "workers_4": (2200.0, 5200.0),
        "workers_8": (2600.0, 6200.0),
    },
}
THE_OTHER_WAY_ROUND: Planted = {
    "continuous_author": {"impact": (1600.0, 3000.0), "ppo": (3000.0, 3000.0), "impala": (3000.0, 3000.0)},
    "discrete_author": {"impact": (1.1, 3000.0), "ppo": (1.0, 4000.0), "impala": (1.4, 4000.0)},
    "target_clipping": {"r1": (2000.0, 3000.0), "r2": (3000.0, 3000.0), "r3": (1500.0, 3000.0)},
    "target_frequency": dict.fromkeys((*MULTIPLES, *FEW), (2000.0, 3000.0)) | {"multiple_16": (800.0, 3000.0)},
    "circular_buffer": dict.fromkeys(("k_1", "k_4", "k_16", "k_32"), (3000.0, 3000.0)) | {"k_2": (1500.0, 3000.0)},
    "workers": {
        "workers_1": (4000.0, 1000.0),
        "workers_2": (1500.0, 1500.0),
        "workers_4": (1500.0, 3000.0),
        "workers_8": (1500.0, 9000.0),
    },
}


def verdicts(planted: Planted, results: Path, cores: int = CORES) -> pd.DataFrame:
    """The claims on runs of the planted experiments at scale workstation, with the seeds of each."""
    ends = REFERENCES.set_index("environment")
    planned = expand(PAPER.key, "workstation", root=ROOT, experiments=list(planted))
    for run in planned:
        final, speed = planted[run.experiment][run.variant]
        start = float(ends.loc[run.environment, "random"])
        if run.experiment == "discrete_author":
            final = start + final * (float(ends.loc[run.environment, "human"]) - start)
        pace = speed * (1 + 0.01 * (run.seed % 5))
        write_timed(run, results, start=start, final=final, speed=pace, cores=cores, gpu="a GPU", noisiness=0.02)
    return decided(PAPER, EXPERIMENTS, planned, results)


@pytest.mark.parametrize("name", [claim.name for claim in PAPER.claims])
def test_runs_as_the_paper_says_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    row = supporting.loc[name]
    assert (row["verdict"], row["seeds"]) == ("supported", SEEDS[name]), row["detail"]


@pytest.mark.parametrize("name", [claim.name for claim in PAPER.claims])
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    row = contradicting.loc[name]
    assert (row["verdict"], row["seeds"]) == ("contradicted_here", SEEDS[name]), row["detail"]


def test_a_contradicted_claim_names_the_comparison_that_contradicts_it(contradicting: pd.DataFrame) -> None:
    decided = contradicting["decided_by"]
    assert decided["robust_over_target_frequency"] == "16 N K against N K"
    assert decided["more_workers_help"] == "2 workers against 1 worker"
    assert contradicting["effect"]["robust_over_target_frequency"] == pytest.approx(1082 / 2282, abs=0.03)
    assert contradicting["effect"]["higher_than_impala_discrete"] == pytest.approx(-0.3, abs=0.03)


def test_a_machine_with_fewer_cores_than_workers_decides_nothing_about_them(tmp_path: Path) -> None:
    found = verdicts({"workers": AS_THE_PAPER_SAYS["workers"]}, tmp_path, cores=2)
    about = found.loc[["more_workers_help", "workers_bring_less_and_less"]]
    assert set(about["verdict"]) == {"not_testable"}
    assert set(about["obstacle"]) == {"cores"}
    assert about["detail"].str.startswith("fewer cores than workers: 2 cores for up to 8 workers. Measured: ").all()
    assert set(found["verdict"].drop(about.index)) == {"not_run"}
