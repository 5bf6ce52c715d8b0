"""Golden curves: short runs on small tasks, recorded once and compared record by record.

A file of `tests/regression/golden/` holds a configuration, the records of its run, and the kind of machine. Runs in the
serial runtime, and those of the synchronous schedule in any runtime, repeat bit for bit on one kind of machine
(`machine_kind`), so every number must be the same there. Elsewhere sums are added up in another order: numbers then
differ by `TOLERANCE` at most, as long as the run is so short that no sampled action changes.
"""

from __future__ import annotations

import math
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.regression.checks import CheckOutcome
from ddrl.runtimes.local import train_local
from ddrl.system import processor
from ddrl.system.files import read_file
from ddrl.system.parquet import read_frame
from ddrl.system.text_files import read_json
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.records import manifest
from ddrl.training.records.recorder import COUNTS, TIMING_METRICS, write_json

FOLDER = Path("tests/regression/golden")
COMMAND = "python -m ddrl.regression golden"
TOLERANCE = 2e-3
"""Relative, on another kind of machine. Without vector instructions (ATEN_CPU_CAPABILITY=default), or with those of
2006 in oneDNN, no number of the runs moved by more than 4e-4. A run ends before rounding decides on which side of a
clip a step lies: on toy/track, two runs of IMPACT were 3e-2 apart after 7,500 frames."""
SHOWN = 6
"""The number of differences that are printed."""
CLOCKED = ("episodes", "episode_return", "episode_length")
"""Metrics that only a serial run repeats. Elsewhere an actor may have begun its next unroll when a record is written,
and its episodes fall into this record or into the one after."""
Records = Sequence[Mapping[str, float]]


def machine_kind() -> dict[str, str]:
    """Return what the order of sums depends on: processor, instructions used, torch."""
    cpu = [
        str(manifest.hardware()["cpu"]),
        *(f"{name} {processor.facts().get(name, 'unknown')}" for name in ("cpu family", "model", "stepping")),
    ]
    return {
        "cpu": ", ".join(cpu),
        "instructions": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
    }


def read(path: Path) -> dict[str, Any]:
    """Read a golden file. Raise `UserError` where it is missing, damaged or without configuration."""
    golden = read_json(path)
    if not isinstance(golden, dict) or not isinstance(golden.get("config"), dict):
        raise UserError(f"{path}: key 'config' must be a mapping")
    return golden


def run(config: Mapping[str, Any], where: str) -> list[dict[str, float]]:
    """Train `config` anew; return counts and metrics of each record, the final score as `evaluation_return`."""
    parsed = parse_run_config(config, where=where)
    with tempfile.TemporaryDirectory() as directory:
        train(parsed, Path(directory))
        table = read_frame(read_file(Path(directory) / "curves.parquet"))
    serial = parsed.topology.runtime == "serial"
    table = table[~table["metric"].isin(TIMING_METRICS if serial else (*TIMING_METRICS, *CLOCKED))]
    wide = table.pivot_table(index=list(COUNTS), columns="metric", values="value", aggfunc="mean", sort=False)
    rows = wide.sort_index().reset_index().to_dict("records")
    return [{str(key): value for key, value in row.items() if not math.isnan(value)} for row in rows]


def train(config: RunConfig, directory: Path) -> None:
    """Train in the runtime that the configuration names."""
    if config.topology.runtime == "ray":
        from ddrl.runtimes.ray.launch import train_with_ray  # Ray is slow to import, so only where it is used

        train_with_ray(config, directory, quiet=True)
    else:
        train_local(config, directory, quiet=True)


def record(path: Path) -> None:
    """Record a golden file anew, with its own configuration."""
    config = read(path)["config"]
    content = {
        "command": COMMAND,
        "algorithm_version": algorithms.load(config["algorithm"]).VERSION,
        "machine": machine_kind(),
        "config": config,
        "records": run(config, str(path)),
    }
    write_json(path, content)


def check(path: Path) -> CheckOutcome:
    """Compare a new run with the golden file."""
    golden = read(path)
    version = algorithms.load(golden["config"]["algorithm"]).VERSION
    if (recorded := golden.get("algorithm_version")) != version:
        return CheckOutcome(False, f"recorded with version {recorded}, now {version}: run '{COMMAND}'")
    same_kind = golden["machine"] == machine_kind()
    old, new = golden["records"], run(golden["config"], str(path))
    problems = list(differences(old, new, tolerance=0.0 if same_kind else TOLERANCE))
    if problems:
        return CheckOutcome(False, f"{problems[0]}; {len(problems)} differences", tuple(problems[1:SHOWN]))
    how = "exactly" if same_kind else f"to {TOLERANCE:g} (recorded on another kind of machine)"
    return CheckOutcome(True, f"{len(old)} records agree {how}")


def differences(old: Records, new: Records, *, tolerance: float) -> Iterator[str]:
    """Return `frame 1280: policy_loss 0.1 -> 0.2` for values further apart than `tolerance` (relative; 0: exact)."""
    if len(old) != len(new):
        yield f"{len(new)} records instead of {len(old)}"
    for before, now in zip(old, new, strict=False):
        frames = int(before["env_frames"])
        for name in dict.fromkeys([*before, *now]):
            a, b = before.get(name), now.get(name)
            if a is None or b is None:
                yield f"frame {frames:,}: {name} {a} -> {b}"
            elif not (a == b or np.isclose(a, b, rtol=tolerance, atol=tolerance * 1e-2)):
                yield f"frame {frames:,}: {name} {a:.8g} -> {b:.8g}"
