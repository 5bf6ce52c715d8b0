"""Mutates operators, constants and comparisons of a folder of the package, one at a time: which do tests not find?

    python -m tests.mutation.operators losses              all mutants of `ddrl/losses`, against `tests/losses`
    python -m tests.mutation.operators replay/sum_tree     those of one file
    python -m tests.mutation.operators losses --list       only list them
    python -m tests.mutation.operators losses --sample 40  a random part of them, the same each time
    python -m tests.mutation.operators losses/vtrace --only 80 91    those of these lines

Each mutant is planted in a copy of the package (`tests.mutation.__main__`). The tests of its own file run first, then
those of its folder. What survives is printed at once, and must stand in `tests/mutation/survivors.csv` with the reason
why no test can see it, or as `open`. What takes too long is found as well, but printed too: the machine may have been
busy. The exit status is 1 where a survivor is not in the list, and 2 where tests fail without a mutant. Not part of CI.
"""

from __future__ import annotations

import argparse
import ast
import csv
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.__main__ import ROOT, Found, copy_tree, forked, preload, verdict_of

SURVIVORS = ROOT / "tests/mutation/survivors.csv"
COLUMNS = ("file", "function", "line", "kind", "reason")
KINDS = ("equivalent", "endless", "open")
"""What a row of the list says.

equivalent: no run can tell it from the original, or only by its speed or rounding; endless: it asks for memory without
end, so that its tests break; open: a test is missing.
"""
LIMIT_S = 120.0
"""Of one run of tests."""
STUCK_S = 15.0
"""After which tests that do nothing at all are held to wait for ever."""
MEMORY_BYTES = 6 * 2**30
"""Of one run of tests: a mutant in an endless loop may ask for all memory there is."""
OPERATORS: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
"""What each operator is replaced by."""
NAMES = {
    "max": "min",
    "min": "max",
    "amax": "amin",
    "argmax": "argmin",
    "maximum": "minimum",
    "minimum": "maximum",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "sum": "mean",
    "any": "all",
    "all": "any",
    "bisect_left": "bisect_right",
    "bisect_right": "bisect_left",
}
"""Functions, methods and named arguments that are replaced by another."""
MORE_TESTS = {
    "ddrl/learners/core.py": (
        "tests/learners",
        "tests/algorithms/rewards_and_ends_test.py",
        "tests/algorithms/restored_test.py",
        "tests/training/run_test.py",
        "tests/algorithms/impala_test.py",
    ),
    "ddrl/learners/shared_updates.py": (
        "tests/algorithms/a3c_test.py",
        "tests/algorithms/gorila_test.py",
        "tests/algorithms/restored_test.py",
    ),
    "ddrl/learners/all_reduce.py": ("tests/learners", "tests/runtimes/ray/ray_test.py"),
}
"""Files without a mirrored test, or that another folder's tests guard -> these."""


class QuickFailure:
    """A plugin of pytest: tests of single cases come first, and a property is not tried on further examples once one
    fails: Hypothesis would look for a shorter one."""

    @staticmethod
    def pytest_configure() -> None:
        """Follow `tests/conftest.py`, whose settings stay as they are otherwise."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("first failure", settings.get_profile("ddrl"), phases=phases)
        settings.load_profile("first failure")

    @staticmethod
    def pytest_collection_modifyitems(items: list[Any]) -> None:
        """Sort the tests of properties, which are many cases each, behind the others; keep the order otherwise."""
        items.sort(key=lambda item: hasattr(getattr(item, "obj", None), "hypothesis"))


class Change(NamedTuple):
    """One mutant: bytes `start` to `stop` of a file are replaced."""

    file: str
    function: str
    line: int
    start: int
    stop: int
    old: str
    new: str
    shown: str
    """The line, with the change marked as `[old -> new]`."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a row of the survivors is found by: lines move, the words of a line do not."""
        return self.file, self.function, self.shown


