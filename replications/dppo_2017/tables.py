"""The replication's own tables: a simulation of more workers than cores, and of those that were run.

All workers do the same work, since a step of a course costs much the same wherever the walker is. So a batch takes as
long as one worker's share of it, and the sums of gradients. A share was measured as a run of one worker with as many
environments. What the simulation knows nothing of: start-up, evaluations, other load, and workers that share a core.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ddrl.analysis.ring import Ring
from ddrl.system.csv_cells import read_rows

MEASUREMENTS = Path(__file__).with_name("measurements.csv")
"""Seconds of parts, measured on one machine; each row has its command."""
EXPERIMENT, SPEED = "workers", "steady_frames_per_second"
COUNTS: Mapping[str, int] = {
    "one_worker": 1,
    "two_workers": 2,
    "four_workers": 4,
    "eight_workers": 8,
    "sixteen_workers": 16,
    "thirty_two_workers": 32,
    "sixty_four_workers": 64,
}
"""Variant -> workers."""
LENGTH = 256
"""Steps of an unroll."""
NETWORK = "tanh_mlp"
"""That of scale workstation; scale paper has two subnetworks."""
GRADIENT_STEPS = 320
"""Of a batch: ten epochs of 32 minibatches, policy and value network at once, as at scale workstation."""
ENVIRONMENTS = (16, 64)
"""Of all workers together: at scale workstation, and at scale paper."""
PARTS = ("simulation", "inference", "learning")
VALIDATION = ["origin", "environments", "workers", "runs", "measured", "predicted", "error"]
PREDICTIONS = ["environments", "workers", "frames_per_second", "speed_up", "efficiency", "summing"]


def frames_per_second(workers: int, environments: int) -> float:
    """Return the predicted speed of so many workers with so many environments together."""
    return LENGTH * environments / (share_seconds(environments // workers) + summing_seconds(workers))


def share_seconds(environments: int) -> float:
    """Return how long a worker with so many environments acts, and computes all gradients, for a batch."""
    found = {(row["part"], int(row["environments"] or 0)): float(row["value"]) for row in read_rows(MEASUREMENTS)}
    return LENGTH * environments * sum(found[part, environments] for part in PARTS)


def summing_seconds(workers: int) -> float:
    """Return how long the sums of a batch take: of each gradient, and before it of the divergence, a number."""
    found = {row["part"]: float(row["value"]) for row in read_rows(MEASUREMENTS) if not row["environments"]}
    number, gradient = found["sum_of_one_number"], found["sum_of_a_gradient"]
    rings = Ring.of_two(number, number), Ring.of_two(number, gradient)
    return GRADIENT_STEPS * sum(ring.seconds(workers) for ring in rings)


def simulated(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of runs that the simulation knows, by network, unrolls and batches, with their workers."""
    known = efficiency["unroll_length"].eq(LENGTH) & efficiency["batch_size"].isin(ENVIRONMENTS)
    known &= efficiency["network"].eq(NETWORK)
    own = efficiency[(efficiency["experiment"] == EXPERIMENT) & known & efficiency[SPEED].notna()]
    return own.assign(workers=own["variant"].map(COUNTS), environments=own["batch_size"])


def validation(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Return measured and predicted frames per second by the number of workers: columns `VALIDATION`."""
    rows = []
    for (origin, environments, workers), part in simulated(efficiency).groupby(["origin", "environments", "workers"]):
        measured, predicted = float(part[SPEED].mean()), frames_per_second(int(workers), int(environments))
        rows.append((origin, environments, workers, len(part), measured, predicted, predicted / measured - 1))
    return pd.DataFrame(rows, columns=VALIDATION)


def predictions(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Return simulated speeds by environments and workers: columns `PREDICTIONS`. No run enters here."""
    rows = []
    for environments in ENVIRONMENTS:
        alone = frames_per_second(1, environments)
        for workers in (count for count in COUNTS.values() if count <= environments):
            speed = frames_per_second(workers, environments)
            of_a_batch = speed * summing_seconds(workers) / (LENGTH * environments)
            rows.append((environments, workers, speed, speed / alone, speed / alone / workers, of_a_batch))
    return pd.DataFrame(rows, columns=PREDICTIONS)
