"""Architectures side by side on one machine (`ddrl bench --all`): `architectures.yaml` lists them.

All have the same network, the same number of environments, unrolls of the same length and, if they learn from batches,
batches of the same size, so that only their way of waiting for each other differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddrl import algorithms
from ddrl.bench.defaults import CORES, default_config
from ddrl.bench.measure import PARTS, speed_ratios
from ddrl.bench.text import FRACTION, WHOLE, disturbance, head, medians, row, shown, spread
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.system.text_files import read_yaml
from ddrl.training.config.overrides import merged
from ddrl.training.config.run_config import RunConfig

ENVIRONMENTS, UNROLL, BATCH = 32, 20, 32
"""Environments of each system, agent steps of an unroll, and unrolls of a batch, as in IMPALA's Table G.1."""
ACTORS = {"one": 1, "one per core": CORES, "four per core": 4 * CORES, "one per environment": ENVIRONMENTS}
"""Numbers of actors. With four per core some wait for central inference while others step."""
_CONTENT = read_yaml(Path(__file__).with_name("architectures.yaml"))
ENVIRONMENT: str = _CONTENT["environment"]
SYSTEMS: dict[str, dict[str, Any]] = {entry["system"]: entry for entry in _CONTENT["systems"]}
BASE = next(iter(SYSTEMS))
"""The system that the others are compared with."""
_SPEEDS = ("training", "lowest", "highest", "per core", f"to {BASE}", "lowest", "highest")
_MEASURED = ("bound", "ratio", "cpu busy", "others", "lag mean")
_COSTS = ("CPU us", "sim", "infer", "train", "rest")


def system_configs(environment: str, overrides: Mapping[str, Any]) -> dict[str, RunConfig]:
    """Return the configurations that `ddrl bench --all` measures, with `overrides` for all.

    An empty `environment` is `ENVIRONMENT`.
    Raise `UserError` if a system cannot learn the environment.
    """
    environment = environment or ENVIRONMENT
    if registry.spec_for(environment).action_size:
        raise UserError(f"bench --all: '{environment}' has continuous actions; allowed: tasks with discrete actions")
    configs = {}
    for name, entry in SYSTEMS.items():
        module, actors = algorithms.load(entry["algorithm"]), ACTORS[entry["actors"]]
        batch = {"batch_size": BATCH} if module.Config().fresh_columns else {}
        topology = {
            "schedule": module.SYSTEM.schedules[0],
            "num_actors": actors,
            "envs_per_actor": ENVIRONMENTS // actors,
            "env_threads": CORES if actors == 1 else 1,
            "learner_threads": CORES,
            **entry.get("topology", {}),
        }
        own = {"hyperparameters": {"unroll_length": UNROLL} | batch, "topology": topology}
        configs[name] = default_config(entry["algorithm"], environment, merged(own, overrides))
    return configs


def cpu_per_frame(repeat: Mapping[str, Any], cores: int, frame_skip: int) -> dict[str, float]:
    """Return CPU microseconds per environment frame: all, each part as measured alone, and the rest."""
    all_ = 1e6 * repeat["cpu_utilisation"] * cores / repeat["training"]
    parts = {name: 1e6 * repeat[name]["cpu_seconds_per_step"] / frame_skip for name in PARTS}
    return {"all": all_, **parts, "rest": all_ - sum(parts.values())}


def describe_all(result: Mapping[str, Any]) -> str:
    """Return a table with a row for each system; CPU time is in microseconds of all cores per frame."""
    measurements, cores = result["measurements"], result["hardware"]["cores"]
    base = next(one for one in measurements if one["system"] == BASE)
    frame_skip = registry.spec_for(**base["config"]["environment"]).frame_skip
    lines = [*head(result, f"{len(measurements)} systems"), "", row("", (*_SPEEDS, *_MEASURED, *_COSTS), 31)]
    for one in measurements:
        speeds = [repeat["training"] for repeat in one["repeats"]]
        cells = [*spread(speeds, WHOLE), shown(statistics.median(speeds) / cores, WHOLE)]
        cells += [*spread(speed_ratios(one, base), FRACTION), *medians(one["repeats"], _MEASURED)]
        costs = [cpu_per_frame(repeat, cores, frame_skip) for repeat in one["repeats"]]
        cells += [f"{statistics.median(cost[name] for cost in costs):.0f}" for name in ("all", *PARTS, "rest")]
        lines.append(row(one["system"], cells, 31))
    return "\n".join([*lines, *disturbance(measurements)])
