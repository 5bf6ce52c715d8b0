"""Plants the mutants of this folder's files in a copy of the package, one by one: do tests find them?

    python -m tests.mutation                    all, against the tests that each names
    python -m tests.mutation NAME ...           some of them
    python -m tests.mutation --golden           the golden curves that they name, too
    python -m tests.mutation --results FILE     adds what was found to a JSON file, by name

The checkout itself is never touched. Each run of tests is a fork of this process, which has imported what is slow to
import and nothing of the package. The exit status is 1 where a mutant survives that is not said to be equivalent.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutation.d4pg_mutants import D4PG
from tests.mutation.learners_mutants import SEVERAL
from tests.mutation.more_mutants import OWN
from tests.mutation.mutants import AUDITED, Mutant

MUTANTS = AUDITED + OWN + D4PG + SEVERAL

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 170.0
"""Of one run of tests: one that hangs with a mutant has found it."""
LINKED = {"results", "reports", "docs"}
"""Folders that no mutant is in and that are large."""


class Found(NamedTuple):
    """What the tests made of one mutant."""

    verdict: str
    """killed, survived, timeout (killed as well), skipped (its tests need what this machine lacks, such as a GPU), or
    broken: they could not even be collected."""
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


def forked(work: Callable[[], int], tree: Path, limit: float, stuck: float = math.inf) -> tuple[int | None, str]:
    """Exit status and output of `work` in a fork that imports the copy alone.

    The status is None where it ran out of time: after `limit` seconds, or after `stuck` seconds in which none of its
    threads did anything and it had no child.
    """
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.setsid()
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            status = 70
            try:
                _imports_from(tree)
                status = int(work())
            finally:
                sys.stdout.flush()
                os._exit(status)
        now = began = moved = time.monotonic()
        ended, switches = 0, -1
        try:
            while not ended and now - began < limit and now - moved < stuck:
                ended, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.0 if ended else 0.05)
                now, before, switches = time.monotonic(), switches, _switches(child)
                if switches != before or switches < 0:
                    moved = now
        finally:
            if not ended:  # it takes too long, or this process is told to end
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status) if ended else None, output.read()


def _switches(process: int) -> int:
    """Return how often its threads have given up a processor; -1 where one is running or the process has a child."""
    count = 0
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            status = (thread / "status").read_text(encoding="utf-8")
            if "State:\tS" not in status or (thread / "children").read_text(encoding="utf-8"):
                return -1
            count += sum(map(int, re.findall(r"voluntary_ctxt_switches:\t(\d+)", status)))
    except OSError:  # it has ended, or a thread of it
        return -1
    return count


def _imports_from(tree: Path) -> None:
    """Forgets the checkout's own modules; the working directory is the copy."""
    os.chdir(tree)
    sys.path[:] = [str(tree), *(part for part in sys.path if part and Path(part).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ddrl", "tests")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    os.environ["PYTHONPATH"] = str(tree)  # of processes that tests start
    # Without kept bytecode: a mutant as long as the text it replaces, within a second, would not be compiled anew.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


def preload() -> None:
    """What is slow to import and the same for all."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: see tests/conftest.py
    for name in ("torch", "pandas", "scipy.stats", "scipy.integrate", "pydantic", "hypothesis", "pytest", "yaml"):
        importlib.import_module(name)


def verdict_of(status: int | None, output: str, seconds: float) -> Found:
    """What a run of pytest says of a mutant."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    verdict = {0: "survived", 1: "killed", None: "timeout"}.get(status, "broken")
    if verdict == "survived" and re.search(r"\d skipped", output) and not re.search(r"\d passed", output):
        verdict = "skipped"
    return Found(verdict, failed[1] if failed else "", round(seconds, 1))


def tested(mutant: Mutant, tree: Path, limit: float, *, golden: bool) -> Found:
    """Plants a mutant and runs its tests, then, where they pass and `golden` is set, its golden curves."""

    def run_tests() -> int:
        pytest = importlib.import_module("pytest")
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--rootdir", str(tree)]
        return int(pytest.main([*options, *mutant.tests]))

    def run_golden() -> int:
        curves = importlib.import_module("ddrl.regression.golden")
        return int(not all(curves.check(curves.FOLDER / f"{name}.json").passed for name in mutant.golden))

    started = time.monotonic()
    with planted(mutant, tree):
        found = verdict_of(*forked(run_tests, tree, limit), time.monotonic() - started)
        if found.verdict == "survived" and golden and mutant.golden and forked(run_golden, tree, limit)[0] != 0:
            return Found("killed", f"golden curves {', '.join(mutant.golden)}", round(time.monotonic() - started, 1))
    return found


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of mutants; none: all")
    parser.add_argument("--golden", action="store_true", help="also run the golden curves that they name")
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
    preload()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    survived = 0
    with tempfile.TemporaryDirectory(prefix="ddrl-mutation-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        here = forked(lambda: print(importlib.import_module("ddrl").__path__[0]) or 0, tree, chosen.limit)[1].strip()
        if Path(here).resolve() != (tree / "ddrl").resolve():
            parser.error(f"the copy imports {here}")
        if not chosen.no_baseline:
            for tests in dict.fromkeys(mutant.tests for mutant in mutants):
                nothing = Mutant("nothing", "nothing", (), tests)
                if (found := tested(nothing, tree, chosen.limit, golden=False)).verdict not in ("survived", "skipped"):
                    parser.error(f"without any mutant: {found.verdict} by {found.by or tests}")
        for mutant in mutants:
            found = tested(mutant, tree, chosen.limit, golden=chosen.golden)
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
