"""Figures of A3C, GA3C, R2D2 and of IMPALA's comparisons of systems, from tables of invented runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from colorsys import rgb_to_hsv

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.panels import in_windows
from ddrl.analysis.verdicts.cell_values import paired_ratios
from tests.analysis.drawn import (
    Table,
    assert_every_line_is_seen,
    assert_every_panel_says_something,
    assert_legends_name_what_is_drawn,
    assert_nothing_is_cut,
    curves_of,
    drawn,
    measured,
    published_of,
    references_of,
    runs_of,
    says_nothing_has_finished,
    scores_of,
    texts_of,
)

GAMES = ("atari/breakout", "atari/pong")
AGENTS = {"ff": "Feed-forward", "lstm": "LSTM"}
SPEED = "steady_frames_per_second"


def both(
    make: Callable[[Table], Table], experiment: str, variants: Mapping[str, str] | list[str], *tasks: str
) -> Table:
    """The results of `make` from three seeds of this run, and from one reference run of the first task."""
    own = runs_of(experiment, variants, tasks)
    return pd.concat([make(own), make(runs_of(experiment, variants, tasks[:1], (1,), "reference"))], ignore_index=True)


def score(game: str, value: float, **more: object) -> dict[str, object]:
    row = {"metric": "episode_return", "value": value, "environment": game, "experiment": "atari"}
    return {"cell": f"{more.get('item')}.{game}", **row, **more}


def a3c() -> dict[str, dict[str, Table]]:
    sources = {"NoisyNet, Table 3": 50.0, "PFRL reproduction": 5000.0, "Figure 3": 20.0}
    rows = [score(game, value, item=item, compared_variant="ff") for game in GAMES for item, value in sources.items()]
    table_2 = [
        {"experiment": "threads", "metric": "speed_up", "compared_variant": f"threads_{n}", "value": 0.9 * n}
        for n in (2, 4, 8, 16)
    ]
    counts = [f"threads_{n}" for n in (16, 8, 4, 2, 1)]
    published, references = published_of([*rows, *table_2]), references_of([*GAMES, "toy/catch"])
    atari = both(lambda runs: curves_of(runs, 1e6, 30.0, 0.0), "atari", AGENTS, *GAMES)
    scores = both(lambda runs: scores_of(runs, 1_000_000, 0.4), "atari", AGENTS, *GAMES)
    catch = both(lambda runs: curves_of(runs, 6e4, 0.9, -0.6), "catch", AGENTS, "toy/catch")
    clock = both(lambda runs: curves_of(runs, 1e5, 0.9, -0.6, 1000.0), "threads", counts, "toy/catch", "atari/pong")
    relatives = both(
        lambda runs: curves_of(runs, 1e6, 30.0, 0.0), "systems", ["gorila", "a3c", "a2c"], *GAMES, "toy/catch"
    )
    times = {name: 100.0 / int(name.removeprefix("threads_")) for name in counts}
    reached = both(lambda runs: measured(runs, "seconds", times), "threads", counts, "toy/catch", "atari/pong")
    return {
        "learning_curves": {"curves": atari, "references": references, "published": published},
        "normalised_scores": {"scores": scores, "published": published, "references": references},
        "catch": {"curves": catch, "references": references},
        "systems": {"curves": relatives, "references": references},
        "threads": {"wall_clock": clock, "milestones": reached, "published": published},
    }


def ga3c() -> dict[str, dict[str, Table]]:
    rows = [score(game, 20.0, item="Table 3", compared_variant="ga3c") for game in GAMES]
    gains = [
        {"experiment": "throughput", "metric": "speed_up", "compared_variant": f"ga3c_{size}", "value": value}
        | {"cell": f"{size}.{system}", "hardware": f"System {system}: a machine"}
        for size, values in (("small", (3, 6, 4)), ("large", (91, 28, 6)))
        for system, value in zip(("I", "II", "III"), values, strict=True)
    ]
    published, references = published_of([*rows, *gains]), references_of(GAMES)
    speeds = {"a3c_small": 1000.0, "ga3c_small": 3000.0, "a3c_large": 50.0, "ga3c_large": 600.0}
    ways = {"dynamic": 900.0, "fixed": 1200.0}
    atari = both(lambda runs: curves_of(runs, 1e6, 30.0, 0.0), "atari", ["ga3c"], *GAMES)
    scores = both(lambda runs: scores_of(runs, 1_000_000, 0.4), "atari", ["ga3c"], *GAMES)
    fast = both(lambda runs: measured(runs, SPEED, speeds), "throughput", list(speeds), "atari/pong")
    clock = both(lambda runs: curves_of(runs, 1e6, 30.0, 0.0, 900.0), "adjustment", list(ways), "atari/pong")
    adjusted = both(lambda runs: measured(runs, SPEED, ways), "adjustment", list(ways), "atari/pong")
    return {
        "learning_curves": {"curves": atari, "references": references, "published": published},
        "normalised_scores": {"scores": scores, "published": published, "references": references},
        "throughput": {"efficiency": fast, "published": published},
        "adjustment": {"wall_clock": clock, "efficiency": adjusted},
    }


IMPALA_SPEEDS = {
    "a3c": 900.0,
    "a2c_sync_step": 1300.0,
    "a2c_sync_trajectory": 2000.0,
    "a2c_dynamic_batching": 2200.0,
    "impala": 2600.0,
    "impala_dynamic_batching": 3300.0,
}
IMPALA_SYSTEMS = ("impala", "a3c", "batched_a2c")


def impala() -> dict[str, dict[str, Table]]:
    tasks = {"seekavoid_arena_01": 10.0, "rooms_keys_doors_puzzle": 20.0}
    rows = [
        {"experiment": "throughput", "item": "Table 1", "compared_variant": name, "task": task, "value": factor * speed}
        for name, speed in IMPALA_SPEEDS.items()
        for task, factor in tasks.items()
    ]

    def taken(runs: Table) -> Table:
        table = measured(runs, SPEED, IMPALA_SPEEDS)
        cpu = 2e6 / table[SPEED]
        parts = {"actor": 0.1, "environment": 0.3, "inference": 0.2, "learner": 0.4}
        shares = {f"{role}_thread_cpu_seconds_per_million_frames": part * cpu for role, part in parts.items()}
        return table.assign(**shares, policy_lag_mean=[float("nan") if n == "a3c" else 2.0 for n in table["variant"]])

    settings = [f"{name}__s{index:02d}" for name in IMPALA_SYSTEMS for index in range(1, 5)]
    means = {name: 1.0 / int(name[-2:]) for name in settings}
    sweep = both(lambda runs: measured(runs, "final_return", means), "hyperparameter_sweep", settings, *GAMES)
    single = both(lambda runs: curves_of(runs, 1e6, 30.0, 0.0), "single_task", list(IMPALA_SYSTEMS), *GAMES)
    speeds = both(taken, "throughput", list(IMPALA_SPEEDS), "atari/pong", "atari/breakout")
    return {
        **suite("dmlab30", ""),
        **suite("dmlab30_subset", "_on_a_subset"),
        "throughput": {"efficiency": speeds, "published": published_of(rows)},
        "single_task": {"curves": single, "references": references_of(GAMES)},
        "hyperparameters": {"scores": sweep},
    }


def suite(experiment: str, part: str) -> dict[str, dict[str, Table]]:
    """Agents for two tasks: tables of the figures whose names end with `part`."""
    agents, tasks = ["shallow", "deep", "experts_shallow"], ("firstperson/miniworld_maze", "firstperson/vizdoom_basic")
    curves = both(lambda runs: curves_of(runs, 1e6, 70.0, 0.0, 500.0), experiment, agents, *tasks)
    scores = both(lambda runs: scores_of(runs, 1_000_000, 0.6), experiment, agents, *tasks)
    return {
        f"capped_scores{part}": {"curves": curves, "wall_clock": curves, "references": references_of(tasks)},
        f"task_scores{part}": {"scores": scores},
    }


def r2d2() -> dict[str, dict[str, Table]]:
    def learned(experiment: str, variants: list[str], *tasks: str) -> dict[str, Table]:
        curves = both(lambda runs: curves_of(runs, 1e6, 30.0, 0.0), experiment, variants, *tasks)
        return {"curves": curves, "references": references_of(tasks)}

    beginnings = ["zero_0", "zero_8", "stored_0", "stored_8"]
    return {
        "memory": learned("memory", ["r2d2", "feed_forward"], "toy/memory", "minigrid/MemoryS7-v0"),
        "beyond_sequences": learned("beyond_sequences", beginnings, "toy/recall"),
        "dmlab30": learned("dmlab30", ["r2d2", "r2d2_plus", "impala_shallow", "impala_deep"], *GAMES),
    }


TABLES = {"a3c_2016": a3c(), "ga3c_2017": ga3c(), "impala_2018": impala(), "r2d2_2019": r2d2()}
NAMES = [(paper, name) for paper, figures in TABLES.items() for name in figures]
FACTS = ("published", "references")
"""Tables that there are without any run."""


def of_runs(tables: Mapping[str, Table], keep: Callable[[Table], Table]) -> dict[str, Table]:
    return {name: table if name in FACTS else keep(table) for name, table in tables.items()}


@pytest.mark.parametrize(("paper", "name"), NAMES)
def test_a_figure_of_both_origins_shows_them_and_nothing_of_it_is_cut(paper: str, name: str) -> None:
    canvas = drawn(paper, name, **TABLES[paper][name])
    assert_nothing_is_cut(canvas)
    assert any("reference run" in text for legend in legends(canvas) for text in texts_of(legend))


@pytest.mark.parametrize(("paper", "name"), NAMES)
@pytest.mark.parametrize("origin", ["run", "reference"])
def test_a_figure_of_one_record_a_run_shows_each_and_its_legend_names_what_is_drawn(
    paper: str, name: str, origin: str
) -> None:
    def first(table: Table) -> Table:
        own = table[(table["origin"] == origin) & (table["seed"] == 1)]
        return own.groupby(["variant", "environment"], as_index=False, sort=False).head(1)

    canvas = drawn(paper, name, **of_runs(TABLES[paper][name], first))
    assert_every_line_is_seen(canvas)
    assert_every_panel_says_something(canvas)
    assert_legends_name_what_is_drawn(canvas)


@pytest.mark.parametrize(("paper", "name"), NAMES)
def test_a_legend_of_one_variant_names_what_is_drawn(paper: str, name: str) -> None:
    def of_the_first(table: Table) -> Table:
        return table[table["variant"] == table["variant"].iloc[0]]

    assert_legends_name_what_is_drawn(drawn(paper, name, **of_runs(TABLES[paper][name], of_the_first)))


def test_shades_of_an_order_are_those_of_their_systems_colour() -> None:
    for count in (2, 5, 9):
        shades = [rgb_to_hsv(*to_rgb(shade)) for shade in plots.graded(count)]
        hue, _, _ = rgb_to_hsv(*to_rgb(plots.BLUE))
        assert [shade[0] for shade in shades] == pytest.approx([hue] * count, abs=0.02)
        assert len({plots.graded(count)[place] for place in range(count)}) == count


def test_a_variant_has_one_colour_in_all_figures_of_its_paper() -> None:
    runs = runs_of("actors", {"times_1": "fewest", "times_8": "most"}, ["toy/catch"])
    curves = curves_of(runs, 1e6, 1.0, 0.0, 500.0).assign(num_actors=1, training_speed=1.0, cpu="a machine")
    looks = []
    for name, tables in {"actors": ("curves", "wall_clock", "runs"), "replay": ("curves", "wall_clock")}.items():
        canvas = drawn("apex_2018", name, **dict.fromkeys(tables, curves))
        entries = [entry for legend in legends(canvas) for entry in legend.legend_handles]
        looks.append(
            {entry.get_label(): entry.get_color() for entry in entries if entry.get_label() in ("fewest", "most")}
        )
    assert looks[0] == looks[1]
    assert len(set(looks[0].values())) == 2


def test_a_panel_without_any_value_says_that_no_run_is_there_yet() -> None:
    axes = Figure().subplots()
    panels.returns(axes, curves_of(runs_of("atari", ["ff"], GAMES), 1e6, 1.0, 0.0).iloc[:0], {"ff": (plots.BLUE, "-")})
    assert [text.get_text() for text in axes.texts] == ["no run yet"]


def legends(canvas: Figure) -> list[Legend]:
    return [*canvas.legends, *(axes.get_legend() for axes in canvas.axes if axes.get_legend())]


@pytest.mark.parametrize(("paper", "name"), NAMES)
def test_a_figure_without_any_run_says_so(paper: str, name: str) -> None:
    assert says_nothing_has_finished(drawn(paper, name, **of_runs(TABLES[paper][name], lambda table: table.iloc[:0])))


@pytest.mark.parametrize(("paper", "name"), NAMES)
@pytest.mark.parametrize("origin", ["run", "reference"])
def test_a_figure_of_one_seed_is_drawn_without_published_values(paper: str, name: str, origin: str) -> None:
    tables = of_runs(TABLES[paper][name], lambda table: table[(table["origin"] == origin) & (table["seed"] == 1)])
    tables |= {name: tables[name].iloc[:0] for name in FACTS if name in tables}
    assert_nothing_is_cut(drawn(paper, name, **tables))


def test_a_published_score_without_frames_is_a_line_across_its_panel() -> None:
    canvas = drawn("ga3c_2017", "learning_curves", **TABLES["ga3c_2017"]["learning_curves"])
    for axes in canvas.axes:
        assert [20.0, 20.0] in [list(line.get_ydata()) for line in axes.lines]


def test_scores_beyond_a_panel_are_named_with_their_number_and_points_of_other_curves_are_not_drawn() -> None:
    canvas = drawn("a3c_2016", "learning_curves", **TABLES["a3c_2016"]["learning_curves"])
    for axes in canvas.axes:
        assert any("PFRL 5\N{NO-BREAK SPACE}000" in text.get_text() for text in axes.texts)
        points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1}
        assert points == {(320_000_000, 50.0)}


def test_returns_of_a_window_are_averaged_run_by_run() -> None:
    frames = pd.DataFrame({"env_frames": range(10, 110, 10), "episode_return": range(10)})
    curves = runs_of("single_task", ["impala"], ["toy/catch"], (1, 2)).merge(frames, how="cross")
    curves.loc[curves["seed"] == 2, "episode_return"] += 100
    found = in_windows(curves[(curves["seed"] == 1) | (curves["env_frames"] > 20)], 2)
    assert found["env_frames"].tolist() == [50, 100] * 2
    assert found["episode_return"].tolist() == [2, 7, 103, 107]


def test_a_score_that_no_human_played_is_called_a_reference() -> None:
    tables = TABLES["impala_2018"]["single_task"]
    for source, word in {"google-deepmind/dqn_zoo": "human", "measured: a command": "reference"}.items():
        canvas = drawn(
            "impala_2018",
            "single_task",
            **tables | {"references": tables["references"].assign(source=source, human=40.0)},
        )
        assert {text.get_text() for axes in canvas.axes for text in axes.texts} == {"random", word}


def test_settings_are_sorted_from_best_to_worst() -> None:
    canvas = drawn("impala_2018", "hyperparameters", **TABLES["impala_2018"]["hyperparameters"])
    for axes in canvas.axes:
        for line in axes.lines:
            assert list(line.get_xdata()) == [1, 2, 3, 4]
            assert np.all(np.diff(np.asarray(line.get_ydata(), dtype=np.float64)) <= 0)


def test_a_ratio_is_of_seeds_that_both_have() -> None:
    rows = [("a", "x", 1, 6.0), ("b", "x", 1, 2.0), ("a", "x", 2, 8.0), ("c", "x", 2, 1.0)]
    table = pd.DataFrame(rows, columns=["variant", "environment", "seed", "value"])
    assert paired_ratios(table, "a", "b").tolist() == [pytest.approx(3.0)]
    assert paired_ratios(table, "b", "c").size == 0
