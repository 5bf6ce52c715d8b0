"""Sets the look of every figure, draws the pieces they share, and draws a figure from its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from ddrl.analysis.figures.values import with_values
from ddrl.analysis.statistics.significance import Sample, t_interval
from ddrl.analysis.tables.build import read
from ddrl.papers.own_code import FIGURES, own_function
from ddrl.papers.paper import Figure
from ddrl.system.files import replacing, write_whole

INK, GREY, FAINT = "#1f2430", "#8a8f98", "#d9dce1"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
"""Okabe and Ito's colours, which people with any common colour blindness can tell apart."""
PUBLISHED = INK
"""Published values: black, and of a shape that ours do not have."""
NAMES = {"run": "this run", "reference": "reference run", "published": "published"}
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
"""Colours of systems, each with one in all figures of a paper. Reference runs have open marks and thin lines."""
MANY = (*SERIES, "#000000", "#b8a900")
"""Colours of many series: black stands late, and yellow, which is hard to see on white, last and darker."""
PALEST, DARKEST = 0.62, 0.6
"""Shares of white in the first and of black in the last shade of a colour."""
DASHES: tuple[Any, ...] = ("-", (0, (3.5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4)), (0, (7, 2)), (0, (2, 1)))
"""One for each of `SERIES`, so that no line is known by its colour alone."""
Style = tuple[str, Any]
"""Colour and dashes of a variant."""
WIDTHS = {"full": 6.3, "column": 4.2}
"""In inches; figures are printed at their own size."""
DPI = 200
FEW_POINTS = 3
"""Lines of so few points have marks: one of a single point would not be seen."""
ROUND_TIMES = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 360_000.0)
"""Seconds at which a logarithmic axis of times is labelled."""
STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7),
    **dict.fromkeys(("xtick.color", "ytick.color"), GREY),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("xtick.major.width", "ytick.major.width"), 0.6),
    "xtick.minor.size": 0,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.dpi": 100,
    "svg.fonttype": "none",
    "svg.hashsalt": "ddrl",
    "axes.formatter.use_mathtext": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Give figures the suite's look within the block, whatever the reader's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, STYLE))
        yield


def new_figure(width: str, height: float) -> Canvas:
    """Return an empty figure of a named width and a height in inches, with a layout that cuts nothing off."""
    return Canvas(figsize=(WIDTHS[width], height), layout="constrained")


def draw(paper_dir: Path, figure: Figure, tables: Path, output: Path) -> list[Path]:
    """Draw one figure of `paper_dir/figures.py` from exactly its tables; write `<name>.svg` and `<name>.png`.

    The same tables give the same bytes. Raise UserError for a missing table or function.
    """
    function = own_function(paper_dir, FIGURES, figure.name)
    with style():
        return save(function(**read(tables, figure.tables)), output, figure.name)


def save(canvas: Canvas, output: Path, name: str) -> list[Path]:
    """Write SVG, with the values that it shows (`values`), and PNG, each atomically and without a date."""
    output.mkdir(parents=True, exist_ok=True)
    vector, pixels = output / f"{name}.svg", output / f"{name}.png"
    FigureCanvasSVG(canvas)
    drawn = StringIO()
    canvas.savefig(drawn, format="svg", metadata={"Date": None})
    write_whole(vector, with_values(drawn.getvalue(), canvas).encode())
    FigureCanvasAgg(canvas)
    with replacing(pixels) as temporary:
        canvas.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})
    return [vector, pixels]


def graded(count: int, colour: str = BLUE) -> list[str]:
    """Return shades of `colour`, that of their system, for `count` variants in an order: with white, pure, with black.

    A system whose variants are a number or a size has so one colour in all figures of a paper.
    """
    pure = np.array(mpl.colors.to_rgb(colour))
    steps = np.linspace(-PALEST, DARKEST, max(count, 2))[:count]
    return [mpl.colors.to_hex(pure + (1 - pure) * -step if step < 0 else pure * (1 - step)) for step in steps]


def band(
    axes: Axes,
    curves: pd.DataFrame,
    column: str,
    *,
    colour: str,
    dashes: Any = "-",
    x: str = "env_frames",
    width: float = 1.4,
) -> None:
    """Draw the mean over seeds of `column` against `x`, with its 95 % interval; below 3 seeds, every seed.

    A line of `FEW_POINTS` or fewer has a mark at each.
    """
    look: dict[str, Any] = {"color": colour, "ls": dashes}
    grid = curves.pivot(index=x, columns="seed", values=column).dropna(how="all")
    if grid.shape[1] < 3:
        for seed in grid:
            own = grid[seed].dropna()
            axes.plot(own.index, own, lw=width - 0.2, **look, **mark(len(own)))
        return
    places = grid.index.to_numpy(dtype=np.float64)
    intervals = [t_interval(row, 0.95) for row in grid.to_numpy(dtype=np.float64)]
    axes.fill_between(places, [i.low for i in intervals], [i.high for i in intervals], color=colour, alpha=0.18, lw=0)
    axes.plot(places, [i.value for i in intervals], lw=width, **look, **mark(len(places)))


def mark(points: int) -> dict[str, Any]:
    """Return the marks of a line, which shows too little by itself if it has few points."""
    return {"marker": "o", "ms": 3} if points <= FEW_POINTS else {}


