"""Reads what the members of populations decided, from `lineage.parquet`: one row per hyperparameter."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import pandas as pd
import pyarrow as pa

from ddrl.analysis.runs.run_data import KEYS, LARGEST, RunData
from ddrl.errors import UserError
from ddrl.system.files import read_file

FILE = "lineage.parquet"
DECISION = ["member", "decision", "kind", "env_frames", "fitness", "compared_with", "copied"]
COLUMNS = [*KEYS, *DECISION, "hyperparameter", "before", "after"]


def read_lineage(directory: Path) -> pd.DataFrame | None:
    """Read the decisions of a population's run, None for a single agent. Raise UserError if damaged."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        table = pd.read_parquet(BytesIO(read_file(path)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: not valid Parquet: {' '.join(str(error).split())[:160]}") from None
    missing = [name for name in DECISION if name not in table]
    if missing:
        raise UserError(f"{path}: has no column '{missing[0]}'")
    for name, column in table.items():
        if pd.api.types.is_float_dtype(column) and (column.abs() > LARGEST).any():
            raise UserError(f"{path}: column '{name}' has values beyond {LARGEST:g}")
    return table


def lineage_table(runs: Iterable[RunData]) -> pd.DataFrame:
    """Return columns `COLUMNS`: a hyperparameter's value while a member trained until a decision, and after it."""
    parts = [pd.DataFrame(columns=COLUMNS)]
    for run in runs:
        if run.lineage is None:
            continue
        for key in [name.removesuffix("_before") for name in map(str, run.lineage) if name.endswith("_before")]:
            values = {when: run.lineage[f"{key}_{when}"] for when in ("before", "after")}
            parts.append(run.lineage[DECISION].assign(**run.keys(), hyperparameter=key, **values)[COLUMNS])
    table = pd.concat(parts[1:] or parts, ignore_index=True)
    counts = dict.fromkeys(("member", "decision", "env_frames", "compared_with"), "Int64")
    floats = dict.fromkeys(("fitness", "before", "after"), "float64")
    return table.astype(counts | floats).sort_values([*KEYS, "hyperparameter", "member", "decision"], ignore_index=True)