def changes(file: str, root: Path = ROOT) -> Iterator[Change]:
    """Every mutant of one file, in the order of its text."""
    source = (root / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: Any, *, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return int(starts[line - 1] + column)

    def change(function: str, start: int, stop: int, new: str) -> Change:
        line = source[:start].count(b"\n")
        before, after = source[starts[line] : start].decode(), source[stop : starts[line + 1]].decode()
        old = source[start:stop].decode()
        return Change(file, function, line + 1, start, stop, old, new, f"{before}[{old} -> {new}]{after}".strip())

    found: list[Change] = []

    def between(function: str, left: ast.AST, right: ast.AST, operator: ast.AST) -> None:
        if type(operator) not in OPERATORS:
            return
        old, new = OPERATORS[type(operator)]
        start, stop = place(left, end=True), place(right)
        at = source.find(old.encode(), start, stop)
        if at >= 0:
            found.append(change(function, at, at + len(old), new))

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        found.extend(change(function, *edit) for edit in _edits(node, place))
        if isinstance(node, ast.BinOp):
            between(function, node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                between(function, left, right, node.op)
        elif isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                between(function, left, right, operator)
        elif isinstance(node, ast.AugAssign):
            between(function, node.target, node.value, node.op)
        for child in _mutable(node):
            visit(child, function)

    visit(ast.parse(source), "")
    yield from sorted(set(found), key=lambda one: (one.start, one.new))


def _edits(node: ast.AST, place: Callable[..., int]) -> Iterator[tuple[int, int, str]]:
    """(start, stop, new text) of a change to a constant, a sign, a `not` or a name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield place(node), place(node, end=True), str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield place(node), place(node, end=True), repr(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
        yield place(node), place(node) + (3 if isinstance(node.op, ast.Not) else 1), ""
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        stop = place(node, end=True)
        yield stop - len(node.attr), stop, NAMES[node.attr]
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield place(node), place(node, end=True), NAMES[node.id]
    elif isinstance(node, ast.keyword) and node.arg in NAMES:
        yield place(node), place(node) + len(node.arg), NAMES[node.arg]


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """The children without annotations, decorators, what is raised, asserted or imported, and texts."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def tests_of(file: str) -> list[tuple[str, ...]]:
    """The tests of a file, those that are quickest to find a mutant first."""
    mirrored = file.replace("ddrl/", "tests/", 1).replace(".py", "_test.py")
    own = [(mirrored,)] if (ROOT / mirrored).exists() else []
    more = MORE_TESTS.get(file) or (str(Path(mirrored).parent),)
    return [*own, more]


def tried(one: Change, tree: Path, limit: float = LIMIT_S) -> Found:
    """Plants a mutant in the copy and runs its tests until some find it, each for at most `limit` seconds."""
    path = tree / one.file
    whole = path.read_bytes()
    path.write_bytes(whole[: one.start] + one.new.encode() + whole[one.stop :])
    try:
        for number, tests in enumerate(own_first := tests_of(one.file)):
            passed = [f"--ignore={name}" for earlier in own_first[:number] for name in earlier]

            def run(tests: tuple[str, ...] = tests, passed: Sequence[str] = passed) -> int:
                import pytest

                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
                marks = "not slow and not learning and not system and not regression and not gpu and not slurm"
                options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-m", marks, "--rootdir", str(tree)]
                status = int(pytest.main([*options, *passed, *tests], plugins=[QuickFailure()]))
                if status == pytest.ExitCode.NO_TESTS_COLLECTED and passed:
                    return 0
                # Without the mutant they could be imported.
                return 1 if status == pytest.ExitCode.INTERRUPTED and one.old else status

            found = verdict_of(*forked(run, tree, limit, STUCK_S), 0.0)
            if found.verdict != "survived":
                break
        return found
    finally:
        path.write_bytes(whole)


def known(path: Path = SURVIVORS) -> dict[tuple[str, str, str], dict[str, str]]:
    """The rows of the list of survivors, by `Change.key`."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["file"], row["function"], row["line"]): row for row in csv.DictReader(file)}


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.operators")
    parser.add_argument("parts", nargs="+", help="folders or files of ddrl/, such as losses or replay/sum_tree")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--listed", action="store_true", help="run only those in the list of survivors")
    parser.add_argument("--sample", type=int, help="take so many of them at random")
    parser.add_argument("--only", type=int, nargs="+", help="lines of the file: run only their mutants")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one run of tests")
    chosen = parser.parse_args()
    files = []
    for part in chosen.parts:
        path = ROOT / "ddrl" / part
        paths = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        files += [str(one.relative_to(ROOT)) for one in paths]
    mutants = [one for file in files for one in changes(file)]
    rows, survived, unlisted = known(), 0, 0
    if chosen.listed:
        mutants = [one for one in mutants if one.key in rows]
    if chosen.only:
        mutants = [one for one in mutants if one.line in chosen.only]
    if chosen.sample and chosen.sample < len(mutants):
        mutants = sorted(random.Random(1).sample(mutants, chosen.sample))
    if chosen.list:
        print("\n".join(f"{one.file}:{one.line} {one.shown}" for one in mutants))
        print(f"{len(mutants)} mutants")
        return 0
    preload()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="ddrl-mutation-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for file in dict.fromkeys(one.file for one in mutants):
            nothing = Change(file, "", 0, 0, 0, "", "", "no mutant")
            if (found := tried(nothing, tree, chosen.limit)).verdict != "survived":
                parser.error(f"without any mutant: {found.verdict} by {found.by or tests_of(file)}")
        for number, one in enumerate(mutants, start=1):
            verdict, by, _ = tried(one, tree, chosen.limit)
            if verdict == "killed" or (verdict == "broken" and by):  # by: the test that cannot even be imported
                continue
            said = f"{verdict} {number}/{len(mutants)} {one.file}:{one.line} {one.function}: {one.shown}"
            if verdict == "timeout":  # found as well, unless the machine is busy with other things
                print(said, flush=True)
                continue
            row = rows.get(one.key)
            survived += 1
            unlisted += row is None
            why = f"{row['kind']}: {row['reason']}" if row else "NOT LISTED"
            print(f"{said} ({why})", flush=True)
    print(f"{len(mutants)} mutants, {survived} survived, {unlisted} of them not listed in {SURVIVORS.name}")
    return int(unlisted > 0)


if __name__ == "__main__":
    sys.exit(main())
