"""The replication's own tables: the simulation against measured runs, and numbers of workers that nobody ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from ddrl.analysis.ring import Ring
from ddrl.system.csv_cells import read_rows
from replications.ddppo_2020.simulation import Times, Work, frames_per_second

MEASUREMENTS = Path(__file__).with_name("measurements.csv")
"""Seconds of parts, measured on one machine; each row has its command."""
EXPERIMENT, SPEED = "scaling", "steady_frames_per_second"
RUN = ["origin", "experiment", "variant", "environment", "seed"]
EQUAL = Work(workers=1, envs=4, length=128, pause=0.008, spread=0.0, scene_steps=128)
UNEQUAL = replace(EQUAL, spread=0.5)
"""One worker of experiment scaling."""
SUMS = 4
"""Of gradients, in a round: two epochs of two minibatches."""
LAYOUTS: Mapping[str, Work] = {
    "equal": EQUAL,
    "unequal": UNEQUAL,
    "preempted": replace(UNEQUAL, threshold=0.6),
}
"""By the end of a variant's name."""
COUNTS: Mapping[str, int] = {"one": 1, "two": 2, "four": 4, "eight": 8, "many": 128, "most": 256}
"""Workers, by the beginning of a variant's name."""
OF_TWO = 0.5
"""The threshold of two workers: one of them."""
FEWEST_ROUNDS = 20
"""Of a run that the simulation is compared with: fewer have a few scenes each, and begin slowly."""
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SWEPT = (8, 128)
"""Workers whose thresholds are all simulated."""
PUBLISHED: Mapping[int, float] = {8: 7.3, 128: 107.0, 256: 196.0}
"""Speed-ups of `published/scaling.csv`."""
VALIDATION = ["origin", "layout", "workers", "runs", "measured", "predicted", "error"]
PREDICTIONS = ["work", "threshold", "workers", "speed_up", "efficiency", "published"]


def times() -> Times:
    """Return the measured times of one worker's round; workers send over the loopback of one machine."""
    found = {row["part"]: float(row["value"]) for row in read_rows(MEASUREMENTS)}
    return Times(
        step=EQUAL.envs * (found["simulation"] + found["inference"]),
        learning=EQUAL.envs * EQUAL.length * found["learning"],
        ring=Ring.of_two(found["sum_of_one_number"], found["sum_of_a_gradient"]),
        sums=SUMS,
    )


def layout(variant: str) -> Work:
    """Return the layout of a variant of experiment scaling."""
    count, _, kind = variant.partition("_")
    work = replace(LAYOUTS[kind], workers=COUNTS[count])
    return replace(work, threshold=OF_TWO) if kind == "preempted" and work.workers == 2 else work


def validation(runs: pd.DataFrame, efficiency: pd.DataFrame) -> pd.DataFrame:
    """Return measured and predicted frames per second by variant: columns `VALIDATION`."""
    speeds = efficiency.dropna(subset=[SPEED])[[*RUN, SPEED]]
    own = runs[runs["experiment"] == EXPERIMENT].merge(speeds, on=RUN)
    rows = []
    for (origin, variant, label), part in own.groupby(["origin", "variant", "variant_label"], sort=False):
        work = layout(str(variant))
        if part["env_frames"].min() < FEWEST_ROUNDS * work.workers * work.envs * work.length:
            continue
        measured, predicted = float(part[SPEED].mean()), frames_per_second(times(), work)
        rows.append((origin, label, work.workers, len(part), measured, predicted, predicted / measured - 1))
    return pd.DataFrame(rows, columns=VALIDATION)


def predictions(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Return simulated speed-ups over one worker: columns `PREDICTIONS`. No run enters here."""
    measured = times()
    rows: list[tuple[str, float, int, float, float, float | None]] = []
    for name, work, thresholds in (("equal", EQUAL, (1.0,)), ("unequal", UNEQUAL, (*THRESHOLDS, 1.0))):
        alone = frames_per_second(measured, work)
        for threshold in thresholds:
            for workers in WORKERS if threshold in (0.6, 1.0) else SWEPT:
                of_all = replace(work, workers=workers, threshold=threshold if threshold < 1 else None)
                ratio = frames_per_second(measured, of_all) / alone
                printed = PUBLISHED.get(workers) if threshold == LAYOUTS["preempted"].threshold else None
                rows.append((name, threshold, workers, ratio, ratio / workers, printed))
    return pd.DataFrame(rows, columns=PREDICTIONS)
