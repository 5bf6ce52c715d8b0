"""Questions about the kind of system that a configuration describes, answered by its algorithm's `System`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddrl import algorithms
from ddrl.interfaces import System

if TYPE_CHECKING:
    from ddrl.training.config.run_config import RunConfig


def system_of(config: RunConfig) -> System:
    """Return the `System` of a configuration's algorithm."""
    return algorithms.load(config.algorithm).SYSTEM


def replays(config: RunConfig) -> bool:
    """Return whether the learner draws from a prioritized replay, and never waits for a fresh batch."""
    return system_of(config).store == "prioritized"


def moves_gradients(config: RunConfig) -> bool:
    """Return whether actors compute gradients and apply them to shared parameters."""
    return system_of(config).moves == "gradients"


def shares_parameters(config: RunConfig) -> bool:
    """Return whether the parameters have no versions, since several threads or shards update the same ones."""
    return system_of(config).parameters != "versions"


def has_parameter_server(config: RunConfig) -> bool:
    """Return whether a parameter server holds the parameters, in shards that apply one gradient at a time."""
    return system_of(config).parameters == "sharded"
