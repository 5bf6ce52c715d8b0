"""Reads a replication's `experiments.yaml`: the experiments of a paper, their settings, scales and variants.

`base` holds a paper's setting; `departures` hold what differs, for which runs, and why. Where an experiment compares
algorithms, each variant has a base of its own; bases that several experiments share are named under `bases`. A scale
may change budgets, seeds, the lists of tasks and variants and what is recorded or evaluated. It may not change the
algorithm. No pandas here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.papers.schema import check_known, load_checked
from ddrl.papers.tuning import Tuning, check_test_seeds, read_tuning

SCALES = ("smoke", "workstation", "paper")
ROOT = Path("replications")
Roots = Path | Sequence[Path]
"""One folder of papers, or several."""
MANIFESTS = "*/*/*/*/*/seed*/run.json"
"""Pattern of finished runs below a results folder: scale/paper/experiment/variant/environment/seed."""

SCALE_KEYS = (
    "env_frames",
    "evaluation",
    "recording",
    "tracking",
    "checkpoint",
    "device",
    "precision",
    "topology.env_threads",
    "topology.learner_threads",
    "population.burn_in_frames",
    "population.period_frames",
    "population.parallel",
)
"""Keys that a scale may set: budget, bookkeeping, and how the machine computes the run."""
PAPER_SCALE_KEYS = (
    "evaluation.period_frames",
    "evaluation.episodes",
    "recording",
    "tracking",
    "checkpoint",
    "device",
    "topology.env_threads",
    "topology.learner_threads",
)
"""Keys that scale `paper` may set; its budget, final score and precision are the paper's."""
_RUN_KEYS = ("seed", "environment.name", "algorithm", "peer")


def system_of(variant: str) -> str:
    """Return the variant without its setting: the settings of a sweep are variants named <variant>__<setting>."""
    return variant.partition("__")[0]


def system_label(variant: str, label: str) -> str:
    """Return the label of a variant's system: IMPALA, 0.001, 0.01 -> IMPALA, all settings."""
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
        """Return whether a run departs in this way."""
        chosen = ((self.variants, variant), (self.environments, environment), (self.scales, scale))
        return all(not names or name in names for names, name in chosen)


@dataclass(frozen=True)
class Resources:
    """The needs of one run, on each machine that it uses."""

    threads: int
    memory_mib: int
    gpus: int
    nodes: int = 1


@dataclass(frozen=True)
class Scale:
    """The variants, tasks and seeds of a scale, its budget, and what one run needs."""

    variants: tuple[str, ...]
    """The variants that a machine of this scale can run; empty: all."""
    environments: tuple[str, ...]
    """Environments of every variant that is not in `environments_of`."""
    environments_of: Mapping[str, tuple[str, ...]]
    """Environments of single variants: experts, for example, have one run per task where one agent has one for all."""
    seeds: tuple[int, ...]
    reason: str
    departures: tuple[Departure, ...]
    resources: Mapping[str, Resources]
    """Needs of one run, by variant."""

    @property
    def every_environment(self) -> tuple[str, ...]:
        """The environments of all variants."""
        return tuple(dict.fromkeys([*self.environments, *chain(*self.environments_of.values())]))

    def has(self, variant: str, environment: str) -> bool:
        """Return whether this variant is run on this environment."""
        return environment in self.environments_of.get(variant, self.environments)


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper: `bases` are the paper's settings, `variants` what it compares."""

    name: str
    title: str
    source: str
    proxy: str | None
    """The reason why these tasks replace the paper's; None if they are the paper's own."""
    paper_budget: str | None
    """The paper's budget if it is not a number of frames: `env_frames` of a base is then ours."""
    scored: bool | tuple[str, ...]
    """Whether final returns are scores (False: the runs were made for a speed, a traffic or a lag alone), or where."""
    bases: Mapping[str, Mapping[str, Any]]
    """The paper's setting of each variant, before `variants` sets what it compares."""
    labels: Mapping[str, str]
    variants: Mapping[str, Mapping[str, Any]]
    departures: tuple[Departure, ...]
    scales: Mapping[str, Scale]
    tuning: tuple[Tuning, ...] = ()
    """The runs by which settings were chosen; empty: none recorded."""
    peers: Mapping[str, str] = field(default_factory=dict)
    """Variant -> the library that carries out its runs; variants of our own code are not in it."""

    @property
    def every_environment(self) -> tuple[str, ...]:
        """The environments of all scales."""
        return tuple(dict.fromkeys(name for scale in self.scales.values() for name in scale.every_environment))

    def has(self, variant: str, environment: str) -> bool:
        """Return whether this variant is run on this environment at any scale."""
        return any(scale.has(variant, environment) for scale in self.scales.values())

    def has_scores(self, environment: str) -> bool:
        """Return whether the final returns of runs on this environment are scores."""
        return self.scored if isinstance(self.scored, bool) else environment in self.scored

    def paper_setting(self, variant: str, environment: str) -> dict[str, Any]:
        """Return the configuration that the paper states, without seed."""
        base = copy.deepcopy(dict(self.bases[variant]))
        if variant in self.peers:
            base["peer"] = self.peers[variant]
        return with_settings(base, {"environment.name": environment, **self.variants[variant]})


