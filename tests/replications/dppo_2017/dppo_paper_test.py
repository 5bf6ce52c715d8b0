"""The DPPO replication: every claim decided by planted runs, both ways round; its settings; its figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.runs.problems import gather
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.cells import cells
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published, load_references
from ddrl.training.config.experiments import PlannedRun, expand, paper_configs
from tests.analysis.fakes import assert_figures_are_drawn, decided, write_timed

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "dppo_2017")
EXPERIMENTS = load_experiments(PAPER.directory)
REFERENCES = load_references(PAPER).set_index("environment")
WAITING = [claim.name for claim in PAPER.claims if claim.metric is None]
"""Claims on algorithms that the suite does not have."""
AT_SCALE_PAPER = "less_time_up_to_64_workers"
CLAIMS = [claim.name for claim in PAPER.claims if claim.name not in (*WAITING, AT_SCALE_PAPER)]
WORKERS = (
    "one_worker",
    "two_workers",
    "four_workers",
    "eight_workers",
    "sixteen_workers",
    "thirty_two_workers",
    "sixty_four_workers",
)
TEST_COURSES = ("curriculum", "curriculum_easy")
CHANGES = ("robustness_friction", "robustness_incline")

Planted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Experiment -> variant -> final return, frames per second."""

AS_THE_PAPER_SAYS: Planted = {
    "workers": {name: (600.0, 1000.0 * 1.8**place) for place, name in enumerate(WORKERS)},
    "a3c": {"dppo": (600.0, 2000.0), "a3c": (100.0, 1000.0)},
    "two_stream": {"two_stream": (600.0, 1000.0), "one_network": (300.0, 1000.0)},
    **{name: {"curriculum": (600.0, 1000.0), "stationary": (300.0, 1000.0)} for name in TEST_COURSES},
    **{name: {"hurdles": (400.0, 1000.0), "flat": (200.0, 1000.0)} for name in CHANGES},
}
THE_OTHER_WAY_ROUND: Planted = {
    "workers": {name: (600.0 / 1.8**place, 1000.0 / 1.3**place) for place, name in enumerate(WORKERS)},
    "a3c": {"dppo": (100.0, 1000.0), "a3c": (600.0, 2000.0)},
    "two_stream": {"two_stream": (300.0, 1000.0), "one_network": (600.0, 1000.0)},
    **{name: {"curriculum": (300.0, 1000.0), "stationary": (600.0, 1000.0)} for name in TEST_COURSES},
    **{name: {"hurdles": (200.0, 1000.0), "flat": (400.0, 1000.0)} for name in CHANGES},
}


def plant(
    planned: list[PlannedRun], planted: Planted, results: Path, cores: int = 64, origin: str = "run"
) -> list[PlannedRun]:
    for run in planned:
        final, speed = planted[run.experiment][run.variant]
        varied = 1 + 0.01 * (run.seed % 10)
        folder = write_timed(
            run,
            results,
            start=float(REFERENCES.loc[run.environment, "random"]),
            final=final * varied,
            speed=speed * varied,
            cores=cores,
            noisiness=0.02,
            origin=origin,
        )
        if run.config["evaluation"].get("period_frames"):
            evaluate_often(folder / "curves.parquet")
    return planned


def evaluate_often(path: Path) -> None:
    """Give a run evaluations during training with the returns of training, one episode each."""
    curves = pd.read_parquet(path)
    trained = curves[(curves["metric"] == "episode_return") & (curves["env_frames"] < curves["env_frames"].max())]
    added = trained.assign(metric="evaluation_return")
    pd.concat([curves, added], ignore_index=True).to_parquet(path, index=False, write_page_checksum=True)


def verdicts(planted: Planted, results: Path, cores: int = 64) -> pd.DataFrame:
    planned = plant(expand(PAPER.key, "workstation", root=ROOT), planted, results, cores)
    return decided(PAPER, EXPERIMENTS, planned, results)


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_as_the_paper_says_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "supported", supporting.loc[name, "detail"]


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    verdict = contradicting.loc[name, "verdict"]
    assert verdict in ("contradicted", "contradicted_here"), contradicting.loc[name, "detail"]


def test_claims_on_algorithms_that_the_suite_does_not_have_have_no_run(supporting: pd.DataFrame) -> None:
    assert sorted(WAITING) == ["as_good_as_trpo", "faster_than_trpo", "synchronous_is_better"]
    assert set(supporting.loc[[*WAITING, AT_SCALE_PAPER], "verdict"]) == {"not_run"}


@pytest.mark.parametrize(
    ("planted", "cores", "allowed"),
    [
        (AS_THE_PAPER_SAYS, 64, ("supported",)),
        (THE_OTHER_WAY_ROUND, 64, ("contradicted", "contradicted_here")),
        (AS_THE_PAPER_SAYS, 32, ("not_testable",)),
    ],
)
def test_64_workers_are_examined_at_scale_paper_on_as_many_cores(
    planted: Planted, cores: int, allowed: tuple[str, ...], tmp_path: Path
) -> None:
    planned = plant(expand(PAPER.key, "paper", root=ROOT, experiments=["workers"]), planted, tmp_path, cores)
    found = decided(PAPER, EXPERIMENTS, planned, tmp_path).loc[AT_SCALE_PAPER]
    assert found["verdict"] in allowed, found["detail"]


