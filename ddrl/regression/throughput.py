"""Throughput guard: a short benchmark as a fraction of its sum-of-parts bound, against the committed fraction.

Frames per second depend on the machine. The fraction of what the parts could reach together hardly does, and it falls
when actors or the learner wait longer for each other. The time that other processes took from the cores is left out of
the bound, and a repeat in which they took more than `DISTURBED` is not used.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddrl import bench
from ddrl.errors import UserError
from ddrl.regression.checks import CheckOutcome
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.files import read_file
from ddrl.system.text_files import read_yaml
from ddrl.training.config.run_config import RunConfig, parse_run_config, to_json
from ddrl.training.records import manifest
from ddrl.training.records.recorder import write_json

FILE = Path("results/reference/bench/guard/impala_atari_pong_float32.json")
MEASURED = Path("tests/regression/throughput.yaml")
"""The arguments of `bench.default_config` for what is measured."""
COMMAND = "python -m ddrl.regression throughput"
ALLOWED = 0.15
"""The part of the committed ratio by which the median of the repeats may differ from it."""
REPEATS = 3
SECONDS = 4.0
CORES = 2
DISTURBED = 0.2


def measure(
    config: RunConfig, seconds: float, cores: int, note: Callable[[str], None] = lambda _: None
) -> tuple[list[float], list[float]]:
    """Repeat the benchmark on `cores` cores until `REPEATS` are undisturbed, or as many are disturbed.

    Return the ratios of the former, and for the latter the part of the cores' time that other processes took.
    """
    keep_freed_memory()
    ratios: list[float] = []
    disturbed: list[float] = []
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])  # of this thread, and of those that it starts
    try:
        while len(ratios) < REPEATS and len(disturbed) < REPEATS:
            repeat = bench.measure(config, seconds)
            if repeat.others > DISTURBED:
                disturbed.append(repeat.others)
            else:
                ratios.append(repeat.ratio / (1 - repeat.others))
            note(f"ratio {repeat.ratio:.2f}, other processes {repeat.others:.0%} of the cores' time")
    finally:
        os.sched_setaffinity(0, allowed)
    return ratios, disturbed


def check(root: Path) -> CheckOutcome:
    """Compare the ratio with the committed one; `passed` is None on a machine that is too small or too busy to tell."""
    path = root / FILE
    committed, seconds, cores, config = _committed(path)
    if (available := len(os.sched_getaffinity(0))) < cores:
        return CheckOutcome(None, f"needs {cores} cores; {available} here")
    ratios, disturbed = measure(parse_run_config(config, where=str(path)), seconds, cores)
    if len(ratios) < REPEATS:
        took = f"{min(disturbed):.0%} to {max(disturbed):.0%}"
        return CheckOutcome(None, f"other processes took {took} of the cores' time; say again on an idle machine")
    return judge(ratios, committed)


def judge(ratios: Sequence[float], committed: float) -> CheckOutcome:
    """Compare the median of the repeats with the committed ratio."""
    ratio, low, high = statistics.median(ratios), (1 - ALLOWED) * committed, (1 + ALLOWED) * committed
    repeats = ", ".join(f"{one:.2f}" for one in ratios)
    line = (
        f"{ratio:.2f} of the sum-of-parts bound ({repeats}); committed {committed:.2f}, allowed {low:.2f} to {high:.2f}"
    )
    if ratio > high:
        return CheckOutcome(False, f"{line}: the parts alone became slower, or the whole faster (then run '{COMMAND}')")
    return CheckOutcome(ratio >= low, line)


def _committed(path: Path) -> tuple[float, float, int, dict[str, Any]]:
    """Read the committed ratio, seconds, cores and configuration. Raise `UserError` if missing or damaged."""
    try:
        content = json.loads(read_file(path).decode())
        return float(content["ratio"]), float(content["seconds"]), int(content["cores"]), dict(content["config"])
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; on an idle machine run '{COMMAND}'") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); restore it or run '{COMMAND}'") from None


def accept(root: Path, note: Callable[[str], None]) -> str:
    """Measure the ratio and write the committed file. Raise `UserError` on a machine too small or too busy to tell."""
    if len(os.sched_getaffinity(0)) < CORES:
        raise UserError(f"the throughput guard needs {CORES} cores; {len(os.sched_getaffinity(0))} here")
    config = bench.default_config(**read_yaml(root / MEASURED))
    ratios, disturbed = measure(config, SECONDS, CORES, note)
    if len(ratios) < REPEATS:
        raise UserError(f"other processes took up to {max(disturbed):.0%} of the cores' time; stop them first")
    ratio = statistics.median(ratios)
    content = {
        "command": COMMAND,
        "ratio": ratio,
        "ratios": ratios,
        "seconds": SECONDS,
        "cores": CORES,
        "hardware": manifest.hardware(),
        "config": to_json(config),
    }
    (root / FILE).parent.mkdir(parents=True, exist_ok=True)
    write_json(root / FILE, content)
    return f"{FILE}: ratio {ratio:.3f}"
