"""Puts the curves of a group's seeds on common grids of frames or seconds; every row names its run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ddrl.analysis.runs.run_data import KEYS, RunData, Values, clock_of, training_returns

MOST_POINTS = 200
"""Most points of a grid that the seeds of a group share."""
GROUP = KEYS[:-1]


class _Recorded(NamedTuple):
    """The places of a run's records on the axis of a grid, and the number of different env_frames among them."""

    run: RunData
    places: Values
    moments: int


def on_common_grid(runs: Iterable[RunData], metrics: list[str], points: int = MOST_POINTS) -> pd.DataFrame:
    """Return one row per run and grid point, one column per metric: `KEYS`, env_frames, *metrics.

    The seeds of a group share a grid of at most `points` env_frames, from the latest first record to the earliest last
    one. A value is the mean over the interval around its grid point (the maximum of *_max), linearly interpolated.
    """
    recorded, parts = [], []
    for run in runs:
        places = np.concatenate([run.points(name)[0] for name in metrics])
        recorded.append(_Recorded(run, places, len(np.unique(places))))
    for run, shared in _with_grids(recorded, points):
        grid = np.unique(shared.round())
        values = {name: on_grid(*run.points(name), grid, largest=name.endswith("_max")) for name in metrics}
        parts.append((run, {"env_frames": grid.astype(np.int64)} | values))
    return _joined(parts, ["env_frames", *metrics])


def on_common_clock(runs: Iterable[RunData]) -> pd.DataFrame:
    """Return the training return against seconds of training: `KEYS`, clock, seconds, env_frames, episode_return.

    As `on_common_grid`, in seconds: a group's grid ends with its fastest seed. `env_frames` is how far a run was then.
    """
    recorded, parts = [], []
    for run in runs:
        records = training_returns(run)
        seconds = records["seconds"].to_numpy(dtype=np.float64)
        recorded.append(_Recorded(run, seconds, records["env_frames"].nunique()))
    for run, shared in _with_grids(recorded, MOST_POINTS):
        grid, records = np.unique(shared), training_returns(run)
        frames = np.interp(grid, records["seconds"], records["env_frames"]).round().astype(np.int64)
        seconds, values = (records[name].to_numpy(dtype=np.float64) for name in ("seconds", "value"))
        returns = on_grid(seconds, values, grid, largest=False)
        clock = np.full(len(grid), clock_of(run), dtype=object)
        parts.append((run, {"clock": clock, "seconds": grid, "env_frames": frames, "episode_return": returns}))
    return _joined(parts, ["clock", "seconds", "env_frames", "episode_return"])


def _joined(parts: Sequence[tuple[RunData, Mapping[str, Any]]], columns: Sequence[str]) -> pd.DataFrame:
    """Return the columns of all runs, one run below the other, behind the columns that name the run."""
    if not parts:
        return pd.DataFrame(columns=[*KEYS, *columns])
    lengths = [len(part[columns[0]]) for _, part in parts]
    names = pd.DataFrame([run.keys() for run, _ in parts], columns=KEYS)
    table = names.loc[np.repeat(names.index, lengths)].reset_index(drop=True)
    return table.assign(**{name: np.concatenate([part[name] for _, part in parts]) for name in columns})


def _with_grids(recorded: Iterable[_Recorded], points: int) -> Iterator[tuple[RunData, Values]]:
    """Yield every run that has records, with the places that it shares with its group's other seeds.

    The places reach from the latest first record to the earliest last one.
    """
    groups: dict[tuple[Any, ...], list[_Recorded]] = {}
    for one in recorded:
        if len(one.places):
            keys = one.run.keys()
            groups.setdefault(tuple(keys[name] for name in GROUP), []).append(one)
    for _, group in sorted(groups.items(), key=lambda item: item[0]):
        first = max(float(one.places.min()) for one in group)
        last = max(first, min(float(one.places.max()) for one in group))
        count = min(points, max(one.moments for one in group))
        for one in sorted(group, key=lambda one: one.run.seed):
            yield one.run, np.linspace(first, last, count)


def on_grid(x: Values, y: Values, grid: Values, *, largest: bool) -> Values:
    """Return the values [G] on a grid [G] of records with places x [N] and values y [N], in any order."""
    if not len(x):
        return np.full(len(grid), math.nan)
    places, values = in_order(x, y, largest=largest)
    points: Values = np.interp(grid, places, values)
    if len(grid) < 2:
        return points
    edges = np.concatenate([grid[:1], (grid[1:] + grid[:-1]) / 2, grid[-1:]])
    if largest:
        begins, ends = np.searchsorted(places, edges[:-1], "left"), np.searchsorted(places, edges[1:], "right")
        intervals = zip(begins, ends, points, strict=True)
        return np.array([values[begin:end].max(initial=point) for begin, end, point in intervals])
    # The mean over an interval is a difference of the integral, which is exact for straight lines.
    corners = np.union1d(places, edges)
    heights = np.interp(corners, places, values)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(corners) * (heights[1:] + heights[:-1]) / 2)])
    at_edges = np.interp(edges, corners, integral)
    means: Values = np.diff(at_edges) / np.diff(edges)
    return means


def mean_over_frames(run: RunData, metric: str) -> float:
    """Return a metric averaged over the frames between its first and its last record; NaN without any record.

    Records are joined by straight lines. Those at the same frames count as their mean.
    """
    frames, values = in_order(*run.points(metric), largest=False)
    if len(frames) < 2:
        return float(values.mean()) if len(values) else math.nan
    return float(np.trapezoid(values, frames) / (frames[-1] - frames[0]))


def share_of_final(run: RunData, part: float) -> float:
    """Return the evaluation return after a part of the run's frames, as a share of the final return.

    Evaluations are joined by straight lines. NaN if the first one came later, or the final return is not above 0.
    """
    frames, values = in_order(*run.points("evaluation_return"), largest=False)
    if not len(frames) or frames[0] > part * frames[-1] or not values[-1] > 0:
        return math.nan
    return float(np.interp(part * frames[-1], frames, values) / values[-1])


def in_order(x: Values, y: Values, *, largest: bool) -> tuple[Values, Values]:
    """Return ascending places, each once, with the mean (or the largest) of its values."""
    order = np.argsort(x, kind="stable")
    places, values = x[order], y[order]
    if (np.diff(places) > 0).all():
        return places, values
    series = pd.Series(values).groupby(places).agg("max" if largest else "mean")
    return series.index.to_numpy(dtype=np.float64), series.to_numpy(dtype=np.float64)
