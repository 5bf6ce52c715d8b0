"""Evidence check: tables, figures and verdicts of the reference runs, made anew, against the accepted ones.

The accepted evidence of a paper is in `results/reference/<paper>/evidence/`, that of the suite in
`results/reference/suite/evidence/` (`ddrl.regression.snapshot`). Every number and every word is compared, of tables and
of the text of the reports (`ddrl.regression.report_texts`). A difference fails the check until
`python -m ddrl.regression accept` has accepted it, which needs a new *changes results* line in the changelog unless
something was only added: a column, a table or a figure.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import papers
from ddrl.papers.table_names import REFERENCE
from ddrl.regression import snapshot
from ddrl.regression.checks import CheckOutcome
from ddrl.report import build as report
from ddrl.report.suite import SUITE
from ddrl.system.files import read_file

COMMAND = "python -m ddrl.regression accept"
OUTPUT = Path("results/regression/reports")
SHOWN = 20
"""The number of differences that are printed."""
_ENTRY = re.compile(r"^- (?:.*(?:\n(?=[ \t]+\S).*)*)", re.MULTILINE)


def folder(name: str, root: Path) -> Path:
    """Return the folder of the accepted evidence of a paper or of the suite."""
    return root / "results" / "reference" / name / "evidence"


def with_reference(root: Path) -> list[str]:
    """Return the papers that have reference runs."""
    known = papers(root / "replications")
    return [name for name in known if any((root / "results/reference" / name).glob("*/*/*/seed*/run.json"))]


def names(root: Path) -> list[str]:
    """Return what has evidence: the papers with reference runs or accepted evidence, and the suite."""
    here = with_reference(root)
    accepted = {path.parent.name for path in (root / "results" / "reference").glob("*/evidence")}
    return [*here, *sorted(accepted - {*here, SUITE}), SUITE]


def rebuild(root: Path) -> CheckOutcome:
    """Write tables, figures and PDFs of the reference runs alone into `results/regression/reports`.

    Raise UserError where a part cannot be made.
    """
    if not with_reference(root):
        raise UserError(f"{root / 'results/reference'}: holds no runs of a paper of {root / 'replications'}")
    with contextlib.chdir(root):  # relative paths: no machine's folders in a table
        shutil.rmtree(OUTPUT, ignore_errors=True)
        written = report.rebuild(with_reference(Path()), REFERENCE, results=Path("results"), output=OUTPUT, root=Path())
        documents = [path for path in written if path.suffix == ".pdf"]
        for path in documents:
            if not read_file(path).startswith(b"%PDF"):
                raise UserError(f"{path}: is no PDF")
    return CheckOutcome(True, ", ".join(map(str, documents)))


def made(name: str, root: Path) -> snapshot.Snapshot:
    """Return what `rebuild` made of a paper or of the suite. Raise UserError where it made nothing."""
    if name != SUITE and name not in with_reference(root):
        raise UserError(f"{folder(name, root)}: its reference runs are gone; restore them, or remove the folder")
    return snapshot.made(root / OUTPUT / report.EVIDENCE / REFERENCE / name, root / OUTPUT)


def accepted(name: str, root: Path) -> tuple[snapshot.Snapshot, set[str]] | None:
    """Return what was accepted, and the digests of the changelog entries known then; None before the first time.

    Raise UserError where a file is damaged.
    """
    return snapshot.read(folder(name, root) / "evidence.json")


def check(name: str, root: Path) -> CheckOutcome:
    """Compare what `rebuild` made with what was accepted."""
    new, known = made(name, root), accepted(name, root)
    if known is None:
        return CheckOutcome(False, f"nothing was accepted yet: run '{COMMAND}'")
    old, changes = known
    found = snapshot.differences(old, new)
    if not found:
        others = [name for name, version in old.packages.items() if new.packages.get(name) != version]
        drawn = f"; figures or PDFs not compared (other versions of {', '.join(others)})" if others else ""
        rows = [cells for table in new.tables.values() for cells in table.values()]
        counts = f"{len(rows):,} rows with {sum(map(len, rows)):,} cells and {len(new.digests):,} digests"
        return CheckOutcome(True, f"{counts} as accepted{drawn}")
    line = f"{found.lines[0]}; {len(found)} difference{'s' * (len(found) > 1)}"
    if not found.changed:
        line = f"{line}, nothing else: run '{COMMAND}'"
    elif reasons := _unknown(changes, root):
        line = f"{line}; the changelog says '{reasons[0]}': run '{COMMAND}'"
    else:
        line = f"{line}, and no new *changes results* line in CHANGELOG.md"
    return CheckOutcome(False, line, tuple(found.lines[1:SHOWN]))


def results_changes(changelog: Path) -> dict[str, str]:
    """Return digest -> text of every entry that is marked *changes results*."""
    entries = (" ".join(match.group().split()) for match in _ENTRY.finditer(read_file(changelog).decode()))
    return {snapshot.digest(entry): entry for entry in entries if entry.startswith("- *changes results*")}


def _unknown(changes: set[str], root: Path) -> list[str]:
    """Return the *changes results* entries that the changelog did not have when the evidence was accepted."""
    return [entry for digest, entry in results_changes(root / "CHANGELOG.md").items() if digest not in changes]


def accept(chosen: Sequence[str], root: Path) -> Iterator[str]:
    """Accept the present evidence of `chosen` (none: all papers with reference runs, and the suite); return lines.

    Raise UserError where results differ from the accepted ones and the changelog has no new *changes results* line.
    """
    known_names = names(root)
    for name in chosen:
        if name not in known_names:
            raise unknown_name("paper with reference runs", name, known_names)
    rebuild(root)
    for name in chosen or known_names:
        new, known = made(name, root), accepted(name, root)
        found = snapshot.differences(known[0], new) if known else snapshot.Differences((), ())
        if known and found.changed and not _unknown(known[1], root):
            raise UserError(
                f"{name}: {found.changed[0]}; {len(found.changed)} differences, and CHANGELOG.md has no new entry that "
                "starts with '- *changes results*'"
            )
        snapshot.write(new, folder(name, root), sorted(results_changes(root / "CHANGELOG.md")), COMMAND)
        yield f"{name}: accepted ({len(found)} differences)" if known else f"{name}: accepted for the first time"
