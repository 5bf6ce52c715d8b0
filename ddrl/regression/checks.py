"""The outcome of a check, as one line for people and as a test case of a JUnit file for machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

WORDS = {True: "passed", False: "FAILED", None: "skipped"}
"""Outcomes in the order in which they are counted."""


@dataclass(frozen=True)
class Check:
    """One check and its outcome: `line` says what was compared and with which result, `details` says more.

    `passed` is None where there was not enough to decide.
    """

    name: str
    passed: bool | None
    line: str
    seconds: float
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckOutcome:
    """The result that the work of a check returns; its fields are those of `Check`."""

    passed: bool | None
    line: str
    details: tuple[str, ...] = ()


def timed(name: str, work: Callable[[], CheckOutcome]) -> Check:
    """Run `work` as a check; an exception of any kind fails this check alone."""
    start = time.perf_counter()
    try:
        outcome = work()
    except Exception as error:
        outcome = CheckOutcome(False, f"ended with {type(error).__name__}: {' '.join(str(error).split())}")
    return Check(name, outcome.passed, outcome.line, time.perf_counter() - start, outcome.details)


def describe(check: Check) -> str:
    """Return `FAILED  name: line (1.2 s)`, with the details below a failure."""
    lines = [f"{WORDS[check.passed]:8}{check.name}: {check.line} ({check.seconds:.1f} s)"]
    if check.passed is False:
        lines += [f"{'':10}{detail}" for detail in check.details]
    return "\n".join(lines)


def exit_status(checks: Sequence[Check]) -> int:
    """Return 0 where something was checked and nothing failed, else 1."""
    return int(any(check.passed is False for check in checks) or not any(check.passed for check in checks))


def write_junit(checks: Sequence[Check], path: Path) -> None:
    """Write the checks as one JUnit test suite."""
    counts = {
        "tests": str(len(checks)),
        "failures": str(sum(check.passed is False for check in checks)),
        "errors": "0",
        "skipped": str(sum(check.passed is None for check in checks)),
        "time": f"{sum(check.seconds for check in checks):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "ddrl.regression", **counts})
    for check in checks:
        attributes = {"classname": "ddrl.regression", "name": check.name, "time": f"{check.seconds:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", attributes)
        message = {} if check.passed else {"message": _printable(check.line)}
        tag = {True: "system-out", False: "failure", None: "skipped"}[check.passed]
        said = ElementTree.SubElement(case, tag, message)
        if check.passed is not None:
            said.text = _printable("\n".join([check.line, *check.details]))
    ElementTree.indent(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Replace control characters, which XML does not allow, by blanks."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)
