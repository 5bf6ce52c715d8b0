"""Parquet is read without threads that outlive the interpreter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd

from ddrl.system.parquet import read_frame

ROOT = Path(__file__).parents[2]
THREADS = """
import os, sys
import pandas, pyarrow.parquet
from ddrl.system.parquet import read_frame
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
read_frame(open(sys.argv[1], "rb").read())
print(count() - before)
"""


def test_reading_starts_no_thread(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pd.DataFrame({"seconds": [0.5, 1.5], "metric": ["a", "b"]}).to_parquet(path, index=False)
    command = [sys.executable, "-c", THREADS, str(path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "0\n"


def test_a_frame_is_what_was_written() -> None:
    table = pd.DataFrame({"frames": [1, 2], "value": [0.5, float("nan")], "metric": ["a", None]})
    content = table.convert_dtypes().to_parquet(index=False)
    pd.testing.assert_frame_equal(read_frame(content), table.convert_dtypes())


def test_no_other_module_reads_parquet_by_itself() -> None:
    readers = re.compile(r"\b(read_parquet|pq\.read_table|ParquetFile)\b")
    files = [path for folder in ("ddrl", "replications", "workflows") for path in (ROOT / folder).rglob("*.py")]
    found = [path.relative_to(ROOT).as_posix() for path in files if readers.search(path.read_text(encoding="utf-8"))]
    assert found == ["ddrl/system/parquet.py"]
