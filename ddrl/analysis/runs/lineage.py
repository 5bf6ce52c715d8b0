"""What the members of populations decided, from `lineage.parquet` of their runs: one row per hyperparameter."""

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
_BEFORE, _AFTER = "_before", "_after"


def read_lineage(directory: Path) -> pd.DataFrame | None:
    """The decisions of a population's run directory; None where it is of a single agent.

    Raises: UserError naming a damaged file.
    """
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
    """Columns `COLUMNS`: a hyperparameter's value while a member trained until a decision, and after it."""
    parts = [pd.DataFrame(columns=COLUMNS)]
    for run in runs:
        if run.lineage is None:
            continue
        for column in [str(name) for name in run.lineage if str(name).endswith(_BEFORE)]:
            key = column.removesuffix(_BEFORE)
            values = {"before": run.lineage[column], "after": run.lineage[key + _AFTER]}
            parts.append(run.lineage[DECISION].assign(**run.keys(), hyperparameter=key, **values)[COLUMNS])
    table = pd.concat(parts[1:] or parts, ignore_index=True)
    counts = dict.fromkeys(("member", "decision", "env_frames", "compared_with"), "Int64")
    floats = dict.fromkeys(("fitness", "before", "after"), "float64")
    return table.astype(counts | floats).sort_values([*KEYS, "hyperparameter", "member", "decision"], ignore_index=True)
