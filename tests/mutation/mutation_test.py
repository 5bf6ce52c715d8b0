"""Every mutant of `tests/mutation` can still be planted."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.mutation.__main__ import MUTANTS, ROOT, forked, mismatches, planted, verdict_of
from tests.mutation.mutants import Edit, Mutant


def test_every_old_text_stands_once_where_it_is_looked_for() -> None:
    assert list(mismatches(MUTANTS)) == []


def test_names_are_used_once_and_tests_that_should_find_a_mutant_exist() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)
    for mutant in MUTANTS:
        missing = [test for test in mutant.tests if not (ROOT / test.split("::")[0]).exists()]
        missing += [name for name in mutant.golden if not (ROOT / f"tests/regression/golden/{name}.json").exists()]
        assert (mutant.name, missing) == (mutant.name, [])
        assert mutant.tests


def test_a_text_that_is_gone_or_stands_twice_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    gone = Mutant("gone", "", (Edit("a.py", "z = 1", "z = 2"),), ())
    twice = Mutant("twice", "", (Edit("a.py", "= 1", "= 2"),), ())
    fine = Mutant("fine", "", (Edit("a.py", "x = 1", "x = 2"),), ())
    found = list(mismatches([gone, twice, fine], tmp_path))
    assert [line.split(" in ")[0] for line in found] == [
        "gone: the old text stands 0 times",
        "twice: the old text stands 2 times",
    ]


def test_a_mutant_is_planted_in_the_copy_and_taken_out_again(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\ny = 1\n")
    with planted(Mutant("", "", (Edit("a.py", "x = 1", "x = 2"), Edit("a.py", "y = 1", "y = 2")), ()), tmp_path):
        assert path.read_text() == "x = 2\ny = 2\n"
    assert path.read_text() == "x = 1\ny = 1\n"


def test_tests_that_wait_for_ever_are_ended_long_before_the_limit_and_slow_ones_are_not(tmp_path: Path) -> None:
    began = time.monotonic()
    assert forked(lambda: int(threading.Event().wait()), tmp_path, 60.0, stuck=0.5)[0] is None
    assert time.monotonic() - began < 30

    def slow() -> int:
        for _ in range(8):
            time.sleep(0.1)
        return 3

    assert forked(slow, tmp_path, 60.0, stuck=0.5)[0] == 3


def test_a_verdict_names_the_test_that_failed() -> None:
    output = "...F\nFAILED tests/a_test.py::test_b[1-2] - assert 1 == 2\n1 failed, 3 passed in 1.00s\n"
    assert verdict_of(1, output, 1.0).by == "tests/a_test.py::test_b[1-2]"
    assert [verdict_of(status, "", 1.0).verdict for status in (0, 1, 2, 4, None)] == [
        "survived",
        "killed",
        "broken",
        "broken",
        "timeout",
    ]
    assert verdict_of(0, "s\n1 skipped in 1.00s\n", 1.0).verdict == "skipped"
    assert verdict_of(0, ".s\n1 passed, 1 skipped in 1.00s\n", 1.0).verdict == "survived"
