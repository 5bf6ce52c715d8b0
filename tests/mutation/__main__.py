"""Plants the mutants of `mutants.py` and `more_mutants.py` in a copy of the package, one by one: do tests find them?

    python -m tests.mutation                    all, against the tests that each names
    python -m tests.mutation NAME ...           some of them
    python -m tests.mutation --golden           the golden curves that they name, too
    python -m tests.mutation --through "nice"   each run of tests is started through this command
    python -m tests.mutation --results FILE     adds what was found to a JSON file, by name

The checkout itself is never touched. The exit status is 1 where a mutant survives that is not said to be equivalent.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutation.more_mutants import OWN
from tests.mutation.mutants import AUDITED, Mutant

MUTANTS = AUDITED + OWN

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0
"""Of one run of tests, and of the wait for its start where it is started through a queue."""
LINKED = {"results", "reports", "docs"}
"""Folders that no mutant is in and that are large."""


class Found(NamedTuple):
    """What the tests made of one mutant."""

    verdict: str
    """killed, survived, timeout (killed as well) or broken: its tests could not even be collected."""
    by: str
    """The first test that failed."""
    seconds: float


def mismatches(mutants: Sequence[Mutant], root: Path = ROOT) -> Iterator[str]:
    """One line for each edit whose old text does not stand exactly once in its file, or that changes nothing."""
    for mutant in mutants:
        for edit in mutant.edits:
            count = (root / edit.file).read_text(encoding="utf-8").count(edit.old)
            if count != 1:
                yield f"{mutant.name}: the old text stands {count} times in {edit.file}, not once: {edit.old!r}"
            if edit.old == edit.new:
                yield f"{mutant.name}: changes nothing in {edit.file}"


def copy_tree(target: Path) -> None:
    """The tracked and the new files of the checkout; folders of `LINKED` are links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if Path(name).parts[0] in LINKED or not source.is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name)
    for name in LINKED:
        if (ROOT / name).is_dir():
            (target / name).symlink_to(ROOT / name, target_is_directory=True)


@contextmanager
def planted(mutant: Mutant, tree: Path) -> Iterator[None]:
    """The copy has this mutant within the block."""
    before = {edit.file: (tree / edit.file).read_text(encoding="utf-8") for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            path = tree / edit.file
            path.write_text(path.read_text(encoding="utf-8").replace(edit.old, edit.new), encoding="utf-8")
        yield
    finally:
        for name, text in before.items():
            (tree / name).write_text(text, encoding="utf-8")


def run(command: Sequence[str], tree: Path, limit: float) -> tuple[int | None, str]:
    """Exit status (None: it ran out of time) and output of a command in the copy, which imports the copy alone."""
    # Without kept bytecode: a mutant as long as the text it replaces, within a second, would not be compiled anew.
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output
    except BaseException:  # this process is told to end
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output


def verdict_of(status: int | None, output: str, seconds: float) -> Found:
    """What a run of pytest says of a mutant."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    verdict = {0: "survived", 1: "killed", None: "timeout"}.get(status, "broken")
    return Found(verdict, failed[1] if failed else "", round(seconds, 1))


def tested(mutant: Mutant, tree: Path, through: Sequence[str], limit: float, *, golden: bool) -> Found:
    """Plants a mutant and runs its tests, then, where they pass and `golden` is set, its golden curves."""
    pytest = [*through, sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
    started = time.monotonic()
    with planted(mutant, tree):
        found = verdict_of(*run([*pytest, *mutant.tests], tree, limit), time.monotonic() - started)
        if found.verdict != "survived" or not golden or not mutant.golden:
            return found
        for name in mutant.golden:
            code = f"from ddrl.regression import golden; print(golden.check(golden.FOLDER / '{name}.json').passed)"
            status, output = run([*through, sys.executable, "-c", code], tree, limit)
            if status != 0 or output.strip().splitlines()[-1] != "True":
                return Found("killed", f"golden curve {name}", round(time.monotonic() - started, 1))
    return found


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of mutants; none: all")
    parser.add_argument("--golden", action="store_true", help="also run the golden curves that they name")
    parser.add_argument("--through", default="", help="a command that each run of tests is started through")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one run of tests")
    parser.add_argument("--results", type=Path, help="JSON file that the verdicts are added to")
    parser.add_argument("--no-baseline", action="store_true", help="do not first run the tests without a mutant")
    chosen = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := sorted(set(chosen.names) - set(known)):
        parser.error(f"no such mutants: {', '.join(unknown)}; there are: {', '.join(known)}")
    mutants = [known[name] for name in chosen.names or known]
    if problems := list(mismatches(mutants)):
        parser.error("\n".join(problems))
    through = shlex.split(chosen.through)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    survived = 0
    with tempfile.TemporaryDirectory(prefix="ddrl-mutation-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        code = "import ddrl; print(ddrl.__path__[0])"
        imported = run([sys.executable, "-c", code], tree, chosen.limit)[1].strip()
        if Path(imported).resolve() != (tree / "ddrl").resolve():
            parser.error(f"the copy imports {imported}")
        if not chosen.no_baseline:
            for tests in dict.fromkeys(mutant.tests for mutant in mutants):
                nothing = Mutant("nothing", "nothing", (), tests)
                if (found := tested(nothing, tree, through, chosen.limit, golden=False)).verdict != "survived":
                    parser.error(f"without any mutant: {found.verdict} by {found.by or tests}")
        for mutant in mutants:
            found = tested(mutant, tree, through, chosen.limit, golden=chosen.golden)
            equivalent = f" (said to be equivalent: {mutant.equivalent})" if mutant.equivalent else ""
            print(f"{found.verdict:9} {mutant.name}: {found.by}{equivalent} [{found.seconds:.0f} s]", flush=True)
            survived += found.verdict in ("survived", "broken") and not mutant.equivalent
            if chosen.results:
                add(chosen.results, mutant, found)
    print(f"{len(mutants)} mutants, {survived} survived")
    return int(survived > 0)


def add(path: Path, mutant: Mutant, found: Found) -> None:
    """Writes down a verdict, and of which commit it is, beside those that are there."""
    rows = json.loads(path.read_text(encoding="utf-8"))["mutants"] if path.exists() else {}
    rows[mutant.name] = {"breaks": mutant.breaks, "verdict": found.verdict, "by": found.by, "commit": commit()}
    if mutant.equivalent:
        rows[mutant.name]["equivalent"] = mutant.equivalent
    content = {
        "command": "python -m tests.mutation --results tests/mutation/results.json",
        "mutants": {one.name: rows[one.name] for one in MUTANTS if one.name in rows},
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def commit() -> str:
    """The checkout's, and whether it was changed since."""
    described = ["git", "describe", "--always", "--dirty", "--exclude", "*", "--abbrev=12"]
    return subprocess.run(described, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
