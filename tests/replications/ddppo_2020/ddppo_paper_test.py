"""The DD-PPO replication: every claim decided by planted runs, both ways round; its settings and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from ddrl.analysis.runs.problems import gather
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.cells import cells
from ddrl.bench.defaults import default_config
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published, load_references
from ddrl.system.text_files import parse_yaml
from ddrl.training.config.experiments import PlannedRun, expand, paper_configs
from ddrl.training.config.overrides import merged
from ddrl.training.config.run_config import to_json
from tests.analysis.fakes import assert_figures_are_drawn, decided, write_timed

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "ddppo_2020")
EXPERIMENTS = load_experiments(PAPER.directory)
GPU = "NVIDIA A100"
ON_GPUS = ("eight_workers", "many_workers", "most_workers")
CLAIMS = [claim.name for claim in PAPER.claims if claim.name not in ON_GPUS]
COUNTS = {"one": 1, "two": 2, "four": 4, "eight": 8, "many": 128, "most": 256}

Planted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Experiment -> variant -> final return, frames per second."""


def speeds(efficiencies: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Frames per second of all variants of experiment scaling, by the part of linear scaling that each kind has."""
    names = {run.variant for run in expand(PAPER.key, "paper", root=ROOT, experiments=["scaling"])}
    found = {}
    for name in names:
        count, _, work = name.partition("_")
        linear = 400.0 * COUNTS[count]
        found[name] = (0.5, linear if count == "one" else linear * efficiencies[work])
    return found


AS_THE_PAPER_SAYS: Planted = {
    "scaling": speeds({"equal": 0.98, "unequal": 0.7, "preempted": 0.95}),
    "preemption_learning": {"preempted": (0.7, 800.0), "whole": (0.7, 700.0)},
    "sensors": {"depth": (0.8, 2000.0), "blind": (0.3, 2000.0)},
}
THE_OTHER_WAY_ROUND: Planted = {
    "scaling": speeds({"equal": 0.6, "unequal": 0.7, "preempted": 0.4}),
    "preemption_learning": {"preempted": (0.3, 800.0), "whole": (0.7, 700.0)},
    "sensors": {"depth": (0.3, 2000.0), "blind": (0.8, 2000.0)},
}


def plant(
    planned: list[PlannedRun],
    planted: Planted,
    results: Path,
    *,
    early: float,
    cores: int = 2,
    gpu: str | None = None,
    origin: str = "run",
) -> list[PlannedRun]:
    """Write runs; `early`: the share of the final SPL that evaluations have from the first one on."""
    for run in planned:
        final, speed = planted[run.experiment][run.variant]
        varied = 1 + 0.01 * (run.seed % 10)
        folder = write_timed(
            run,
            results,
            start=0.0,
            final=final * varied,
            speed=speed * varied,
            cores=cores,
            gpu=gpu,
            noisiness=0.02,
            origin=origin,
            measured={},
        )
        if run.config["evaluation"].get("period_frames"):
            evaluate_often(folder / "curves.parquet", early * final * varied)
    return planned


def evaluate_often(path: Path, spl: float) -> None:
    """Give a run evaluations during training with one SPL, from 2 % of its frames to 98 %."""
    curves = pd.read_parquet(path)
    last = int(curves["env_frames"].max())
    frames = [last * percent // 100 for percent in range(2, 99, 2)]
    added = curves.iloc[: len(frames)].assign(env_frames=frames, metric="evaluation_return", value=spl)
    pd.concat([curves, added], ignore_index=True).to_parquet(path, index=False, write_page_checksum=True)


def verdicts(planted: Planted, results: Path) -> pd.DataFrame:
    planned = expand(PAPER.key, "workstation", root=ROOT)
    plant(planned, planted, results, early=0.97 if planted is AS_THE_PAPER_SAYS else 0.5)
    return decided(PAPER, EXPERIMENTS, planned, results)


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_as_the_paper_says_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "supported", supporting.loc[name, "detail"]


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    verdict = contradicting.loc[name, "verdict"]
    too_small = ("no_difference",) if name == "two_workers_are_nearly_linear" else ()
    assert verdict in ("contradicted", "contradicted_here", *too_small), contradicting.loc[name, "detail"]


@pytest.mark.parametrize(
    ("planted", "cores", "gpu", "allowed"),
    [
        (AS_THE_PAPER_SAYS, 256, GPU, ("supported",)),
        (THE_OTHER_WAY_ROUND, 256, GPU, ("contradicted", "contradicted_here")),
        (AS_THE_PAPER_SAYS, 256, None, ("not_testable",)),
        (AS_THE_PAPER_SAYS, 4, GPU, ("not_testable",)),
    ],
)
def test_many_workers_are_examined_at_scale_paper_on_gpus(
    planted: Planted, cores: int, gpu: str | None, allowed: tuple[str, ...], tmp_path: Path
) -> None:
    planned = expand(PAPER.key, "paper", root=ROOT, experiments=["scaling"])
    plant(planned, planted, tmp_path, early=1.0, cores=cores, gpu=gpu)
    found = decided(PAPER, EXPERIMENTS, planned, tmp_path).loc[list(ON_GPUS)]
    assert set(found["verdict"]) <= set(allowed), found["detail"].to_list()


def test_speeds_of_two_workers_need_two_cores(tmp_path: Path) -> None:
    planned = expand(PAPER.key, "workstation", root=ROOT, experiments=["scaling"])
    plant(planned, AS_THE_PAPER_SAYS, tmp_path, early=1.0, cores=1)
    found = decided(PAPER, EXPERIMENTS, planned, tmp_path)
    names = ["two_workers_are_nearly_linear", "preemption_recovers_the_speed", "preemption_is_faster"]
    assert set(found.loc[names, "verdict"]) == {"not_testable"}


def test_an_agent_that_is_not_evaluated_early_enough_decides_nothing_about_it(tmp_path: Path) -> None:
    planned = expand(PAPER.key, "workstation", root=ROOT, experiments=["sensors"])
    plant(planned, AS_THE_PAPER_SAYS, tmp_path, early=1.0)
    for run in planned:
        path = run.directory(tmp_path) / "curves.parquet"
        curves = pd.read_parquet(path)
        too_early = (curves["metric"] == "evaluation_return") & (
            curves["env_frames"] <= 0.04 * curves["env_frames"].max()
        )
        curves[~too_early].to_parquet(path, index=False, write_page_checksum=True)
    found = decided(PAPER, EXPERIMENTS, planned, tmp_path).loc["most_comes_early"]
    assert found["verdict"] in ("inconclusive", "not_testable")
    assert "not evaluated early enough" in found["detail"]


def test_no_published_spl_is_compared_and_speed_ups_are_with_other_hardware(tmp_path: Path) -> None:
    planned = expand(PAPER.key, "paper", root=ROOT, experiments=["scaling"])
    plant(planned, AS_THE_PAPER_SAYS, tmp_path, early=1.0, cores=256)
    runs = list(gather(PAPER.key, planned, tmp_path, EXPERIMENTS, allow_missing=False).runs)
    known, published = load_references(PAPER), load_published(PAPER.directory)
    found = cells(PAPER, EXPERIMENTS, published, known, scores(runs, known), runs)
    assert set(found["metric"]) == {"speed_up"}
    assert found["ours"].notna().all()
    assert set(found["verdict"]) == {"not_comparable"}
    assert found["flags"].str.contains("proxy_env").all()
    spl = published[published["metric"] == "spl"]
    reasons = {str(entry.published["item"]): entry.reason for entry in PAPER.not_compared}
    assert len(spl) == 20
    assert all("another task" in reasons[item] for item in spl["item"])


def test_the_base_is_what_the_authors_have() -> None:
    config = paper_configs(PAPER.key, ROOT)["sensors", "depth", "pointnav/mixed"]
    for entry in PAPER.hyperparameters:
        if isinstance(entry.paper, str) and " " in entry.paper:
            continue
        found = config
        for part in entry.name.split("."):
            found = found[part]
        assert found == entry.paper, entry.name
    assert config["hyperparameters"]["batch_size"] == 4 * config["topology"]["num_learners"]


def test_the_page_prints_the_settings_with_which_one_worker_was_measured() -> None:
    page = (ROOT.parent / "docs" / "papers" / "ddppo_2020.md").read_text()
    printed = parse_yaml(page.partition("```yaml\n")[2].partition("```")[0])
    (run, *_) = expand(PAPER.key, "workstation", root=ROOT, experiments=["scaling"], variants=["one_equal"])
    measured = default_config("ppo", "pointnav/large", merged(printed, {"topology": {"runtime": "serial"}}))
    assert to_json(measured)["hyperparameters"] == run.config["hyperparameters"]
    topology = to_json(measured)["topology"]
    assert {key for key, value in run.config["topology"].items() if topology[key] != value} == {"runtime"}


def test_every_worker_has_the_same_environments_and_the_same_share_of_a_batch() -> None:
    for scale in ("workstation", "paper"):
        for run in expand(PAPER.key, scale, root=ROOT, experiments=["scaling"], seeds=[1]):
            topology = run.config["topology"]
            count = COUNTS[run.variant.partition("_")[0]]
            assert (topology["num_learners"], topology["num_actors"], topology["envs_per_actor"]) == (count, count, 4)
            assert run.config["hyperparameters"]["batch_size"] == 4 * count
            assert bool(topology["preemption"]) == run.variant.endswith("preempted")
            assert run.config["environment"].get("step_spread", 0.0) == (0.0 if run.variant.endswith("_equal") else 0.5)


def test_some_workers_can_preempt_the_others() -> None:
    for scale in ("smoke", "workstation"):
        for run in expand(PAPER.key, scale, root=ROOT, experiments=["scaling", "preemption_learning"], seeds=[1, 11]):
            if rule := run.config["topology"]["preemption"]:
                workers = run.config["topology"]["num_actors"]
                assert math.ceil(rule["threshold"] * workers) < workers, run.variant


def test_variants_differ_in_what_is_compared_alone() -> None:
    differs = {"preemption_learning": {"topology.preemption"}, "sensors": {"environment.sensors"}}
    for name, keys in differs.items():
        runs = expand(
            PAPER.key, "workstation", root=ROOT, experiments=[name], seeds=[11 if name == "preemption_learning" else 21]
        )
        first, second = (
            {f"{part}.{key}": value for part in run.config if isinstance(run.config[part], Mapping)
             for key, value in run.config[part].items()}
            for run in runs
        )  # fmt: skip
        assert {key for key in {*first, *second} if first.get(key) != second.get(key)} == keys, name


def test_every_agent_is_evaluated_by_spl_and_no_evaluation_waits() -> None:
    for scale in ("smoke", "workstation", "paper"):
        for run in expand(PAPER.key, scale, root=ROOT):
            played = run.config["environment"] | run.config["evaluation"]["environment"]
            assert played["reward"] == "metric"
            assert not played.get("step_ms", 0.0)
            assert run.config["environment"].get("reward", "spl") == "spl"


def test_no_seed_decides_in_two_experiments_and_none_was_tuned_with() -> None:
    seeds = [seed for entry in EXPERIMENTS.values() for seed in entry.scales["workstation"].seeds]
    assert len(seeds) == len(set(seeds))
    assert not set(seeds) & {seed for entry in EXPERIMENTS.values() for one in entry.tuning for seed in one.seeds}


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(expand(PAPER.key, "smoke", root=ROOT), AS_THE_PAPER_SAYS, tmp_path, early=0.9)
    plant(expand(PAPER.key, "workstation", root=ROOT), AS_THE_PAPER_SAYS, tmp_path, early=0.9, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)
