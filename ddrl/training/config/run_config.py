"""The resolved configuration of one run: YAML or JSON -> frozen dataclasses. An unknown key is an error.

Counts are in environment frames (before frame skip) or carry their unit in the name. Each algorithm's own settings
stand next to it (`ddrl.algorithms.<name>.Config`); here is what every run has: environment, topology, budget,
bookkeeping.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ddrl import algorithms
from ddrl.errors import UserError, unknown_name
from ddrl.system.config_types import STRICT
from ddrl.system.text_files import read_json, read_yaml
from ddrl.training.config.population import Population, check_population
from ddrl.training.config.topology import Topology
from ddrl.training.config.topology_checks import check_lag, check_topology

NO_MAPPING = {"union_tag_invalid", "union_tag_not_found", "model_attributes_type", "dataclass_type"}
"""pydantic's names of errors that say: here should be the keys of a dataclass, or of one of several."""


@dataclass(frozen=True, config=STRICT)
class Evaluation:
    """Separate episodes on seeds of their own; actions are sampled from the policy, as in training, or where an
    algorithm explores with an epsilon, with that of its evaluations."""

    period_frames: PositiveInt | None = None
    """Evaluate each time the learner has consumed this many more frames; null: only at the end."""
    episodes: PositiveInt = 10
    final_episodes: PositiveInt = 200
    """Episodes behind the final score (IMPALA, section 5.3.2: 200), of each task."""
    final_versions: PositiveInt = 1
    """How many versions of the parameters play them, as many each; 1: the last one alone, as papers score it."""
    final_window_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """The versions are taken at equal distances over this last part of the budget; the last version is one of them."""
    environment: dict[str, Any] | None = None
    """What is evaluated where that is another one than is trained on: the keys of `environment` that differ."""


@dataclass(frozen=True, config=STRICT)
class Recording:
    """What goes to the curves."""

    period_frames: PositiveInt = 50_000
    tensorboard: bool = True


@dataclass(frozen=True, config=STRICT)
class Checkpointing:
    """When the state is saved (two are kept)."""

    period_frames: PositiveInt = 1_000_000
    replay: Literal["saved", "refilled"] = "saved"
    """A prioritized replay is saved with the rest, as it must be in runtime serial; or it is left out, and a run that
    is continued first plays until it holds as many items again."""


@dataclass(frozen=True, config=STRICT)
class RunConfig:
    """One run: fully determined by this and, in runtime `serial`, repeated bit for bit."""

    algorithm: str
    environment: dict[str, Any]
    """`name: prefix/task`, and the adapter's options."""
    seed: NonNegativeInt
    env_frames: PositiveInt
    """Budget: fresh environment frames that the learner consumes."""
    hyperparameters: Any
    """The algorithm's own `Config`."""
    topology: Topology = Topology()
    evaluation: Evaluation = Evaluation()
    recording: Recording = Recording()
    checkpoint: Checkpointing = Checkpointing()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast of the networks' matrix work; parameters, losses and the optimizer stay in float32."""
    population: Population | None = None
    """Several such runs that copy each other (`ddrl.population`); every count above is that of one of them."""


def parse_run_config(mapping: Mapping[str, Any], where: str = "configuration") -> RunConfig:
    """Checks a mapping and fills in defaults. Raises `UserError` naming `where`, the key and what is allowed."""
    values = dict(mapping)
    name = values.get("algorithm")
    if name not in algorithms.NAMES:
        raise unknown_name("algorithm", name, algorithms.NAMES, where=where)
    environment = values.get("environment")
    if not isinstance(environment, Mapping) or not isinstance(environment.get("name"), str):
        raise UserError(f"{where}: key 'environment.name' must be a text like atari/pong")
    module = algorithms.load(str(name))
    hyperparameters = _beside_own_values(module.Config, values.get("hyperparameters") or {})
    values["hyperparameters"] = _validated(module.Config, hyperparameters, where, prefix="hyperparameters.")
    config = _validated(RunConfig, values, where)
    assert isinstance(config, RunConfig)
    check_lag(config, module.SYSTEM.schedules, where)
    check_topology(config, where)
    check_population(config, where)
    _check_evaluation(config.evaluation, where)
    return config


def _check_evaluation(evaluation: Evaluation, where: str) -> None:
    """Raise `UserError` where some version of the parameters would play no final episode."""
    if evaluation.final_versions > evaluation.final_episodes:
        raise UserError(
            f"{where}: key 'evaluation.final_versions': each version plays at least one of the final episodes; "
            f"allowed: 1 to {evaluation.final_episodes}, as evaluation.final_episodes says "
            f"(got {evaluation.final_versions})"
        )


