"""Finds the values that a drawn figure shows, with their places, so that a page can print them beside the pointer.

They stand in the figure's SVG, in an element `metadata` with the id `values`, as JSON: a list of series with `label`
and `points` [x, y, text], where x and y are places in the SVG (points, y downwards).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

MOST_POINTS = 60
"""Most points of one line; of more, every second, third, ... is kept."""
SVG_DPI = 72
Look = tuple[str, bool]
"""Colour, and whether a line is dashed."""


def with_values(svg: str, canvas: Canvas) -> str:
    """Return the SVG of `canvas`, as it was just drawn, with its values."""
    data = json.dumps(list(_series(canvas)), ensure_ascii=False, separators=(",", ":"))
    head, end, _ = svg.rpartition("</svg>")
    return f'{head}<metadata id="values">{escape(data)}</metadata>\n{end}\n'


def _series(canvas: Canvas) -> Iterator[Mapping[str, Any]]:
    names = _legend([*canvas.legends, *(axes.get_legend() for axes in canvas.axes if axes.get_legend())])
    for axes in canvas.axes:
        if not axes.get_visible():
            continue
        for line in axes.lines:
            if line.get_transform() == axes.transData and line.get_visible():
                points = np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)])
                yield from _one(canvas, axes, _named(names, line), points)
        for bars in axes.containers:
            if isinstance(bars, BarContainer):
                ends = [_end(bar.get_bbox().get_points(), bars.orientation) for bar in bars.patches]
                yield from _one(canvas, axes, "", np.array(ends))


def _end(corners: np.ndarray[Any, Any], orientation: str | None) -> tuple[float, float]:
    """Return the middle of the end of a bar, from its corners [2, 2]."""
    (left, low), (right, high) = corners
    return (right, (low + high) / 2) if orientation == "horizontal" else ((left + right) / 2, high)


def _legend(legends: Iterable[Any]) -> dict[Look, str]:
    """Return the text of each look that a legend explains."""
    found: dict[Look, str] = {}
    for legend in legends:
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=False):
            if isinstance(handle, Line2D) and text.get_text():
                found.setdefault(_look(handle), text.get_text())
    return found


def _look(line: Line2D) -> Look:
    return to_hex(line.get_color()), line.get_linestyle() not in ("-", "None")


def _named(names: Mapping[Look, str], line: Line2D) -> str:
    colour, dashed = _look(line)
    return names.get((colour, dashed)) or names.get((colour, False), "")


def _one(canvas: Canvas, axes: Axes, name: str, points: np.ndarray[Any, Any]) -> Iterator[Mapping[str, Any]]:
    """Return one series, or none where nothing of it lies within the axes."""
    known = points[np.isfinite(points).all(axis=1)] if len(points) else points
    kept = known[:: -(-len(known) // MOST_POINTS) or 1]
    if not len(kept):
        return
    places = axes.transData.transform(kept) * SVG_DPI / canvas.dpi
    height = canvas.get_figheight() * SVG_DPI
    across = _reader(axes.xaxis, axes.get_xlabel() or canvas.get_supxlabel())
    up = _reader(axes.yaxis, axes.get_ylabel() or canvas.get_supylabel())
    found = [
        [round(float(x), 1), round(height - float(y), 1), f"{across(own[0])}\n{up(own[1])}"]
        for (x, y), own in zip(places, kept, strict=True)
    ]
    title = axes.get_title(loc="left") or axes.get_title()
    yield {"label": ", ".join(filter(None, (title, name))), "points": found}


def _reader(axis: Axis, label: str) -> Callable[[float], str]:
    """Return a function that says a value of this axis: the name of its tick where ticks have names, else a number."""
    named = isinstance(axis.get_major_locator(), FixedLocator)
    texts = [tick.get_text() for tick in axis.get_majorticklabels()] if named else []
    ticks = axis.get_majorticklocs()
    if not any(text[:1].isalpha() for text in texts):
        return lambda value: f"{label}: {shown(value)}" if label else shown(value)
    return lambda value: texts[int(np.argmin(np.abs(ticks - value)))].replace("\n", ", ")


def shown(value: float) -> str:
    """Return a number with four digits: 1,234 and 0.1235."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