def test_on_one_core_nothing_is_decided_about_times(tmp_path: Path) -> None:
    found = verdicts(AS_THE_PAPER_SAYS, tmp_path, cores=1)
    assert set(found.loc[["less_time_with_more_workers", "faster_than_a3c"], "verdict"]) == {"not_testable"}


def test_the_paper_prints_no_number_that_a_run_could_have(tmp_path: Path) -> None:
    planned = plant(expand(PAPER.key, "smoke", root=ROOT), AS_THE_PAPER_SAYS, tmp_path)
    runs = list(gather(PAPER.key, planned, tmp_path, EXPERIMENTS, allow_missing=False).runs)
    known, published = load_references(PAPER), load_published(PAPER.directory)
    assert cells(PAPER, EXPERIMENTS, published, known, scores(runs, known), runs).empty
    assert len(published) == 10


def test_what_the_main_text_states_is_the_base_and_all_else_is_said_not_to_be_read() -> None:
    configs = paper_configs(PAPER.key, ROOT)
    config = configs["curriculum", "curriculum", "terrain/hurdles"]
    for entry in PAPER.hyperparameters:
        if entry.paper is None:
            assert entry.source.startswith(("not read", "not there")), entry.name
            continue
        found = config
        for part in entry.name.split("."):
            found = found[part]
        assert found == entry.paper, entry.name
    keys = config["hyperparameters"]
    assert keys["max_kl"] == 4 * keys["kl_target"]


@pytest.mark.parametrize(("scale", "counts"), [("workstation", {1, 2}), ("paper", {1, 2, 4, 8, 16, 32, 64})])
def test_any_number_of_workers_has_the_same_environments_and_batches(scale: str, counts: set[int]) -> None:
    runs = expand(PAPER.key, scale, root=ROOT, experiments=["workers"], seeds=[1])
    topologies = [run.config["topology"] for run in runs]
    assert all(one["num_learners"] == one["num_actors"] for one in topologies)
    assert len({one["num_actors"] * one["envs_per_actor"] for one in topologies}) == 1
    assert len({str(run.config["hyperparameters"]) for run in runs}) == 1
    assert {one["num_learners"] for one in topologies} == counts


def test_variants_differ_in_what_is_compared_alone() -> None:
    differs = {
        **{name: {"environment.curriculum"} for name in TEST_COURSES},
        **{name: {"environment.obstacles"} for name in CHANGES},
        "two_stream": {"hyperparameters.network"},
    }
    for name, keys in differs.items():
        runs = expand(PAPER.key, "workstation", root=ROOT, experiments=[name], seeds=[1])
        first, second = (
            {f"{part}.{key}": value for part in run.config if isinstance(run.config[part], Mapping)
             for key, value in run.config[part].items()}
            for run in runs
        )  # fmt: skip
        assert {key for key in {*first, *second} if first.get(key) != second.get(key)} == keys, name


def test_agents_of_both_kinds_are_tested_on_the_same_course_that_neither_has_seen() -> None:
    for name in CHANGES:
        runs = expand(PAPER.key, "workstation", root=ROOT, experiments=[name], seeds=[1])
        courses = [run.config["environment"] | run.config["evaluation"]["environment"] for run in runs]
        assert courses[0] == courses[1]
        assert courses[0]["obstacles"] is False
        assert courses[0].keys() & {"friction", "incline"}
        assert not any(run.config["environment"].keys() & {"friction", "incline"} for run in runs)


def test_no_seed_decides_in_two_experiments_and_none_was_tuned_with() -> None:
    seeds = [seed for entry in EXPERIMENTS.values() for seed in entry.scales["workstation"].seeds]
    assert len(seeds) == len(set(seeds))
    assert not set(seeds) & {seed for entry in EXPERIMENTS.values() for one in entry.tuning for seed in one.seeds}


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(expand(PAPER.key, "smoke", root=ROOT), AS_THE_PAPER_SAYS, tmp_path)
    plant(expand(PAPER.key, "workstation", root=ROOT), AS_THE_PAPER_SAYS, tmp_path, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)


def test_a_curriculum_is_compared_by_its_evaluations_and_not_by_its_training(tmp_path: Path) -> None:
    """Training returns of two kinds of courses are of two kinds: planted evaluations are the other way round."""
    planned = expand(PAPER.key, "workstation", root=ROOT, experiments=["curriculum"])
    plant(planned, AS_THE_PAPER_SAYS, tmp_path)
    for run in planned:
        path = run.directory(tmp_path) / "curves.parquet"
        curves = pd.read_parquet(path)
        evaluated = curves["metric"] == "evaluation_return"
        value = np.where(evaluated, 700.0 - curves["value"], curves["value"])
        curves.assign(value=value).to_parquet(path, index=False, write_page_checksum=True)
    found = decided(PAPER, EXPERIMENTS, planned, tmp_path).loc["curriculum_learns_faster_hard"]
    assert found["verdict"] == "contradicted_here", found["detail"]
