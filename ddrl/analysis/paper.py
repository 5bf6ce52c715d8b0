"""`paper.yaml` of a replication (citation, claims, cells to compare, figures) and its DEVIATIONS.md. No pandas here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.analysis import TABLES
from ddrl.analysis.schema import load_checked
from ddrl.errors import UserError, unknown_name

FLAGS = (
    "proxy_env",
    "env_version_gap",
    "reduced_budget",
    "reduced_suite",
    "fewer_actors",
    "changed_hyperparameters",
    "published_best_of_k",
    "published_n_unknown",
    "digitised",
)
"""What may stand between a published cell and ours; some take an argument, such as reduced_budget(0.002)."""


@dataclass(frozen=True)
class Figure:
    """A figure wanted, and exactly the tables it is drawn from."""

    name: str
    caption: str
    alt: str
    tables: tuple[str, ...]
    experiments: tuple[str, ...]
    width: str
    """"full" (6.3 in) or "column" (4.2 in)."""


@dataclass(frozen=True)
class CellRule:
    """Published rows (those that equal `published` in every key) and the runs of ours they are compared with."""

    published: Mapping[str, str]
    experiment: str
    variant: str | None
    environment: str | None
    """Pattern such as atari/{task}; None where there is no run of ours on the paper's task."""
    metric: str | None
    environments: int | None
    """How many tasks a published aggregate is over."""
    env_version_gap: str | None
    paper_envs: int | None


@dataclass(frozen=True)
class Claim:
    """What the paper says, in our words, and the test that decides it on our runs."""

    name: str
    title: str
    text: str
    source: str
    kind: str
    experiment: str
    metric: str | None
    better: str | None
    worse: tuple[str, ...]
    variants: tuple[str, ...]
    environments: tuple[str, ...]
    """Empty: every environment that all variants have been run on."""
    threshold: float | None
    smallest_effect: float
    effect_unit: str


@dataclass(frozen=True)
class Evidence:
    """Margins and resampling, fixed before any run."""

    margin_of_range: float
    margin_human_normalised: float
    full_budget: float
    resamples: int
    bootstrap_seed: int


@dataclass(frozen=True)
class StatedValue:
    """A setting as the paper prints it; `name` is a dotted key of a run's configuration."""

    experiment: str
    name: str
    paper: float | str | bool | None
    source: str


