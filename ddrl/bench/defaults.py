"""The configurations that `ddrl bench` measures unless told otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddrl import algorithms
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.interfaces import System
from ddrl.system.text_files import read_yaml
from ddrl.training.config.defaults import completed
from ddrl.training.config.overrides import merged
from ddrl.training.config.run_config import RunConfig, parse_run_config

SETTINGS = Path(__file__).parent / "settings"
"""<algorithm>.yaml: kind of environment -> hyperparameters, topology.

An algorithm without one has what `ddrl train` gives it."""
IMAGES, CONTINUOUS, DISCRETE = "images", "continuous actions", "discrete actions"
CORES = os.cpu_count() or 1
TOPOLOGY: dict[str, dict[str, Any]] = {
    IMAGES: {"num_actors": 3, "envs_per_actor": 32, "learner_threads": CORES},
    CONTINUOUS: {"num_actors": 1, "envs_per_actor": 16},
    DISCRETE: {"num_actors": 2, "envs_per_actor": 16},
}
BOOKKEEPING: dict[str, Any] = {
    "seed": 0,
    "env_frames": 2**40,
    "recording": {"period_frames": 2**40},
    "tracking": [],
    "checkpoint": {"period_frames": 2**40},
}
"""Nothing but acting and learning."""

_UNBOUNDED = 2**30
_QUEUE = 2


def default_config(algorithm: str, environment: str, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that `ddrl bench` measures, with `overrides` (nested, as in a run's configuration).

    Unless `overrides` say otherwise, the queue holds two unrolls, or as many as a batch needs.
    """
    given = overrides.get("environment")
    options = {"name": environment} | (dict(given) if isinstance(given, Mapping) else {})
    kind = _kind(options)
    module = algorithms.load(algorithm, where="bench")
    own = settings_of(algorithm)
    if not own:
        values = {"algorithm": algorithm, "environment": options, "topology": {"runtime": "threads"}, **BOOKKEEPING}
        return parse_run_config(completed(merged(values, overrides)), where="bench")
    settings = own.get(kind, {})
    topology = _topology(kind, module.SYSTEM) | settings.get("topology", {})
    values = {
        "algorithm": algorithm,
        "environment": options,
        "hyperparameters": settings.get("hyperparameters", {}),
        "topology": {"runtime": "threads", "queue_capacity": _UNBOUNDED} | topology,
        **BOOKKEEPING,
    }
    config = parse_run_config(merged(values, overrides), where="bench")
    if config.topology.queue_capacity == _UNBOUNDED:
        needed = -(-config.hyperparameters.fresh_columns // config.topology.envs_per_actor)
        return replace(config, topology=replace(config.topology, queue_capacity=max(_QUEUE, needed)))
    return config


def settings_of(algorithm: str) -> dict[str, Any]:
    """Return the content of an algorithm's file in `SETTINGS`, empty if there is none."""
    path = SETTINGS / f"{algorithm}.yaml"
    return read_settings(path) if path.exists() else {}


def _topology(kind: str, system: System) -> dict[str, Any]:
    """Return the topology for a kind of system on this machine."""
    schedule = {"schedule": system.schedules[0]}
    if system.moves == "gradients":  # an actor for each core, each with its own environment
        return schedule | {"num_actors": CORES, "envs_per_actor": 1, "learner_threads": 1}
    if system.parameters == "shared":  # at least as many agents as cores (Babaeizadeh et al. 2017)
        return schedule | {"num_actors": 4 * CORES, "envs_per_actor": 1, "inference": "central", "learner_threads": 1}
    return schedule | TOPOLOGY[kind]


def _kind(environment: Mapping[str, Any]) -> str:
    spec = registry.spec_for(**environment)
    if len(spec.observation_shape) == 3 or spec.image_shape:  # an image may be packed with an instruction
        return IMAGES
    return CONTINUOUS if spec.action_size else DISCRETE


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings. Raise `UserError` if it cannot be read or holds no mapping."""
    settings = read_yaml(path)
    if not isinstance(settings, Mapping):
        raise UserError(f"{path}: must hold a mapping of keys, such as 'precision: bfloat16'")
    return dict(settings)
