"""Whether a checkpoint is one of the run that is to be continued: of the same training, however it was written down."""

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
    """What a run's checkpoints must agree with: all of the configuration that changes the training, and the version."""

    name: str
    """Of what is set aside; written down in checkpoints, where earlier code compares it."""
    values: Mapping[str, Any]
    """The configuration as plain data."""
    version: int
    """Of the algorithm."""
    former: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Names that earlier code gave to this training, which knew fewer keys -> the configuration as it knew it."""
    by_name: bool = False
    """Of a population's member, whose hyperparameters change: it goes by its name alone."""

    def recorded(self) -> dict[str, Any]:
        """What a checkpoint says of itself."""
        return {"identity": self.name, "config": self.values, "version": self.version}

    def agree(self, state: Mapping[str, Any]) -> bool:
        """Whether a checkpoint's state is of this training."""
        if state["identity"] == self.name or self.by_name:
            return bool(state["identity"] == self.name)
        return bool(state["identity"] in self.former) or ("config" in state and not self.difference(state))

    def difference(self, state: Mapping[str, Any]) -> str:
        """What a checkpoint of another training differs in, as far as it says; empty: in nothing that matters."""
        if self.by_name or "config" not in state:
            return "the configuration or the algorithm has changed"
        if state["version"] != self.version:
            return f"the algorithm has changed (VERSION {state['version']}, now {self.version})"
        keys = differing(self.values, as_now(state["config"]))
        return f"the configuration has changed ({spelled(keys)})" if keys else ""

    def configuration(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """That of the run that wrote a state which agrees: also in keys that change nothing of the training."""
        return as_now(state.get("config") or self.former.get(state["identity"]) or self.values)


def identity_of(config: RunConfig, directory: Path) -> Identity:
    """Of a run in its directory, whose files say what earlier code called it."""
    version, values = algorithms.load(config.algorithm).VERSION, plain(config)
    stated = [_read(directory / "config.json"), _read(directory / "run.json").get("config")]
    former = {_name(one, version): one for one in stated if one and not differing(values, as_now(one))}
    return Identity(_name(values, version), values, version, former)


def plain(config: RunConfig) -> dict[str, Any]:
    """As a file would have it."""
    values: dict[str, Any] = json.loads(json.dumps(to_json(config)))
    return values


def as_now(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration that was written down earlier, with the keys that have come since at their defaults.

    As it is where it is none any more: a key or a value is not known today.
    """
    try:
        return plain(parse_run_config(values))
    except UserError:
        return values


def _name(values: Mapping[str, Any], version: int) -> str:
    """Without the extent; of keys that do not change the training too, as it always was."""
    population = values.get("population")
    one = {"population": dict(population) | {"parallel": 1}} if isinstance(population, Mapping) else {}
    return f"{fingerprint_of(dict(values) | {'env_frames': 1} | one)}-v{version}"


def _read(path: Path) -> dict[str, Any]:
    """Empty where there is no such file, or something else in it."""
    try:
        found = json.loads(read_file(path).decode()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
