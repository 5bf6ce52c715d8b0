"""The IMPACT replication: several algorithms in one experiment, wall time beside frames, and no invented number."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddrl.analysis.__main__ import main
from ddrl.analysis.figures import plots
from ddrl.analysis.runs.flags import flags
from ddrl.analysis.runs.grids import on_common_clock
from ddrl.analysis.runs.run_data import final_episodes, load_run, training_returns
from ddrl.analysis.tables.build import read
from ddrl.errors import UserError
from ddrl.papers.check import check_paper
from ddrl.papers.expansion import expand as expand_unchecked
from ddrl.papers.expansion import narrowed
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published
from ddrl.training.config.experiments import SCALES, expand
from tests.analysis.drawn import (
    assert_every_line_is_seen,
    assert_every_panel_says_something,
    assert_legends_name_what_is_drawn,
    assert_nothing_is_cut,
)
from tests.analysis.fakes import write_timed

ROOT = Path(__file__).parents[3] / "replications"
PAPER = "impact_2020"
ABLATIONS = ("target_clipping", "target_frequency", "circular_buffer", "workers")
EXPERIMENTS = ("continuous", "discrete", "continuous_author", "discrete_author", "rllib_atari", *ABLATIONS)
ALGORITHMS = {"impact": 3000.0, "ppo": 2000.0, "impala": 900.0}
EPISODES = 50
"""Of the final evaluation at scale workstation."""
SPEEDS = {"impact": 4000.0, "ppo": 2000.0, "impala": 6000.0}


def faster(seed: int) -> float:
    """Each reference run is a little faster than the one before."""
    return 1 + 0.02 * seed


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every smoke run, and all seeds of the two continuous experiments as reference runs."""
    folder = tmp_path_factory.mktemp("impact") / "results"
    for run in expand(PAPER, "smoke", root=ROOT):
        final = ALGORITHMS.get(run.variant, 1500.0) / (100 if run.experiment.startswith("discrete") else 1)
        write_timed(run, folder, final=final, speed=SPEEDS.get(run.variant, 3000.0), gpu="a GPU")
    for run in expand(PAPER, "workstation", root=ROOT, experiments=["continuous", "continuous_author"]):
        speed = SPEEDS[run.variant] * faster(run.seed)
        write_timed(run, folder, final=ALGORITHMS[run.variant], speed=speed, origin="reference")
    assert main(["aggregate", "--paper", PAPER, "--results", str(folder), "--replications", str(ROOT)]) == 0
    return folder


