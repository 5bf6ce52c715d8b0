"""Reads `paper.yaml` of a replication (citation, claims, cells, figures) and its DEVIATIONS.md. No pandas here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ddrl.errors import UserError
from ddrl.papers.claim_kinds import check_test
from ddrl.papers.protocols import NOT_PRINTED, Protocol
from ddrl.papers.schema import check_known, load_checked
from ddrl.papers.table_names import TABLES
from ddrl.system.text_files import read_text

AnyRecord = TypeVar("AnyRecord")
FLAGS: Mapping[str, str] = {
    "proxy_env": "another task stands for the paper's",
    "env_version_gap": "another version of the environment, or the paper prints none and ours is of a later era",
    "reduced_budget": "fewer frames than the published number was trained for; the part of them",
    "larger_budget": "more frames than the published number was trained for; how many times as many",
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
"""Reasons why a published cell and ours do not compare; some take an argument, such as reduced_budget(0.002)."""


@dataclass(frozen=True)
class Figure:
    """A figure of the report."""

    name: str
    caption: str
    alt: str
    tables: tuple[str, ...]
    """All tables that the figure is drawn from."""
    experiments: tuple[str, ...]
    width: str
    """"full" (6.3 in) or "column" (4.2 in)."""


@dataclass(frozen=True)
class DerivedTable:
    """A table that the replication's own `tables.py` makes."""

    name: str
    title: str
    note: str
    tables: tuple[str, ...]
    """All tables that it is made from."""
    columns: Mapping[str, str]
    """Columns that the report prints, with their headings; the first one names the row."""


@dataclass(frozen=True)
class CellRule:
    """Published rows (those that equal `published` in every key) and the runs of ours they are compared with."""

    published: Mapping[str, str]
    experiment: str
    variant: str | None = None
    environment: str | None = None
    """Pattern such as atari/{task}; None if we have no run on the paper's task."""
    metric: str | None = None
    environments: int | None = None
    """Number of tasks that a published aggregate is over."""
    paper_envs: int | None = None
    """Number of environments that act at once in the paper, if it says so."""
    than: str | None = None
    """The variant that `variant` is compared with, if the published number compares two systems."""
    compared_as: str | None = None
    """"ratio", or "reduction" (in percent of what `than` has)."""


@dataclass(frozen=True)
class NotCompared:
    """Published rows that are not compared, and why."""

    published: Mapping[str, str]
    reason: str


@dataclass(frozen=True)
class Over:
    """The denominator of an interaction: the ratio of two other variants, or of the same variants on other tasks."""

    better: str | None = None
    worse: str | None = None
    environments: tuple[str, ...] = ()
    """Empty: the same as in the numerator, with other variants."""


@dataclass(frozen=True)
class Needs:
    """What runs must have to say anything about a claim."""

    gpu: bool = False
    """True if the paper measured the claim's times, speeds or costs with an accelerator."""
    cores: int | None = None
    tasks: int | None = None
    """Number of tasks that an aggregate is over."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper, in our words, and the test that decides it on our runs."""

    name: str
    title: str
    text: str
    source: str
    published: tuple[str, ...] = ()
    """Published cells that the claim's numbers come from."""
    kind: str
    experiment: str
    metric: str | None = None
    better: str | None = None
    worse: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    """Empty: every environment that all variants have been run on."""
    threshold: float | None = None
    settings: tuple[str, ...] = ()
    """Dotted configuration keys whose values together name a setting (stability)."""
    statistic: str | None = None
    """"area" or "near_best" (stability)."""
    than: str | None = None
    """The variant that `variants` are no worse than (no_worse)."""
    margin: float | None = None
    """Allowed loss: a fraction (no_worse, and of either side alike), or an amount (stability; None: nothing)."""
    within: float | None = None
    """The distance below the best that still counts as near it, in the metric's unit (near_best)."""
    smallest_effect: float = 0.0
    """The smallest effect that counts, fixed beforehand: of a score, and of returns on one task, a number in their
    unit; of returns on several tasks, and of what has another unit, a share of the task's scale; of ratios and shares
    the part by which one is smaller. 0: a margin or a threshold says it."""
    effect_unit: str = ""
    factor: float = 1.0
    """The number of times as early that `better` reaches the return (time_to_reach)."""
    over: Over | None = None
    """The other ratio (interaction)."""
    configurations: tuple[tuple[str, str], ...] = ()
    """Pairs of variants, each the two sides of one configuration (up_to)."""
    needs: Needs = Needs()
    reference_part: float | None = None
    """The place of the return to reach, on a task without milestone: 0 is random play, 1 the reference score."""
    threshold_from: str = ""
    """Source of a threshold that the paper does not print (at_least)."""
    part: float | None = None
    """The part of env_frames after which `share_of_final_return` is looked at (at_least)."""

    @property
    def named_variants(self) -> tuple[str, ...]:
        """Every variant that the test names."""
        others = (self.over.better, self.over.worse) if self.over else ()
        named = (*filter(None, (self.better, self.than)), *self.worse, *self.variants, *filter(None, others))
        return (*named, *(variant for pair in self.configurations for variant in pair))

    @property
    def named_environments(self) -> tuple[str, ...]:
        """Every environment that the test names; empty: all that its variants have been run on."""
        return (*self.environments, *(self.over.environments if self.over else ()))


@dataclass(frozen=True)
class EvidenceRules:
    """Margins and bootstrap settings, fixed before any run."""

    margin_of_range: float
    margin_human_normalised: float
    full_budget: float
    resamples: int
    bootstrap_seed: int


