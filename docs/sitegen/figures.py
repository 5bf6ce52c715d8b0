"""Figures of the reference runs: those of each paper, and the learning curves of each algorithm."""

from __future__ import annotations

import html
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ddrl.algorithms import NAMES
from docs.sitegen import evidence
from docs.sitegen.links import ROOT
from docs.sitegen.markdown import plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ddrl.analysis.runs.run_data import RunData


MOST_TASKS = 6
"""In the learning curves of an algorithm: those with the longest runs."""
FEWEST_EPISODES = 5
"""Of the final evaluation of a run that is about returns; a run that measures speed has fewer."""


@dataclass(frozen=True)
class Drawn:
    """What was drawn from the reference runs of a paper."""

    figures: dict[str, bytes]
    """Name of a figure -> SVG, of those whose experiments have runs."""
    curves: pd.DataFrame
    """Training returns: algorithm, paper, experiment, variant, environment, seed, env_frames, episode_return."""


@cache
def drawn() -> dict[str, Drawn]:
    """Return what every paper's reference runs show. It takes half a minute, so several processes share it."""
    with ProcessPoolExecutor(max_workers=2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return dict(zip(evidence.keys_of_papers(), pool.map(draw, evidence.keys_of_papers()), strict=True))


def draw(key: str) -> Drawn:
    """Return the figures of a paper, from the tables of its reference runs alone."""
    import pandas as pd

    from ddrl.analysis.figures import plots
    from ddrl.analysis.runs.problems import gather
    from ddrl.analysis.runs.run_data import on_common_grid
    from ddrl.analysis.tables.build import read
    from ddrl.analysis.tables.derived import own_function
    from ddrl.papers.experiments import load_experiments

    folder = ROOT / "replications" / key
    runs = list(gather(key, [], ROOT / "results", load_experiments(folder), allow_missing=True).runs)
    known = {run.experiment for run in runs}
    shown = [figure for figure in evidence.paper(key).figures if known & set(figure.experiments)]
    figures = {}
    with tempfile.TemporaryDirectory() as temporary, plots.style():
        tables = Path(temporary)
        _write_tables(key, runs, {name for figure in shown for name in figure.tables}, tables)
        for figure in shown:
            canvas = own_function(folder, "figures.py", figure.name)(**read(tables, figure.tables))
            figures[figure.name] = _svg(canvas)
    learned = [run for run in runs if run.config["evaluation"]["final_episodes"] >= FEWEST_EPISODES]
    curves = on_common_grid(learned, ["episode_return"])
    if len(curves):
        curves = curves.merge(pd.DataFrame([run.keys() | {"algorithm": run.config["algorithm"]} for run in learned]))
    return Drawn(figures, curves)


def _svg(canvas: Figure) -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = BytesIO()
    FigureCanvasSVG(canvas)
    canvas.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _write_tables(key: str, runs: list[RunData], wanted: set[str], output: Path) -> None:
    """Write the tables that figures draw. Claims and cells, which take most of the time, are not among them."""
    from ddrl.analysis.runs.by_task import by_task
    from ddrl.analysis.runs.efficiency import efficiency_table
    from ddrl.analysis.runs.run_data import on_common_clock, on_common_grid
    from ddrl.analysis.tables.build import used_published, write_table
    from ddrl.analysis.tables.derived import derive
    from ddrl.analysis.tables.runs import lineage_table, milestone_table, run_table
    from ddrl.analysis.tables.scores import scores
    from ddrl.papers.experiments import load_experiments
    from ddrl.papers.published import load_published, load_references

    folder, paper = ROOT / "replications" / key, evidence.paper(key)
    experiments, references, parts = load_experiments(folder), load_references(paper), by_task(runs)

    def labelled(table: pd.DataFrame) -> pd.DataFrame:
        pairs = zip(table["experiment"], table["variant"], strict=True)
        return table.assign(variant_label=[experiments[experiment].labels[variant] for experiment, variant in pairs])

    tables: dict[str, Callable[[], pd.DataFrame]] = {
        "runs": lambda: run_table(runs, experiments),
        "curves": lambda: labelled(on_common_grid(parts, ["episode_return"])),
        "wall_clock": lambda: labelled(on_common_clock(parts)),
        "policy_lag": lambda: labelled(on_common_grid(runs, ["policy_lag_mean", "policy_lag_max"])),
        "efficiency": lambda: efficiency_table(runs, experiments, paper.prices),
        "scores": lambda: labelled(scores(parts, references)),
        "milestones": lambda: milestone_table(paper, parts),
        "lineage": lambda: labelled(lineage_table(runs)),
        "published": lambda: used_published(paper, load_published(folder)),
        "references": lambda: references,
    }
    derived = [table for table in paper.derived if table.name in wanted]
    for name in sorted(wanted & set(tables) | {name for table in derived for name in table.tables}):
        write_table(tables[name](), output, name)
    for table in derived:
        derive(folder, table, output, output)


@cache
def algorithm_curves(algorithm: str) -> bytes | None:
    """Return the training returns of an algorithm's longest reference runs as SVG, a panel a task; None without runs.

    Of each task it takes the experiment and variant with the most frames, then the most seeds.
    """
    import pandas as pd

    from ddrl.analysis.figures import plots

    every = pd.concat([one.curves for one in drawn().values() if len(one.curves)], ignore_index=True)
    own = every[every["algorithm"] == algorithm]
    if own.empty:
        return None
    groups = dict(iter(own.groupby(["environment", "paper", "experiment", "variant"], sort=True)))
    chosen: dict[str, tuple[str, ...]] = {}
    for name in sorted(groups, key=lambda one: (-groups[one]["env_frames"].max(), -groups[one]["seed"].nunique(), one)):
        chosen.setdefault(str(name[0]), name)
    shown = list(chosen.items())[:MOST_TASKS]
    with plots.style():
        canvas = plots.new_figure("full", 1.7 * -(-len(shown) // 3))
        for axes, (task, name) in zip(plots.panels(canvas, len(shown), 3), shown, strict=True):
            table = groups[name]
            plots.band(axes, table, "episode_return", colour=plots.OWN)
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
    found = drawn()[key].figures
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