def table(results: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(results / "smoke" / PAPER / "tables" / f"{name}.parquet")


def test_the_papers_files_are_well_formed_and_every_experiment_has_runs_at_every_scale() -> None:
    check_paper(ROOT / PAPER)
    for scale in SCALES:
        assert tuple(dict.fromkeys(run.experiment for run in expand(PAPER, scale, root=ROOT))) == EXPERIMENTS


def test_each_algorithm_has_a_setting_of_its_own_in_one_experiment() -> None:
    entry = load_experiments(ROOT / PAPER)["continuous"]
    settings = {name: entry.paper_setting(name, "mujoco/Hopper-v5") for name in entry.variants}
    assert {name: setting["algorithm"] for name, setting in settings.items()} == {name: name for name in ALGORITHMS}
    assert settings["ppo"]["topology"]["schedule"] == "synchronous"
    assert "num_slots" in settings["impact"]["hyperparameters"]
    assert "num_slots" not in settings["ppo"]["hyperparameters"]
    assert settings["impala"]["environment"] == {"name": "mujoco/Hopper-v5"}
    networks = [
        (s["hyperparameters"]["network"], s["hyperparameters"]["separate_value_network"]) for s in settings.values()
    ]
    assert len(set(networks)) == 1  # the paper has the same for all three


def test_every_algorithm_sees_pixels_from_0_to_255_where_the_settings_are_the_authors_or_rllibs() -> None:
    for run in expand_unchecked(PAPER, "workstation", root=ROOT, experiments=["discrete_author", "rllib_atari"]):
        assert run.config["hyperparameters"]["scaled_pixels"] is False
        assert run.config["hyperparameters"]["initialisation"] == {"name": "glorot"}


def test_ppos_value_counts_twice_what_rllib_says_since_rllibs_loss_has_no_half() -> None:
    experiments = load_experiments(ROOT / PAPER)
    stated = {"continuous": 0.5, "continuous_author": 0.5, "discrete": 1.0, "discrete_author": 1.0, "rllib_atari": 1.0}
    for name, rllib in stated.items():
        task = experiments[name].scales["paper"].environments[0]
        hyperparameters = experiments[name].paper_setting("ppo", task)["hyperparameters"]
        assert hyperparameters["value_cost"] == 2 * rllib
        assert hyperparameters["normalise_advantages_over"] == "batch"


def test_the_ablations_hold_the_values_that_the_paper_names() -> None:
    found: dict[str, list[Any]] = {}
    for run in expand_unchecked(PAPER, "paper", root=ROOT, seeds=[11]):
        hyperparameters = run.config["hyperparameters"]
        value = {
            "target_clipping": hyperparameters.get("ratio"),
            "target_frequency": hyperparameters.get("target_update_period"),
            "circular_buffer": hyperparameters.get("num_traversals"),
            "workers": run.config["topology"]["num_actors"],
        }
        if run.experiment in value:
            found.setdefault(run.experiment, []).append(value[run.experiment])
    product = 16 * 20
    assert found == {
        "target_clipping": ["worker", "target", "target_worker_clipping"],
        "target_frequency": [product // 16, product // 4, product, 4 * product, 16 * product, 1, 2, 3, 4],
        "circular_buffer": [1, 2, 4, 16, 32],
        "workers": [1, 2, 4, 8, 16, 32],
    }


def test_the_claims_on_the_three_algorithms_are_decided_with_the_authors_settings() -> None:
    found = {claim.name: claim.experiment for claim in load_paper(ROOT / PAPER).claims}
    assert {name for name, experiment in found.items() if experiment == "continuous_author"} == {
        "faster_than_ppo_and_impala",
        "higher_at_equal_time",
        "ppos_sample_efficiency",
        "higher_than_impala_continuous",
    }
    assert {name for name, experiment in found.items() if experiment == "discrete_author"} == {
        "higher_than_impala_discrete",
        "less_time_than_impala",
    }
    assert set(found.values()) == {"continuous_author", "discrete_author", *ABLATIONS}


def test_claims_on_returns_of_halfcheetah_alone_count_a_twentieth_of_what_ppo_learns_there() -> None:
    """What PPO has after a million steps: 5,819 in Stable-Baselines3's zoo, 5,780 in Tianshou's benchmark."""
    controls = load_published(ROOT / "controls_2026").set_index("cell")["value"]
    of_ppo = float(controls[["zoo.ppo.halfcheetah", "tianshou.ppo.halfcheetah"]].mean())
    experiments = load_experiments(ROOT / PAPER)
    for claim in load_paper(ROOT / PAPER).claims:
        tasks = experiments[claim.experiment].scales["workstation"].environments
        if claim.kind in ("ordering", "monotone") and len(tasks) == 1 and tasks[0].startswith("mujoco/"):
            assert claim.smallest_effect == pytest.approx(0.05 * (of_ppo + 282), rel=0.02), claim.name


def test_a_scale_may_leave_out_variants_and_a_list_may_ask_for_them_again() -> None:
    smoke = expand_unchecked(PAPER, "smoke", root=ROOT, experiments=["workers"])
    assert [run.variant for run in smoke] == ["workers_1", "workers_2", "workers_4"]
    asked = expand_unchecked(PAPER, "smoke", root=ROOT, experiments=["workers"], variants=["workers_32"])
    assert [run.variant for run in asked] == ["workers_32"]


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Callable[[Any], None]], str]:
    """The one line that an edit of experiments.yaml is refused with."""

    def edit(change: Callable[[Any], None]) -> str:
        folder = tmp_path / PAPER
        shutil.copytree(ROOT / PAPER, folder, ignore=shutil.ignore_patterns("__pycache__"))
        data = yaml.safe_load((folder / "experiments.yaml").read_text())
        change(data)
        (folder / "experiments.yaml").write_text(yaml.safe_dump(data, allow_unicode=True))
        with pytest.raises(UserError) as caught:
            expand_unchecked(PAPER, "smoke", root=tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return edit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["experiments"]["workers"].update(base="impact_continous"), "did you mean 'impact_continuous'?"),
        (lambda d: d["experiments"]["workers"].pop("base"), "key 'base' is missing"),
        (lambda d: d["bases"].update(spare=d["bases"]["ppo_discrete"]), "bases.spare: no experiment"),
        (lambda d: d["bases"]["ppo_discrete"].pop("algorithm"), "algorithm"),
        (lambda d: d["bases"]["ppo_discrete"].update(seed=1), "ppo_discrete"),
        (lambda d: d["experiments"]["workers"]["scales"]["smoke"].update(variants=["workers_3"]), "workers_3"),
    ],
)
def test_a_wrong_base_or_variant_is_refused_in_one_line(edited: Any, change: Any, said: str) -> None:
    assert said in edited(change)


