"""The R2D2 replication: every claim decided by planted runs, as the paper has it and the other way round; figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from ddrl.environments.dmlab import IMAGE_SHAPE, SUITES
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_references
from ddrl.system.instruction_words import packed_shape
from ddrl.training.config.experiments import PlannedRun, expand, paper_configs
from tests.analysis.fakes import assert_figures_are_drawn, decided, write_measured

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "r2d2_2019")
EXPERIMENTS = load_experiments(PAPER.directory)
REFERENCES = load_references(PAPER).set_index("environment")
CLAIMS = [claim.name for claim in PAPER.claims if claim.name != "median_over_57_games"]
STRATEGIES = ("zero_0", "zero_20", "zero_40", "stored_0", "stored_20", "stored_40")

Planted = Mapping[str, Mapping[str, tuple[float, float, float, float]]]
"""Experiment -> variant -> final return (on games and first-person tasks the part of the way to the reference score),
lag, discrepancies."""


def finals(**values: float) -> dict[str, tuple[float, float, float, float]]:
    return {name: (value, 10.0, 0.1, 0.1) for name, value in values.items()}


AS_THE_PAPER_SAYS: Planted = {
    "atari": finals(r2d2=4.0, ape_x=1.0),
    "staleness": {
        name: (final, 10.0, first, last)
        for name, final, first, last in zip(
            STRATEGIES,
            (1, 1, 1, 1.5, 1.7, 2),
            (0.9, 0.5, 0.3, 0.0, 0.1, 0.1),
            (0.5, 0.45, 0.4, 0.2, 0.15, 0.1),
            strict=True,
        )
    },
    "memory": finals(r2d2=1.0, feed_forward=0.2),
    "beyond_sequences": finals(zero_0=1.0, zero_8=2.0, stored_0=3.0, stored_8=3.0),
    "dmlab30": finals(r2d2=0.5, r2d2_plus=0.8, impala_shallow=0.3, impala_deep=0.8),
    "parameter_lag": {"times_1": (1.0, 5500.0, 0.1, 0.1), "times_4": (1.0, 1500.0, 0.1, 0.1)},
    "ablations": finals(r2d2=4.0, clipped=1.0, discount=1.5, feed_forward=1.2, life_loss_reset=2.0, life_loss_roll=2.0),
}
THE_OTHER_WAY_ROUND: Planted = {
    "atari": finals(r2d2=1.0, ape_x=4.0),
    "staleness": {
        name: (final, 10.0, first, last)
        for name, final, first, last in zip(
            STRATEGIES,
            (3, 1, 1, 1.5, 1.7, 1),
            (0.1, 0.5, 0.9, 0.8, 0.1, 0.1),
            (0.1, 0.1, 0.1, 0.5, 0.5, 0.5),
            strict=True,
        )
    },
    "memory": finals(r2d2=0.2, feed_forward=1.0),
    "beyond_sequences": finals(zero_0=3.0, zero_8=2.0, stored_0=1.0, stored_8=1.0),
    "dmlab30": finals(r2d2=0.3, r2d2_plus=0.2, impala_shallow=0.5, impala_deep=0.8),
    "parameter_lag": {"times_1": (1.0, 1500.0, 0.1, 0.1), "times_4": (1.0, 5500.0, 0.1, 0.1)},
    "ablations": finals(r2d2=1.0, clipped=4.0, discount=4.0, feed_forward=4.0, life_loss_reset=4.0, life_loss_roll=4.0),
}


def plant(planted: Planted, results: Path, scale: str = "workstation", origin: str = "run") -> list[PlannedRun]:
    planned = expand(PAPER.key, scale, root=ROOT)
    # Agents that scale paper alone has, on the tasks of this one.
    planned += expand(PAPER.key, scale, root=ROOT, experiments=["dmlab30"], variants=["r2d2_plus", "impala_deep"])
    for run in planned:
        final, lag, first, last = planted[run.experiment][run.variant]
        level = REFERENCES.loc[run.environment]
        if run.environment.startswith(("atari/", "firstperson/")):
            final = float(level["random"]) + final * float(level["human"] - level["random"])
        measured = {"policy_lag_mean": lag, "q_discrepancy_first": first, "q_discrepancy_last": last}
        noisy = {name: value * (1 + 0.01 * run.seed) for name, value in measured.items()}
        start = float(level["random"])
        options = {"start": start, "noisiness": 0.02, "origin": origin}
        write_measured(run, results, final=final * (1 + 0.01 * run.seed), speed=1000.0, measured=noisy, **options)
    return planned


def verdicts(planted: Planted, results: Path) -> pd.DataFrame:
    return decided(PAPER, EXPERIMENTS, plant(planted, results), results)


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_as_the_paper_says_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "supported", supporting.loc[name, "detail"]


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    assert contradicting.loc[name, "verdict"] == "contradicted_here", contradicting.loc[name, "detail"]


def test_the_base_is_table_2() -> None:
    config = paper_configs(PAPER.key, ROOT)["atari", "r2d2", "atari/pong"]
    rows = [entry for entry in PAPER.hyperparameters if entry.experiment == "atari"]
    stated = {entry.name: entry.paper for entry in rows if entry.paper is not None}
    for name, value in stated.items():
        found = config
        for part in name.split("."):
            found = found[part]
        assert found == value, name


def dmlab30(scale: str) -> list[PlannedRun]:
    return expand(PAPER.key, scale, root=ROOT, experiments=["dmlab30"], seeds=[1])


def test_at_scale_paper_the_experts_play_dmlab_30_with_fifteen_actions_and_are_tested_on_its_test_levels() -> None:
    runs = dmlab30("paper")
    assert {run.config["environment"]["action_set"] for run in runs} == {"r2d2"}
    assert {run.config["env_frames"] for run in runs} == {10_000_000_000}
    for variant in EXPERIMENTS["dmlab30"].variants:
        own = [run for run in runs if run.variant == variant]
        assert {run.environment for run in own} == {f"dmlab/{level}" for level in SUITES["dmlab30_train"]}
        tests = [run.config["evaluation"]["environment"] for run in own]
        assert all(test["test_seeds"] for test in tests)
        tested = {test.get("name", run.environment) for test, run in zip(tests, own, strict=True)}
        assert tested == {f"dmlab/{level}" for level in SUITES["dmlab30_test"]}
        assert tested <= set(REFERENCES.index)


def test_r2d2_plus_differs_from_r2d2_in_what_section_4_2_says() -> None:
    of = {run.variant: run.config["hyperparameters"] for run in dmlab30("paper")}
    differs = {key for key, value in of["r2d2"].items() if of["r2d2_plus"][key] != value}
    assert differs == {"network", "reward_clipping", "target_update_period", "batch_size"}


@pytest.mark.parametrize("scale", ["smoke", "workstation", "paper"])
def test_replays_of_first_person_images_fit_the_memory_that_a_run_is_given(scale: str) -> None:
    image_bytes = math.prod(packed_shape(IMAGE_SHAPE))
    assert image_bytes == 20_768
    for run in dmlab30(scale):
        mib = run.config["hyperparameters"].get("replay_capacity", 0) * image_bytes / 2**20
        actors = 300 * (run.config["topology"]["num_actors"] if run.config["topology"]["runtime"] == "ray" else 1)
        assert mib + actors + 700 < run.resources.memory_mib, run.key


def test_only_the_strategy_differs_between_the_six_ways_to_begin_a_sequence() -> None:
    runs = {
        run.variant: run.config for run in expand(PAPER.key, "paper", root=ROOT, experiments=["staleness"], seeds=[1])
    }
    ways = {name: (c["hyperparameters"]["stored_state"], c["hyperparameters"]["burn_in"]) for name, c in runs.items()}
    assert ways == {
        f"{kind}_{steps}": (kind == "stored", steps) for kind in ("zero", "stored") for steps in (0, 20, 40)
    }
    rest = [
        {key: value for key, value in config["hyperparameters"].items() if key not in ("stored_state", "burn_in")}
        for config in runs.values()
    ]
    assert all(one == rest[0] for one in rest)


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(AS_THE_PAPER_SAYS, tmp_path, "smoke")
    plant(AS_THE_PAPER_SAYS, tmp_path, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)
