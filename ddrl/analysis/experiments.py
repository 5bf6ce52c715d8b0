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

from ddrl.analysis.schema import load_checked
from ddrl.errors import UserError, unknown_name

SCALES = ("smoke", "workstation", "paper")
ROOT = Path("replications")

SCALE_KEYS = (
    "env_frames",
    "evaluation",
    "recording",
    "checkpoint",
    "device",
    "precision",
    "topology.env_threads",
    "topology.learner_threads",
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
    seeds: tuple[int, ...]
    reason: str
    departures: tuple[Departure, ...]
    resources: Mapping[str, Resources]
    """Of a run of each variant."""


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

    def paper_setting(self, variant: str, environment: str) -> dict[str, Any]:
        """The configuration the paper states, without seed."""
        base = copy.deepcopy(dict(self.bases[variant]))
        return _with(base, {"environment.name": environment, **self.variants[variant]})


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
    departures = _departures(spec, where, variants, spec["environments"])
    allowed = PAPER_SCALE_KEYS if scale == "paper" else SCALE_KEYS
    for departure in departures:
        _refuse(departure.settings, lambda key: _covered(key, allowed), where, "departures", ", ".join(allowed))
    for variant in spec.get("variants", ()):
        if variant not in variants:
            raise unknown_name("variant", variant, variants, where=where)
    return Scale(
        variants=tuple(spec.get("variants", ())),
        environments=tuple(spec["environments"]),
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


def expand(
    paper: str,
    scale: str,
    *,
    experiments: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    environments: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    root: Path = ROOT,
) -> list[Run]:
    """The runs of one paper at one scale, in a fixed order; the lists narrow them (`seeds` may also add).

    Raises: UserError for anything not allowed, before anything has run.
    """
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    if paper not in papers(root):
        raise unknown_name("paper", paper, papers(root))
    loaded = load_experiments(root / paper)
    _check_filter("experiment", experiments, loaded)
    chosen = [entry for name, entry in loaded.items() if not experiments or name in experiments]
    _check_filter("variant", variants, [name for entry in chosen for name in entry.variants])
    _check_filter("environment", environments, [name for entry in chosen for name in environments_of(entry)])
    _check_seeds(seeds)
    runs = [
        _run(paper, scale, entry, variant, environment, seed)
        for entry in chosen
        for variant in variants_of(entry, scale, variants)
        for environment in environments_of(entry, scale, environments)
        for seed in (entry.scales[scale].seeds if seeds is None else seeds)
    ]
    if not runs:
        chosen_lists = f"experiments={experiments}, variants={variants}, environments={environments}"
        raise UserError(f"{paper}, scale {scale}: no run is left by {chosen_lists}")
    return runs


def narrowed(
    names: Iterable[str],
    *,
    experiments: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    environments: Sequence[str] | None = None,
    root: Path = ROOT,
) -> dict[str, dict[str, list[str] | None]]:
    """What the lists leave of each of several papers, as filters for `expand`: of each list what the paper knows.

    A paper that knows none of a list is left out. Raises: UserError for a name that no paper knows, and where no paper
    is left.
    """
    wanted = {"experiments": experiments, "variants": variants, "environments": environments}
    known = {paper: _names(load_experiments(root / paper)) for paper in names}
    for kind, values in wanted.items():
        _check_filter(kind.removesuffix("s"), values, [name for own in known.values() for name in own[kind]])
    found = {}
    for paper, own in known.items():
        filters = {
            kind: None if values is None else [name for name in values if name in own[kind]]
            for kind, values in wanted.items()
        }
        if [] not in filters.values():
            found[paper] = filters
    if not found:
        given = ", ".join(f"{kind}={list(values)}" for kind, values in wanted.items() if values)
        raise UserError(f"no paper is left by {given}")
    return found


def _names(loaded: Mapping[str, Experiment]) -> dict[str, list[str]]:
    return {
        "experiments": list(loaded),
        "variants": [name for entry in loaded.values() for name in entry.variants],
        "environments": [name for entry in loaded.values() for name in environments_of(entry)],
    }


def variants_of(entry: Experiment, scale: str, wanted: Sequence[str] | None = None) -> list[str]:
    """Those of a scale; with `wanted`, those of the experiment that are wanted."""
    chosen = wanted or entry.scales[scale].variants
    return [name for name in entry.variants if not chosen or name in chosen]


def environments_of(entry: Experiment, scale: str | None = None, wanted: Sequence[str] | None = None) -> list[str]:
    """Those of a scale; with `wanted`, those of any scale that are wanted."""
    if scale is not None and not wanted:
        return list(entry.scales[scale].environments)
    every = dict.fromkeys(name for spec in entry.scales.values() for name in spec.environments)
    return [name for name in every if not wanted or name in wanted]


def _check_filter(kind: str, wanted: Sequence[str] | None, allowed: Iterable[str]) -> None:
    if wanted is None:
        return
    if isinstance(wanted, str) or not all(isinstance(name, str) for name in wanted) or not wanted:
        raise UserError(f"key '{kind}s': must be a list of names (got {wanted!r})")
    names = list(dict.fromkeys(allowed))
    for name in wanted:
        if name not in names:
            raise unknown_name(kind, name, names)


def _check_seeds(seeds: Any) -> None:
    if seeds is None:
        return
    valid = isinstance(seeds, Sequence) and not isinstance(seeds, str) and len(seeds) > 0
    if not valid or not all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UserError(f"key 'seeds': must be a list of different integers from 0 to 2147483647 (got {seeds!r})")


def _run(paper: str, scale: str, entry: Experiment, variant: str, environment: str, seed: int) -> Run:
    spec = entry.scales[scale]
    departures = tuple(d for d in (*entry.departures, *spec.departures) if d.applies(variant, environment, scale))
    config = entry.paper_setting(variant, environment) | {"seed": seed}
    for departure in departures:
        config = _with(config, departure.settings)
    resources = spec.resources[variant]
    if resources.nodes > 1 and config.get("topology", {}).get("runtime") != "ray":
        raise UserError(
            f"replications/{paper}/experiments.yaml: experiments.{entry.name}.scales.{scale}.resources: {variant} has "
            f"nodes: {resources.nodes}; allowed for runs whose topology.runtime is not ray: 1"
        )
    return Run(
        paper=paper,
        scale=scale,
        experiment=entry.name,
        variant=variant,
        environment=environment,
        seed=seed,
        config=config,
        departures=departures,
        resources=resources,
    )


def _with(config: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with dotted keys set, in place."""
    for key, value in settings.items():
        *path, last = key.split(".")
        place = config
        for part in path:
            place[part] = dict(place.get(part) or {})
            place = place[part]
        place[last] = copy.deepcopy(value)
    return config
