"""What kind of system a configuration describes, as far as other parts must know it."""

from __future__ import annotations

from typing import Any

from ddrl import algorithms


def replays(config: Any) -> bool:
    """Whether the learner draws from a prioritized replay, and never waits for a fresh batch."""
    return hasattr(config.hyperparameters, "replay")


def moves_gradients(config: Any) -> bool:
    """Whether actors compute gradients and apply them to parameters that they share."""
    return bool(algorithms.load(config.algorithm).SYSTEM["moves"] == "gradients")


def shares_parameters(config: Any) -> bool:
    """Whether there are no versions of the parameters: several threads update the same ones, without locks."""
    return algorithms.load(config.algorithm).SYSTEM.get("parameters") in ("shared", "sharded")


def has_parameter_server(config: Any) -> bool:
    """Whether the parameters are a server's, in shards that apply one gradient at a time."""
    return bool(algorithms.load(config.algorithm).SYSTEM.get("parameters") == "sharded")
