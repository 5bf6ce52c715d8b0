"""The record of how settings were chosen: `tuning` of an experiment in experiments.yaml.

A seed with which settings were tuned on a task is never a test seed on it: the settings were chosen so that its run
comes out well. No pandas here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddrl.errors import UserError
from ddrl.papers.schema import check_known

NOT_RECORDED = "none recorded"
"""The value of `tuning` where nothing is known."""


@dataclass(frozen=True)
class Tuning:
    """Runs by which settings were chosen."""

    what: str
    """The settings, and how they were chosen."""
    source: str
    """Where it is told."""
    variants: tuple[str, ...]
    """The variants that have the settings; empty: all of the experiment."""
    tasks: tuple[str, ...]
    """The tasks that they were chosen on; empty: not recorded."""
    seeds: tuple[int, ...]
    """Seeds of these runs; empty: not recorded."""
    runs: int | None
    """Number of these runs; None: not recorded."""
    frames: int | None
    """Environment frames of all these runs together; None: not recorded."""

    def used(self, variant: str, task: str, seed: int) -> bool:
        """Return whether a run of a variant has a task and a seed with which its settings were chosen."""
        return (not self.variants or variant in self.variants) and task in self.tasks and seed in self.seeds


def read_tuning(
    given: str | Sequence[Mapping[str, Any]] | None, variants: Iterable[str], where: str
) -> tuple[Tuning, ...]:
    """Return the entries of the key `tuning`; none where it is absent or says `NOT_RECORDED`."""
    if given is None or isinstance(given, str):
        return ()
    known, found = list(variants), []
    for item in given:
        check_known("variant", item.get("variants", ()), known, where=f"{where}.tuning")
        found.append(
            Tuning(
                what=" ".join(item["what"].split()),
                source=" ".join(item["source"].split()),
                variants=tuple(item.get("variants", ())),
                tasks=tuple(item.get("tasks", ())),
                seeds=tuple(item.get("seeds", ())),
                runs=item.get("runs"),
                frames=item.get("frames"),
            )
        )
    return tuple(found)


def check_test_seeds(
    tuning: Sequence[Tuning], pairs: Iterable[tuple[str, str]], seeds: Sequence[int], where: str
) -> None:
    """Raise `UserError` where a run of (variant, task) and one of `seeds` was used to choose the settings."""
    for variant, task in pairs:
        clash = sorted({seed for entry in tuning for seed in seeds if entry.used(variant, task, seed)})
        if clash:
            names = ", ".join(map(str, clash))
            raise UserError(
                f"{where}: key 'seeds' has {names}, with which the settings of {variant} were chosen on {task} (key "
                "'tuning'); allowed: other seeds"
            )
