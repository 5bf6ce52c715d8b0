"""What an environment was, as a run records it, beside what a paper states about its own.

A run's manifest names its environment by a protocol id: `<environment>-<version>/<task>;<part>;<part>,<part>;...`, for
example `ale-0.12.1/pong;skip4,max2,gray84x84,stack4;noop1-30;sticky0;minimal-actions;life-loss-terminal;cap108k`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NOT_PRINTED = "not printed"
"""How paper.yaml says that the paper does not state something."""


@dataclass(frozen=True)
class ProtocolId:
    """A run's protocol id, taken apart; `version` and `task` are empty where it has none."""

    environment: str
    version: str
    task: str
    parts: frozenset[str]


@dataclass(frozen=True)
class Protocol:
    """What a paper states about the environment behind a group of its numbers (key `protocols` of paper.yaml)."""

    name: str
    """The value of the published column `protocol`."""
    environment: str
    """The environment's name in a protocol id: ale, dmlab, mujoco ..."""
    version: str | None
    """None: not printed."""
    task_version: str | None
    """Version in the task's name, such as v2 for HalfCheetah-v2; None: tasks have none, or it is not printed."""
    era_before: str | None
    """Of an unprinted version: the first version that is of a later era; None where that is not known."""
    other_versions: str
    """"comparable" (other versions flag a cell) or "never" (they leave it without a verdict)."""
    reason: str
    parts: Mapping[str, str | None]
    """Part of a protocol id by its name, which is the environment's option where it has one; None: not printed."""
    source: str


def parse_protocol(text: str) -> ProtocolId:
    """Takes a protocol id apart; never fails, since old runs may hold anything."""
    head, *parts = text.split(";")
    name, _, task = head.partition("/")
    environment, dash, version = name.rpartition("-")
    if not dash:
        environment, version = name, ""
    return ProtocolId(environment, version, task, frozenset(token for part in parts for token in part.split(",")))


def version_gap(ours: ProtocolId, paper: Protocol) -> str:
    """How our environment's version differs from the paper's; empty where it does not.

    A version the paper does not print counts as another one, unless ours is known to be of the paper's era.
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
    """Names of the stated parts that are not in our protocol id, sorted."""
    return sorted(name for name, part in paper.parts.items() if part is not None and part not in ours.parts)


def spelled(paper: Protocol) -> str:
    """The paper's protocol in the form of a protocol id, and why an unprinted version counts as it does."""
    version = paper.version or f"version {NOT_PRINTED}"
    parts = [part if part is not None else f"{name} {NOT_PRINTED}" for name, part in paper.parts.items()]
    reason = f" ({paper.reason})" if paper.reason else ""
    return ";".join([f"{paper.environment} {version}{reason}", *parts])


def spelled_ours(texts: Iterable[str]) -> str:
    """The protocol ids of a cell's runs; those that differ in their task alone stand once, without it."""
    ids = sorted(set(texts))
    if len(ids) > 1:
        ids = sorted({re.sub(r"^([^/;]*)/[^;]*", r"\1", text) for text in ids})
    return " | ".join(ids)


def _numbers(version: str) -> tuple[int, ...]:
    """0.12.1 -> (0, 12, 1); a version without a number is later than any with one."""
    found = tuple(int(number) for number in re.findall(r"\d+", version))
    return found or (2**31,)
