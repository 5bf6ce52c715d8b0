"""The outcome of a check, as a line, an exit code and a JUnit file."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from ddrl.regression import Check, describe, exit_status, write_junit
from ddrl.regression.__main__ import main
from ddrl.regression.checks import CheckOutcome, timed

PASSED = Check("golden: a", True, "44 records agree", 1.5)
FAILED = Check("golden: b", False, "frame 10: loss 1 -> 2", 0.25, ("frame 20: loss 1 -> 3",))
SKIPPED = Check("throughput", None, "needs 2 cores\x00; 1 here", 0.0)


def test_a_check_is_one_line_and_a_failure_lists_its_details() -> None:
    assert describe(PASSED) == "passed  golden: a: 44 records agree (1.5 s)"
    assert describe(SKIPPED).startswith("skipped throughput: needs 2 cores")
    assert describe(FAILED).splitlines()[1].strip() == "frame 20: loss 1 -> 3"


def test_the_exit_code_is_0_only_where_something_passed_and_nothing_failed() -> None:
    assert exit_status([PASSED, SKIPPED]) == 0
    assert exit_status([PASSED, FAILED]) == 1
    assert exit_status([SKIPPED]) == 1
    assert exit_status([]) == 1


def test_an_exception_fails_its_check_and_no_other() -> None:
    def broken() -> CheckOutcome:
        raise ZeroDivisionError("one\nline")

    check = timed("broken", broken)
    assert check.passed is False
    assert check.line == "ended with ZeroDivisionError: one line"


def test_the_junit_file_has_a_case_for_each_check_and_the_counts_of_them(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "junit.xml"
    write_junit([PASSED, FAILED, SKIPPED], path)
    root = ElementTree.parse(path).getroot()
    suite = root.find("testsuite")
    assert root.tag == "testsuites"
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    assert float(suite.get("time", "nan")) == 1.75
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["golden: a", "golden: b", "throughput"]
    assert all(case.get("classname") and float(case.get("time", "nan")) >= 0 for case in cases)
    assert [[part.tag for part in case] for case in cases] == [["system-out"], ["failure"], ["skipped"]]
    assert cases[1][0].get("message") == FAILED.line
    assert "loss 1 -> 3" in (cases[1][0].text or "")


def test_a_wrong_name_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "goldn", "--root", str(tmp_path)]) == 2
    assert "allowed: convergence, evidence, golden, points, throughput" in capsys.readouterr().err
    assert main(["points", "nothing", "--root", str(tmp_path)]) == 2
    assert main(["golden", "nothing", "--root", str(tmp_path)]) == 2
    assert main(["accept", "paper_1999", "--root", str(tmp_path)]) == 2


def test_a_project_without_anything_to_check_does_not_pass(tmp_path: Path) -> None:
    assert main(["check", "golden", "--root", str(tmp_path)]) == 1
    assert (tmp_path / "results/regression/junit.xml").exists()
