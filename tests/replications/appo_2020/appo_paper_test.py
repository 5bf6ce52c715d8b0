"""The APPO replication: claims decided by planted runs, both ways round; its published numbers, settings, figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from ddrl.analysis.runs.by_task import by_task
from ddrl.analysis.runs.problems import gather
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.cells import cells
from ddrl.analysis.verdicts.claims import claims
from ddrl.environments import dmlab
from ddrl.environments.firstperson import SUITES
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published, load_references
from ddrl.training.config.experiments import PlannedRun, expand, paper_configs
from tests.analysis.fakes import assert_figures_are_drawn, write_timed

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "appo_2020")
EXPERIMENTS = load_experiments(PAPER.directory)
PUBLISHED = load_published(PAPER.directory)
CLAIMS = [claim.name for claim in PAPER.claims]
REFERENCES = load_references(PAPER).set_index("environment").fillna({"human": 1.0})  # of Catch: its best return
GPU = "NVIDIA A100"

Planted = Mapping[str, Mapping[str, tuple[float, float, float]]]
"""Experiment -> variant -> human-normalised final return, frames per second, share of time that environments wait."""

AS_THE_PAPER_SAYS: Planted = {
    "throughput": {
        "appo": (0.5, 8000.0, 0.1),
        "impala": (0.5, 2000.0, 0.0),
        "seed_rl": (0.5, 4000.0, 0.3),
        "ppo": (0.5, 5000.0, 0.5),
    },
    "double_buffering": {"one_group": (0.5, 3000.0, 0.4), "two_groups": (0.5, 5000.0, 0.05)},
    "sample_efficiency": {"asynchronous": (0.95, 900.0, 0.0), "synchronous": (0.95, 800.0, 0.0)},
    "policy_lag": {"lag_0": (0.95, 900.0, 0.0), "lag_20": (0.95, 900.0, 0.0), "lag_100": (0.3, 900.0, 0.0)},
    "dmlab30": {"appo": (0.58, 900.0, 0.0), "impala": (0.4, 900.0, 0.0)},
}
THE_OTHER_WAY_ROUND: Planted = {
    "throughput": {
        "appo": (0.5, 2000.0, 0.1),
        "impala": (0.5, 8000.0, 0.0),
        "seed_rl": (0.5, 4000.0, 0.3),
        "ppo": (0.5, 5000.0, 0.5),
    },
    "double_buffering": {"one_group": (0.5, 5000.0, 0.05), "two_groups": (0.5, 3000.0, 0.4)},
    "sample_efficiency": {"asynchronous": (0.2, 900.0, 0.0), "synchronous": (0.95, 800.0, 0.0)},
    "policy_lag": {"lag_0": (0.95, 900.0, 0.0), "lag_20": (0.3, 900.0, 0.0), "lag_100": (0.95, 900.0, 0.0)},
    "dmlab30": {"appo": (0.3, 900.0, 0.0), "impala": (0.5, 900.0, 0.0)},
}


def plant(
    planned: list[PlannedRun], planted: Planted, results: Path, gpu: str | None = GPU, origin: str = "run"
) -> list[PlannedRun]:
    for run in planned:
        score, speed, waiting = planted[run.experiment.removesuffix("_first_person")][run.variant]
        varied = 1 + 0.01 * (run.seed % 10)
        suite = SUITES.get(run.environment.partition("/")[2], ())
        bounds = REFERENCES.loc[run.environment] if not suite else {"random": 0.0, "human": 1.0}
        folder = write_timed(
            run,
            results,
            start=float(bounds["random"]),
            final=float(bounds["random"] + varied * score * (bounds["human"] - bounds["random"])),
            speed=speed * varied,
            cores=16,
            gpu=gpu,
            noisiness=0.02,
            measured={"environment_wait_fraction": waiting * varied},
            origin=origin,
        )
        if suite:
            split(folder / "curves.parquet", [f"firstperson/{task}" for task in suite])
    return planned


def split(path: Path, tasks: list[str]) -> None:
    """Give every task of a suite the curves that were written as those of one task with scores from 0 to 1."""
    curves = pd.read_parquet(path)
    of_episodes = curves["metric"].isin(["episode_return", "evaluation_return", "episodes"])
    parts = [curves[~of_episodes | (curves["metric"] == "episodes")]]
    for task in tasks:
        bounds, own = REFERENCES.loc[task], curves[of_episodes]
        scaled = bounds["random"] + own["value"] * (bounds["human"] - bounds["random"])
        value = scaled.where(own["metric"] != "episodes", 10.0)
        parts.append(own.assign(metric=own["metric"] + f"/{task}", value=value))
    pd.concat(parts, ignore_index=True).to_parquet(path, index=False, write_page_checksum=True)


def verdicts(planted: Planted, results: Path, gpu: str | None = GPU) -> pd.DataFrame:
    planned = plant(expand(PAPER.key, "workstation", root=ROOT), planted, results, gpu)
    found = gather(PAPER.key, planned, results, EXPERIMENTS, allow_missing=False)
    assert found.problems == ()
    runs = by_task(found.runs)
    table = claims(PAPER, EXPERIMENTS, scores(runs, load_references(PAPER)), runs)
    return table[table["origin"] == "run"].set_index("claim")


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_as_the_paper_says_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "supported", supporting.loc[name, "detail"]


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    verdict = contradicting.loc[name, "verdict"]
    assert verdict in ("contradicted", "contradicted_here"), contradicting.loc[name, "detail"]


def test_without_an_accelerator_the_wait_of_environments_is_decided_and_no_speed(tmp_path: Path) -> None:
    found = verdicts(AS_THE_PAPER_SAYS, tmp_path, gpu=None)
    speeds = [claim.name for claim in PAPER.claims if claim.metric == "steady_frames_per_second"]
    assert len(speeds) == 5
    assert set(found.loc[speeds, "verdict"]) == {"not_testable"}
    assert found.loc["two_groups_wait_less", "verdict"] == "supported", found.loc["two_groups_wait_less", "detail"]


def test_published_ratios_of_speeds_have_no_verdict_on_another_machine(tmp_path: Path) -> None:
    planned = expand(PAPER.key, "workstation", root=ROOT, experiments=["throughput", "throughput_first_person"])
    plant(planned, AS_THE_PAPER_SAYS, tmp_path)
    runs = list(gather(PAPER.key, planned, tmp_path, EXPERIMENTS, allow_missing=False).runs)
    known = load_references(PAPER)
    found = cells(PAPER, EXPERIMENTS, PUBLISHED, known, scores(runs, known), runs)
    ratios = found[found["item"] == "Highest frames per second, as ratios"]
    assert len(ratios) == 24
    assert set(ratios["verdict"]) == {"not_comparable"}
    assert ratios["flags"].str.contains("other_hardware").all()
    assert ratios["ours"].notna().all()
    first_person = ratios[ratios["task"] != "Atari"]
    assert first_person["flags"].str.contains("proxy_env").all()


def test_a_ratio_is_the_highest_speed_of_appo_over_that_of_the_other_system() -> None:
    table = PUBLISHED.assign(key=PUBLISHED["cell"].str.split("."))
    speeds = table[table["metric"] == "throughput"]
    highest = speeds[speeds["cell"].str.startswith("fps.")].groupby(["hardware", "task", "system"])["value"].max()
    assert len(highest) == 30
    for row in table[table["metric"] == "speed_up"].to_dict("records"):
        if row["cell"].startswith("peak."):
            place = (row["hardware"], row["task"])
            other = str(row["variant"]).removeprefix("over ")
            assert row["value"] == float(f"{highest[(*place, 'APPO')] / highest[(*place, other)]:.3g}")


def test_the_means_over_dmlab30_are_those_of_the_capped_bars() -> None:
    bars = PUBLISHED[PUBLISHED["item"] == "DMLab-30 by level"]
    assert set(bars.groupby("system").size()) == {30}
    levels = set(bars["task"])
    assert len(levels) == 30
    assert levels == set(dmlab.SUITES["dmlab30_train"])
    means = PUBLISHED[PUBLISHED["item"] == "DMLab-30, mean of capped scores"].set_index("system")["value"]
    for system, own in bars.groupby("system"):
        assert means[system] == pytest.approx(own["value"].clip(upper=100.0).mean(), abs=0.05)


def test_the_base_is_what_the_authors_print() -> None:
    configs = paper_configs(PAPER.key, ROOT)
    ours = {
        "sample_efficiency": configs["sample_efficiency", "asynchronous", "firstperson/vizdoom_basic"],
        "double_buffering": configs["double_buffering", "two_groups", "atari/pong"],
        "dmlab30": configs["dmlab30", "appo_pbt", "dmlab/dmlab30_train"],
    }
    for entry in PAPER.hyperparameters:
        if entry.paper is None or (isinstance(entry.paper, str) and " " in entry.paper):
            continue
        found = ours[entry.experiment]
        for part in entry.name.split("."):
            found = found[part]
        assert found == entry.paper, entry.name
    keys = ours["sample_efficiency"]["hyperparameters"]
    assert keys["batch_size"] * keys["unroll_length"] == 2048


def test_schedules_groups_and_lags_are_all_that_differs_between_variants() -> None:
    configs: dict[str, dict[str, dict[str, object]]] = {}
    for run in expand(PAPER.key, "workstation", root=ROOT, seeds=[1]):
        place = f"{run.experiment}/{run.environment}"
        flat = {
            f"{part}.{key}": value
            for part in ("hyperparameters", "topology")
            for key, value in run.config[part].items()
        }
        configs.setdefault(place, {})[run.variant] = flat
    differs = {"sample_efficiency": {"topology.schedule"}, "policy_lag": {"topology.parameter_delay"}}
    differs["double_buffering"] = {"topology.env_groups"}
    for place, variants in configs.items():
        if (experiment := place.partition("/")[0]) in differs:
            first, *others = variants.values()
            changed = {key for other in others for key in {*first, *other} if first.get(key) != other.get(key)}
            assert changed == differs[experiment], place


def test_no_seed_decides_in_two_experiments_and_none_was_tuned_with() -> None:
    learning = {name: entry for name, entry in EXPERIMENTS.items() if not name.startswith("throughput")}
    seeds = [seed for entry in learning.values() for seed in entry.scales["workstation"].seeds]
    assert len(seeds) == len(set(seeds))
    tuned = {seed for entry in EXPERIMENTS.values() for record in entry.tuning for seed in record.seeds}
    assert not tuned & set(seeds)


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(expand(PAPER.key, "smoke", root=ROOT), AS_THE_PAPER_SAYS, tmp_path)
    plant(expand(PAPER.key, "workstation", root=ROOT), AS_THE_PAPER_SAYS, tmp_path, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)
