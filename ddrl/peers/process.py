"""A driver as a process: starts it, hands it a request, and reads its lines (`workflows/peers/drivers/protocol.py`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard

from ddrl.errors import UserError
from ddrl.peers.process_tree import ProcessTree
from ddrl.system.files import read_file

REMOVED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")
"""Variables that would lead the peer's Python to other packages than its own."""
LAST_LINES = 3
KINDS = ("started", "progress", "evaluation", "finished", "refused")
NUMBERS = ("steps", "updates", "gradient_steps", "trained_samples", "seconds")
"""What each line of progress has."""
END_SECONDS = 10.0


class DriverProcess:
    """A driver that is running."""

    def __init__(self, process: subprocess.Popen[str], tree: ProcessTree, log: Path, name: str) -> None:
        self._process, self._log, self._name = process, log, name
        self.tree = tree
        self.stopped = False
        """Whether we have ended it."""

    def stop(self) -> None:
        """End it, with all that it has started; safe in a signal handler."""
        self.stopped = True
        self._process.kill()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield its lines until `finished`, or until it was stopped.

        Raise `UserError` where it refuses the request, writes what is no line of the protocol, or ends before.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = self._checked(line)
            if message["kind"] == "refused":
                self._log.unlink(missing_ok=True)  # it has done nothing, so it leaves nothing
                raise UserError(f"{self._name}: {message.get('message')}")
            yield message
            if message["kind"] == "finished":
                return
        if not self.stopped:
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise UserError(f"{self._name}: its driver {how} before it had finished{self._said()}")

    def _checked(self, line: str) -> dict[str, Any]:
        try:
            message = json.loads(line, parse_constant=_refuse)
            if _is_message(message):
                return message
            raise ValueError("no message of the protocol")
        except (ValueError, KeyError):
            shown = line.strip()[:100]
            raise UserError(f"{self._name}: its driver wrote '{shown}', which is no line of the protocol") from None

    def _said(self) -> str:
        """Return the last lines of its log, for an error."""
        with suppress(OSError):
            lines = read_file(self._log).decode(errors="replace").strip().splitlines()
            if lines:
                return f" ({self._log}: {' | '.join(line.strip() for line in lines[-LAST_LINES:])})"
        return ""


def _is_message(message: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a driver may say this. Raise `KeyError` where a number is missing."""
    if not isinstance(message, dict) or message["kind"] not in KINDS:
        return False
    counts = message["kind"] in ("progress", "finished")
    return not counts or all(isinstance(message[key], int | float) and message[key] >= 0 for key in NUMBERS)


def _refuse(name: str) -> None:
    """Refuse NaN and infinity, which no curve can hold."""
    raise ValueError(f"{name} is not a number")


@contextmanager
def driver(
    command: Sequence[str | Path], request: Mapping[str, Any], log: Path, *, name: str, variables: Mapping[str, str]
) -> Iterator[DriverProcess]:
    """Run a driver while the block runs; what it prints beside the protocol goes into `log`.

    All that it has started ends with the block. `variables` are added to the environment.
    """
    own = {key: value for key, value in os.environ.items() if key not in REMOVED}
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            encoding="utf-8",
            env=own | dict(variables) | {"PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"},
            start_new_session=True,  # a Ctrl-C is for us alone
        )
    tree = ProcessTree(process.pid)
    try:
        with tree:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already: `messages` says why
                process.stdin.write(json.dumps(request))
                process.stdin.close()
            yield DriverProcess(process, tree, log, name)
            tree.cpu_seconds()
    finally:
        tree.kill()
        process.kill()
        process.wait(END_SECONDS)
        if process.stdout:
            process.stdout.close()
