"""What `ddrl bench` measures where nothing else is said."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddrl.environments.base import registry
from ddrl.errors import UserError, about
from ddrl.system.text_files import parse_yaml, read_yaml
from ddrl.training.config.run_config import RunConfig, parse_run_config

IMAGES, CONTINUOUS, DISCRETE = "images", "continuous actions", "discrete actions"

_PLAIN = {"separate_value_network": False, "observation_normalisation": False, "reward_normalisation": False}
_BODY = {"network": "tanh_mlp", "separate_value_network": True}
_IMAGES = _PLAIN | {"network": "shallow", "reward_clipping": "abs_one"}
_SMALL = _PLAIN | {"network": "mlp", "unroll_length": 20, "batch_size": 32}
_SOON = {"replay_capacity": 100_000, "min_replay_size": 2_000}

HYPERPARAMETERS: dict[str, dict[str, dict[str, Any]]] = {
    # The network of IMPALA's Table G.1 for all; batches as `replications/impact_2020` has them.
    IMAGES: {
        "impala": {},
        "a2c": _PLAIN | {"network": "shallow", "batch_size": 32, "initialisation": None},
        "a3c": {},
        "ga3c": {"batch_size": 8},
        "gorila": {"network": "shallow", "replay_capacity": 10_000, "min_replay_size": 500},
        "ppo": _IMAGES | {"unroll_length": 100, "batch_size": 50, "num_minibatches": 10, "clip_epsilon": 0.1},
        "impact": _IMAGES | {"unroll_length": 50, "batch_size": 15, "num_slots": 4, "num_traversals": 2},
        # The papers' batches, and about the replay ratios that came of theirs; a replay that is soon ready.
        "apex_dqn": {"network": "shallow", "samples_per_insert": 1.3} | _SOON,
        "r2d2": {"network": "shallow", "samples_per_insert": 0.4, "lstm_size": 256} | _SOON | {"min_replay_size": 64},
    },
    # `replications/impact_2020` has the same networks, normalised observations, epochs of PPO, and unrolls, N and K of
    # IMPACT at scale workstation. Its batches are others: one actor with 8 environments makes each (unrolls x steps:
    # IMPACT 8 x 64, IMPALA 8 x 32, PPO 8 x 256 in 16 minibatches). Here a batch holds one round of all environments
    # of `TOPOLOGY`, so that a learner never waits for a second one. What else differs (discount, coefficients, scaled
    # rewards) changes no shape.
    CONTINUOUS: {
        "impala": {
            "unroll_length": 64,
            "batch_size": 16,
            "observation_normalisation": True,
            "reward_clipping": "none",
            "optimizer": {"name": "adam"},
            **_BODY,
        },
        "a2c": {"batch_size": 16, "reward_clipping": "none", "observation_normalisation": True} | _BODY,
        "a3c": {"reward_clipping": "none"} | _BODY,
        "ppo": {"unroll_length": 64, "batch_size": 32},
        "impact": {"unroll_length": 64, "batch_size": 16, "num_slots": 4, "num_traversals": 8},
    },
    DISCRETE: {
        "impala": _SMALL,
        "a2c": _SMALL | {"unroll_length": 5},
        "a3c": {"network": "mlp"},
        "ga3c": {"network": "mlp", "batch_size": 8},
        "gorila": {"network": "mlp", "replay_capacity": 10_000, "min_replay_size": 500},
        "ppo": _SMALL | {"num_epochs": 4, "num_minibatches": 4},
        "impact": _SMALL | {"num_slots": 4, "num_traversals": 2},
        "apex_dqn": {"network": "mlp", "samples_per_insert": 1.3} | _SOON,
        "r2d2": {"network": "mlp", "samples_per_insert": 0.4, "lstm_size": 64} | _SOON | {"min_replay_size": 64},
    },
}
"""By kind of environment and algorithm; an algorithm that is not here keeps its own defaults."""

TOPOLOGY: dict[str, dict[str, Any]] = {
    IMAGES: {"num_actors": 3, "envs_per_actor": 32, "learner_threads": os.cpu_count() or 1},
    CONTINUOUS: {"num_actors": 1, "envs_per_actor": 16},
    DISCRETE: {"num_actors": 2, "envs_per_actor": 16},
}
_AGENTS = {"num_actors": 4 * (os.cpu_count() or 1), "envs_per_actor": 1, "inference": "central", "learner_threads": 1}
"""GA3C: its rule of thumb is at least as many agents as cores; the queues of its code hold 100."""
_ALONE = {"num_actors": os.cpu_count() or 1, "envs_per_actor": 1, "learner_threads": 1}
"""A3C and GORILA: an actor a core, each with its own environment."""
EXCEPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    (IMAGES, "a2c"): {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 16},
    **dict.fromkeys(((IMAGES, "ga3c"), (DISCRETE, "ga3c")), _AGENTS),
    **dict.fromkeys(((kind, name) for kind in TOPOLOGY for name in ("a3c", "gorila")), _ALONE),
    (IMAGES, "ppo"): {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 25},
    (IMAGES, "impact"): {"envs_per_actor": 15},
    (CONTINUOUS, "a2c"): {"schedule": "synchronous", "num_actors": 1, "envs_per_actor": 16},
    (DISCRETE, "a2c"): {"schedule": "synchronous"},
    (CONTINUOUS, "ppo"): {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 16},
    (DISCRETE, "ppo"): {"schedule": "synchronous"},
}
"""A synchronous system acts with all cores, then learns; a round of its actors divides the batch."""

BOOKKEEPING: dict[str, Any] = {
    "seed": 0,
    "env_frames": 2**40,
    "recording": {"period_frames": 2**40, "tensorboard": False},
    "checkpoint": {"period_frames": 2**40},
}
"""Nothing but acting and learning."""

_UNBOUNDED = 2**30
_QUEUE = 2


def default_config(algorithm: str, environment: str, overrides: Mapping[str, Any]) -> RunConfig:
    """The configuration that `ddrl bench` measures, with `overrides` (nested, as in a run's configuration).

    Where nothing is said of the queue, it holds two unrolls, or as many as a batch needs.
    """
    given = overrides.get("environment")
    options = {"name": environment} | (dict(given) if isinstance(given, Mapping) else {})
    kind = _kind(options)
    values = {
        "algorithm": algorithm,
        "environment": options,
        "hyperparameters": HYPERPARAMETERS[kind].get(algorithm, {}),
        "topology": {"runtime": "threads", "queue_capacity": _UNBOUNDED}
        | TOPOLOGY[kind]
        | EXCEPTIONS.get((kind, algorithm), {}),
        **BOOKKEEPING,
    }
    config = parse_run_config(merged(values, overrides), where="bench")
    topology = config.topology
    if topology.queue_capacity == _UNBOUNDED:
        needed = -(-config.hyperparameters.fresh_columns // topology.envs_per_actor)
        return replace(config, topology=replace(topology, queue_capacity=max(_QUEUE, needed)))
    return config


def _kind(environment: Mapping[str, Any]) -> str:
    spec = registry.spec_for(**environment)
    if len(spec.observation_shape) == 3 or spec.image_shape:  # an instruction may be packed with it
        return IMAGES
    return CONTINUOUS if spec.action_size else DISCRETE


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overrides`, key by key at every depth; neither is changed."""
    result = dict(base)
    for key, value in overrides.items():
        below = result.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return result


def read_settings(path: Path) -> dict[str, Any]:
    """A YAML file of departures. Raises `UserError` where it cannot be read or holds no mapping."""
    settings = read_yaml(path)
    if not isinstance(settings, Mapping):
        raise UserError(f"{path}: must hold a mapping of keys, such as 'precision: bfloat16'")
    return dict(settings)


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """`["topology.num_actors=2", ...]` -> nested mapping. Raises `UserError` for what is no `key=value`."""
    result: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and all(key.split("."))):
            raise UserError(f"--set: '{text}' is not allowed; allowed: key=value, such as topology.num_actors=2")
        with about(f"--set {text}"):
            nested: Any = parse_yaml(value)
        for name in reversed(key.split(".")):
            nested = {name: nested}
        result = merged(result, nested)
    return result
