"""The command line. Results go to standard output, progress and complaints to standard error.

Exit codes: 0 done; 1 a check failed (verify, doctor); 2 bad input, an environment that failed or training that
diverged (one line says what); 75 interrupted after a checkpoint (type the same command again).
"""

from __future__ import annotations

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
    """Parses and runs one command; returns the exit code."""
    keep_numbers()
    _print_in_utf8()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser((__doc__ or "").partition("\n\n")[2]).parse_args(arguments)
    except SystemExit as end:
        if end.code:  # argparse prints its usage before the one line that matters
            say(said.getvalue().strip().splitlines()[-1])
        return int(end.code or 0)
    keep_freed_memory()
    try:
        return exit_code(lambda: parsed.run(parsed))
    except BrokenPipeError:
        if has_reader(sys.stdout):  # another pipe broke, not that of the results
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # whoever read the output has seen enough, as `head` has
    except KeyboardInterrupt:  # training stops by itself, after a checkpoint
        say("ddrl: interrupted")
        return 128 + signal.SIGINT
    finally:
        settle()


def command() -> NoReturn:
    """`main` as the whole of a process.

    A signal that comes when the command is over is too late to change its exit code. Where an environment has not come
    back, its thread may be in native code: the interpreter's way out would take away what it works on.
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
    """Tables have names that a locale such as C has no letters for; as files, they are UTF-8 everywhere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
