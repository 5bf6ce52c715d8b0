"""Pairs of variants of one configuration: one is carried out by our own code, the other by a peer. No pandas here."""

from __future__ import annotations

from typing import NamedTuple

from ddrl.papers.experiments import Experiment


class Pair(NamedTuple):
    """Two variants of one experiment."""

    ours: str
    theirs: str
    """The variant that a peer carries out."""


def pairs(experiment: Experiment) -> list[Pair]:
    """Return a pair for each variant of a peer, with the first variant of our own code that has its settings.

    A variant of a peer without one is in no pair.
    """
    own = [name for name in experiment.variants if name not in experiment.peers]
    settings = {name: _settings(experiment, name) for name in experiment.variants}
    found = []
    for theirs in experiment.peers:
        same = [name for name in own if settings[name] == settings[theirs]]
        found += [Pair(same[0], theirs)] if same else []
    return found


def _settings(experiment: Experiment, variant: str) -> dict[str, object]:
    """Return the configuration that a variant is about, whoever carries it out."""
    found = experiment.paper_setting(variant, "")
    found.pop("peer", None)
    return found
