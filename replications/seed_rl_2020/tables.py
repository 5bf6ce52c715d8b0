"""The replication's own tables: the simulation against measured runs, layouts that nobody ran, what they assume."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from ddrl.papers.schema import load_checked
from replications.seed_rl_2020.calibration import GROUP, SYSTEMS, WORKERS, layout, long_enough, service_times
from replications.seed_rl_2020.inputs import read_scenarios
from replications.seed_rl_2020.simulation import predict, predict_scenarios

SCENARIOS = Path(__file__).with_name("scenarios.yaml")
VALIDATION = ["origin", "system", "network", "workers", "runs", "measured", "predicted", "error", "limit"]
EXTRAPOLATION = ["scenario", "system", "latency_ms", "predicted", "published", "lag", "limit"]
ASSUMPTIONS = ["assumption", "value", "why", "scenarios"]
_NAMES = {"impala": "IMPALA", "seed": "SEED RL"}


def validation(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted frames per second by system, network and workers: columns `VALIDATION`.

    Runs with one inference device alone, since the service times are of one; also of the number of workers whose
    service times are used, where an error is one of the simulation and not of what changes with the load.
    """
    rows = []
    for (origin, inference, network), group in _runs(efficiency).groupby(GROUP, sort=False):
        known = group[group["num_actors"] == WORKERS]
        if known.empty:
            continue
        times, system = service_times(known), SYSTEMS[str(inference)]
        for workers, part in group.groupby("num_actors"):
            place = layout(part.iloc[0], int(workers))
            found = predict(times, place, system=system, span=long_enough(place.training_seconds(times)))
            measured, predicted = float(part["steady_frames_per_second"].mean()), found.frames_per_s
            where = (origin, _NAMES[system], network, workers, len(part))
            rows.append((*where, measured, predicted, predicted / measured - 1, found.limit))
    return pd.DataFrame(rows, columns=VALIDATION)


def extrapolation(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Every scenario of scenarios.yaml whose system has service times here: columns `EXTRAPOLATION`.

    What a scenario does not assume are those of its own system with the shallow network, of the reference runs where
    there are any.
    """
    known = _runs(efficiency)
    known = known[(known["num_actors"] == WORKERS) & (known["network"] == "shallow")]
    known = known[known["origin"] == ("reference" if (known["origin"] == "reference").any() else "run")]
    times = {SYSTEMS[str(inference)]: service_times(part) for inference, part in known.groupby("inference")}
    scenarios = [scenario for scenario in read_scenarios(SCENARIOS) if scenario.system in times]
    if not scenarios:
        return pd.DataFrame(columns=EXTRAPOLATION)
    found = predict_scenarios(times, scenarios, processes=min(len(scenarios), len(os.sched_getaffinity(0))))
    return pd.DataFrame(
        {
            "scenario": found["scenario"].str.replace("_", " "),
            "system": found["system"].map(_NAMES),
            "latency_ms": [1000 * scenario.layout.latency_s for scenario in scenarios],
            "predicted": found["frames_per_s"],
            "published": found["published_frames_per_s"],
            "lag": found["lag_mean"],
            "limit": found["limit"],
        }
    )


def assumptions(efficiency: pd.DataFrame) -> pd.DataFrame:
    """What the scenarios assume, each thing once, and in which of them: columns `ASSUMPTIONS`. No run enters here."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for entry in load_checked(SCENARIOS, "scenarios")["scenarios"]:
        stated = [(key, f"{one['value']:g}", one["derivation"]) for key, one in entry.get("assumed_times", {}).items()]
        for key, value, why in [*stated, *(("the layout", "", text) for text in entry["assumptions"])]:
            found.setdefault((key, value, " ".join(why.split())), []).append(entry["name"].replace("_", " "))
    rows = sorted((*row, ", ".join(names)) for row, names in found.items())
    return pd.DataFrame(rows, columns=ASSUMPTIONS)


def _runs(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Of the throughput experiment, with one inference device, that have recorded what they took."""
    own = efficiency[efficiency["experiment"] == "throughput"]
    own = own[own["variant"].str.fullmatch(r"[a-z]+_[a-z]+_[0-9]+")]
    return own[own["cpu_seconds_per_million_frames"].notna()]
