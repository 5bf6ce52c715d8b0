"""Every claim of the SEED RL replication that this machine can run, decided by planted runs, both ways round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.training.config.experiments import expand
from tests.analysis.fakes import decided, write_measured

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "seed_rl_2020")
EXPERIMENTS = load_experiments(PAPER.directory)
NEEDS_MORE = {"faster_with_its_own_inference_device", "state_of_the_art_in_a_third_of_the_time"}
"""Claims that want a second accelerator, or an algorithm that is not in the suite yet."""
UNCONTRADICTED = {"impala_learns_no_worse", "traffic_less_by_99_percent"}
"""Claims that the runs the other way round do not contradict: one holds then as well, and one is a bound."""
NAMES = [claim.name for claim in PAPER.claims if claim.name not in NEEDS_MORE]


def facts(final: float, speed: float, cpu: float, wire: float, lag: tuple[float, float]) -> dict[str, float]:
    return {"final": final, "speed": speed, "cpu": cpu, "wire": wire, "first": lag[0], "last": lag[1]}


SEED = facts(1.0, 800.0, 3_000.0, 100.0, (1.0, 0.2))
IMPALA = facts(1.0, 1000.0, 900_000.0, 20000.0, (2.0, 2.0))
AS_THE_PAPER_SAYS: Mapping[str, Mapping[str, float]] = {
    "seed": SEED,
    "impala": IMPALA,
    "seed_deep_2_devices_2": SEED | {"speed": 1000.0},
}
THE_OTHER_WAY_ROUND: Mapping[str, Mapping[str, float]] = {
    "seed": IMPALA | {"final": 0.6, "speed": 1000.0},
    "impala": SEED | {"final": 1.0, "speed": 800.0},
    "seed_deep_2_devices_2": SEED | {"speed": 500.0},
}


def verdicts(planted: Mapping[str, Mapping[str, float]], results: Path) -> pd.DataFrame:
    """The claims on runs of all experiments at scale workstation, three seeds (of settings: two)."""
    planned = [
        run
        for name in EXPERIMENTS
        for run in expand(PAPER.key, "workstation", root=ROOT, experiments=[name], environments=None)
        if run.seed in (1, 2, 3, 21, 22, 23, 31, 32) and run.environment != "atari/breakout"
    ]
    for run in planned:
        own = planted.get(run.variant) or planted[run.variant.partition("_")[0]]
        wobble = 1 + 0.01 * (run.seed % 5)
        setting = 0.01 * int(run.variant[-2:]) if "__s" in run.variant else 0.0
        measured = {
            "cpu_seconds": own["cpu"] * wobble / 2,
            "worker_cpu_seconds": own["cpu"] * wobble / 2,
            "wire_bytes_per_frame_to_learner": own["wire"] * wobble / 2,
            "wire_bytes_per_frame_from_learner": own["wire"] * wobble / 2,
            "policy_lag_mean": (own["first"] + own["last"]) * wobble / 2,
            "policy_lag_first": own["first"] * wobble,
            "policy_lag_last": own["last"],
        }
        final = own["final"] - setting + 0.001 * (run.seed % 5)
        write_measured(
            run, results, start=0.1, final=final, speed=own["speed"] * wobble, measured=measured, gpu="a GPU"
        )
    return decided(PAPER, EXPERIMENTS, planned, results)


@pytest.mark.parametrize("name", NAMES)
def test_runs_as_the_paper_says_support_each_claim(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "supported", supporting.loc[name, "detail"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNCONTRADICTED])
def test_runs_the_other_way_round_contradict_each_claim(contradicting: pd.DataFrame, name: str) -> None:
    assert contradicting.loc[name, "verdict"] == "contradicted_here", contradicting.loc[name, "detail"]


def test_where_seed_rl_learns_more_slowly_impala_learns_no_worse(contradicting: pd.DataFrame) -> None:
    assert contradicting.loc["impala_learns_no_worse", "verdict"] == "supported"
    assert contradicting.loc["learns_no_worse_than_impala", "verdict"] == "contradicted_here"


def test_two_configurations_say_nothing_against_a_bound_over_all(contradicting: pd.DataFrame) -> None:
    row = contradicting.loc["traffic_less_by_99_percent"]
    assert (row["verdict"], row["obstacle"]) == ("not_testable", "settings")
    assert row["effect"] == pytest.approx(1 / 200, rel=0.01), "what was measured is shown"
    assert "the interval lies below 100 times the other's" in row["detail"]


@pytest.mark.parametrize("name", sorted(NEEDS_MORE))
def test_what_cannot_run_here_is_said_not_to_have_run(supporting: pd.DataFrame, name: str) -> None:
    assert supporting.loc[name, "verdict"] == "not_run"


def test_settings_may_lose_their_margin_and_no_more(supporting: pd.DataFrame, contradicting: pd.DataFrame) -> None:
    row = supporting.loc["at_least_as_stable"]
    assert row["ci95_low"] < 0.0 < row["ci95_high"], "both systems end alike"
    assert "5 of 12 settings tell something" in row["detail"], "the others end at the best return, or near random play"
    assert row["decided_by"] == "SEED RL against IMPALA"
    assert "the interval lies above what may be lost" in row["detail"]
    assert contradicting.loc["at_least_as_stable", "effect"] == pytest.approx(-0.4, abs=0.01)
