"""The configuration of a run, read from YAML or JSON into frozen dataclasses that refuse unknown keys.

Counts are in environment frames (before frame skip) or have their unit in the name. The settings of an algorithm are in
its own file (`ddrl.algorithms.<name>.Config`); this file has the keys of every run.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ddrl import algorithms
from ddrl.algorithms import Algorithm
from ddrl.errors import Command, UserError, about, unknown_name
from ddrl.interfaces import Hyperparameters, System
from ddrl.system.config_differences import LEFT_OUT
from ddrl.system.config_types import STRICT
from ddrl.system.plugins import ALGORITHMS
from ddrl.system.text_files import read_json, read_yaml
from ddrl.system.wording import shortened
from ddrl.training.config.population import Population, check_population
from ddrl.training.config.topology import Topology
from ddrl.training.config.topology_checks import check_topology

HYPERPARAMETERS = "hyperparameters."
ELSEWHERE = {
    "algo": "algorithm",
    "env": "environment",
    "gamma": "discount",
    "lr": "learning_rate",
    "total_timesteps": "env_frames",
}
"""Words that other libraries have for keys -> the last part of ours."""
NO_MAPPING = {"union_tag_invalid", "union_tag_not_found", "model_attributes_type", "dataclass_type"}
"""pydantic's types of errors for a value that should be a mapping with the keys of a dataclass."""


@dataclass(frozen=True, config=STRICT)
class Evaluation:
    """Separate episodes with their own seeds. Actions are sampled from the policy as in training, or with the epsilon
    that an algorithm has for evaluations, unless `deterministic`."""

    period_frames: PositiveInt | None = None
    """Evaluate each time the learner has consumed this many more frames; null: only at the end."""
    episodes: PositiveInt = 10
    final_episodes: PositiveInt = 200
    """Episodes behind the final score (IMPALA, section 5.3.2: 200), for each task."""
    final_versions: PositiveInt = 1
    """The number of versions of the parameters that play them in equal shares; 1: the last one, as papers score it."""
    final_window_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """The versions are taken at equal distances over this last part of the budget; the last version is one of them."""
    environment: dict[str, Any] | None = None
    """The keys of `environment` in which the evaluated environment differs from the one that is trained on."""
    deterministic: bool = False
    """Take the policy's most probable action, the mean of a Gaussian, the action of the largest value."""


@dataclass(frozen=True, config=STRICT)
class Recording:
    """The recording of the curves."""

    period_frames: PositiveInt = 50_000


@dataclass(frozen=True, config=STRICT)
class Checkpointing:
    """When and how the state is saved (the two newest checkpoints are kept)."""

    period_frames: PositiveInt = 1_000_000
    replay: Literal["saved", "refilled"] = "saved"
    """saved: a prioritized replay is part of the checkpoint (the only choice in runtime serial); refilled: it is not,
    and a resumed run first plays until it holds as many items again."""


@dataclass(frozen=True, config=STRICT | ConfigDict(arbitrary_types_allowed=True))
class RunConfig:
    """The configuration that determines a run; in runtime `serial` the run repeats bit for bit."""

    algorithm: str
    environment: dict[str, Any]
    """`name: prefix/task`, and the adapter's options."""
    seed: NonNegativeInt
    env_frames: PositiveInt
    """Budget: fresh environment frames that the learner consumes."""
    hyperparameters: Hyperparameters
    """The algorithm's own `Config`."""
    topology: Topology = Topology()
    evaluation: Evaluation = Evaluation()
    recording: Recording = Recording()
    tracking: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """Where the curves are shown while the run trains; [] for nowhere. They are recorded in any case."""
    checkpoint: Checkpointing = Checkpointing()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast of the networks' matrix work; parameters, losses and the optimizer stay in float32."""
    peer: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")] | None = None
    """The library that carries out the run in place of our own code (`ddrl.peers`); null: ours does."""
    population: Population | None = None
    """Several such runs that copy each other (`ddrl.population`); every count above is that of one member."""

    @property
    def system(self) -> System:
        """The kind of system that the algorithm is."""
        return algorithms.load(self.algorithm).SYSTEM


