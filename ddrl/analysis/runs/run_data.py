"""Reads and checks the curves and manifests of runs; every row names its run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pyarrow as pa

from ddrl.errors import UserError
from ddrl.papers.schema import check, schema
from ddrl.system.files import read_file
from ddrl.system.parquet import read_frame, read_table
from ddrl.system.wording import shortened

KEYS = ["origin", "paper", "experiment", "variant", "environment", "env_label", "seed"]
"""Columns that name a run; `origin` is "run" (the reader's own) or "reference" (committed)."""
Values = np.ndarray[Any, np.dtype[np.float64]]
Rows = np.ndarray[Any, np.dtype[np.intp]]
NO_ROWS: Rows = np.zeros(0, dtype=np.intp)
Result = TypeVar("Result")
_ARROW_TYPES: dict[str, tuple[Any, ...]] = {
    "int64": (pa.int64(),),
    "float64": (pa.float64(),),
    "string": (pa.string(), pa.large_string()),
}
LAST_PART = 0.1
"""A run's current level is its mean over this last fraction of its time or frames: single records are noisy."""
MOST = 10**15
"""Largest allowed number of frames, steps or updates, as in the schema of run.json."""
LARGEST = 1e100
"""Largest allowed value: its square, and sums of many squares, must be finite too."""
DECISION = ["member", "decision", "kind", "env_frames", "fitness", "compared_with", "copied"]
"""Columns of lineage.parquet that name a decision of a population's member."""
LAYOUT = ("runtime", "inference", "schedule", "num_actors", "envs_per_actor", "learner_threads", "parameter_delay")
"""Keys of a topology that the tables contain."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One finished run, equal only to itself: what is computed from it is kept (`once_per_run`)."""

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
    suite: str = ""
    """For one task's part of a run on a suite: what the run was trained on (`ddrl.analysis.runs.by_task`)."""
    lineage: pd.DataFrame | None = None
    """lineage.parquet of a population, with what its members decided: one row per hyperparameter and `DECISION`."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration."""
        config: Mapping[str, Any] = self.manifest["config"]
        return config

    @cached_property
    def rows_of(self) -> Mapping[str, Rows]:
        """Metric -> the numbers of its rows in `curves`, ascending."""
        codes, metrics = pd.factorize(self.curves["metric"])
        order = np.argsort(codes, kind="stable")
        return dict(zip(metrics, np.split(order, np.cumsum(np.bincount(codes)))[:-1], strict=True))

    def records(self, metric: str) -> pd.DataFrame:
        """Return the rows of `curves` that hold a metric."""
        return self.curves.iloc[self.rows_of.get(metric, NO_ROWS)]

    def points(self, metric: str, of: str = "value") -> tuple[Values, Values]:
        """Return env_frames [N] and the column `of` [N] of the rows that hold a metric, in the order of `curves`."""
        rows = self.rows_of.get(metric, NO_ROWS)
        frames, values = (self.curves[name].to_numpy()[rows].astype(np.float64) for name in ("env_frames", of))
        return frames, values

    def keys(self) -> dict[str, Any]:
        """Return the columns `KEYS`."""
        values = {name: getattr(self, name) for name in KEYS if name != "env_label"}
        return values | {"env_label": env_label(self.environment)}


def once_per_run(function: Callable[[RunData], Result]) -> Callable[[RunData], Result]:
    """Return `function` with its result kept as long as the run; callers must not change a result."""
    results: WeakKeyDictionary[RunData, Result] = WeakKeyDictionary()

    @wraps(function)
    def found(run: RunData) -> Result:
        if run not in results:
            results[run] = function(run)
        return results[run]

    return found


def clock_of(run: RunData) -> Literal["cpu", "wall"]:
    """Return the clock of `training_returns`: CPU time for runtime serial, else wall-clock time.

    A serial run is one thread: its CPU time hardly changes if the machine does other work besides.
    """
    serial = run.config.get("topology", {}).get("runtime") == "serial"
    return "cpu" if serial and "cpu_seconds" in run.rows_of else "wall"


@once_per_run
def training_returns(run: RunData) -> pd.DataFrame:
    """Return the records of the training return by env_frames: the columns of `curves`, `seconds` by `clock_of`."""
    records = run.records("episode_return").sort_values("env_frames")
    if clock_of(run) == "wall":
        return records
    clock = run.records("cpu_seconds").set_index("env_frames")["value"]
    return records.assign(seconds=clock.reindex(records["env_frames"]).to_numpy())


def training_speed(run: RunData) -> float:
    """Return frames per second of training by `clock_of`, without the final evaluation if the curves tell."""
    cpu = clock_of(run) == "cpu"
    records = run.records("cpu_seconds" if cpu else "episodes")
    last = run.manifest if records.empty else records.loc[records["env_frames"].idxmax()]
    return float(last["env_frames"]) / max(float(last["value" if cpu else "seconds"]), 1e-9)


@once_per_run
def final_episodes(run: RunData) -> pd.Series:
    """Return the returns of the evaluation episodes at their largest env_frames; their mean is the final return."""
    evaluation = run.records("evaluation_return")
    last: pd.Series = evaluation["value"][evaluation["env_frames"] == evaluation["env_frames"].max()]
    return last


class Spread(NamedTuple):
    """The spread of a final score over the versions of the parameters that were scored."""

    versions: int
    """Number of versions that shared the final episodes."""
    deviation: float
    """Standard deviation between the versions' expected returns; NaN unless two have two episodes each."""
    error: float
    """Standard error of the score: from the versions' means, or (one version) from the episodes; NaN for one of them.

    That of one version says nothing on how versions differ: it is a lower bound."""


def version_spread(run: RunData) -> Spread:
    """Return how the final episodes spread over versions of the parameters.

    The variance of the versions' mean returns is the variance of their expected returns plus that of a mean over few
    episodes. The latter is estimated from the episodes of each version and subtracted (one-way analysis of variance).
    """
    final = final_episodes(run)
    updates = run.records("evaluation_updates")
    updates = updates[updates["env_frames"] == run.curves["env_frames"][final.index].max()]
    returns = final.to_numpy(np.float64)
    alone = float(returns.std(ddof=1)) / math.sqrt(len(returns)) if len(returns) > 1 else math.nan
    if updates.empty:
        return Spread(1, math.nan, alone)
    groups = [part.to_numpy() for _, part in pd.Series(returns).groupby(updates["value"].to_numpy())]
    sizes = np.array([len(group) for group in groups])
    if len(groups) < 2:
        return Spread(1, math.nan, alone)
    means = np.array([group.mean() for group in groups])
    parts = (sizes / sizes.sum()) ** 2 * (means - returns.mean()) ** 2
    error = math.sqrt(float(parts.sum()) * len(groups) / (len(groups) - 1))
    if sizes.min() < 2:
        return Spread(len(groups), math.nan, error)
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / (sizes.sum() - len(groups))
    overall = float(np.concatenate(groups).mean())
    between = float((sizes * (np.array([group.mean() for group in groups]) - overall) ** 2).sum()) / (len(groups) - 1)
    size = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(groups) - 1)
    return Spread(len(groups), math.sqrt(max(0.0, (between - within) / size)), error)