@dataclass(frozen=True)
class ReferenceRule:
    """Where the random and human scores of the environments `prefix/{task}` stand."""

    environments: str
    file: str
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Paper:
    """Everything `paper.yaml` says."""

    key: str
    directory: Path
    citation: Mapping[str, Any]
    summary: str
    references: tuple[ReferenceRule, ...]
    evidence: Evidence
    milestones: Mapping[str, float]
    hyperparameters: tuple[StatedValue, ...]
    figures: tuple[Figure, ...]
    cells: tuple[CellRule, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Deviation:
    """One row of DEVIATIONS.md."""

    what: str
    paper: str
    ours: str
    reason: str
    flag: str
    """One of `FLAGS`, or empty where it stands in no cell's way."""


def load_paper(directory: Path) -> Paper:
    """Reads `directory/paper.yaml`. Raises `UserError` naming file, key and what is allowed."""
    path = directory / "paper.yaml"
    data = load_checked(path, "paper")
    if data["key"] != directory.name:
        raise UserError(f"{path}: key 'key' is '{data['key']}'; allowed: the folder's name, {directory.name}")
    evidence = data["evidence"]
    paper = Paper(
        key=data["key"],
        directory=directory,
        citation=data["citation"],
        summary=_line(data["summary"]),
        references=tuple(
            ReferenceRule(item["environments"], item["file"], tuple(item["variants"])) for item in data["references"]
        ),
        evidence=Evidence(
            margin_of_range=evidence["margin"]["of_random_to_published"],
            margin_human_normalised=evidence["margin"]["human_normalised"],
            full_budget=evidence["full_budget"],
            resamples=evidence["bootstrap"]["resamples"],
            bootstrap_seed=evidence["bootstrap"]["seed"],
        ),
        milestones=data.get("milestones", {}),
        hyperparameters=tuple(StatedValue(**item) for item in data["hyperparameters"]),
        figures=tuple(_figure(item, path) for item in data["figures"]),
        cells=tuple(_cell_rule(item) for item in data["cells"]),
        claims=tuple(_claim(item) for item in data["claims"]),
    )
    for kind, names in (("figure", [f.name for f in paper.figures]), ("claim", [c.name for c in paper.claims])):
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UserError(f"{path}: {kind} '{min(twice)}' is given twice")
    return paper


def _figure(item: Mapping[str, Any], path: Path) -> Figure:
    for table in item["tables"]:
        if table not in TABLES:
            raise unknown_name("table", table, TABLES, where=f"{path}: figures.{item['name']}")
    return Figure(
        name=item["name"],
        caption=_line(item["caption"]),
        alt=_line(item["alt"]),
        tables=tuple(item["tables"]),
        experiments=tuple(item["experiments"]),
        width=item["width"],
    )


def _cell_rule(item: Mapping[str, Any]) -> CellRule:
    keys = ("variant", "environment", "metric", "environments", "env_version_gap", "paper_envs")
    return CellRule(published=item["published"], experiment=item["experiment"], **{key: item.get(key) for key in keys})


def _claim(item: Mapping[str, Any]) -> Claim:
    test = item["test"]
    return Claim(
        name=item["name"],
        title=_line(item["title"]),
        text=_line(item["text"]),
        source=item["source"],
        kind=test["kind"],
        experiment=test["experiment"],
        metric=test.get("metric"),
        better=test.get("better"),
        worse=tuple(test.get("worse", ())),
        variants=tuple(test.get("variants", ())),
        environments=tuple(test.get("environments", ())),
        threshold=test.get("threshold"),
        smallest_effect=float(test.get("smallest_effect", 0.0)),
        effect_unit=test.get("effect_unit", ""),
    )


def load_deviations(directory: Path) -> tuple[Deviation, ...]:
    """The one table of DEVIATIONS.md: columns Deviation, Paper, Here, Why, Flag.

    Raises: UserError naming the file and line for a row of another width or an unknown flag.
    """
    path = directory / "DEVIATIONS.md"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line.startswith("|")]
    found = []
    for number, line in rows[2:]:
        fields = [field.strip().replace("`", "") for field in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if len(fields) != 5:
            raise UserError(f"{path}: line {number}: {len(fields)} columns; allowed: 5")
        if fields[4] and fields[4] not in FLAGS:
            raise unknown_name("flag", fields[4], FLAGS, where=f"{path}: line {number}")
        found.append(Deviation(*fields))
    if not found:
        raise UserError(f"{path}: has no table of deviations")
    return tuple(found)


def check_paper(directory: Path) -> None:
    """Raises `UserError` where paper.yaml, its names from experiments.yaml, published/ or DEVIATIONS.md are wrong."""
    from ddrl.analysis.experiments import load_experiments
    from ddrl.analysis.published import load_published, load_references, matching

    paper, experiments = load_paper(directory), load_experiments(directory)
    load_deviations(directory)
    path = directory / "paper.yaml"
    for claim in paper.claims:
        if claim.experiment in experiments:
            known = experiments[claim.experiment].variants
            for variant in (*([claim.better] if claim.better else []), *claim.worse, *claim.variants):
                if variant not in known:
                    raise unknown_name("variant", variant, known, where=f"{path}: claims.{claim.name}")
    published = load_published(directory)
    for rule in paper.cells:
        if rule.experiment in experiments and rule.variant not in experiments[rule.experiment].variants:
            raise unknown_name(
                "variant", rule.variant, experiments[rule.experiment].variants, where=f"{path}: cells.{rule.experiment}"
            )
        if matching(published, rule.published).empty:
            raise UserError(f"{path}: cells: no published row has {dict(rule.published)}")
    load_references(paper)


def _line(text: str) -> str:
    return " ".join(text.split())