def parse_run_config(mapping: Mapping[str, Any], where: str | Command = "configuration") -> RunConfig:
    """Check a mapping and fill in defaults. Raise `UserError` naming `where`, the key and what is allowed."""
    with about(where):
        values = _as_spelled_now(mapping)
        name, environment = values.get("algorithm"), values.get("environment")
        if name is None:
            raise UserError(f"key 'algorithm' is missing; allowed: {', '.join(ALGORITHMS)}")
        algorithm = algorithms.load(str(name))
        if not isinstance(environment, Mapping) or not isinstance(environment.get("name"), str):
            raise UserError("key 'environment.name' must be a text like atari/pong")
        values["hyperparameters"] = hyperparameters_of(algorithm, values.get("hyperparameters"))
        config: RunConfig = _validated(RunConfig, values, algorithm=algorithm)
        check_topology(config)
        check_population(config)
        evaluation = config.evaluation
        if evaluation.final_versions > evaluation.final_episodes:
            raise UserError(
                "key 'evaluation.final_versions': each version plays at least one of the final episodes; allowed: 1 to "
                f"{evaluation.final_episodes}, as evaluation.final_episodes says (got {evaluation.final_versions})"
            )
        return config


def _as_spelled_now(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with `tracking` in place of `recording.tensorboard`, which older configurations have."""
    values, recording = dict(mapping), mapping.get("recording")
    if isinstance(recording, Mapping) and "tensorboard" in recording:
        shown = recording["tensorboard"]
        if not isinstance(shown, bool):
            raise UserError(f"key 'recording.tensorboard' must be true or false (got {shown!r})")
        values["recording"] = {key: value for key, value in recording.items() if key != "tensorboard"}
        values.setdefault("tracking", ["tensorboard"] if shown else [])
    return values


def hyperparameters_of(algorithm: Algorithm, values: Any) -> Hyperparameters:
    """Check an algorithm's hyperparameters and fill in its defaults. Raise `UserError` as `parse_run_config`."""
    completed = _beside_own_values(algorithm.Config, values or {})
    checked: Hyperparameters = _validated(algorithm.Config, completed, HYPERPARAMETERS, algorithm)
    return checked


def _beside_own_values(target: Any, values: Any) -> Any:
    """Complete a partly given optimizer with the algorithm's own values, unless another optimizer is named."""
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


def _validated(target: Any, values: Any, prefix: str = "", algorithm: Algorithm | None = None) -> Any:
    try:
        validated = TypeAdapter(target).validate_python(values)
    except ValidationError as error:
        raise UserError("; ".join(_explain(problem, target, prefix, algorithm) for problem in error.errors())) from None
    if converted := next(_converted(values, validated, prefix.removesuffix(".")), None):
        raise UserError(converted)
    return validated


def _converted(given: Any, found: Any, key: str) -> Iterator[str]:
    """Yield a message for each value that pydantic has converted to another kind, such as `true` to 1."""
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


def nearest(name: str, algorithm: Algorithm | None) -> str:
    """Return the full key that `name` most likely means, "" if none is near.

    `learning_rate` means `hyperparameters.optimizer.learning_rate`, and so does `lr`.
    """
    own = _full_names(algorithm.Config, HYPERPARAMETERS) if algorithm else ()
    names: list[str] = list(dict.fromkeys([*_full_names(RunConfig, ""), *own]))
    last = name.rpartition(".")[2]
    last = ELSEWHERE.get(last, last)
    if ends := [full for full in names if full.rpartition(".")[2] == last and full != name]:
        return min(ends, key=len)
    by_last = {full.rpartition(".")[2]: full for full in reversed(names)}
    close = difflib.get_close_matches(name, names, n=1)
    return close[0] if close else by_last.get(next(iter(difflib.get_close_matches(last, by_last, 1, 0.75)), ""), "")


def _full_names(target: Any, prefix: str) -> Iterator[str]:
    """Yield the keys of a dataclass and of all dataclasses in it, in full."""
    for name, annotation in get_type_hints(target, include_extras=True).items():
        yield prefix + name
        for part in dataclasses_in(annotation):
            yield from _full_names(part, f"{prefix}{name}.")


def _explain(problem: Any, target: Any, prefix: str, algorithm: Algorithm | None) -> str:
    location, allowed, kinds = _place(target, [str(part) for part in problem["loc"]])
    key = (prefix + ".".join(location)).removesuffix(".")
    given = _shown(problem["input"])
    if problem["type"] == "missing":
        return f"key '{key}' is missing"
    if problem["type"] == "int_parsing_size":
        return f"key '{key}': too large (got {given})"
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = [prefix + ".".join([*location[:-1], name]) for name in allowed]
        return str(unknown_name("key", key, names, hint=nearest(key, algorithm)))
    if problem["type"] == "tuple_type":
        example = f", such as [{problem['input']}]" if isinstance(problem["input"], str) else ""
        return f"key '{key}' must be a list{example} (got {given})"
    if problem["type"] == "layer_sizes":
        return f"key '{key}' {problem['msg']} (got {given})"
    if problem["type"] in NO_MAPPING:
        wanted = " or ".join(str(kind.name) for kind in kinds if hasattr(kind, "name"))
        wanted = f"a mapping with name: {wanted}" if wanted else "a mapping"
        return f"key '{key}' must be {wanted} (got {given})"
    return f"key '{key}': {problem['msg']} (got {given})"


def _shown(value: Any) -> str:
    """Return a value in one short text; a key in a file without a value has none."""
    return "no value" if value is None else shortened(repr(value))


def _place(target: Any, location: list[str]) -> tuple[list[str], list[str], list[Any]]:
    """Return the keys that lead to a problem, the keys allowed beside the last one, and the dataclasses it may hold.

    If a key allows several dataclasses, pydantic's location also holds the `name` of the chosen one, which is no key.
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
        within = kinds if place < len(location) else []  # inside a mapping with free keys
        kinds = dataclasses_in(get_type_hints(owner, include_extras=True)[part]) if owner else within
        keys.append(part)
    return keys, allowed, kinds


def dataclasses_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return [annotation]
    return [found for part in get_args(annotation) for found in dataclasses_in(part)]


def _field_names(target: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(target)] if dataclasses.is_dataclass(target) else []


def load_run_config(path: Path) -> RunConfig:
    """Read a YAML or JSON file. Raise `UserError` if it cannot be read or holds something not allowed."""
    return parse_run_config(read_mapping_of(path), where=str(path))


def read_mapping_of(path: Path) -> dict[str, Any]:
    """Read the keys in a YAML or JSON file, unchecked. Raise `UserError` if it cannot be read or holds no mapping."""
    mapping = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if not isinstance(mapping, Mapping):
        raise UserError(f"{path}: must hold a mapping of keys, such as 'algorithm: impala'")
    return dict(mapping)


def to_json(config: RunConfig) -> dict[str, Any]:
    """Return plain data, as JSON has it, from which `parse_run_config` makes an equal configuration.

    Without `peer` where there is none, and without keys of the topology that runs from before these keys could not
    have: so they keep their names and files.
    """
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    for key, before in LEFT_OUT.items():
        group, _, name = key.partition(".")
        if values[group][name] == before:
            del values[group][name]
    return values if config.peer else {key: value for key, value in values.items() if key != "peer"}


def fingerprint(config: RunConfig) -> str:
    """Return the digest of a configuration."""
    return fingerprint_of(to_json(config))


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of a configuration's canonical JSON.

    Pass a configuration as it was written down: without newer keys, a finished run keeps its name. Which trackers there
    are beside TensorBoard does not count, and TensorBoard does as when it was a key of `recording`.
    """
    if "tracking" in values:
        recording = {**(values.get("recording") or {}), "tensorboard": "tensorboard" in values["tracking"]}
        values = {key: value for key, value in values.items() if key != "tracking"} | {"recording": recording}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
