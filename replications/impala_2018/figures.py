"""Figures of the IMPALA replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from ddrl.analysis import plots
from ddrl.analysis.plots import COLOURS, FAINT, GREY, INK, NAMES, PUBLISHED

ATARI, CORRECTION = "atari", "off_policy_correction"
NETWORKS = {"shallow": ("Shallow", "o", "-"), "deep": ("Deep", "D", (0, (3.5, 1.6)))}
CORRECTIONS = {
    "v_trace": "V-trace",
    "one_step_is": "1-step IS",
    "epsilon_correction": "ε-correction",
    "no_correction": "No correction",
}
PAPER_FRAMES = 200_000_000
DENSE = 12
"""More games than this are drawn small."""


def learning_curves(curves: pd.DataFrame, references: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One panel per game: training return against frames, published final scores at 200 million, random and human."""
    curves = curves[curves["experiment"] == ATARI]
    games = sorted(set(curves["environment"]))
    if not games:
        return plots.blank(plots.new_figure("full", 1.0), "No Atari run has finished.")
    dense = len(games) > DENSE
    columns, height = (6, 0.84) if dense else (3, 1.72)
    canvas = plots.new_figure("full", 0.45 + height * -(-len(games) // columns))
    for axes, game in zip(plots.panels(canvas, len(games), columns), games, strict=True):
        own = curves[curves["environment"] == game]
        axes.set_title(own["env_label"].iloc[0], fontsize=5.5 if dense else None, pad=2 if dense else None)
        for (origin, variant), part in own.groupby(["origin", "variant"], sort=True):
            plots.band(axes, part, "episode_return", colour=COLOURS[origin], dashes=NETWORKS[variant][2])
        scores = published[(published["environment"] == game) & (published["experiment"] == ATARI)]
        _game_axes(axes, own, references[references["environment"] == game], scores, dense)
    origins = [name for name in ("run", "reference") if name in set(curves["origin"])]
    there = set(zip(curves["origin"], curves["variant"], strict=True))
    # A legend is filled column by column: an empty entry keeps one column per origin.
    handles = [
        plots.handle(f"{NAMES[origin]}, {NETWORKS[variant][0].lower()}", COLOURS[origin], dashes=NETWORKS[variant][2])
        if (origin, variant) in there
        else plots.handle("", "none")
        for origin in origins
        for variant in NETWORKS
    ]
    handles += [
        plots.handle(f"published, {label.lower()}", PUBLISHED, marker=mark, filled=name == "shallow")
        for name, (label, mark, _) in NETWORKS.items()
    ]
    plots.legend_above(canvas, handles, columns=len(handles) // 2)
    canvas.supxlabel("environment frames", fontsize=7.5)
    canvas.supylabel("episode return", fontsize=7.5)
    return canvas


def _game_axes(axes: Axes, own: pd.DataFrame, reference: pd.DataFrame, scores: pd.DataFrame, dense: bool) -> None:
    """Axes, random and human lines, and the published scores: beyond the top edge where they are out of reach."""
    axes.set_xscale("log")
    plots.frames_axis(axes)
    start = max(1_000.0, own["env_frames"].min() / 1.5)
    axes.set_xlim(start, PAPER_FRAMES * 2.2)
    levels = {name: float(reference[name].iloc[0]) for name in ("random", "human")} if len(reference) else {}
    values = [*own["episode_return"].dropna(), *levels.values()]
    low, high = min([*values, *scores["value"]]), max(values)
    # With many small panels there is no room for numbers: every published score is within its panel.
    reachable = [value for value in scores["value"] if dense or value <= low + 2.0 * (high - low)]
    high = max([high, *reachable])
    room = high - low or 1.0
    axes.set_ylim(low - 0.13 * room, high + (0.12 if len(reachable) == len(scores) else 0.25) * room)
    for name, level in levels.items():
        axes.axhline(level, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if not dense:
            side, place = ("bottom", 1.5) if name == "human" else ("top", -1.5)
            style = {"fontsize": 6, "color": GREY, "va": side}
            axes.annotate(name, (start, level), xytext=(2, place), textcoords="offset points", **style)
    if dense:
        axes.tick_params(labelsize=4.5, length=1.5, pad=1)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_locator(LogLocator(numticks=3))
        axes.yaxis.set_major_formatter(lambda value, _: plots.frames_text(value) if value >= 10_000 else f"{value:g}")
    _published_marks(axes, scores)


def _published_marks(axes: Axes, scores: pd.DataFrame) -> None:
    """The published scores at the paper's budget; arrows with the number where they lie above the panel."""
    top = axes.get_ylim()[1]
    above = []
    for row in scores.sort_values("compared_variant", ascending=False).to_dict("records"):
        label, marker, _ = NETWORKS[row["compared_variant"]]
        if row["value"] <= top:
            face = PUBLISHED if row["compared_variant"] == "shallow" else "white"
            axes.plot(
                [PAPER_FRAMES], [row["value"]], marker, color=PUBLISHED, mfc=face, ms=4.5, clip_on=False, zorder=5
            )
        else:
            above.append(f"{label.lower()} {_grouped(row['value'])}")
    if above:
        axes.annotate(
            ", ".join(above) + " \N{UPWARDS ARROW}",
            (1, 1),
            xycoords="axes fraction",
            xytext=(0, -1),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=6.5,
            color=PUBLISHED,
        )


def _grouped(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}").replace("-", "\N{MINUS SIGN}")


def normalised_scores(scores: pd.DataFrame, published: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One row per game and network: our final human-normalised scores beside the published ones."""
    own = scores[(scores["experiment"] == ATARI) & scores["human_normalised_score"].notna()]
    if own.empty:
        return plots.blank(plots.new_figure("full", 1.0), "No Atari run has finished.")
    games = sorted(set(own["env_label"]), reverse=True)
    rows = [(game, variant) for game in games for variant in reversed(NETWORKS)]
    dense = len(games) > DENSE
    canvas = plots.new_figure("full", 0.75 + (0.07 if dense else 0.21) * len(rows))
    axes = canvas.subplots()
    axes.set_xscale("symlog", linthresh=100, linscale=1.2)
    targets = _published_percent(published, references)
    for y, (game, variant) in enumerate(rows):
        part = own[(own["env_label"] == game) & (own["variant"] == variant)]
        if y % 4 < 2:
            axes.axhspan(y - 0.5, y + 0.5, color=FAINT, alpha=0.35, lw=0)
        environment = own[own["env_label"] == game]["environment"].iloc[0]
        target = targets.get((environment, variant))
        if target is not None:
            axes.plot([target], [y], NETWORKS[variant][1], color=PUBLISHED, ms=5, zorder=4)
        for origin, runs in part.groupby("origin", sort=True):
            values = 100 * runs["human_normalised_score"].to_numpy(dtype=np.float64)
            plots.dot(axes, values, y, colour=COLOURS[origin], marker=NETWORKS[variant][1])
            if not dense:
                _frames_label(axes, float(values.mean()), y, float(runs["env_frames"].min()), origin)
        if dense:
            continue
        axes.annotate(
            NETWORKS[variant][0].lower(),
            (0, y),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=6.5,
            color=GREY,
        )
    axes.set_yticks([index * 2 + 0.5 for index in range(len(games))], games)
    axes.tick_params(axis="y", length=0, pad=4 if dense else 34, labelsize=5.5 if dense else 7)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.spines["left"].set_visible(False)
    _percent_axis(
        axes,
        [
            *(100 * own["human_normalised_score"]),
            *(targets[key] for key in targets if key[0] in set(own["environment"])),
        ],
    )
    origins = [name for name in ("run", "reference") if name in set(own["origin"])]
    handles = [plots.handle(NAMES[name], COLOURS[name], marker="s") for name in (*origins, "published")]
    handles += [plots.handle(label.lower(), INK, marker=mark) for label, mark, _ in NETWORKS.values()]
    plots.legend_above(canvas, handles)
    return canvas


def _frames_label(axes: Axes, x: float, y: float, frames: float, origin: str) -> None:
    """The budget, above the dots of this run and below those of a reference run."""
    axes.annotate(
        plots.frames_text(frames),
        (x, y),
        xytext=(4, 3.5 if origin == "run" else -3.5),
        textcoords="offset points",
        va="center",
        fontsize=5.5,
        color=COLOURS[origin],
    )


def _published_percent(published: pd.DataFrame, references: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(environment, variant) -> published final score, human-normalised, in percent."""
    rows = published[(published["experiment"] == ATARI) & (published["environment"] != "")]
    joined = rows.merge(references[["environment", "random", "human"]], on="environment")
    percent = 100 * (joined["value"] - joined["random"]) / (joined["human"] - joined["random"])
    return dict(zip(zip(joined["environment"], joined["compared_variant"], strict=True), percent, strict=True))


def _percent_axis(axes: Axes, values: list[float]) -> None:
    """Ticks at round percentages within reach, lines at random play and at a human tester."""
    ticks = [-100, -50, 0, 50, 100, 300, 1000, 3000, 10_000, 30_000, 100_000]
    low, high = min(0.0, *values), max(100.0, *values)
    axes.set_xlim(1.2 * low - 15, 1.7 * high)
    shown = [tick for tick in ticks if 1.2 * low - 15 <= tick <= 1.7 * high]
    axes.set_xticks(
        shown, [f"{tick:,}".replace("-", "\N{MINUS SIGN}").replace(",", "\N{THIN SPACE}") for tick in shown]
    )
    axes.minorticks_off()
    axes.set_xlabel("human-normalised score, % (linear up to 100, logarithmic beyond)")
    for level in (0, 100):
        axes.axvline(level, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)


def correction_dot_plot(scores: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """The four corrections, without replay (filled) and with (open): our tasks, then the paper's Table 2."""
    own = scores[scores["experiment"] == CORRECTION]
    tasks = sorted(set(own["environment"]))
    count = len(tasks) + 1
    canvas = plots.new_figure("full", 0.5 + 2.0 * -(-count // 3))
    grid = plots.panels(canvas, count, 3, sharey=True)
    for axes, task in zip(grid, tasks, strict=False):
        part = own[own["environment"] == task]
        axes.set_title(part["env_label"].iloc[0])
        _correction_rows(axes)
        origins = sorted(set(part["origin"]), reverse=True)
        for (origin, variant), runs in part.groupby(["origin", "variant"], sort=True):
            shift = 0.14 * (origins.index(origin) - (len(origins) - 1) / 2)
            values = runs["final_return"].to_numpy(dtype=np.float64)
            replayed = variant.endswith("_replay")
            plots.dot(axes, values, _correction_y(variant) + shift, colour=COLOURS[origin], filled=not replayed)
        # Intervals of few and uneven seeds reach beyond what is possible: they are cut at the edge.
        low, high = part["final_return"].min(), part["final_return"].max()
        room = 0.1 * (high - low or 1.0)
        axes.set_xlim(low - room, high + room)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel("final return")
    _published_corrections(grid[-1], published)
    origins = [name for name in ("run", "reference") if name in set(own["origin"])]
    handles = [plots.handle(NAMES[name], COLOURS[name], marker="s") for name in (*origins, "published")]
    handles += [
        plots.handle("without replay", INK, marker="o"),
        plots.handle("with replay", INK, marker="o", filled=False),
    ]
    plots.legend_above(canvas, handles)
    return canvas


def _correction_y(variant: str) -> float:
    """Row of a correction, the replayed one just below."""
    names = list(CORRECTIONS)
    return -names.index(variant.removesuffix("_replay")) - (0.2 if variant.endswith("_replay") else -0.2)


def _correction_rows(axes: Axes) -> None:
    axes.set_yticks([-index for index in range(len(CORRECTIONS))], list(CORRECTIONS.values()))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_ylim(-len(CORRECTIONS) + 0.45, 0.55)
    for index in range(1, len(CORRECTIONS)):
        axes.axhline(0.5 - index, color=FAINT, lw=0.6)


def _published_corrections(axes: Axes, published: pd.DataFrame) -> None:
    """Table 2, each score divided by the best of its task."""
    rows = published[published["experiment"] == CORRECTION].copy()
    rows["relative"] = rows["value"] / rows.groupby("task")["value"].transform("max")
    _correction_rows(axes)
    for variant, part in rows.groupby("compared_variant", sort=True):
        y, replayed = _correction_y(variant), variant.endswith("_replay")
        axes.plot(part["relative"], np.full(len(part), y), ".", color=PUBLISHED, ms=3.5, alpha=0.45, mew=0)
        axes.plot(
            [part["relative"].mean()], [y], "o", color=PUBLISHED, ms=5, mfc="white" if replayed else PUBLISHED, mew=1.1
        )
    axes.set_xlim(0, 1.05)
    axes.set_title("Published, DeepMind Lab")
    axes.set_xlabel("score / best score of its task")


def policy_lag(policy_lag: pd.DataFrame) -> Figure:
    """One panel per experiment: mean lag of a batch as a line, and a band up to the largest."""
    shown = [name for name in (ATARI, CORRECTION) if name in set(policy_lag["experiment"])]
    if not shown:
        return plots.blank(plots.new_figure("full", 1.0), "No run has finished.")
    canvas = plots.new_figure("full", 2.2)
    for axes, experiment in zip(plots.panels(canvas, len(shown), 2), shown, strict=True):
        part = policy_lag[policy_lag["experiment"] == experiment]
        group = ["origin", "variant"] if experiment == ATARI else ["origin", "replay"]
        part = part.assign(replay=part["variant"].str.endswith("_replay"))
        for (origin, which), runs in part.groupby(group, sort=True):
            _lag_band(axes, runs, COLOURS[origin], _lag_line(experiment, which)[1])
        lines = [_lag_line(experiment, which) for which in sorted(set(part[group[1]]), reverse=experiment == ATARI)]
        axes.legend(
            handles=[plots.handle(label, INK, dashes=dashes) for label, dashes in lines],
            loc="upper left",
            handlelength=1.8,
        )
        axes.set_title({ATARI: "Atari experts", CORRECTION: "Off-policy corrections"}[experiment])
        if experiment == ATARI:
            axes.set_xscale("log")
        plots.frames_axis(axes)
        axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
        axes.grid(axis="y")
        axes.set_xlabel("environment frames")
    canvas.axes[0].set_ylabel("policy lag, updates")
    origins = [name for name in ("run", "reference") if name in set(policy_lag["origin"])]
    if len(origins) > 1:
        plots.legend_above(canvas, [plots.handle(NAMES[name], COLOURS[name], dashes="-") for name in origins])
    return canvas


def _lag_line(experiment: str, which: str | bool) -> tuple[str, object]:
    """Label and dashes of a line."""
    if experiment == ATARI:
        label, _, dashes = NETWORKS[str(which)]
        return label.lower(), dashes
    return ("with replay", NETWORKS["deep"][2]) if which else ("without replay", "-")


def _lag_band(axes: Axes, runs: pd.DataFrame, colour: str, dashes: object) -> None:
    """Mean over runs of the mean lag, on a shared grid; the band reaches to the largest of all."""
    frames = np.unique(np.geomspace(max(1, runs["env_frames"].min()), runs["env_frames"].max(), 120).astype(np.int64))
    means, largest = [], []
    for _, run in runs.groupby(["variant", "environment", "seed"], sort=True):
        inside = (frames >= run["env_frames"].min()) & (frames <= run["env_frames"].max())
        for name, lines in (("policy_lag_mean", means), ("policy_lag_max", largest)):
            lines.append(np.where(inside, np.interp(frames, run["env_frames"], run[name]), np.nan))
    mean = np.nanmean(means, axis=0)
    axes.fill_between(frames, mean, np.nanmax(largest, axis=0), color=colour, alpha=0.15, lw=0)
    axes.plot(frames, mean, color=colour, ls=dashes)