def test_lists_narrow_each_of_several_papers_to_the_names_that_it_knows() -> None:
    both = ["impala_2018", PAPER]
    found = narrowed(both, experiments=["atari", "continuous"], variants=["shallow", "ppo"], root=ROOT)
    assert found == {
        "impala_2018": {"experiments": ["atari"], "variants": ["shallow"], "environments": None},
        PAPER: {"experiments": ["continuous"], "variants": ["ppo"], "environments": None},
    }
    assert list(narrowed(both, experiments=["atari"], root=ROOT)) == ["impala_2018"]
    assert list(narrowed(both, environments=["atari/pong"], root=ROOT)) == both
    assert narrowed(both, root=ROOT)[PAPER] == dict.fromkeys(("experiments", "variants", "environments"))
    with pytest.raises(UserError, match="did you mean 'continuous'"):
        narrowed(both, experiments=["continous"], root=ROOT)
    with pytest.raises(UserError, match="no paper is left"):
        narrowed(both, experiments=["atari"], variants=["ppo"], root=ROOT)


def test_the_papers_that_were_asked_for_say_which_names_there_are() -> None:
    both = ["impact_2020", "impala_2018"]
    with pytest.raises(UserError) as caught:
        narrowed(both, experiments=["nothing"], asked=["snakemake", "--", "impala_2018"], root=ROOT)
    with pytest.raises(UserError, match=f"^{re.escape(str(caught.value))}$"):
        narrowed(["impala_2018"], experiments=["nothing"], root=ROOT)
    mixed = narrowed(both, experiments=["continuous", "atari"], asked=["impala_2018"], root=ROOT)
    assert {paper: filters["experiments"] for paper, filters in mixed.items()} == {
        "impact_2020": ["continuous"],
        "impala_2018": ["atari"],
    }
    assert list(narrowed(both, experiments=["atari"], asked=["impala_2018"], root=ROOT)) == ["impala_2018"]


def test_no_score_of_the_papers_own_stands_in_the_published_tables() -> None:
    published = load_published(ROOT / PAPER)
    own = published[published["system"].str.contains("IMPACT")]
    assert set(own["statistic"]) == {"stated"}
    assert not set(own["unit"]) & {"return", "frames", "frames/s"}
    assert load_paper(ROOT / PAPER).not_read
    scores = published[published["unit"] == "return"]
    assert set(scores["item"].str.startswith("RLlib")) == {True}
    assert (scores["budget_frames"].notna() ^ scores["budget_hours"].notna()).all()


def test_the_report_says_that_there_is_no_published_value(results: Path) -> None:
    summary = json.loads((results / "smoke" / PAPER / "tables" / "summary.json").read_text())
    assert [row["item"] for row in summary["paper"]["not_read"]][:4] == ["Figure 3", "Figure 4", "Figure 5", "Figure 6"]


def test_a_budget_in_hours_is_no_number_of_frames_of_the_paper(results: Path) -> None:
    runs = table(results, "runs")
    of_rllib = runs["experiment"] == "rllib_atari"
    assert runs.loc[~of_rllib, "paper_frames"].isna().all()
    assert set(runs.loc[of_rllib, "paper_frames"]) == {80_000_000}
    departures = table(results, "departures")
    budget = departures[(departures["what"] == "env_frames") & departures["where"].str.startswith("continuous")]
    assert list(budget["paper"]) == 2 * ["3 hours of wall time, on 16 CPUs and a GPU"]


def test_scores_of_another_version_of_a_task_or_of_an_hour_are_not_compared(results: Path) -> None:
    cells = table(results, "cells").set_index(["cell", "origin"])
    cheetah = cells.loc[("rllib.2018_09.ppo.16_workers.halfcheetah_v2.1_hour", "reference")]
    assert cheetah["verdict"] == "not_comparable"
    assert "env_version_gap(HalfCheetah-v5 for v2)" in cheetah["flags"]
    assert "wall_clock_budget(1 h)" in cheetah["flags"]
    assert cheetah["ours"] == pytest.approx(ALGORITHMS["ppo"], rel=0.1)


