"""The command line `ddrl`. Results go to standard output, progress and complaints to standard error."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one thread per role

from ddrl.cli.arguments import parser
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.calls import under_way
from ddrl.system.exit_code import exit_code
from ddrl.system.notes import has_reader, keep_numbers, say, settle
from ddrl.system.signals import STOP


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; return the exit code (`arguments.EXIT_CODES`)."""
    keep_numbers()
    _print_in_utf8()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = _parse(arguments)
    except SystemExit as end:
        if end.code:  # argparse prints its usage first, the error last
            say(said.getvalue().strip().splitlines()[-1])
        return int(end.code or 0)
    keep_freed_memory()
    try:
        return exit_code(lambda: parsed.run(parsed))
    except BrokenPipeError:
        if has_reader(sys.stdout):  # another pipe broke, not that of the results
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # the reader, such as `head`, has closed the pipe
    except KeyboardInterrupt:  # training stops by itself, after a checkpoint
        say("ddrl: interrupted")
        return 128 + signal.SIGINT
    finally:
        settle()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments of a command; those of the last positional may also stand behind options.

    argparse alone refuses `ddrl train impala toy/catch --quiet seed=3`.
    """
    made = parser()
    parsed, rest = made.parse_known_args(arguments)
    options = [word for word in rest if word.startswith("-")]
    if rest and (options or "more" not in parsed):
        settings = vars(parsed).get("more") == "run_words"
        hint = "; settings have no dashes, such as seed=3" if settings else ""
        made.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if rest:
        words = vars(parsed)[parsed.more]
        words += map(type(words[0]), rest)
    return parsed


def command() -> NoReturn:
    """Run `main` and end the process.

    A signal that comes when the command is over must not change its exit code. Where a call of an environment has not
    returned, its thread may run native code, and a normal end of the interpreter would free the memory that it uses.
    """
    code = main()
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    if under_way():
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def _print_in_utf8() -> None:
    """Print in UTF-8 whatever the locale is: tables have names with letters that a locale such as C lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
