"""Compares the environment protocol that a run records with the one that a paper states.

A run's manifest names its environment by a protocol id: `<environment>-<version>/<task>;<part>;<part>,<part>;...`, for
example `ale-0.12.1/pong;skip4,max2,gray84x84,stack4;noop1-30;sticky0;minimal-actions;life-loss-terminal;cap108k`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NOT_PRINTED = "not printed"
"""Stands in paper.yaml for what the paper does not state."""


@dataclass(frozen=True)
class ProtocolId:
    """The parts of a run's protocol id; `version` and `task` are empty if it has none."""

    environment: str
    version: str
    task: str
    parts: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A paper's statement about the environment behind a group of its numbers (key `protocols` of paper.yaml)."""

    name: str
    """The value of the published column `protocol`."""
    environment: str
    """The environment's name in a protocol id: ale, dmlab, mujoco ..."""
    version: str | None
    """None: not printed."""
    task_version: str | None = None
    """Version in the task's name, such as v2 in HalfCheetah-v2; None: tasks have none, or it is not printed."""
    era_before: str | None = None
    """If `version` is not printed: the first version of a later era; None if unknown."""
    other_versions: str = "comparable"
    """"comparable" (another version only flags a cell) or "never" (it leaves the cell without a verdict)."""
    reason: str = ""
    parts: Mapping[str, str | None]
    """Part of a protocol id by its name (the environment's option where there is one); None: not printed."""
    source: str


def parse_protocol(text: str) -> ProtocolId:
    """Split a protocol id into its parts. Never fail: old runs may hold any text."""
    head, *parts = text.split(";")
    name, _, task = head.partition("/")
    environment, dash, version = name.rpartition("-")
    if not dash:
        environment, version = name, ""
    return ProtocolId(environment, version, task, frozenset(token for part in parts for token in part.split(",")))


def version_gap(ours: ProtocolId, paper: Protocol) -> str:
    """Return how our environment's version differs from the paper's; empty if it does not.

    A version that the paper does not print counts as different, unless ours is known to be of the paper's era.
    """
    own_version = re.search(r"-(v\d+)$", ours.task)
    if paper.task_version is not None and own_version is not None and own_version[1] != paper.task_version:
        return f"{ours.task} for {paper.task_version}"
    mine = f"{ours.environment}-{ours.version}"
    if paper.version is not None:
        return "" if ours.version == paper.version else f"{mine} for {paper.environment}-{paper.version}"
    same_era = paper.era_before is not None and _numbers(ours.version) < _numbers(paper.era_before)
    return "" if same_era else f"{mine} for a version {NOT_PRINTED}"


def changed_parts(ours: ProtocolId, paper: Protocol) -> list[str]:
    """Return the sorted names of the stated parts that are not in our protocol id."""
    return sorted(name for name, part in paper.parts.items() if part is not None and part not in ours.parts)


def spelled(paper: Protocol) -> str:
    """Return the paper's protocol in the form of a protocol id, with the reason given for an unprinted version."""
    version = paper.version or f"version {NOT_PRINTED}"
    parts = [part if part is not None else f"{name} {NOT_PRINTED}" for name, part in paper.parts.items()]
    reason = f" ({paper.reason})" if paper.reason else ""
    return ";".join([f"{paper.environment} {version}{reason}", *parts])


def spelled_ours(texts: Iterable[str]) -> str:
    """Return the protocol ids of a cell's runs; ids that differ only in their task are given once, without it."""
    ids = sorted(set(texts))
    if len(ids) > 1:
        ids = sorted({re.sub(r"^([^/;]*)/[^;]*", r"\1", text) for text in ids})
    return " | ".join(ids)


def _numbers(version: str) -> tuple[int, ...]:
    """Return 0.12.1 as (0, 12, 1); a version without a number comes after every version with one."""
    found = tuple(int(number) for number in re.findall(r"\d+", version))
    return found or (2**31,)
