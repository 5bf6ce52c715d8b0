"""`paper.yaml` of a replication (citation, claims, cells to compare, figures) and its DEVIATIONS.md. No pandas here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.papers.claim_kinds import check_test
from ddrl.papers.protocols import NOT_PRINTED, Protocol
from ddrl.papers.schema import load_checked
from ddrl.papers.table_names import TABLES
from ddrl.system.text_files import read_text

FLAGS: Mapping[str, str] = {
    "proxy_env": "another task stands for the paper's",
    "env_version_gap": "another version of the environment, or the paper prints none and ours is of a later era",
    "reduced_budget": "fewer frames than the published number was trained for; the part of them",
    "other_hardware": "a speed or a cost, and ours was measured on hardware of another kind",
    "wall_clock_budget": "the published number is what hours on other hardware gave, and no number of frames is stated",
    "reduced_suite": "fewer tasks than the published aggregate is over",
    "fewer_actors": "fewer environments acting at once than the paper states",
    "changed_protocol": "the task is played by other rules: the parts of the protocol that differ",
    "changed_hyperparameters": "the settings that differ from the paper's",
    "published_best_of_k": "the published number is the best of a sweep or a population",
    "published_n_unknown": "the paper does not say how many seeds the number is over",
    "digitised": "the published number was read off a plot",
}
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
class DerivedTable:
    """A table that the replication's own `tables.py` makes, and exactly the tables it is made from."""

    name: str
    title: str
    note: str
    tables: tuple[str, ...]
    columns: Mapping[str, str]
    """Those that the report prints, with their headings; a row's first printed column heads it."""


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
    paper_envs: int | None
    """Environments that act at once in the paper, where it says so."""
    than: str | None = None
    """The variant that `variant` is held against, where the published number compares two systems."""
    compared_as: str | None = None
    """ratio, or reduction: in percent of what `than` has."""


@dataclass(frozen=True)
class NotCompared:
    """Published rows that no rule names, and why."""

    published: Mapping[str, str]
    reason: str


@dataclass(frozen=True)
class Over:
    """What stands below the line of an interaction: the ratio of two other variants, or the same on other tasks."""

    better: str | None
    worse: str | None
    environments: tuple[str, ...]
    """Empty: the same as above the line, with other variants."""


@dataclass(frozen=True)
class Claim:
    """What the paper says, in our words, and the test that decides it on our runs."""

    name: str
    title: str
    text: str
    source: str
    stated: str
    """When the test was written (ISO 8601, UTC); empty: before any run."""
    published: tuple[str, ...]
    """Cells of the published tables that the claim's numbers stand in."""
    kind: str
    experiment: str
    metric: str | None
    better: str | None
    worse: tuple[str, ...]
    variants: tuple[str, ...]
    environments: tuple[str, ...]
    """Empty: every environment that all variants have been run on."""
    threshold: float | None
    tasks: int | None
    """How many tasks a number is an aggregate over (at_least)."""
    settings: tuple[str, ...]
    """Dotted keys of a configuration whose values together name a setting (stability)."""
    statistic: str | None
    """area | near_best (stability)."""
    than: str | None
    """The variant that `variants` are no worse than (no_worse)."""
    margin: float | None
    """What may be lost: the part of its value (no_worse), or so much of the metric (stability; None: nothing)."""
    within: float | None
    """How far below the best still counts as near it, in the metric's unit (near_best)."""
    smallest_effect: float
    effect_unit: str
    factor: float = 1.0
    """How many times as early `better` gets there (time_to_reach)."""
    over: Over | None = None
    """The other ratio (interaction)."""
    gpu: bool = False
    """Whether it is about a GPU, so that machines without one decide nothing."""
    reference_part: float | None = None
    """Where on the way from random play (0) to the reference score (1) the return to reach is, of a task that has no
    milestone (time_to_reach)."""
    threshold_from: str = ""
    """Where a threshold is from that the paper does not print (at_least)."""

    @property
    def named_variants(self) -> tuple[str, ...]:
        """Every variant that the test names."""
        others = (self.over.better, self.over.worse) if self.over else ()
        return (*filter(None, (self.better, self.than)), *self.worse, *self.variants, *filter(None, others))

    @property
    def named_environments(self) -> tuple[str, ...]:
        """Every environment that the test names; empty: all that its variants have been run on."""
        return (*self.environments, *(self.over.environments if self.over else ()))


@dataclass(frozen=True)
class Evidence:
    """Margins and resampling, fixed before any run."""

    margin_of_range: float
    margin_human_normalised: float
    full_budget: float
    resamples: int
    bootstrap_seed: int


@dataclass(frozen=True)
class Prices:
    """What computing costs: in dollars for an hour that a core works, and for an hour of an accelerator."""

    cpu_core_hour: float
    accelerator_hour: float
    source: str


