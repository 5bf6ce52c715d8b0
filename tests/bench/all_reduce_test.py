"""Sums of gradients over processes are timed, one row for each number of ranks."""

from __future__ import annotations

import csv
import io

import pytest

from ddrl.bench import all_reduce


def test_it_prints_a_row_for_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert all_reduce.main(["--parameters", "1000", "--ranks", "1", "2", "--sums", "5"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [tuple(rows[0]), [row["ranks"] for row in rows]] == [all_reduce.COLUMNS, ["1", "2"]]
    for row in rows:
        low, middle, high = (float(row[f"{name}_seconds"]) for name in ("lowest", "median", "highest"))
        assert 0 < low <= middle <= high
        assert (row["parameters"], row["sums"]) == ("1000", "5")


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(SystemExit):
        all_reduce.main(["--parameters", "0"])
