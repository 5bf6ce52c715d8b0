"""`experiments.yaml` of a replication -> the runs of a scale, each with its configuration.

A paper's setting stands once, in `base`; `departures` say what differs, for which runs, and why. Where an experiment
compares algorithms, each variant has a base of its own; bases that several experiments share stand under `bases`, and
are named. A scale changes budgets, seeds, the lists of tasks and variants and what is recorded or evaluated, and never
the algorithm: the loader refuses it.
No pandas here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.papers.schema import load_checked

SCALES = ("smoke", "workstation", "paper")
ROOT = Path("replications")
MANIFESTS = "*/*/*/*/*/seed*/run.json"
"""Of finished runs below a folder of results: scale/paper/experiment/variant/environment/seed."""

SCALE_KEYS = (
    "env_frames",
    "evaluation",
    "recording",
    "checkpoint",
    "device",
    "precision",
    "topology.env_threads",
    "topology.learner_threads",
    "population.burn_in_frames",
    "population.period_frames",
    "population.parallel",
)
"""What a scale may set: budget, bookkeeping, and how the machine computes it."""
PAPER_SCALE_KEYS = (
    "evaluation.period_frames",
    "evaluation.episodes",
    "recording",
    "checkpoint",
    "device",
    "topology.env_threads",
    "topology.learner_threads",
)
"""What scale `paper` may set: its budget, final score and precision are the paper's."""
_RUN_KEYS = ("seed", "environment.name", "algorithm")


def system_of(variant: str) -> str:
    """The variant without its setting: a sweep may spread the settings of one over several, <variant>__<setting>."""
    return variant.partition("__")[0]


def system_label(variant: str, label: str) -> str:
    """The label of `system_of` a variant: "IMPALA, 0.001, 0.01" -> "IMPALA, all settings"; of no sweep, the label."""
    return label if system_of(variant) == variant else f"{label.partition(',')[0]}, all settings"


@dataclass(frozen=True)
class Departure:
    """Settings that differ from the paper's, for the runs of `variants`, `environments` and `scales` (empty: all)."""

    settings: Mapping[str, Any]
    reason: str
    variants: tuple[str, ...]
    environments: tuple[str, ...]
    scales: tuple[str, ...]

    def applies(self, variant: str, environment: str, scale: str) -> bool:
        """Whether a run departs in this way."""
        chosen = ((self.variants, variant), (self.environments, environment), (self.scales, scale))
        return all(not names or name in names for names, name in chosen)


@dataclass(frozen=True)
class Resources:
    """What one run needs of a machine, or of each of several."""

    threads: int
    memory_mib: int
    gpus: int
    nodes: int = 1


@dataclass(frozen=True)
class Scale:
    """Which variants, tasks and seeds, how much, and what one run needs."""

    variants: tuple[str, ...]
    """Those that a machine of this scale can run; empty: all."""
    environments: tuple[str, ...]
    """Of every variant that has none of its own."""
    environments_of: Mapping[str, tuple[str, ...]]
    """Of single variants: experts, say, have a run for each task where one agent has one for all."""
    seeds: tuple[int, ...]
    reason: str
    departures: tuple[Departure, ...]
    resources: Mapping[str, Resources]
    """Of a run of each variant."""

    @property
    def every_environment(self) -> tuple[str, ...]:
        """Of any variant."""
        own = [name for names in self.environments_of.values() for name in names]
        return tuple(dict.fromkeys([*self.environments, *own]))

    def has(self, variant: str, environment: str) -> bool:
        """Whether this variant is run on this environment."""
        return environment in self.environments_of.get(variant, self.environments)


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper: `bases` are the paper's settings, `variants` what it compares."""

    name: str
    title: str
    source: str
    proxy: str | None
    """Why these tasks stand for the paper's; None where they are the paper's own."""
    paper_budget: str | None
    """What the paper gives as its budget where that is no number of frames: `env_frames` of a base is then ours."""
    bases: Mapping[str, Mapping[str, Any]]
    """The paper's setting of each variant, before `variants` sets what it compares."""
    labels: Mapping[str, str]
    variants: Mapping[str, Mapping[str, Any]]
    departures: tuple[Departure, ...]
    scales: Mapping[str, Scale]

    def has(self, variant: str, environment: str) -> bool:
        """Whether this variant is run on this environment at any scale."""
        return any(scale.has(variant, environment) for scale in self.scales.values())

    def paper_setting(self, variant: str, environment: str) -> dict[str, Any]:
        """The configuration the paper states, without seed."""
        base = copy.deepcopy(dict(self.bases[variant]))
        return with_settings(base, {"environment.name": environment, **self.variants[variant]})


@dataclass(frozen=True)
class Run:
    """One training run of a scale."""

    paper: str
    scale: str
    experiment: str
    variant: str
    environment: str
    seed: int
    config: Mapping[str, Any]
    departures: tuple[Departure, ...]
    resources: Resources

    @property
    def env_dir(self) -> str:
        """The environment's name as a folder."""
        return self.environment.replace("/", "-")

    @property
    def key(self) -> str:
        """Where the run stands below its paper's folder."""
        return f"{self.experiment}/{self.variant}/{self.env_dir}/seed{self.seed}"

    def directory(self, results: str | Path = "results") -> Path:
        """The run directory."""
        return Path(results) / self.scale / self.paper / self.key


