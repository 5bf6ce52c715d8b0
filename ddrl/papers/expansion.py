"""Lists the runs of a scale: every variant of every experiment on every task with every seed. No pandas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.papers.experiments import (
    ROOT,
    SCALES,
    Experiment,
    PlannedRun,
    Roots,
    folder_of,
    load_experiments,
    with_settings,
)
from ddrl.papers.schema import check_known

FINAL_VERSIONS = 10
"""Number of parameter versions that share a run's final episodes at scales between smoke and paper.

An experiment may give another number, or play a single episode. One version gives a chance result if the greedy policy
changes from update to update (DECISIONS 50). At scale paper a run is scored as its paper says; scale smoke decides
nothing.
"""


def expand(
    paper: str,
    scale: str,
    *,
    experiments: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    environments: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    root: Roots = ROOT,
) -> list[PlannedRun]:
    """Return the runs of one paper at one scale, in a fixed order; the lists narrow them (`seeds` may also add).

    Raise UserError for anything not allowed, before anything has run.
    """
    check_known("scale", [scale], SCALES)
    folder = folder_of(paper, root)
    loaded = load_experiments(folder)
    _check_filter("experiment", experiments, loaded)
    chosen = [entry for name, entry in loaded.items() if not experiments or name in experiments]
    known = _names(chosen)
    _check_filter("variant", variants, known["variants"])
    _check_filter("environment", environments, known["environments"])
    _check_seeds(seeds)
    runs = [
        run
        for entry in chosen
        for variant in entry.variants
        if variant in (variants or entry.scales[scale].variants or entry.variants)
        for scope in [entry if environments else entry.scales[scale]]
        for environment in scope.every_environment
        if scope.has(variant, environment) and (not environments or environment in environments)
        for run in _runs(folder, scale, entry, variant, environment, seeds)
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
    asked: Collection[str] = (),
    root: Roots = ROOT,
) -> dict[str, dict[str, list[str] | None]]:
    """Return for each of several papers the part of the lists that it knows, as filters for `expand`.

    Leave out a paper that knows none of a list. Raise UserError for a name that no paper knows, with the names of the
    papers among the words `asked`, and if no paper is left.
    """
    wanted = {"experiments": experiments, "variants": variants, "environments": environments}
    known = {paper: _names(load_experiments(folder_of(paper, root)).values()) for paper in names}
    among = [own for paper, own in known.items() if paper in asked] or list(known.values())
    for kind, values in wanted.items():
        allowed, shown = ({name for own in papers for name in own[kind]} for papers in (known.values(), among))
        _check_filter(kind.removesuffix("s"), values, allowed, shown)
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


def _names(entries: Collection[Experiment]) -> dict[str, list[str]]:
    return {
        "experiments": [entry.name for entry in entries],
        "variants": [name for entry in entries for name in entry.variants],
        "environments": [name for entry in entries for name in entry.every_environment],
    }


def _check_filter(
    kind: str, wanted: Sequence[str] | None, allowed: Collection[str], shown: Collection[str] | None = None
) -> None:
    """Raise UserError unless `wanted` is None or a list of `allowed` names; the error lists those that are `shown`."""
    if wanted is None:
        return
    if isinstance(wanted, str) or not all(isinstance(name, str) for name in wanted) or not wanted:
        raise UserError(f"key '{kind}s': must be a list of names (got {wanted!r})")
    check_known(kind, [name for name in wanted if name not in allowed], set(shown or allowed))


def _check_seeds(seeds: Any) -> None:
    if seeds is None:
        return
    valid = isinstance(seeds, Sequence) and not isinstance(seeds, str) and len(seeds) > 0
    if not valid or not all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UserError(f"key 'seeds': must be a list of different integers from 0 to 2147483647 (got {seeds!r})")


def _runs(
    folder: Path, scale: str, entry: Experiment, variant: str, environment: str, seeds: Sequence[int] | None
) -> Iterator[PlannedRun]:
    """Yield the run of each seed, by default of those of the scale; their configurations differ in the seed alone."""
    spec = entry.scales[scale]
    departures = tuple(d for d in (*entry.departures, *spec.departures) if d.applies(variant, environment, scale))
    config = entry.paper_setting(variant, environment)
    for departure in departures:
        config = with_settings(config, departure.settings)
    if scale not in ("smoke", "paper"):
        evaluation = config.get("evaluation", {})
        versions = min(FINAL_VERSIONS, evaluation.get("final_episodes", FINAL_VERSIONS))
        if versions != 1 and "final_versions" not in evaluation:
            config = with_settings(config, {"evaluation.final_versions": versions})
    resources = spec.resources[variant]
    if resources.nodes > 1 and config.get("topology", {}).get("runtime") != "ray":
        raise UserError(
            f"{folder / 'experiments.yaml'}: experiments.{entry.name}.scales.{scale}.resources: {variant} has "
            f"nodes: {resources.nodes}; allowed for runs whose topology.runtime is not ray: 1"
        )
    for seed in spec.seeds if seeds is None else seeds:
        own = config | {"seed": seed}
        yield PlannedRun(folder.name, scale, entry.name, variant, environment, seed, own, departures, resources)
