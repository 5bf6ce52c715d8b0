"""Tables of invented runs for figures, and what can be said of every figure that is drawn from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ddrl.analysis.figures import plots
from ddrl.analysis.runs.run_data import env_label
from ddrl.papers.own_code import own_function

ROOT = Path(__file__).parents[2] / "replications"
Table = pd.DataFrame
RUN = ["origin", "paper", "experiment", "variant", "environment", "env_label", "seed", "variant_label"]


def runs_of(
    experiment: str,
    variants: Mapping[str, str] | Sequence[str],
    environments: Sequence[str],
    seeds: Sequence[int] = (1, 2, 3),
    origin: str = "run",
) -> Table:
    """One row per run with what names it; `variants`: with their labels, or named as they are."""
    labels = variants if isinstance(variants, Mapping) else {name: name for name in variants}
    rows = [
        (origin, "paper", experiment, name, environment, env_label(environment), seed, label)
        for name, label in labels.items()
        for environment in environments
        for seed in seeds
    ]
    return pd.DataFrame(rows, columns=RUN)


def repeats_of(**speeds: Sequence[float]) -> Table:
    """Runs on Pong by variant, a repeat for each of its frames per second."""
    parts = [
        runs_of("throughput", {variant: variant.upper()}, ["atari/pong"], range(1, len(values) + 1)).assign(
            steady_frames_per_second=list(values)
        )
        for variant, values in speeds.items()
    ]
    return pd.concat(parts, ignore_index=True)


def curves_of(runs: Table, frames: float, final: Mapping[str, float] | float, start: float, speed: float = 0) -> Table:
    """Returns that rise from `start` to `final` (of a variant), with noise; in seconds too with a `speed`."""
    grid = np.linspace(frames / 40, frames, 40)
    parts = []
    for index, run in enumerate(runs.to_dict("records")):
        generator = np.random.Generator(np.random.PCG64(index))
        end = final[run["variant"]] if isinstance(final, Mapping) else final
        rise = 1 / (1 + np.exp(-10 * (grid / frames - 0.45))) + 0.03 * generator.standard_normal(40)
        values = start + (end - start) * rise
        clock = {"seconds": grid / speed, "clock": "wall"} if speed else {}
        parts.append(pd.DataFrame({**run, "env_frames": grid.astype(np.int64), "episode_return": values, **clock}))
    return pd.concat(parts, ignore_index=True) if parts else runs.assign(env_frames=1, episode_return=1.0, seconds=1.0)


def measured(runs: Table, column: str, means: Mapping[str, float], spread: float = 0.08) -> Table:
    """`runs` with a column around the mean of its variant; missing where it has none."""
    generator = np.random.Generator(np.random.PCG64(len(runs)))
    noise = np.exp(spread * generator.standard_normal(len(runs)))
    return runs.assign(**{column: runs["variant"].map(means).astype("float64") * noise})


def scores_of(runs: Table, frames: int, normalised: Mapping[str, float] | float) -> Table:
    """Human-normalised scores around that of the variant, and returns a hundred times as high."""
    means = normalised if isinstance(normalised, Mapping) else dict.fromkeys(runs["variant"], normalised)
    table = measured(runs, "human_normalised_score", means, 0.2)
    return table.assign(final_return=100 * table["human_normalised_score"], env_frames=frames)


def references_of(environments: Sequence[str], random: float = 0.0, human: float | None = 100.0) -> Table:
    rows = [(name, name.split("/")[1], random, human, "invented") for name in environments]
    table = pd.DataFrame(rows, columns=["environment", "task", "random", "human", "source"])
    return table.astype({"random": "float64", "human": "float64"})


PUBLISHED = ["cell", "item", "system", "variant", "task", "metric", "value", "budget_frames", "hardware"]


def published_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows as table `published` has them; what is not given is missing, and of an environment the empty name."""
    columns = [*PUBLISHED, "experiment", "compared_variant", "environment"]
    table = pd.DataFrame([dict(row) for row in rows], columns=columns)
    return table.fillna({"environment": ""}).astype({"value": "float64"})


def drawn(paper: str, name: str, **tables: Table) -> Figure:
    """A figure of a replication, laid out as it is saved for reports: as SVG, which has 72 dots per inch."""
    with plots.style():
        canvas: Figure = own_function(ROOT / paper, "figures.py", name)(**tables)
        canvas.set_dpi(72)
        FigureCanvasAgg(canvas).draw()
    return canvas


def assert_nothing_is_cut(canvas: Figure) -> None:
    """Panels and legends lie within the figure, and none over another."""
    inside = canvas.bbox.padded(1)
    renderer: Any = FigureCanvasAgg(canvas).get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in canvas.axes if axes.get_visible()]
    boxes += [legend.get_window_extent(renderer) for legend in canvas.legends]
    for box in boxes:
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1
        assert inside.y0 <= box.y0 and box.y1 <= inside.y1
    for one, other in combinations([box.padded(-1) for box in boxes], 2):
        assert not one.overlaps(other)


def says_nothing_has_finished(canvas: Figure) -> bool:
    said = [text.get_text() for text in canvas.texts]
    return not canvas.axes and any(text.endswith(("has finished.", "has ended.")) for text in said)


def texts_of(legend: Any) -> list[str]:
    """The texts of a legend, without the entries that only fill its columns."""
    return [text.get_text() for text in legend.get_texts() if text.get_text()]


def assert_every_line_is_seen(canvas: Figure) -> None:
    """A line of one point has a mark."""
    for axes in canvas.axes:
        for line in axes.lines:
            known = np.isfinite(np.asarray(line.get_ydata(), dtype=np.float64)).sum()
            assert known > 1 or line.get_marker() != "None", f"{axes.get_title(loc='left')}: a line without a mark"


def assert_every_panel_says_something(canvas: Figure) -> None:
    """A panel shows data, or says that there are none."""
    for axes in canvas.axes:
        if axes.get_visible() and axes.axison:
            assert axes.has_data() or any(text.get_text() for text in axes.texts), axes.get_title(loc="left")


def assert_legends_name_what_is_drawn(canvas: Figure) -> None:
    """Each entry of a legend looks like something in the panels: marks, filling, dashes, and colour unless neutral."""
    there = [line for axes in canvas.axes for line in axes.lines]
    areas = {to_hex(patch.get_facecolor()) for axes in canvas.axes for patch in axes.patches}
    for legend in [*canvas.legends, *(axes.get_legend() for axes in canvas.axes if axes.get_legend())]:
        for entry, text in zip(legend.legend_handles, texts_of(legend), strict=False):
            assert to_hex(entry.get_color()) in areas or any(_alike(entry, line) for line in there), text


def _alike(entry: Any, line: Any) -> bool:
    """Whether an entry looks like a line; a neutral one is a key to filling and dashes alone if it is of an origin."""
    neutral = to_hex(entry.get_color()) in (plots.INK, plots.GREY)
    if not neutral and to_hex(entry.get_color()) != to_hex(line.get_color()):
        return False
    if entry.get_color() == plots.GREY and entry.get_linewidth() < 1:
        return bool(line.get_linewidth() < 1)
    if entry.get_marker() in ("", "None"):
        return bool(entry.get_linestyle() == line.get_linestyle())
    of_origin = entry.get_label() in plots.NAMES.values()
    return (of_origin or entry.get_marker() == line.get_marker()) and _open(entry) == _open(line)


def _open(line: Any) -> bool:
    face = line.get_markerfacecolor()
    return face == "none" or to_hex(face) == "#ffffff"
