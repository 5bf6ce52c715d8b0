"""Mutants of operators: what is changed, what is left alone, and that the list of survivors is of today's code."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import pytest

from tests.mutation import operators
from tests.mutation.operators import SURVIVORS, changes

SOURCE = '''"""1 + 1."""

def f(x: int = 2, *, y: float = 0.5) -> bool:
    """Adds 1."""
    if x <= 3 and not y:
        raise ValueError(f"{x + 1} is less than 3")
    return max(x, -1) == x.clamp(max=3.0)
'''


def test_every_operator_constant_comparison_and_name_is_changed_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    found = [(one.line, one.old, one.new) for one in changes("a.py", tmp_path)]
    assert found == [
        (3, "2", "3"),
        (3, "0.5", "1.5"),
        (5, "<=", "<"),
        (5, "3", "4"),
        (5, "and", "or"),
        (5, "not", ""),
        (7, "max", "min"),
        (7, "-", ""),
        (7, "1", "2"),
        (7, "==", "!="),
        (7, "max", "min"),
        (7, "3.0", "4.0"),
    ]


@pytest.mark.parametrize("file", ["ddrl/losses/vtrace.py", "ddrl/replay/sum_tree.py", "ddrl/learners/optimizers.py"])
def test_every_mutant_is_valid_code(file: str) -> None:
    whole = (operators.ROOT / file).read_bytes()
    for one in changes(file):
        ast.parse(whole[: one.start] + one.new.encode() + whole[one.stop :])


def test_a_change_shows_its_line_and_names_its_function(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class A:\n    def b(self):\n        return 1 - self.é\n")
    one, minus = changes("a.py", tmp_path)
    assert (one.function, one.shown) == ("A.b", "return [1 -> 2] - self.é")
    assert minus.shown == "return 1 [- -> +] self.é"


def test_a_mutant_is_planted_for_its_tests_alone(tmp_path: Path) -> None:
    path = tmp_path / "ddrl/losses/returns.py"
    path.parent.mkdir(parents=True)
    whole = (operators.ROOT / "ddrl/losses/returns.py").read_bytes()
    path.write_bytes(whole)
    one = next(iter(changes("ddrl/losses/returns.py")))
    seen = []
    original = operators.forked
    try:
        operators.forked = lambda *arguments: seen.append(path.read_bytes()) or (1, "FAILED a::b")  # type: ignore
        assert operators.tried(one, tmp_path).verdict == "killed"
    finally:
        operators.forked = original
    assert len(seen) == 1
    assert seen[0] != whole
    assert path.read_bytes() == whole


def test_every_listed_survivor_is_a_mutant_of_the_present_code_with_a_reason() -> None:
    with SURVIVORS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert list(rows[0]) == list(operators.COLUMNS)
    for file_name in {row["file"] for row in rows}:
        present = {one.key for one in changes(file_name)}
        listed = [row for row in rows if row["file"] == file_name]
        assert [row for row in listed if (row["file"], row["function"], row["line"]) not in present] == []
    assert all(row["kind"] in operators.KINDS and row["reason"] for row in rows)


def test_the_tests_of_a_file_are_its_own_first_and_exist() -> None:
    assert operators.tests_of("ddrl/losses/returns.py") == [("tests/losses/returns_test.py",), ("tests/losses",)]
    for tests in operators.MORE_TESTS.values():
        assert all((operators.ROOT / name).exists() for name in tests)