def dot(
    axes: Axes,
    values: Sample,
    place: float,
    *,
    colour: str,
    marker: str = "o",
    filled: bool = True,
    vertical: bool = False,
) -> None:
    """Draw one tick per seed [n], and their mean with its 95 % interval if there are 3 or more.

    Values lie along x and `place` on y; the other way round if `vertical`.
    """

    def plot(numbers: Sequence[float], *style: str, **options: Any) -> None:
        places = [place] * len(numbers)
        axes.plot(*((places, numbers) if vertical else (numbers, places)), *style, color=colour, **options)

    plot(values.tolist(), "_" if vertical else "|", ms=5, mew=0.9, alpha=0.7, zorder=2)
    interval = t_interval(values, 0.95)
    if len(values) >= 3:
        plot([interval.low, interval.high], lw=1.1, zorder=3, solid_capstyle="butt")
    plot([interval.value], marker, ms=5, mfc=colour if filled else "white", mew=1.1, zorder=4)


def handle(label: str, colour: str, *, marker: str = "", dashes: Any = "none", filled: bool = True) -> Line2D:
    """Return an entry of a legend."""
    face = colour if filled else "white"
    return Line2D([], [], color=colour, ls=dashes, marker=marker, ms=5, mfc=face, mew=1.1, lw=1.4, label=label)


def speeds(axes: Axes, runs: pd.DataFrame, colour: str, counts: Sequence[int], *, filled: bool) -> None:
    """Draw `training_speed` against `num_actors`; a dotted line over all `counts` is linear scaling of the fewest."""
    for count in sorted(set(runs["num_actors"])):
        values = runs["training_speed"][runs["num_actors"] == count].to_numpy(dtype=np.float64)
        dot(axes, values, float(count), colour=colour, filled=filled, vertical=True)
    means = runs.groupby("num_actors")["training_speed"].mean()
    axes.plot(means.index, means.to_numpy(), color=colour, lw=1.0)
    base = means.iloc[0] / means.index[0]
    axes.plot(counts, [base * count for count in counts], color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)


def speed_axes(axes: Axes, counts: Sequence[int], actors: str = "actors") -> None:
    """Set up the axes of `speeds`, both logarithmic; a paper may have another word for `actors`."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(ticker.FixedLocator(counts))
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter(lambda value, _: frames_text(value) if value >= 1000 else f"{value:g}")
    axes.set_title("Speed")
    axes.set_xlabel(actors)
    axes.set_ylabel("frames per second")
    axes.grid(axis="y")


def is_filled(origin: str) -> bool:
    """Return whether the marks of runs of this origin are filled; those of reference runs are open."""
    return origin != "reference"


def origin_handles(origins: Sequence[str], marker: str = "o") -> list[Line2D]:
    """Return legend entries for the marks of origins."""
    return [handle(NAMES[name], INK, marker=marker, filled=is_filled(name)) for name in origins]


def thin_handle(text: str = "reference runs (thin)", *, marker: str = "") -> Line2D:
    """Return the legend entry for the look of reference runs."""
    entry = handle(text, GREY, dashes="-", marker=marker, filled=False)
    entry.set_linewidth(0.9)
    return entry


def variant_handles(
    table: pd.DataFrame, styles: Mapping[str, Style], labels: Mapping[str, str] | None = None
) -> list[Line2D]:
    """Return legend entries in the order of `styles`, and for reference runs if both origins exist."""
    there = dict(zip(table["variant"], table["variant_label"], strict=True))
    named = {name: (labels or there)[name] for name in styles if name in there}
    handles = [handle(label, styles[name][0], dashes=styles[name][1]) for name, label in named.items()]
    return [*handles, thin_handle()] if table["origin"].nunique() > 1 else handles


def legend_above(canvas: Canvas, handles: Sequence[Line2D], columns: int | None = None) -> None:
    """Draw one legend for the whole figure, above its panels, in at most `columns`, as many as fit its width."""
    most = columns or len(handles)
    for ncols in range(most, 0, -1):
        legend = canvas.legend(
            handles=list(handles),
            loc="outside upper left",
            ncols=ncols,
            borderaxespad=0.2,
            columnspacing=1.6,
            handletextpad=0.5,
        )
        # Letters of the SVG, which is laid out at 72 dots per inch, are up to a tenth wider than these.
        if ncols == 1 or legend.get_window_extent().width <= 0.9 * canvas.bbox.width:
            return
        legend.remove()


def frames_text(frames: float) -> str:
    """Return 400000 as 400k."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if frames >= limit:
            return f"{frames / limit:.3g}{unit}"
    return f"{frames:.0f}"


def frames_axis(axes: Axes) -> None:
    """Label the x axis with texts such as 1M, at major ticks only."""
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: frames_text(value)))


def time_axis(axes: Axes) -> None:
    """Label an x axis in seconds with round times such as 2 h or 10 min; if logarithmic, each in its own unit."""
    low, longest = sorted(axes.get_xlim())
    size, unit = _unit_of(longest / 2)
    if axes.get_xscale() == "linear":
        ticks = ticker.MaxNLocator(5, steps=[1, 2, 3, 5, 6, 10]).tick_values(0, longest / size)
        places = [size * tick for tick in ticks if size * tick <= longest]
        texts = [f"{place / size:.3g} {unit}" if place else "0" for place in places]
    else:
        places = [time for time in ROUND_TIMES if low <= time <= longest]
        texts = [f"{time / size:.3g} {unit}" for time in places for size, unit in [_unit_of(time)]]
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xticks(places, texts)


def _unit_of(seconds: float) -> tuple[int, str]:
    """Return the largest unit of which a time is at least one."""
    return next(((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s"))


def blank(canvas: Canvas, text: str) -> Canvas:
    """Return a figure that says why it shows nothing."""
    canvas.text(0.5, 0.5, text, ha="center", va="center", color=GREY)
    return canvas


def panels(canvas: Canvas, count: int, columns: int, **options: Any) -> list[Axes]:
    """Return `count` axes in rows of at most `columns`."""
    columns = min(columns, count)
    rows = -(-count // columns)
    grid: Sequence[Axes] = canvas.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for axes in grid[count:]:
        axes.set_visible(False)
    return list(grid[:count])
