"""Reads Parquet files without threads of pyarrow's own.

Their pool for input (`pre_buffer`, which `pyarrow.parquet.read_table` and `pandas.read_parquet` use) is not joined when
the interpreter ends: a command that ends soon after reading is then aborted by the C++ runtime now and then (SIGABRT,
"terminate called without an active exception"; 6 of 37 calls of `ddrl resume` on a loaded machine).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def read_table(content: bytes) -> pa.Table:
    """Return the table in the bytes of a Parquet file. Raise ArrowException, OSError or ValueError if damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def read_frame(content: bytes) -> pd.DataFrame:
    """Return `read_table` as a DataFrame. Raise as `read_table`."""
    frame: pd.DataFrame = read_table(content).to_pandas(use_threads=False)
    return frame
