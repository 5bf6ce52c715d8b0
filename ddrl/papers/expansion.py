"""The runs of a scale: every variant of every experiment on every task with every seed, or part of them. No pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import (
    ROOT,
    SCALES,
    Experiment,
    Run,
    load_experiments,
    papers,
    with_settings,
)

FINAL_VERSIONS = 10
"""How many versions of the parameters share a run's final episodes between scales smoke and paper, in every experiment.

One version is a lottery where the greedy policy changes from update to update (DECISIONS 50). At scale paper a run is
scored as its paper says; scale smoke, which decides nothing, has no time for versions that play one after another.
"""


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
        if (entry if environments else entry.scales[scale]).has(variant, environment)
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
        return list(entry.scales[scale].every_environment)
    every = dict.fromkeys(name for spec in entry.scales.values() for name in spec.every_environment)
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


def _scored_over_versions(config: dict[str, Any]) -> dict[str, Any]:
    """Spread the final episodes over `FINAL_VERSIONS`, unless the experiment says over how many, or plays but one."""
    evaluation = config.get("evaluation", {})
    versions = min(FINAL_VERSIONS, evaluation.get("final_episodes", FINAL_VERSIONS))
    if versions == 1 or "final_versions" in evaluation:
        return config
    return with_settings(config, {"evaluation.final_versions": versions})


def _run(paper: str, scale: str, entry: Experiment, variant: str, environment: str, seed: int) -> Run:
    spec = entry.scales[scale]
    departures = tuple(d for d in (*entry.departures, *spec.departures) if d.applies(variant, environment, scale))
    config = entry.paper_setting(variant, environment) | {"seed": seed}
    for departure in departures:
        config = with_settings(config, departure.settings)
    if scale not in ("smoke", "paper"):
        config = _scored_over_versions(config)
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
