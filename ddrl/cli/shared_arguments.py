"""Arguments that several commands share, and the types of arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Command = Callable[[argparse.Namespace], int | None]


def add(added: Any, run: Command, text: str, more: str = "", name: str = "") -> argparse.ArgumentParser:
    """Add the command `name` (default: the name of the function that runs it); return its parser."""
    description = f"{text[0].upper()}{text[1:]}. {more}"
    parser: argparse.ArgumentParser = added.add_parser(name or run.__name__, help=text, description=description)
    parser.set_defaults(run=run)
    return parser


def path(text: str) -> Path:
    """Parse a path. Refuse an empty one, such as an unset variable of a shell: it would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; allowed: a path")
    return Path(text)


def add_secrets(parser: Any) -> None:
    """Add the options that keep others out of the stream between a learner and its workers."""
    parser.add_argument("--token-file", type=path, help="a secret that both sides have, in the first line of a file")
    parser.add_argument("--tls-cert", type=path, help="a learner's certificate, PEM: the stream is encrypted (TLS)")
    parser.add_argument("--tls-key", type=path, help="of that certificate, PEM")
    parser.add_argument(
        "--tls-ca",
        type=path,
        help="PEM: who must have signed the other side's certificate; of a worker, the learner's",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="other machines though nothing is encrypted: all on the way are trusted"
    )


def add_episodes(parser: argparse.ArgumentParser, default: int, how_many: str, task: str) -> None:
    """Add how many episodes are played, of what task and with which seed."""
    parser.add_argument("--episodes", type=positive, default=default, help=how_many)
    parser.add_argument("--seed", type=int, default=0, help="of games and sampled actions (%(default)s)")
    parser.add_argument("--task", help=task)


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Add options in which the environment differs from the run's."""
    parser.add_argument(
        "--environment",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="options in which the environment differs from the run's, such as friction=0.4 obstacles=false",
    )


def add_measuring(parser: argparse.ArgumentParser, duration: float, repeats: str) -> None:
    """Add how long, how often and where to a command that measures; `duration` is in seconds."""
    parser.add_argument("--seconds", type=seconds, default=duration, help="of each measurement (%(default)s)")
    parser.add_argument("--repeats", type=positive, default=3, help=repeats)
    parser.add_argument("--json", type=path, help="write everything measured to this file")


def add_paper(parser: argparse.ArgumentParser) -> None:
    """Add the paper, which may be left out."""
    parser.add_argument("paper", nargs="?", help="such as impala_2018 (all, if left out)")


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the folder of results, and those of further papers."""
    parser.add_argument("--results", type=path, help="folder of results (results/ of the checkout, if left out)")
    add_replications(parser)


def add_replications(parser: argparse.ArgumentParser) -> None:
    """Add folders with further papers."""
    parser.add_argument(
        "--replications",
        type=path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with further papers, also outside of the checkout (can be repeated); results/ and reports/ are "
        "then those of the working directory",
    )


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add the machine-readable forms of a table."""
    form = parser.add_mutually_exclusive_group()
    parser.set_defaults(form="text")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON, all columns")
    form.add_argument("--csv", dest="form", action="store_const", const="csv", help="print CSV, all columns")


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not allowed; allowed: whole numbers from 1")
    return int(text)


def seconds(text: str) -> float:
    """Parse a finite number above 0."""
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"'{text}' is not allowed; allowed: numbers above 0")
