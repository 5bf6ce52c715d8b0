"""Curves and manifests of runs, read from their folders and checked; every row names its run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ddrl.analysis.schema import schema
from ddrl.errors import UserError

KEYS = ["origin", "paper", "experiment", "variant", "environment", "env_label", "seed"]
"""Columns that name a run; `origin` is "run" (the reader's own) or "reference" (committed)."""
Values = np.ndarray[Any, np.dtype[np.float64]]
GROUP = ["origin", "paper", "experiment", "variant", "environment", "env_label"]
_MANIFEST: dict[str, type] = {
    "config": dict,
    "env_frames": int,
    "agent_steps": int,
    "updates": int,
    "seconds": float,
    "exit_reason": str,
    "algorithm_version": int,
    "protocol": str,
    "hardware": dict,
    "packages": dict,
}


@dataclass(frozen=True)
class RunData:
    """One finished run."""

    origin: str
    paper: str
    experiment: str
    variant: str
    environment: str
    seed: int
    manifest: Mapping[str, Any]
    """run.json."""
    curves: pd.DataFrame
    """curves.parquet: env_frames, agent_steps, updates, seconds, metric, value."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration."""
        config: Mapping[str, Any] = self.manifest["config"]
        return config

    def keys(self) -> dict[str, Any]:
        """The columns `KEYS`."""
        values = {name: getattr(self, name) for name in KEYS if name != "env_label"}
        return values | {"env_label": env_label(self.environment)}


def env_label(environment: str) -> str:
    """atari/space_invaders -> Space Invaders."""
    return environment.split("/", 1)[-1].replace("_", " ").title()


def load_run(directory: Path, origin: str, paper: str, experiment: str, variant: str) -> RunData:
    """Reads a run directory.

    Raises: UserError naming the file for a missing, damaged or inconsistent one.
    """
    manifest = _manifest(directory / "run.json")
    environment = manifest["config"]["environment"]["name"]
    seed = manifest["config"]["seed"]
    expected = f"{environment.replace('/', '-')}/seed{seed}"
    if f"{directory.parent.name}/{directory.name}" != expected:
        raise UserError(f"{directory / 'run.json'}: is of {expected}, not of {directory.parent.name}/{directory.name}")
    curves = _curves(directory / "curves.parquet")
    if int(curves["env_frames"].max()) > manifest["env_frames"]:
        raise UserError(f"{directory / 'curves.parquet'}: has more env_frames than run.json")
    return RunData(origin, paper, experiment, variant, environment, seed, manifest, curves)


def load_reference(folder: Path, paper: str) -> list[RunData]:
    """Every run below `folder` (experiment/variant/environment/seed<k>), sorted; none where the folder is absent."""
    found = []
    for path in sorted(folder.glob("*/*/*/seed*/run.json")):
        experiment, variant = path.parts[-5], path.parts[-4]
        found.append(load_run(path.parent, "reference", paper, experiment, variant))
    return found


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the run has not finished") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    for key, kind in _MANIFEST.items():
        value = manifest.get(key) if isinstance(manifest, dict) else None
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise UserError(f"{path}: key '{key}' must be a {kind.__name__} (got {value!r})")
    config = manifest["config"]
    if not isinstance(config.get("environment"), dict) or "name" not in config["environment"] or "seed" not in config:
        raise UserError(f"{path}: key 'config' must hold 'environment.name' and 'seed'")
    return dict(manifest)


def _curves(path: Path) -> pd.DataFrame:
    columns: dict[str, str] = schema("curves")["columns"]
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the run has not finished") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: damaged: {' '.join(str(error).split())[:120]}") from None
    if set(table.column_names) != set(columns):
        raise UserError(f"{path}: columns are {', '.join(table.column_names)}; allowed: {', '.join(columns)}")
    frame: pd.DataFrame = table.to_pandas()[list(columns)]
    for name, kind in columns.items():
        actual = (
            "string"
            if kind == "string" and all(isinstance(value, str) for value in frame[name])
            else str(frame[name].dtype)
        )
        if actual != kind:
            raise UserError(f"{path}: column '{name}' is {actual}; allowed: {kind}")
    if frame.empty or not np.isfinite(frame["value"]).all() or (frame["env_frames"] < 0).any():
        raise UserError(f"{path}: is empty, or holds values that are not finite or env_frames below 0")
    missing = [name for name in schema("curves")["required_metrics"] if name not in set(frame["metric"])]
    if missing:
        raise UserError(f"{path}: has no metric '{missing[0]}'")
    return frame


def long_frame(runs: Iterable[RunData], metrics: Iterable[str] | None = None) -> pd.DataFrame:
    """One row per value: `KEYS`, env_frames, seconds, metric, value."""
    wanted = None if metrics is None else list(metrics)
    parts = [pd.DataFrame(columns=[*KEYS, "env_frames", "seconds", "metric", "value"])]
    for run in runs:
        chosen = run.curves if wanted is None else run.curves[run.curves["metric"].isin(wanted)]
        part = chosen[["env_frames", "seconds", "metric", "value"]].assign(**run.keys())
        parts.append(part[parts[0].columns])
    filled = [part for part in parts if not part.empty]
    return pd.concat(filled, ignore_index=True) if filled else parts[0]


def on_common_grid(long: pd.DataFrame, metrics: list[str], points: int = 200) -> pd.DataFrame:
    """One row per run and grid point, one column per metric: `KEYS`, env_frames, *metrics.

    The seeds of a group share a grid of at most `points` env_frames, from the latest first record to the earliest last
    one. A value is the mean over the stretch around its grid point (the maximum of metrics named *_max), records being
    joined by straight lines.
    """
    columns = [*KEYS, "env_frames", *metrics]
    parts = []
    for _, group in long[long["metric"].isin(metrics)].groupby(GROUP, sort=True):
        spans = group.groupby("seed")["env_frames"].agg(["min", "max", "nunique"])
        first, last = float(spans["min"].max()), float(spans["max"].min())
        count = min(points, int(spans["nunique"].max()))
        grid = np.unique(np.linspace(first, max(first, last), max(count, 1)).round())
        for seed, run in group.groupby("seed", sort=True):
            head = {name: run[name].iloc[0] for name in GROUP} | {"seed": seed}
            values = {name: _on_grid(run[run["metric"] == name], grid, name.endswith("_max")) for name in metrics}
            parts.append(pd.DataFrame({**values, "env_frames": grid.astype(np.int64)}).assign(**head)[columns])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _on_grid(records: pd.DataFrame, grid: Values, largest: bool) -> Values:
    """Values [G] on a grid [G] of env_frames."""
    if records.empty:
        return np.full(len(grid), math.nan)
    series = records.groupby("env_frames")["value"].agg("max" if largest else "mean")
    frames, values = series.index.to_numpy(dtype=np.float64), series.to_numpy(dtype=np.float64)
    points: Values = np.interp(grid, frames, values)
    if len(grid) < 2:
        return points
    edges = np.concatenate([grid[:1], (grid[1:] + grid[:-1]) / 2, grid[-1:]])
    if largest:
        stretches = zip(edges, edges[1:], points, strict=False)
        return np.array(
            [values[(low <= frames) & (frames <= high)].max(initial=point) for low, high, point in stretches]
        )
    # The mean over a stretch is a difference of the integral, which is exact for straight lines.
    corners = np.union1d(frames, edges)
    heights = np.interp(corners, frames, values)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(corners) * (heights[1:] + heights[:-1]) / 2)])
    at_edges = np.interp(edges, corners, integral)
    means: Values = np.diff(at_edges) / np.diff(edges)
    return means
