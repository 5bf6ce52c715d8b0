"""Lists of what there is: algorithms, environments, papers, and keys of a configuration (`ddrl list`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args, get_type_hints

from ddrl import algorithms
from ddrl.cli.agents import agents
from ddrl.cli.tables import Rows, checkout, places
from ddrl.environments.base import registry
from ddrl.errors import Command, UserError, about, unknown_name
from ddrl.papers.experiments import folder_of, papers
from ddrl.papers.paper import load_paper
from ddrl.system.plugins import ALGORITHMS
from ddrl.training.config.keys import all_keys
from ddrl.training.config.topology import Topology


def rows(what: str, name: str | None, replications: Sequence[Path] = ()) -> Rows:
    """Return the rows of one of `LISTS`, or of the part of it called `name`. Raise UserError for an unknown one.

    `replications` are further folders of papers.
    """
    return list(_papers(name, replications) if what == "papers" else LISTS[what](name))


def _algorithms(name: str | None) -> Iterator[dict[str, str]]:
    for one in _chosen("algorithm", name, tuple(ALGORITHMS)):
        try:
            module = algorithms.load(one)
        except UserError as error:  # of another package, whose module is broken
            yield dict.fromkeys(("algorithm", "system", "version", "actors send", "store", "schedules", "what"), "") | {
                "algorithm": one,
                "what": str(error),
            }
            continue
        yield {
            "algorithm": one,
            "system": module.SYSTEM.name,
            "version": str(module.VERSION),
            "actors send": module.SYSTEM.moves,
            "store": module.SYSTEM.store,
            "schedules": ", ".join(module.SYSTEM.schedules),
            "what": (module.__doc__ or "").strip().splitlines()[0],
        }


def _environments(name: str | None) -> Iterator[dict[str, str]]:
    """Yield a row for each prefix, or for each task and suite of one, such as `atari` or `atari/po`."""
    if name is not None:
        prefix, _, begin = name.partition("/")
        rows = [{"name": suite, "what": f"{len(tasks)} tasks"} for suite, tasks in registry.suites(prefix).items()]
        rows += [{"name": task, "what": ""} for task in registry.tasks(prefix)]
        yield from (row for row in rows if row["name"].startswith(f"{prefix}/{begin}"))
        return
    for prefix in registry.prefixes():
        try:
            what, suites = registry.about(prefix), ", ".join(registry.suites(prefix))
            number = str(len(registry.tasks(prefix)))
        except UserError as error:
            number, suites, what = "0", "", str(error)
        yield {"name": f"{prefix}/", "tasks": number, "suites": suites, "what": what}


def _papers(name: str | None, replications: Sequence[Path]) -> Iterator[dict[str, str]]:
    roots = places(replications)[1]
    for key in _chosen("paper", name, papers(roots)):
        paper = load_paper(folder_of(key, roots))
        yield {
            "paper": key,
            "claims": str(len(paper.claims)),
            "figures": str(len(paper.figures)),
            "title": f"{paper.citation['title']} ({paper.citation['year']})",
        }


def _keys(name: str | None) -> Iterator[dict[str, str]]:
    """Yield every key that all runs share, or those of an algorithm's runs."""
    if name is not None:
        _chosen("algorithm", name, tuple(ALGORITHMS))
    for key in all_keys(name):
        yield {"key": key.name, "allowed": key.type, "default": key.default, "what": key.text}


def _topologies(name: str | None) -> Iterator[dict[str, str]]:
    hints = get_type_hints(Topology)
    for key in _chosen("part of a topology", name, ("runtime", "schedule", "inference")):
        yield {"key": f"topology.{key}", "allowed": ", ".join(get_args(hints[key]))}


def _agents(name: str | None) -> Iterator[dict[str, str]]:
    _chosen("algorithm", name, tuple(ALGORITHMS))
    yield from agents(checkout(), name)


LISTS: dict[str, Callable[[str | None], Iterator[dict[str, str]]]] = {
    "agents": _agents,
    "algorithms": _algorithms,
    "environments": _environments,
    "keys": _keys,
    "topologies": _topologies,
}


def _chosen(kind: str, name: str | None, names: tuple[str, ...] | list[str]) -> list[str]:
    """Return all names, or `name` alone. Raise UserError where it is unknown."""
    if name is not None and name not in names:
        with about(Command("ddrl list")):
            raise unknown_name(kind, name, names)
    return [one for one in names if name in (None, one)]