def papers(root: Path = ROOT) -> list[str]:
    """Every folder of `root` with a paper.yaml."""
    return sorted(path.parent.name for path in root.glob("*/paper.yaml"))


def load_experiments(paper_dir: Path) -> dict[str, Experiment]:
    """Reads `paper_dir/experiments.yaml`.

    Raises: UserError naming file, key and what is allowed; also where a scale would change the algorithm.
    """
    path = paper_dir / "experiments.yaml"
    data = load_checked(path, "experiments")
    if data["paper"] != paper_dir.name:
        raise UserError(f"{path}: key 'paper' is '{data['paper']}'; allowed: the folder's name, {paper_dir.name}")
    named = data.get("bases", {})
    owners = [part for entry in data["experiments"].values() for part in (entry, *entry["variants"].values())]
    used = [owner.get("base") for owner in owners]
    for name in named:
        if name not in used:
            raise UserError(f"{path}: bases.{name}: no experiment and no variant names it")
    return {name: _experiment(name, entry, named, path) for name, entry in data["experiments"].items()}


def _experiment(name: str, entry: Mapping[str, Any], named: Mapping[str, Mapping[str, Any]], path: Path) -> Experiment:
    where = f"{path}: experiments.{name}"
    variants = {variant: dict(spec.get("set", {})) for variant, spec in entry["variants"].items()}
    departures = _departures(entry, where, variants, ())
    for departure in departures:
        _refuse(
            departure.settings,
            lambda key: key not in _RUN_KEYS,
            where,
            "departures",
            "anything but " + ", ".join(_RUN_KEYS),
        )
    scales = {
        scale: _scale(spec, scale, f"{where}.scales.{scale}", variants) for scale, spec in entry["scales"].items()
    }
    return Experiment(
        name=name,
        title=entry["title"],
        source=entry.get("source", ""),
        proxy=entry.get("proxy"),
        paper_budget=" ".join(entry["paper_budget"].split()) if "paper_budget" in entry else None,
        bases={
            variant: _base(spec.get("base", entry.get("base")), named, f"{where}.variants.{variant}")
            for variant, spec in entry["variants"].items()
        },
        labels={variant: spec["label"] for variant, spec in entry["variants"].items()},
        variants=variants,
        departures=departures,
        scales=scales,
    )


def _base(given: Any, named: Mapping[str, Mapping[str, Any]], where: str) -> Mapping[str, Any]:
    """A base itself, or the one of that name."""
    if given is None:
        raise UserError(f"{where}: key 'base' is missing, and the experiment has none either")
    if isinstance(given, str) and given not in named:
        raise unknown_name("base", given, named, where=where)
    base: Mapping[str, Any] = named[given] if isinstance(given, str) else given
    return base


def _scale(spec: Mapping[str, Any], scale: str, where: str, variants: Mapping[str, Any]) -> Scale:
    own = {variant: tuple(names) for variant, names in spec.get("environments_of", {}).items()}
    every = [*spec["environments"], *(name for names in own.values() for name in names)]
    departures = _departures(spec, where, variants, every)
    allowed = PAPER_SCALE_KEYS if scale == "paper" else SCALE_KEYS
    for departure in departures:
        _refuse(departure.settings, lambda key: _covered(key, allowed), where, "departures", ", ".join(allowed))
    for variant in (*spec.get("variants", ()), *own):
        if variant not in variants:
            raise unknown_name("variant", variant, variants, where=where)
    return Scale(
        variants=tuple(spec.get("variants", ())),
        environments=tuple(spec["environments"]),
        environments_of=own,
        seeds=tuple(spec["seeds"]),
        reason=spec.get("reason", ""),
        departures=departures,
        resources=_resources(spec["resources"], where, variants),
    )


def _resources(spec: Mapping[str, Any], where: str, variants: Iterable[str]) -> dict[str, Resources]:
    """Those of the scale, with what single variants need otherwise."""
    common = {name: value for name, value in spec.items() if name != "variants"}
    own = spec.get("variants", {})
    for variant in own:
        if variant not in variants:
            raise unknown_name("variant", variant, variants, where=f"{where}.resources")
    return {variant: Resources(**common | own.get(variant, {})) for variant in variants}


def _departures(
    entry: Mapping[str, Any], where: str, variants: Iterable[str], environments: Sequence[str]
) -> tuple[Departure, ...]:
    found = []
    for item in entry.get("departures", ()):
        for variant in item.get("variants", ()):
            if variant not in variants:
                raise unknown_name("variant", variant, variants, where=f"{where}.departures")
        for environment in item.get("environments", ()):
            if environments and environment not in environments:
                raise unknown_name("environment", environment, environments, where=f"{where}.departures")
        chosen = [tuple(item.get(name, ())) for name in ("variants", "environments", "scales")]
        found.append(Departure(dict(item["set"]), " ".join(item["reason"].split()), *chosen))
    return tuple(found)


def _covered(key: str, allowed: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


def _refuse(settings: Mapping[str, Any], accepts: Any, where: str, part: str, allowed: str) -> None:
    for key in settings:
        if not accepts(key):
            raise UserError(
                f"{where}.{part}: may not set '{key}' (a scale never changes the algorithm); allowed: {allowed}"
            )


def with_settings(config: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with dotted keys set, in place."""
    for key, value in settings.items():
        *path, last = key.split(".")
        place = config
        for part in path:
            place[part] = dict(place.get(part) or {})
            place = place[part]
        place[last] = copy.deepcopy(value)
    return config