@dataclass(frozen=True)
class PlannedRun:
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
    def key(self) -> str:
        """The run's folder, relative to its paper's."""
        return f"{self.experiment}/{self.variant}/{self.environment.replace('/', '-')}/seed{self.seed}"

    def directory(self, results: str | Path = "results") -> Path:
        """Return the run directory."""
        return Path(results) / self.scale / self.paper / self.key


def papers(root: Roots = ROOT) -> list[str]:
    """Return the name of every paper: of every folder with a paper.yaml. Raise UserError for one in two roots."""
    return sorted(_folders(root))


def folder_of(paper: str, root: Roots = ROOT) -> Path:
    """Return the folder of one of `papers`. Raise UserError for another name."""
    found = _folders(root)
    check_known("paper", [paper], found)
    return found[paper]


def with_further(own: Path, further: Iterable[Path]) -> tuple[Path, ...]:
    """Return the root of papers `own` and `further` ones, each once. Raise UserError for a further one without papers.

    A further root may be outside of this checkout (`--replications`).
    """
    found = {own.resolve(): own}
    for root in further:
        if not papers(root):
            raise UserError(f"--replications {root}: no folder in it has a paper.yaml")
        found.setdefault(root.resolve(), root)
    return tuple(found.values())


def each_root(root: Roots) -> tuple[Path, ...]:
    """Return the roots, of which there may be one."""
    return (root,) if isinstance(root, Path) else tuple(root)


def _folders(root: Roots) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in (path.parent for one in each_root(root) for path in one.glob("*/paper.yaml")):
        if folder.name in found:
            raise UserError(f"paper '{folder.name}' is in two folders: {found[folder.name]} and {folder}; allowed: one")
        found[folder.name] = folder
    return found


def load_experiments(paper_dir: Path) -> dict[str, Experiment]:
    """Read `paper_dir/experiments.yaml`. Raise UserError naming file, key and what is allowed."""
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
    _check_settings(departures, lambda key: key not in _RUN_KEYS, f"anything but {', '.join(_RUN_KEYS)}", where)
    scored = entry.get("scored", True)
    tuning = read_tuning(entry.get("tuning"), variants, where)
    scales = {
        scale: _scale(spec, scale, f"{where}.scales.{scale}", variants) for scale, spec in entry["scales"].items()
    }
    for scale, found in scales.items():
        _check_peers(entry["variants"], found.variants or tuple(variants), scale, where)
        pairs = [(name, task) for name in found.variants or variants for task in found.every_environment]
        own = [pair for pair in pairs if found.has(*pair)]
        check_test_seeds(tuning, own, found.seeds, f"{where}.scales.{scale}")
    return Experiment(
        name=name,
        title=entry["title"],
        source=entry.get("source", ""),
        proxy=entry.get("proxy"),
        paper_budget=" ".join(entry["paper_budget"].split()) if "paper_budget" in entry else None,
        scored=scored if isinstance(scored, bool) else tuple(scored),
        bases={
            variant: _base(spec.get("base", entry.get("base")), named, f"{where}.variants.{variant}")
            for variant, spec in entry["variants"].items()
        },
        labels={variant: spec["label"] for variant, spec in entry["variants"].items()},
        variants=variants,
        departures=departures,
        scales=scales,
        tuning=tuning,
        peers={variant: spec["peer"] for variant, spec in entry["variants"].items() if "peer" in spec},
    )


