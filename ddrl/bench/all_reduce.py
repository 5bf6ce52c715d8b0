"""Measures how long learners take to add up a gradient: `python -m ddrl.bench.all_reduce --parameters 200000`.

Each rank is a process of this machine with one thread. They sum as the learners of a run do (`DistributedReducer` on
the CPU), so a machine with fewer cores than ranks measures their turns as well. It prints CSV, a row for each number of
ranks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__
from torch.multiprocessing import get_context

from ddrl.learners.all_reduce import DistributedReducer
from ddrl.system.csv_cells import write_rows
from ddrl.system.exit_code import exit_code

COLUMNS = ("ranks", "parameters", "sums", "median_seconds", "lowest_seconds", "highest_seconds")
WARM_UP = 10
"""Sums before those that count."""


def seconds_of_sums(ranks: int, parameters: int, sums: int) -> list[float]:
    """Return how long each of `sums` sums of float32 [parameters] took rank 0, in seconds, over so many processes."""
    context = get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        others = [
            context.Process(target=_rank, args=(store, rank, ranks, parameters, sums, results), daemon=True)
            for rank in range(ranks)
        ]
        for process in others:
            process.start()
        found: list[float] = results.get(timeout=600)
        for process in others:
            process.join(timeout=60)
    return found


def _rank(store: str, rank: int, ranks: int, parameters: int, sums: int, results: Any) -> None:
    """Take part in all sums; rank 0 sends its times."""
    torch.set_num_threads(1)
    reducer = DistributedReducer(FileStore(store, ranks), rank, ranks, torch.device("cpu"))
    gradient, times = torch.ones(parameters), []
    for _ in range(WARM_UP + sums):
        begin = time.perf_counter()
        reducer.sum_([gradient])
        times.append(time.perf_counter() - begin)
        gradient.fill_(1.0)
    if rank == 0:
        results.put(times[WARM_UP:])
    reducer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.bench.all_reduce", description=__doc__)
    parser.add_argument("--parameters", type=int, required=True, metavar="N", help="float32 numbers of a gradient")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], metavar="N")
    parser.add_argument("--sums", type=int, default=200, metavar="N", help="that count (%(default)s)")
    given = parser.parse_args(arguments)
    if min(given.parameters, given.sums, *given.ranks) < 1:
        parser.error("--parameters, --ranks and --sums must be at least 1")

    def rows() -> list[dict[str, str]]:
        return [
            _row(ranks, given.parameters, seconds_of_sums(ranks, given.parameters, given.sums)) for ranks in given.ranks
        ]

    return exit_code(lambda: write_rows(sys.stdout, COLUMNS, rows()))


def _row(ranks: int, parameters: int, times: Sequence[float]) -> dict[str, str]:
    middle = (statistics.median(times), min(times), max(times))
    return dict(zip(COLUMNS, map(str, (ranks, parameters, len(times), *(f"{one:.3g}" for one in middle))), strict=True))


if __name__ == "__main__":
    sys.exit(main())