def test_scores_and_claims_on_other_versions_of_the_tasks_say_so_where_no_cell_does(results: Path) -> None:
    scores, claims = table(results, "scores"), table(results, "claims").set_index(["claim", "origin"])
    gaps = scores.groupby("environment")["flags"].agg(set).to_dict()
    assert gaps == {
        "atari/space_invaders": {"env_version_gap(ale-0.12.1 for a version not printed)"},
        "atari/pong": {"env_version_gap(ale-0.12.1 for a version not printed)"},
        "mujoco/HalfCheetah-v5": {"env_version_gap(HalfCheetah-v5 for v2)"},
        "mujoco/Hopper-v5": {"env_version_gap(Hopper-v5 for v2)"},
        "mujoco/Humanoid-v5": {"env_version_gap(Humanoid-v5 for v2)"},
    }
    all_three = "env_version_gap(HalfCheetah-v5 for v2, Hopper-v5 for v2, Humanoid-v5 for v2)"
    assert claims.loc[("higher_than_impala_continuous", "reference"), "flags"] == all_three
    assert claims.loc[("target_worker_clipping_best", "run"), "flags"] == "env_version_gap(HalfCheetah-v5 for v2)"
    assert claims.loc[("more_workers_help", "run"), "flags"] == ""  # not run
    assert not table(results, "cells")["environment"].str.contains("Hopper").any()


def test_the_same_version_of_a_task_is_no_gap_of_the_task(results: Path) -> None:
    paper = load_paper(ROOT / PAPER)
    entry = load_experiments(ROOT / PAPER)["continuous"]
    rule = next(rule for rule in paper.cells if rule.experiment == "continuous")
    published = load_published(ROOT / PAPER).set_index("cell", drop=False)
    row = published.loc["rllib.2018_09.ppo.16_workers.halfcheetah_v2.1_hour"].to_dict()
    run = load_run(
        results / "smoke" / PAPER / "continuous/ppo/mujoco-HalfCheetah-v5/seed201", "run", PAPER, "continuous", "ppo"
    )
    stated = replace(paper.protocols["rllib_mujoco"], task_version="v5")
    found = flags(rule, row, [run], entry, 0.99, stated)
    assert "env_version_gap(mujoco-3.17.0 for a version not printed)" in found


def test_wall_clock_curves_share_a_grid_of_seconds_that_the_fastest_seed_ends(results: Path) -> None:
    clock = table(results, "wall_clock")
    part = clock[
        (clock["origin"] == "reference")
        & (clock["experiment"] == "continuous")
        & (clock["variant"] == "ppo")
        & clock["environment"].str.contains("Hopper")
    ]
    grids = [group["seconds"].to_numpy() for _, group in part.groupby("seed")]
    assert len(grids) == 3
    assert all(np.array_equal(grid, grids[0]) for grid in grids)
    first, last = int(part["seed"].min()), int(part["seed"].max())
    assert grids[0][-1] == pytest.approx(1_000_000 / (SPEEDS["ppo"] * faster(last)), rel=1e-3)
    seed = part[part["seed"] == first]
    assert np.allclose(seed["env_frames"], seed["seconds"] * SPEEDS["ppo"] * faster(first), atol=1)
    folder = results / "reference" / PAPER / f"continuous/ppo/mujoco-Hopper-v5/seed{first}"
    run = load_run(folder, "reference", PAPER, "continuous", "ppo")
    slow = on_common_clock([run])
    returns = training_returns(run)
    assert slow["seconds"].iloc[-1] == returns["seconds"].max()
    assert (
        abs(slow["episode_return"].iloc[20] - np.interp(slow["seconds"].iloc[20], returns["seconds"], returns["value"]))
        < 200
    )
    assert len(final_episodes(run)) == EPISODES


def test_one_seed_decides_no_claim(results: Path) -> None:
    claims = table(results, "claims")
    own = claims[claims["origin"] == "run"].set_index("claim")["verdict"]
    of_eight_workers = ["more_workers_help", "workers_bring_less_and_less"]  # which this scale has not
    assert set(own[of_eight_workers]) == {"not_run"}
    assert set(own.drop(of_eight_workers)) == {"inconclusive"}


@pytest.mark.parametrize("name", [figure.name for figure in load_paper(ROOT / PAPER).figures])
def test_a_figure_is_drawn_from_its_tables_alone(results: Path, tmp_path: Path, name: str) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    for wanted in next(figure for figure in load_paper(ROOT / PAPER).figures if figure.name == name).tables:
        shutil.copy(results / "smoke" / PAPER / "tables" / f"{wanted}.parquet", tables)
    options = ["--paper", PAPER, "--replications", str(ROOT), "--name", name, "--tables", str(tables)]
    for folder in ("first", "second"):
        assert main(["figure", *options, "--output", str(tmp_path / folder)]) == 0
    assert (tmp_path / "first" / f"{name}.svg").read_bytes() == (tmp_path / "second" / f"{name}.svg").read_bytes()
    assert (tmp_path / "first" / f"{name}.png").stat().st_size > 10_000


