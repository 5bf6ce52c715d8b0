"""Figures of the reference runs: those of each paper, and the learning curves of each algorithm."""

from __future__ import annotations

import html
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ddrl.algorithms import NAMES
from docs.sitegen import evidence
from docs.sitegen.links import ROOT
from docs.sitegen.markdown import plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_TASKS = 6
"""In the learning curves of an algorithm: those with the longest runs."""


@dataclass(frozen=True)
class Drawn:
    """What was drawn from the reference runs of a paper."""

    figures: dict[str, bytes]
    """Name of a figure -> SVG, of those whose experiments have runs."""
    curves: pd.DataFrame
    """Training returns of scored runs, as table `curves` of the paper, with the runs' algorithm."""


@cache
def drawn() -> dict[str, Drawn]:
    """Return what every paper's reference runs show; several processes share the work."""
    keys = [key for key in evidence.keys_of_papers() if (ROOT / "results" / "reference" / key).is_dir()]
    with ProcessPoolExecutor(max_workers=2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return dict(zip(keys, pool.map(draw, keys), strict=True))


def draw(key: str) -> Drawn:
    """Return the figures of a paper, from the tables of its reference runs alone."""
    from ddrl.analysis.figures import plots
    from ddrl.analysis.runs.run_data import KEYS
    from ddrl.analysis.tables.kept import tables
    from ddrl.papers.own_code import own_function
    from ddrl.papers.table_names import REFERENCE

    folder, paper = ROOT / "replications" / key, evidence.paper(key)
    derived = {table.name: table for table in paper.derived}
    named = {name for figure in paper.figures for name in figure.tables}
    named |= {name for table in paper.derived for name in table.tables}
    wanted = sorted((named - set(derived)) | {"runs", "curves", "scores"})
    found = tables(wanted, folder, REFERENCE, [], ROOT / "results", allow_missing=True)
    for name, table in derived.items():
        found[name] = own_function(folder, "tables.py", name)(**{one: found[one] for one in table.tables})
    with plots.style():
        figures = {
            figure.name: _svg(
                own_function(folder, "figures.py", figure.name)(**{one: found[one] for one in figure.tables})
            )
            for figure in paper.figures
            if set(found["runs"]["experiment"]) & set(figure.experiments)
        }
    curves = found["curves"].merge(found["scores"][list(KEYS)]).merge(found["runs"][[*KEYS, "algorithm"]])
    return Drawn(figures, curves)


def _svg(canvas: Figure) -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = BytesIO()
    FigureCanvasSVG(canvas)
    canvas.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


@cache
def algorithm_curves(algorithm: str) -> bytes | None:
    """Return the training returns of an algorithm's longest reference runs as SVG, a panel a task; None without runs.

    Of each task it takes the experiment and variant with the most frames, then the most seeds.
    """
    import pandas as pd

    from ddrl.analysis.figures import plots

    parts = [one.curves[one.curves["algorithm"] == algorithm] for one in drawn().values()]
    if not any(map(len, parts)):
        return None
    own = pd.concat([part for part in parts if len(part)], ignore_index=True)
    groups = dict(iter(own.groupby(["environment", "paper", "experiment", "variant"], sort=True)))
    chosen: dict[str, Any] = {}
    for name in sorted(groups, key=lambda one: (-groups[one]["env_frames"].max(), -groups[one]["seed"].nunique(), one)):
        chosen.setdefault(str(name[0]), name)
    shown = list(chosen.items())[:MOST_TASKS]
    with plots.style():
        canvas = plots.new_figure("full", 1.7 * -(-len(shown) // 3))
        for axes, (task, name) in zip(plots.panels(canvas, len(shown), 3), shown, strict=True):
            table = groups[name]
            plots.band(axes, table, "episode_return", colour=plots.BLUE)
            axes.set_title(task, fontsize=7.5)
            axes.set_xlabel(f"environment frames ({name[1]}, {name[2]})", fontsize=5.5)
            plots.frames_axis(axes)
        return _svg(canvas)


def pictures() -> Iterator[tuple[str, bytes]]:
    """Yield every figure with its path in the site."""
    for key, found in drawn().items():
        yield from ((_figure_path(key, name), svg) for name, svg in found.figures.items())
    for name in NAMES:
        if (svg := algorithm_curves(name)) is not None:
            yield f"algorithms/figures/{name}.svg", svg


def _figure_path(key: str, name: str) -> str:
    return f"papers/figures/{key}_{name}.svg"


def figures_of(key: str) -> str:
    """Return the figures of a paper whose experiments have runs, each with its caption."""
    found = drawn()[key].figures if key in drawn() else {}
    parts = [
        _figure(
            figure.alt,
            f"figures/{key}_{figure.name}.svg",
            figure.caption,
            f"replications/{key}/figures.py, {figure.name}",
        )
        for figure in evidence.paper(key).figures
        if figure.name in found
    ]
    return "\n\n".join(parts) or "No reference run has finished yet, so there is no figure."


def curves_of(algorithm: str) -> str:
    """Return the learning curves of an algorithm."""
    if algorithm_curves(algorithm) is None:
        return "No reference run of this algorithm has finished yet."
    caption = (
        "Training return of reference runs with this algorithm: the mean over seeds with its 95 % interval, or each "
        "seed where there are fewer than three. A panel takes the longest runs on its task and names their experiment "
        "and variant."
    )
    return _figure(f"Learning curves of {algorithm}", f"figures/{algorithm}.svg", caption, "results/reference")


def _figure(alt: str, path: str, caption: str, source: str) -> str:
    below = f"<figcaption>{html.escape(caption)} <small>{source}</small></figcaption>"
    return f'<figure markdown="span">\n![{plain(alt)}]({path})\n{below}\n</figure>'