def _beside_own_values(target: Any, values: Any) -> Any:
    """An optimizer given in part keeps the algorithm's own values in its other keys, unless another is named."""
    if not isinstance(values, Mapping):
        return values
    filled = dict(values)
    for field in dataclasses.fields(target):
        given = values.get(field.name)
        if dataclasses.is_dataclass(field.default) and isinstance(given, Mapping):
            own = dataclasses.asdict(field.default)  # type: ignore[arg-type]
            if given.get("name", own["name"]) == own["name"]:
                filled[field.name] = own | dict(given)
    return filled


def _validated(target: Any, values: Any, where: str, prefix: str = "") -> Any:
    try:
        validated = TypeAdapter(target).validate_python(values)
    except ValidationError as error:
        problems = [_explain(problem, target, prefix) for problem in error.errors()]
        raise UserError(f"{where}: " + "; ".join(problems)) from None
    if converted := next(_converted(values, validated, prefix.removesuffix(".")), None):
        raise UserError(f"{where}: {converted}")
    return validated


def _converted(given: Any, found: Any, key: str) -> Iterator[str]:
    """What pydantic made another kind of value of: `true` is no 1, and '1' and 'on' are texts."""
    if isinstance(given, Mapping):
        for name, value in given.items():
            below = found.get(name) if isinstance(found, Mapping) else getattr(found, str(name), None)
            yield from _converted(value, below, f"{key}.{name}" if key else str(name))
    elif isinstance(given, (list, tuple)) and isinstance(found, (list, tuple)):
        for number, (value, below) in enumerate(zip(given, found, strict=True)):
            yield from _converted(value, below, f"{key}.{number}")
    elif _kind(given) != _kind(found) and None not in (given, found):
        yield f"key '{key}' must be {_kind(found)} (got {given!r})"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, (int, float)) else "a text"


def _explain(problem: Any, target: Any, prefix: str) -> str:
    location, allowed, kinds = _place(target, [str(part) for part in problem["loc"]])
    key = prefix + ".".join(location)
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return str(unknown_name("key", key, [prefix + ".".join([*location[:-1], name]) for name in allowed]))
    if problem["type"] in NO_MAPPING:
        names = " or ".join(str(kind.name) for kind in kinds if hasattr(kind, "name"))
        wanted = f"a mapping with name: {names}" if names else "a mapping"
        return f"key '{key}' must be {wanted} (got {problem.get('input')!r})"
    return f"key '{key}': {problem['msg']} (got {problem.get('input')!r})"


def _place(target: Any, location: list[str]) -> tuple[list[str], list[str], list[Any]]:
    """The keys that lead to a problem, the keys that stand beside the last of them, and the dataclasses it may hold.

    Where a key allows several dataclasses, the location also holds the `name` of the one that was chosen: no key.
    """
    keys: list[str] = []
    kinds, allowed = [target], _field_names(target)
    for place, part in enumerate(location, 1):
        chosen = [kind for kind in kinds if getattr(kind, "name", None) == part and part not in _field_names(kind)]
        if chosen:
            kinds, allowed = chosen, _field_names(chosen[0])
            continue
        owner = next((kind for kind in kinds if part in _field_names(kind)), None)
        allowed = _field_names(owner or kinds[0]) if kinds else []
        within = kinds if place < len(location) else []  # of a mapping, whose own keys are free
        kinds = _dataclasses_in(get_type_hints(owner, include_extras=True)[part]) if owner else within
        keys.append(part)
    return keys, allowed, kinds


def _dataclasses_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return [annotation]
    return [found for part in get_args(annotation) for found in _dataclasses_in(part)]


def _field_names(target: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(target)] if dataclasses.is_dataclass(target) else []


def load_run_config(path: Path) -> RunConfig:
    """Reads a YAML or JSON file. Raises `UserError` where it cannot be read or says something not allowed."""
    mapping = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if not isinstance(mapping, Mapping):
        raise UserError(f"{path}: must hold a mapping of keys, such as 'algorithm: impala'")
    return parse_run_config(mapping, where=str(path))


def to_json(config: RunConfig) -> dict[str, Any]:
    """Plain data that `parse_run_config` reads back to an equal configuration."""
    return dataclasses.asdict(config)


def fingerprint(config: RunConfig) -> str:
    """Names the configuration (see `fingerprint_of`)."""
    return fingerprint_of(to_json(config))


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of a configuration's canonical JSON, as it was when it was written down.

    Keys that have come since then are no part of it, so the name of a finished run stays true.
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
