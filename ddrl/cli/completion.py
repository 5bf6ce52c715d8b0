"""`ddrl completion`: a script with which a shell completes commands, options, algorithms, tasks and papers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import shtab

from ddrl.cli.tables import checkout
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.papers.experiments import papers
from ddrl.system.plugins import ALGORITHMS

FOLDERS = ("directory", "runs", "folders", "into", "results", "against")
"""Arguments that are folders; for others without a list of names, shells offer files."""
_FUNCTIONS = {
    "bash": "_ddrl_{kind}() {{ compgen -W '{words}' -- \"$1\"; {files} }}\n",
    "zsh": "_ddrl_{kind}() {{ compadd -- {words}; {files} }}\n",
}
_FILES = {"bash": 'compgen -f -- "$1";', "zsh": "_files;"}


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for bash, zsh or tcsh. Names are those of today: make it again for new ones."""
    names = _names()
    kinds = {
        "run_words": ("runs", (*names["algorithm"], *names["environment"])),
        "algorithm": ("algorithms", names["algorithm"]),
        **dict.fromkeys(("environment", "task"), ("tasks", names["environment"])),
        "paper": ("papers", names["paper"]),
        "name": ("names", (*names["algorithm"], *registry.prefixes(), *names["paper"])),
    }
    for action in _actions(parser):
        if action.dest in kinds and not action.choices:
            kind, words = kinds[action.dest]
            plain = " ".join(word for word in words if "/" not in word)  # tcsh ends a list at a slash
            _complete(action, {"bash": f"_ddrl_{kind}", "zsh": f"_ddrl_{kind}", "tcsh": f"({plain})"})
        elif action.dest in FOLDERS:
            _complete(action, shtab.DIRECTORY)
    functions = "".join(
        _FUNCTIONS[shell].format(kind=kind, words=" ".join(words), files=_FILES[shell] if kind == "runs" else "")
        for kind, words in dict(kinds.values()).items()
        if shell in _FUNCTIONS
    )
    return str(shtab.complete(parser, shell, preamble=functions))


def _names() -> dict[str, tuple[str, ...]]:
    """Return algorithms, papers, and environments: each prefix, and the tasks and suites of those that work here."""
    tasks: list[str] = []
    for prefix in registry.prefixes():
        tasks.append(f"{prefix}/")
        with suppress(UserError):
            tasks += [*registry.suites(prefix), *registry.tasks(prefix)]
    known: Sequence[str] = ()
    with suppress(UserError):
        known = papers(checkout() / "replications")
    return {"algorithm": tuple(ALGORITHMS), "environment": tuple(tasks), "paper": tuple(known)}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of all commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _complete(action: argparse.Action, how: Mapping[str, Any]) -> None:
    action.complete = how  # type: ignore[attr-defined]  # as shtab wants it
