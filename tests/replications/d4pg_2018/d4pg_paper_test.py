"""The D4PG replication: every claim decided by planted runs, both ways round; its settings; its figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from ddrl.actors.exploration import noise_ladder
from ddrl.analysis.runs.problems import gather
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.cells import cells
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published, load_references
from ddrl.training.config.experiments import PlannedRun, expand, paper_configs
from tests.analysis.fakes import assert_figures_are_drawn, decided, write_timed

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "d4pg_2018")
EXPERIMENTS = load_experiments(PAPER.directory)
REFERENCES = load_references(PAPER).set_index("environment")
CLAIMS = [claim.name for claim in PAPER.claims]
BALL = "dm_control/manipulator-bring_ball"
CORES = 16

Planted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Experiment -> variant -> final return, frames per second."""

AS_THE_PAPER_SAYS: Planted = {
    "control_suite": {"d4pg": (880.0, 400.0)},
    "ablations": {
        "d4pg": (800.0, 400.0),
        "uniform": (780.0, 400.0),
        "mean_critic": (600.0, 400.0),
        "one_step": (400.0, 400.0),
        "ddpg": (200.0, 400.0),
    },
    "actors": {
        "times_1": (800.0, 1000.0),
        "times_2": (700.0, 2000.0),
        "times_4": (600.0, 4000.0),
        "times_8": (500.0, 8000.0),
    },
}
THE_OTHER_WAY_ROUND: Planted = {
    "control_suite": {"d4pg": (60.0, 400.0)},
    "ablations": {
        "d4pg": (300.0, 400.0),
        "uniform": (100.0, 400.0),
        "mean_critic": (500.0, 400.0),
        "one_step": (500.0, 400.0),
        "ddpg": (600.0, 400.0),
    },
    "actors": {
        "times_1": (400.0, 1000.0),
        "times_2": (500.0, 800.0),
        "times_4": (600.0, 500.0),
        "times_8": (700.0, 300.0),
    },
}


def plant(
    planned: list[PlannedRun], planted: Planted, results: Path, cores: int = CORES, origin: str = "run"
) -> list[PlannedRun]:
    for run in planned:
        final, speed = planted[run.experiment][run.variant]
        options = {"start": float(REFERENCES.loc[run.environment, "random"]), "cores": cores, "noisiness": 0.02}
        varied = final * (1 + 0.01 * (run.seed % 10))
        write_timed(run, results, final=varied, speed=speed, gpu="a GPU", origin=origin, **options)
    return planned


def runs_of(planted: Planted, results: Path, cores: int = CORES) -> list[PlannedRun]:
    """Scale workstation, and the one task that a claim needs of scale paper."""
    ball = expand(PAPER.key, "paper", root=ROOT, experiments=["control_suite"], environments=[BALL])
    return plant([*expand(PAPER.key, "workstation", root=ROOT), *ball], planted, results, cores)


def verdicts(planted: Planted, results: Path, cores: int = CORES) -> pd.DataFrame:
    return decided(PAPER, EXPERIMENTS, runs_of(planted, results, cores), results)


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_as_the_papers_say_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "supported", supporting.loc[name, "detail"]


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    assert contradicting.loc[name, "verdict"] in ("contradicted", "contradicted_here"), contradicting.loc[
        name, "detail"
    ]


def test_with_fewer_cores_than_actors_nothing_is_decided_about_actors(tmp_path: Path) -> None:
    found = verdicts(AS_THE_PAPER_SAYS, tmp_path, cores=2)
    of_actors = [claim.name for claim in PAPER.claims if claim.experiment == "actors"]
    assert set(found.loc[of_actors, "verdict"]) == {"not_testable"}


def test_published_numbers_from_pixels_have_no_verdict_and_the_one_from_the_state_has(tmp_path: Path) -> None:
    planned = expand(PAPER.key, "paper", root=ROOT, experiments=["control_suite"])
    plant(planned, AS_THE_PAPER_SAYS, tmp_path)
    for run in planned:
        path = run.directory(tmp_path) / "run.json"
        told = path.read_text().replace("mujoco-3.17.0/", "dm_control-1.0.50/")
        path.write_text(told.replace("cap1000", "float32-observations,flat-in-task-order;cap1000"))
    runs = list(gather(PAPER.key, planned, tmp_path, EXPERIMENTS, allow_missing=False).runs)
    known = load_references(PAPER)
    found = cells(PAPER, EXPERIMENTS, load_published(PAPER.directory), known, scores(runs, known), runs)
    pixels = found[found["cell"].str.contains(".pixels.")]
    assert len(pixels) == 19
    assert set(pixels["verdict"]) == {"not_comparable"}
    assert pixels["flags"].str.contains("changed_protocol").all()
    (state,) = found[found["cell"] == "t1.d4pg.state.manipulator_bring_ball"].to_dict("records")
    assert "changed_protocol" not in state["flags"]
    assert state["verdict"] == "equivalent", state


def test_the_base_is_what_tassa_et_al_print() -> None:
    config = paper_configs(PAPER.key, ROOT)["control_suite", "d4pg", "dm_control/walker-walk"]
    stated = {e.name: e.paper for e in PAPER.hyperparameters if e.experiment == "control_suite" and e.paper is not None}
    for name, value in stated.items():
        found = config
        for part in name.split("."):
            found = found[part]
        assert found == value, name
    keys = config["hyperparameters"]
    assert keys["policy_layers"] == [300, 200]
    assert keys["critic_layers"] == [400, 300]
    ladder = noise_ladder(keys["noise"], keys["largest_noise"], config["topology"]["num_actors"])
    assert ladder == pytest.approx([number / 32 for number in range(1, 33)])


def test_a_variant_without_a_component_differs_from_d4pg_in_it_alone() -> None:
    of = {run.variant: run.config["hyperparameters"] for run in expand(PAPER.key, "workstation", root=ROOT)}
    differs = {
        name: {key for key, value in of["d4pg"].items() if keys[key] != value}
        for name, keys in of.items()
        if name in EXPERIMENTS["ablations"].variants
    }
    support = {"num_atoms", "v_min", "v_max"} & differs["mean_critic"]  # a mean has none
    assert differs == {
        "d4pg": set(),
        "mean_critic": {"critic", *support},
        "one_step": {"n_step"},
        "uniform": {"prioritized"},
        "ddpg": {"critic", "n_step", "prioritized", *support},
    }


def test_no_seed_decides_in_two_experiments() -> None:
    seeds = [seed for entry in EXPERIMENTS.values() for seed in entry.scales["workstation"].seeds]
    assert len(seeds) == len(set(seeds))


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(expand(PAPER.key, "smoke", root=ROOT), AS_THE_PAPER_SAYS, tmp_path)
    plant(expand(PAPER.key, "workstation", root=ROOT), AS_THE_PAPER_SAYS, tmp_path, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)
