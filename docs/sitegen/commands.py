"""The commands of `ddrl`, read from its argument parser."""

from __future__ import annotations

import argparse
import re

from ddrl.cli.arguments import EXIT_CODES, parser
from docs.sitegen.markdown import code, plain, table


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """Return every command's parser by name, in the order of `ddrl --help`."""
    (choices,) = (action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices)


def all_commands() -> str:
    """Return a section for each command: what it does, how it is called, every argument."""
    sections = [f"{plain(EXIT_CODES)}"]
    for name, one in subcommands().items():
        usage = " ".join(one.format_usage().removeprefix("usage: ").split())
        lines = [f"## ddrl {name}", plain(one.description or ""), f"```text\n{_wrapped(usage)}\n```", _arguments(one)]
        sections.append("\n\n".join(filter(None, lines)))
    return "\n\n".join(sections)


def _arguments(one: argparse.ArgumentParser) -> str:
    actions = [action for action in one._actions if not isinstance(action, argparse._HelpAction)]
    help_of = one._get_formatter()._expand_help
    rows = [[_name(action), plain(help_of(action) if action.help else "")] for action in actions]
    return table(["argument", "what"], rows) if rows else ""


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        shown = action.metavar or action.dest
        return code(shown if isinstance(shown, str) else " ".join(shown))
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    return ", ".join(code(option + value) for option in action.option_strings)


def _metavar(action: argparse.Action) -> str:
    if action.choices and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    shown = action.metavar or action.dest.upper()
    return shown if isinstance(shown, str) else " ".join(shown)


def _wrapped(usage: str) -> str:
    """Return a usage line broken before its options."""
    return re.sub(r" (?=\[--)", "\n    ", usage)
