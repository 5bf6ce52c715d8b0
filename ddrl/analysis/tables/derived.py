"""Makes the tables of a replication's own `tables.py`, from the tables of its runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ddrl.analysis.tables.build import read, write_table
from ddrl.papers.own_code import TABLES, own_function
from ddrl.papers.paper import DerivedTable


def derive(paper_dir: Path, table: DerivedTable, tables: Path, output: Path) -> list[Path]:
    """Make one table with `paper_dir/tables.py` and write it. Raise UserError as `own_function` and `read`."""
    made: pd.DataFrame = own_function(paper_dir, TABLES, table.name)(**read(tables, table.tables))
    return write_table(made, output, table.name)