@cache
def drawn(results: Path, name: str) -> Any:
    """A figure, laid out as it is saved; tests only look at it."""
    wanted = next(figure for figure in load_paper(ROOT / PAPER).figures if figure.name == name)
    with plots.style():
        function = runpy.run_path(str(ROOT / PAPER / "figures.py"))[name]
        canvas = function(**read(results / "smoke" / PAPER / "tables", wanted.tables))
        FigureCanvasAgg(canvas).draw()
    return canvas


@pytest.mark.parametrize(
    ("name", "experiments"),
    [
        ("continuous_author", {"continuous_author"}),
        ("discrete_author", {"discrete_author"}),
        ("rllib_atari", {"rllib_atari"}),
        ("continuous_control", {"continuous"}),
        ("discrete_control", {"discrete"}),
        ("target_network", {"target_clipping", "target_frequency"}),
        ("circular_buffer", {"circular_buffer"}),
        ("workers", {"workers"}),
    ],
)
def test_learning_curves_stand_against_frames_and_beside_it_against_time(
    results: Path, name: str, experiments: set[str]
) -> None:
    curves, clock = (table(results, which) for which in ("curves", "wall_clock"))
    panels = drawn(results, name).get_axes()
    lefts = [index for index, axes in enumerate(panels) if axes.get_ylabel() == "training return"]
    shown = curves[curves["experiment"].isin(experiments)].groupby(["experiment", "environment"])
    assert len(lefts) == shown.ngroups
    for index in lefts:
        left, right = panels[index], panels[index + 1]
        assert left.get_ylim() == right.get_ylim()
        for axes, source, x in ((left, curves, "env_frames"), (right, clock, "seconds")):
            ends = {float(line.get_xdata()[-1]) for line in axes.get_lines() if len(line.get_xdata()) > 2}
            own = source[source["experiment"].isin(experiments)]
            assert ends
            assert ends <= set(own.groupby(["environment", "variant", "seed", "origin", "experiment"])[x].max())
        counts = [sum(len(line.get_xdata()) > 2 for line in axes.get_lines()) for axes in (left, right)]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("name", [figure.name for figure in load_paper(ROOT / PAPER).figures])
def test_nothing_of_a_figure_is_cut_and_no_panel_reaches_into_another(results: Path, name: str) -> None:
    assert_nothing_is_cut(drawn(results, name))


@pytest.mark.parametrize(
    ("scale", "ends", "texts"),
    [
        ("linear", (0, 1.25), ["0", "0.3 s", "0.6 s", "0.9 s", "1.2 s"]),
        ("linear", (0, 600), ["0", "2 min", "4 min", "6 min", "8 min", "10 min"]),
        ("log", (0.5, 700), ["1 s", "10 s", "1 min", "10 min"]),
        ("log", (20, 50_000), ["1 min", "10 min", "1 h", "10 h"]),
    ],
)
def test_an_axis_of_times_is_labelled_at_round_ones(scale: str, ends: tuple[float, float], texts: list[str]) -> None:
    axes = plots.new_figure("full", 1.0).subplots()
    axes.set_xscale(scale)
    axes.set_xlim(*ends)
    plots.time_axis(axes)
    assert [text.get_text() for text in axes.get_xticklabels()] == texts
    assert axes.get_xlim() == ends


def test_figures_without_any_run_say_so(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(results / "smoke" / PAPER / "tables", folder)
    for path in folder.glob("*.parquet"):
        pd.read_parquet(path).iloc[:0].to_parquet(path)
    for figure in load_paper(ROOT / PAPER).figures:
        options = ["--paper", PAPER, "--replications", str(ROOT), "--name", figure.name]
        assert main(["figure", *options, "--tables", str(folder), "--output", str(tmp_path)]) == 0
        assert "has finished." in (tmp_path / f"{figure.name}.svg").read_text()


@pytest.mark.parametrize("name", [figure.name for figure in load_paper(ROOT / PAPER).figures])
def test_a_legend_names_what_is_drawn_and_every_line_is_seen(results: Path, name: str) -> None:
    canvas = drawn(results, name)
    assert_legends_name_what_is_drawn(canvas)
    assert_every_line_is_seen(canvas)
    assert_every_panel_says_something(canvas)