def env_label(environment: str) -> str:
    """Return a name to print: atari/space_invaders -> Space Invaders; mujoco/HalfCheetah-v5 -> HalfCheetah-v5."""
    task = environment.split("/", 1)[-1]
    return task if task != task.lower() else task.replace("_", " ").title()


def layout_of(topology: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys `LAYOUT` of a topology; inference was local before there was a key for it."""
    return {"inference": "local"} | {name: topology[name] for name in LAYOUT if name in topology}


def gpu_of(run: RunData) -> str | None:
    """Return the GPU that a run used, for learning or for inference; None if it used none, whatever its machine has."""
    topology = run.config.get("topology", {})
    central = topology.get("inference") == "central" and topology.get("central", {}).get("device", "learner")
    on_cpus = run.config.get("device") == "cpu" and not str(central).startswith("cuda")
    found = run.manifest["hardware"].get("gpu")
    return None if on_cpus or not found else str(found)


def machine_of(run: RunData) -> str:
    """Return the machine of a run, in words, and whether a GPU that is there was not used."""
    hardware = run.manifest["hardware"]
    return machine(hardware) + (" (not used)" if hardware.get("gpu") and not gpu_of(run) else "")


def machines_of(run: RunData) -> set[str]:
    """Return the machines of all parts of a run, which may have been continued elsewhere."""
    found = [run.manifest["hardware"], *(part.get("hardware") for part in run.manifest.get("history", ()))]
    return {machine_of(replace(run, manifest={**run.manifest, "hardware": one})) for one in found if one}


def machine(row: Mapping[Any, Any]) -> str:
    """Return the machine of a row of table `runs`, in words."""
    gpu = f", {row['gpu']}" if isinstance(row["gpu"], str) else ", no GPU"
    return f"{row['cpu']}, {row['cores']} cores, {row['memory_gib']:g} GiB{gpu}"


@dataclass(frozen=True)
class RunFault:
    """The first reason that a run directory cannot be used."""

    what: str
    """missing, unreadable_manifest, different_config, damaged or not_finite."""
    file: Path
    detail: str
    """One line, without the file's name."""


def load_run(directory: Path, origin: str, paper: str, experiment: str, variant: str) -> RunData:
    """Read a run directory. Raise UserError naming the file if it is missing, damaged or inconsistent."""
    found = try_run(directory, origin, paper, experiment, variant)
    if isinstance(found, RunFault):
        raise UserError(f"{found.file}: {found.detail}")
    return found


def try_run(directory: Path, origin: str, paper: str, experiment: str, variant: str) -> RunData | RunFault:
    """Return the run of a directory, or the first thing that is wrong with it."""
    manifest_path, curves_path = directory / "run.json", directory / "curves.parquet"
    what, file = "missing", manifest_path
    try:
        for file in (manifest_path, curves_path):
            if not file.exists():
                raise UserError(f"{file}: no such file; the run has not finished")
        what, file = "unreadable_manifest", manifest_path
        manifest = read_manifest(file)
        what = "different_config"
        environment, seed = manifest["config"]["environment"]["name"], manifest["config"]["seed"]
        expected, actual = f"{environment.replace('/', '-')}/seed{seed}", f"{directory.parent.name}/{directory.name}"
        if expected != actual:
            raise UserError(f"{file}: is of {expected}, not of {actual}")
        what, file = "damaged", curves_path
        curves = read_curves(file)
        if int(curves["env_frames"].max()) > manifest["env_frames"]:
            raise UserError(f"{file}: has more env_frames than run.json")
        what = "not_finite"
        _check_finite(curves, file)
    except UserError as error:
        return RunFault(what, file, str(error).removeprefix(f"{file}: "))
    return RunData(origin, paper, experiment, variant, environment, seed, manifest, curves)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read run.json and check it against its schema. Raise `UserError` naming the file and the key."""
    try:
        manifest = json.loads(read_file(path).decode(), parse_constant=_refuse_constant)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {_one_line(error)}") from None
    check(manifest, "run", where=str(path))
    return dict(manifest)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _one_line(error: BaseException) -> str:
    return shortened(str(error).replace("Could not open Parquet input source '<Buffer>': ", ""))


def read_curves(path: Path) -> pd.DataFrame:
    """Read curves.parquet and check its pages, columns and types. Raise `UserError` naming the file and the column."""
    columns: dict[str, str] = schema("curves")["columns"]
    try:
        # Read from memory: errors then contain no path, and folder names are not taken for partition columns.
        table = read_table(read_file(path))
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: not valid Parquet: {_one_line(error)}") from None
    if set(table.column_names) != set(columns):
        raise UserError(f"{path}: columns are {', '.join(table.column_names)}; allowed: {', '.join(columns)}")
    if not table.num_rows:
        raise UserError(f"{path}: has no rows")
    for name, kind in columns.items():
        found = table.schema.field(name).type
        if found not in _ARROW_TYPES[kind]:
            raise UserError(f"{path}: column '{name}' is {found}; allowed: {kind}")
        if name != "value" and table[name].null_count:
            raise UserError(f"{path}: column '{name}' has empty cells")
    frame: pd.DataFrame = table.replace_schema_metadata(None).to_pandas(use_threads=False)[list(columns)]
    for name in (name for name, kind in columns.items() if kind == "int64"):
        for wrong, where in ((frame[name] < 0, "below 0"), (frame[name] > MOST, f"above {MOST:,}")):
            if wrong.any():
                raise UserError(f"{path}: column '{name}' has values {where}")
    found_metrics = {str(name).partition("/")[0] for name in frame["metric"].unique()}  # of a suite: <metric>/<task>
    missing = [name for name in schema("curves")["required_metrics"] if name not in found_metrics]
    if missing:
        raise UserError(f"{path}: has no metric '{missing[0]}'")
    return frame


def read_lineage(path: Path) -> pd.DataFrame | None:
    """Read lineage.parquet, the decisions of a population; None for a single agent. Raise `UserError` if damaged."""
    if not path.exists():
        return None
    try:
        table = read_frame(read_file(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: not valid Parquet: {shortened(error)}") from None
    missing = [name for name in DECISION if name not in table]
    if missing:
        raise UserError(f"{path}: has no column '{missing[0]}'")
    for name, column in table.items():
        if pd.api.types.is_float_dtype(column) and (column.abs() > LARGEST).any():
            raise UserError(f"{path}: column '{name}' has values beyond {LARGEST:g}")
    return table


def _check_finite(curves: pd.DataFrame, path: Path) -> None:
    """Raise `UserError` naming the first value or time that is not a number, or too large for statistics."""
    usable = {name: curves[name].abs() <= LARGEST for name in ("value", "seconds")}
    wrong = curves[~(usable["value"] & usable["seconds"])]
    if len(wrong):
        first = wrong.sort_values("env_frames", kind="stable").iloc[0]
        name = "value" if not abs(first["value"]) <= LARGEST else "seconds"
        raise UserError(
            f"{path}: metric '{first['metric']}' has {name} {first[name]} at {first['env_frames']} env_frames; "
            f"{len(wrong)} of {len(curves)} rows are not finite, or beyond {LARGEST:g}"
        )