@dataclass(frozen=True)
class StatedValue:
    """A setting as the paper prints it; `name` is a dotted key of a run's configuration."""

    experiment: str
    name: str
    paper: float | str | bool | None
    source: str
    variant: str | None = None
    """The one it is of; None: every variant of the experiment."""


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
    prices: Prices | None
    milestones: Mapping[str, float]
    hyperparameters: tuple[StatedValue, ...]
    derived: tuple[DerivedTable, ...]
    figures: tuple[Figure, ...]
    protocols: Mapping[str, Protocol]
    cells: tuple[CellRule, ...]
    not_compared: tuple[NotCompared, ...]
    not_read: tuple[tuple[str, str], ...]
    """What the paper prints and could not be read: item, and what it shows."""
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
    evidence, derived = data["evidence"], tuple(_derived(item, path) for item in data.get("derived_tables", ()))
    known = (*TABLES, *(table.name for table in derived))
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
        prices=_prices(data.get("prices")),
        milestones=data.get("milestones", {}),
        hyperparameters=tuple(StatedValue(**item) for item in data["hyperparameters"]),
        derived=derived,
        figures=tuple(_figure(item, path, known) for item in data["figures"]),
        protocols={name: _protocol(name, item, path) for name, item in data["protocols"].items()},
        cells=tuple(_cell_rule(item) for item in data["cells"]),
        not_compared=tuple(NotCompared(item["published"], _line(item["reason"])) for item in data["not_compared"]),
        not_read=tuple((item["item"], _line(item["what"])) for item in data.get("not_read", ())),
        claims=tuple(_claim(item, path) for item in data["claims"]),
    )
    named = {
        "figure": [figure.name for figure in paper.figures],
        "claim": [claim.name for claim in paper.claims],
        "derived table": [table.name for table in derived],
    }
    for kind, names in named.items():
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UserError(f"{path}: {kind} '{min(twice)}' is given twice")
    return paper


def _prices(item: Mapping[str, Any] | None) -> Prices | None:
    return None if item is None else Prices(item["cpu_core_hour"], item["accelerator_hour"], _line(item["source"]))


def _derived(item: Mapping[str, Any], path: Path) -> DerivedTable:
    where = f"{path}: derived_tables.{item['name']}"
    if item["name"] in TABLES:
        raise UserError(f"{where}: key 'name' is that of a table of every paper; allowed: any other")
    for table in item["tables"]:
        if table not in TABLES:
            raise unknown_name("table", table, TABLES, where=where)
    return DerivedTable(item["name"], item["title"], _line(item["note"]), tuple(item["tables"]), item["columns"])


def _figure(item: Mapping[str, Any], path: Path, known: Sequence[str]) -> Figure:
    for table in item["tables"]:
        if table not in known:
            raise unknown_name("table", table, known, where=f"{path}: figures.{item['name']}")
    return Figure(
        name=item["name"],
        caption=_line(item["caption"]),
        alt=_line(item["alt"]),
        tables=tuple(item["tables"]),
        experiments=tuple(item["experiments"]),
        width=item["width"],
    )


def _protocol(name: str, item: Mapping[str, Any], path: Path) -> Protocol:
    version = None if item["version"] == NOT_PRINTED else item["version"]
    if version is None and "reason" not in item:
        raise UserError(f"{path}: protocols.{name}: key 'reason' is missing; a version that is not printed needs one")
    if version is not None and "era_before" in item:
        raise UserError(f"{path}: protocols.{name}: key 'era_before' is only for a version that is not printed")
    return Protocol(
        name=name,
        environment=item["environment"],
        version=version,
        task_version=item.get("task_version"),
        era_before=item.get("era_before"),
        other_versions=item.get("other_versions", "comparable"),
        reason=_line(item.get("reason", "")),
        parts={part: None if value == NOT_PRINTED else value for part, value in item["parts"].items()},
        source=item["source"],
    )


def _cell_rule(item: Mapping[str, Any]) -> CellRule:
    keys = ("variant", "environment", "metric", "environments", "paper_envs", "than", "compared_as")
    return CellRule(published=item["published"], experiment=item["experiment"], **{key: item.get(key) for key in keys})


def _claim(item: Mapping[str, Any], path: Path) -> Claim:
    test = item["test"]
    check_test(test, f"{path}: claims.{item['name']}.test")
    return Claim(
        name=item["name"],
        title=_line(item["title"]),
        text=_line(item["text"]),
        source=item["source"],
        stated=item.get("stated", ""),
        published=tuple(item.get("published", ())),
        kind=test["kind"],
        experiment=test["experiment"],
        metric=test.get("metric"),
        better=test.get("better"),
        worse=tuple(test.get("worse", ())),
        variants=tuple(test.get("variants", ())),
        environments=tuple(test.get("environments", ())),
        threshold=test.get("threshold"),
        tasks=test.get("tasks"),
        settings=tuple(test.get("settings", ())),
        statistic=test.get("statistic"),
        than=test.get("than"),
        margin=test.get("margin"),
        within=test.get("within"),
        smallest_effect=float(test.get("smallest_effect", 0.0)),
        effect_unit=test.get("effect_unit", ""),
        factor=float(test.get("factor", 1.0)),
        over=_over(test.get("over")),
        gpu=bool(test.get("gpu", False)),
        reference_part=test.get("reference_part"),
        threshold_from=_line(test.get("threshold_from", "")),
    )


def _over(item: Mapping[str, Any] | None) -> Over | None:
    return None if item is None else Over(item.get("better"), item.get("worse"), tuple(item.get("environments", ())))


def load_deviations(directory: Path) -> tuple[Deviation, ...]:
    """The one table of DEVIATIONS.md: columns Deviation, Paper, Here, Why, Flag.

    Raises: UserError naming the file and line for a row of another width or an unknown flag.
    """
    path = directory / "DEVIATIONS.md"
    lines = read_text(path).splitlines()
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


def _line(text: str) -> str:
    return " ".join(text.split())
