"""The identity of a run's training, by which a checkpoint is recognised as one of that run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.system.config_differences import differing, spelled
from ddrl.system.files import read_file
from ddrl.training.config.run_config import RunConfig, fingerprint_of, parse_run_config, to_json


@dataclass(frozen=True)
class Identity:
    """The parts of the configuration that change the training, and the algorithm's version."""

    name: str
    """A digest, written into checkpoints, where earlier code compares it, and into names of folders set aside."""
    values: Mapping[str, Any]
    """The configuration as plain data."""
    version: int
    """The algorithm's `VERSION`."""
    former: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Names that earlier code, with fewer keys, gave to this training -> the configuration with those keys."""
    by_name: bool = False
    """Compare names only: for a member of a population, whose hyperparameters change."""

    def recorded(self) -> dict[str, Any]:
        """Return the entries by which a checkpoint identifies itself."""
        return {"identity": self.name, "config": self.values, "version": self.version}

    def agree(self, state: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint's state belongs to this training."""
        if state["identity"] == self.name or self.by_name:
            return bool(state["identity"] == self.name)
        return bool(state["identity"] in self.former) or ("config" in state and not self.difference(state))

    def difference(self, state: Mapping[str, Any]) -> str:
        """Say in what the training of a checkpoint differs from this one; empty if in nothing that matters."""
        if self.by_name or "config" not in state:
            return "the configuration or the algorithm has changed"
        if state["version"] != self.version:
            return f"the algorithm has changed (VERSION {state['version']}, now {self.version})"
        keys = differing(self.values, as_now(state["config"]))
        return f"the configuration has changed ({spelled(keys)})" if keys else ""

    def configuration(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the full configuration of the run that wrote a state of this training."""
        return as_now(state.get("config") or self.former.get(state["identity"]) or self.values)


def identity_of(config: RunConfig, directory: Path) -> Identity:
    """Return the identity of a run; files in its directory may tell the names that earlier code gave it."""
    version, values = algorithms.load(config.algorithm).VERSION, plain(config)
    stated = [read_mapping(directory / "config.json"), read_mapping(directory / "run.json").get("config")]
    former = {_name(one, version): one for one in stated if one and not differing(values, as_now(one))}
    return Identity(_name(values, version), values, version, former)


def plain(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as it is read from a JSON file."""
    values: dict[str, Any] = json.loads(json.dumps(to_json(config)))
    return values


def as_now(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an older configuration with newer keys at their defaults, or unchanged if it is not valid today."""
    try:
        return plain(parse_run_config(values))
    except UserError:
        return values


def _name(values: Mapping[str, Any], version: int) -> str:
    """Return the digest, in which run length and `population.parallel` do not count, but all other keys do."""
    population = values.get("population")
    one = {"population": dict(population) | {"parallel": 1}} if isinstance(population, Mapping) else {}
    return f"{fingerprint_of(dict(values) | {'env_frames': 1} | one)}-v{version}"


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON mapping; empty if the file is missing or holds something else."""
    try:
        found = json.loads(read_file(path).decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