@dataclass(frozen=True)
class Prices:
    """Prices in dollars: of an hour that a core works, and of an hour of an accelerator."""

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
    """The variant that it belongs to; None: every variant of the experiment."""


@dataclass(frozen=True)
class ReferenceRule:
    """The file with the random and human scores of the environments `prefix/{task}`."""

    environments: str
    file: str
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Paper:
    """The content of `paper.yaml`."""

    key: str
    directory: Path
    citation: Mapping[str, Any]
    summary: str
    references: tuple[ReferenceRule, ...]
    evidence: EvidenceRules
    prices: Prices | None
    milestones: Mapping[str, float]
    hyperparameters: tuple[StatedValue, ...]
    derived: tuple[DerivedTable, ...]
    figures: tuple[Figure, ...]
    protocols: Mapping[str, Protocol]
    cells: tuple[CellRule, ...]
    not_compared: tuple[NotCompared, ...]
    not_read: tuple[Mapping[str, str], ...]
    """Printed results that could not be read: `item`, and `what` it shows."""
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Deviation:
    """One row of DEVIATIONS.md."""

    what: str
    paper: str
    ours: str
    reason: str
    flag: str
    """One of `FLAGS`, or empty if the deviation affects no cell."""


def load_paper(directory: Path) -> Paper:
    """Read `directory/paper.yaml`. Raise `UserError` naming file, key and what is allowed."""
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
        references=_records(ReferenceRule, data["references"]),
        evidence=EvidenceRules(
            margin_of_range=evidence["margin"]["of_random_to_published"],
            margin_human_normalised=evidence["margin"]["human_normalised"],
            full_budget=evidence["full_budget"],
            resamples=evidence["bootstrap"]["resamples"],
            bootstrap_seed=evidence["bootstrap"]["seed"],
        ),
        prices=_record(Prices, data["prices"]) if "prices" in data else None,
        milestones=data.get("milestones", {}),
        hyperparameters=_records(StatedValue, data["hyperparameters"]),
        derived=_records(DerivedTable, data.get("derived_tables", ())),
        figures=_records(Figure, data["figures"]),
        protocols={name: _protocol(name, item, path) for name, item in data["protocols"].items()},
        cells=_records(CellRule, data["cells"]),
        not_compared=_records(NotCompared, data["not_compared"]),
        not_read=_records(dict, data.get("not_read", ())),
        claims=tuple(_claim(item, path) for item in data["claims"]),
    )
    _check_names(paper, path)
    return paper


def _check_names(paper: Paper, path: Path) -> None:
    """Raise `UserError` for an unknown table, and for a figure, claim or derived table whose name is taken."""
    for table in paper.derived:
        where = f"{path}: derived_tables.{table.name}"
        if table.name in TABLES:
            raise UserError(f"{where}: key 'name' is that of a table of every paper; allowed: any other")
        check_known("table", table.tables, TABLES, where=where)
    known = (*TABLES, *(table.name for table in paper.derived))
    for figure in paper.figures:
        check_known("table", figure.tables, known, where=f"{path}: figures.{figure.name}")
    named = {
        "figure": [figure.name for figure in paper.figures],
        "claim": [claim.name for claim in paper.claims],
        "derived table": [table.name for table in paper.derived],
    }
    for kind, names in named.items():
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UserError(f"{path}: {kind} '{min(twice)}' is given twice")


def _record(cls: Callable[..., AnyRecord], item: Mapping[str, Any], **others: Any) -> AnyRecord:
    """Return a dataclass from plain data and its `others` fields: lists become tuples, texts become one line."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
    return cls(**{key: _line(value) if isinstance(value, str) else value for key, value in values.items()} | others)


def _records(cls: Callable[..., AnyRecord], items: Iterable[Mapping[str, Any]]) -> tuple[AnyRecord, ...]:
    return tuple(_record(cls, item) for item in items)


def _protocol(name: str, item: Mapping[str, Any], path: Path) -> Protocol:
    version = None if item["version"] == NOT_PRINTED else item["version"]
    if version is None and "reason" not in item:
        raise UserError(f"{path}: protocols.{name}: key 'reason' is missing; a version that is not printed needs one")
    if version is not None and "era_before" in item:
        raise UserError(f"{path}: protocols.{name}: key 'era_before' is only for a version that is not printed")
    parts = {part: None if value == NOT_PRINTED else value for part, value in item["parts"].items()}
    return _record(Protocol, item, name=name, version=version, parts=parts)


def _claim(item: Mapping[str, Any], path: Path) -> Claim:
    test = item["test"]
    check_test(test, f"{path}: claims.{item['name']}.test")
    parts = {
        "over": _record(Over, test["over"]) if "over" in test else None,
        "needs": Needs(**test.get("needs", {})),
        "configurations": tuple((first, second) for first, second in test.get("configurations", ())),
    }
    return _record(Claim, {key: value for key, value in item.items() if key != "test"} | test, **parts)


def load_deviations(directory: Path) -> tuple[Deviation, ...]:
    """Read the table of DEVIATIONS.md. Raise UserError naming the line for a row of another width or flag."""
    path = directory / "DEVIATIONS.md"
    lines = read_text(path).splitlines()
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line.startswith("|")]
    found = []
    for number, line in rows[2:]:
        fields = [field.strip().replace("`", "") for field in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if len(fields) != 5:
            raise UserError(f"{path}: line {number}: {len(fields)} columns; allowed: 5")
        check_known("flag", filter(None, fields[4:]), FLAGS, where=f"{path}: line {number}")
        found.append(Deviation(*fields))
    if not found:
        raise UserError(f"{path}: has no table of deviations")
    return tuple(found)


def _line(text: str) -> str:
    return " ".join(text.split())
