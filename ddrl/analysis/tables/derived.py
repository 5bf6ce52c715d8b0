"""Makes the tables of a replication's own `tables.py`, from the tables of its runs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.tables.build import read, write_table
from ddrl.errors import UserError
from ddrl.papers.paper import DerivedTable


def own_function(paper_dir: Path, file: str, name: str) -> Callable[..., Any]:
    """Return the function `name` of a replication's own module. Raise UserError if there is none."""
    path = paper_dir / file
    spec = importlib.util.spec_from_file_location(f"replications_{paper_dir.name}_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise UserError(f"{path}: no such file")
    checkout = str(paper_dir.resolve().parents[1])
    if checkout not in sys.path:  # `replications` is not part of the installed package
        sys.path.append(checkout)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        raise UserError(f"{path}: has no function '{name}', which paper.yaml wants")
    return function


def derive(paper_dir: Path, table: DerivedTable, tables: Path, output: Path) -> list[Path]:
    """Make one table with `paper_dir/tables.py` and write it. Raise UserError as `own_function` and `read`."""
    made: pd.DataFrame = own_function(paper_dir, "tables.py", table.name)(**read(tables, table.tables))
    return write_table(made, output, table.name)
