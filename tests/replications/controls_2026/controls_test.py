"""The controls: runs of scale workstation can get a verdict in every cell, and do if they end as the libraries' do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddrl.analysis.tables.build import make
from ddrl.papers.experiments import PlannedRun, load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.peer_pairs import pairs
from ddrl.papers.published import load_published, matching
from ddrl.training.config.experiments import expand
from tests.analysis.fakes import assert_figures_are_drawn, write_run

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "controls_2026")
EXPERIMENTS = load_experiments(PAPER.directory)
BESIDE = {name: pairs(one) for name, one in EXPERIMENTS.items() if one.peers}
"""Experiment -> its variants of ours and of peers, of the experiments that have any."""
EVERY = expand(PAPER.key, "workstation", root=ROOT)
WORKSTATION = [run for run in EVERY if run.experiment not in BESIDE]
"""The runs beside published numbers."""
PEERS = [run for run in EVERY if run.experiment in BESIDE]
LEVELS = {"gymnasium/CartPole-v1": 250.0, "toy/catch": 0.4, "mujoco/HalfCheetah-v5": 2500.0, "mujoco/Hopper-v5": 2000.0}
"""Returns between random play and the best, by task of the runs beside peers."""
EXACT = {"openai/baselines PPO", "SB3 zoo PPO", "SB3 zoo A2C", "SB3 zoo DQN"}
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
        level = LEVELS[run.environment] if run.experiment in BESIDE else 0.0
        final = known.get((run.experiment, run.variant, run.environment), level) * (1 + 0.002 * (run.seed % 5 - 2))
        write_run(run, results, start=final * 0.99, final=final, origin=origin, frames=whole_batches(run))


def whole_batches(run: PlannedRun) -> int:
    """The frames that a run ends with: as many as are asked for, and the rest of its last batch."""
    keys, frames = run.config["hyperparameters"], int(run.config["env_frames"])
    batch = keys["unroll_length"] * keys["batch_size"] if run.config["algorithm"] in ("ppo", "a2c") else 1
    return -(-frames // batch) * batch


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


def test_the_interval_of_a_difference_counts_both_spreads_and_decides_its_cell(cells: pd.DataFrame) -> None:
    inside = cells[["difference_low", "difference_high"]].abs().max(axis=1) <= cells["margin"]
    assert (inside == (cells["verdict"] == "equivalent")).all()
    wider = (cells["difference_high"] - cells["difference_low"]) / (cells["ci90_high"] - cells["ci90_low"])
    uncertain = cells["published_seeds"].gt(1).fillna(False) & cells["published_deviation"].gt(0)
    assert uncertain.sum() >= 30
    assert wider[uncertain].median() > 2
    assert wider[~uncertain].to_numpy() == pytest.approx(1.0)


def test_every_figure_is_drawn_with_runs_of_both_origins_and_with_none(tmp_path: Path) -> None:
    plant(expand(PAPER.key, "smoke", root=ROOT), tmp_path)
    plant(WORKSTATION, tmp_path, origin="reference")
    assert_figures_are_drawn(PAPER, tmp_path)


def test_each_variant_of_a_peer_has_ours_of_the_same_settings_beside_it() -> None:
    for name, found in BESIDE.items():
        assert [pair.theirs for pair in found] == list(EXPERIMENTS[name].peers)
        assert {pair.ours for pair in found} == {"ours"}
    assert {name: sorted(EXPERIMENTS[name].peers) for name in BESIDE}["peers_ppo_cartpole"] == [
        *("cleanrl", "rllib", "sample_factory", "stable_baselines3")
    ]


def test_runs_beside_peers_have_at_least_five_seeds_that_no_other_experiment_has() -> None:
    seeds = {run.seed for run in PEERS}
    assert seeds == {*range(401, 406), *range(411, 427)}
    for name in BESIDE:
        assert len({run.seed for run in PEERS if run.experiment == name}) >= 5
    assert not seeds & {run.seed for run in WORKSTATION}


def test_every_pair_and_task_is_in_one_claim_with_the_margin_of_the_tables() -> None:
    named = [
        (claim.experiment, variant, task)
        for claim in PAPER.claims
        for variant in claim.variants
        for task in claim.environments
    ]
    planned = {(run.experiment, run.variant, run.environment) for run in PEERS if run.config.get("peer")}
    assert sorted(named) == sorted(planned)
    for claim in PAPER.claims:
        assert (claim.kind, claim.than, claim.metric) == ("alike", "ours", "mean_return")
        assert claim.margin == PAPER.evidence.margin_of_range


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """Tables of planted runs: all learn alike, but for RLlib's, which end at half of it."""
    results = tmp_path_factory.mktemp("beside")
    for run in PEERS:
        level = LEVELS[run.environment] * (0.5 if run.variant == "rllib" else 1.0) * (1 + 0.002 * (run.seed % 5 - 2))
        write_run(run, results, start=level * 0.99, final=level)
    return make(["claims", "peer_learning"], PAPER.directory, "workstation", PEERS, results, allow_missing=True)


def test_planted_runs_get_the_verdicts_that_were_planted(beside: dict[str, pd.DataFrame]) -> None:
    table = beside["peer_learning"]
    verdicts = table.groupby("peer")["verdict"].unique().map(list).to_dict()
    assert verdicts.pop("rllib") == ["above"]
    assert verdicts == {key: ["equivalent"] for key in ("cleanrl", "sample_factory", "stable_baselines3", "tianshou")}
    claims = beside["claims"].set_index("claim")["verdict"].to_dict()
    assert {name for name, verdict in claims.items() if verdict == "supported"} == {
        *("a2c_on_cartpole", "apex_dqn_on_cartpole", "ppo_on_half_cheetah", "ppo_on_hopper")
    }
    others = {name: verdict for name, verdict in claims.items() if verdict != "supported"}
    assert set(others) == {"ppo_on_cartpole", "ppo_on_catch", "impala_on_cartpole"}
    assert all(verdict.startswith("contradicted") for verdict in others.values())