def _check_peers(variants: Mapping[str, Mapping[str, Any]], chosen: Sequence[str], scale: str, where: str) -> None:
    """Raise UserError for a variant of a peer at scale smoke, which needs the suite's own environment alone."""
    for name in chosen:
        if scale == "smoke" and "peer" in variants[name]:
            raise UserError(
                f"{where}.scales.smoke: variant '{name}' is run by the peer {variants[name]['peer']}, which `make "
                "report` does not install; allowed: scales.smoke.variants without it"
            )
        if "peer" in variants[name].get("set", {}):
            raise UserError(f"{where}.variants.{name}.set: 'peer' stands beside `label`, not in `set`")


def _base(
    given: str | Mapping[str, Any] | None, named: Mapping[str, Mapping[str, Any]], where: str
) -> Mapping[str, Any]:
    """Return the base that is given, or the one of that name."""
    if given is None:
        raise UserError(f"{where}: key 'base' is missing, and the experiment has none either")
    if not isinstance(given, str):
        return dict(given)
    check_known("base", [given], named, where=where)
    return named[given]


def _scale(spec: Mapping[str, Any], scale: str, where: str, variants: Mapping[str, Any]) -> Scale:
    own = {variant: tuple(names) for variant, names in spec.get("environments_of", {}).items()}
    every = [*spec["environments"], *chain(*own.values())]
    departures = _departures(spec, where, variants, every)
    allowed = PAPER_SCALE_KEYS if scale == "paper" else SCALE_KEYS
    _check_settings(
        departures, lambda key: any(f"{key}.".startswith(f"{name}.") for name in allowed), ", ".join(allowed), where
    )
    check_known("variant", (*spec.get("variants", ()), *own), variants, where=where)
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
    """Return the resources of each variant: the scale's, overridden by the variant's own."""
    common = {name: value for name, value in spec.items() if name != "variants"}
    own = spec.get("variants", {})
    check_known("variant", own, variants, where=f"{where}.resources")
    return {variant: Resources(**common | own.get(variant, {})) for variant in variants}


def _departures(
    entry: Mapping[str, Any], where: str, variants: Iterable[str], environments: Sequence[str]
) -> tuple[Departure, ...]:
    found = []
    for item in entry.get("departures", ()):
        chosen = [tuple(item.get(name, ())) for name in ("variants", "environments", "scales")]
        check_known("variant", chosen[0], variants, where=f"{where}.departures")
        if environments:
            check_known("environment", chosen[1], environments, where=f"{where}.departures")
        found.append(Departure(dict(item["set"]), " ".join(item["reason"].split()), *chosen))
    return tuple(found)


def _check_settings(departures: Iterable[Departure], accepts: Callable[[str], bool], allowed: str, where: str) -> None:
    """Raise UserError for the first setting whose key is not accepted; `allowed` says which are."""
    for key in (key for departure in departures for key in departure.settings):
        if not accepts(key):
            said = "(a scale never changes the algorithm); allowed:"
            raise UserError(f"{where}.departures: may not set '{key}' {said} {allowed}")


def with_settings(config: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys of `config`, in place, and return it."""
    for key, value in settings.items():
        *path, last = key.split(".")
        place = config
        for part in path:
            place[part] = dict(place.get(part) or {})
            place = place[part]
        place[last] = copy.deepcopy(value)
    return config
