"""What kind of system a configuration describes, as its algorithm's `System` states it."""

from __future__ import annotations

from typing import Any

from ddrl import algorithms
from ddrl.interfaces import System


def system_of(config: Any) -> System:
    """Return what the algorithm of a configuration states of itself."""
    system: System = algorithms.load(config.algorithm).SYSTEM
    return system


def replays(config: Any) -> bool:
    """Whether the learner draws from a prioritized replay, and never waits for a fresh batch."""
    return system_of(config).store == "prioritized"


def moves_gradients(config: Any) -> bool:
    """Whether actors compute gradients and apply them to parameters that they share."""
    return system_of(config).moves == "gradients"


def shares_parameters(config: Any) -> bool:
    """Whether there are no versions of the parameters: several threads update the same ones, without locks."""
    return system_of(config).parameters != "versions"


def has_parameter_server(config: Any) -> bool:
    """Whether the parameters are a server's, in shards that apply one gradient at a time."""
    return system_of(config).parameters == "sharded"
