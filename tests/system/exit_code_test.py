"""One line says what is wrong with the input, with `ddrl` or with the command before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ddrl.errors import TRY_AGAIN, Command, UserError, about
from ddrl.system.exit_code import exit_code

ROOT = Path(__file__).parents[2] / "ddrl"


def raised(error: UserError, subject: str | Command) -> None:
    with about(subject):
        raise error


@pytest.mark.parametrize(
    ("subject", "line"),
    [
        ("run.yaml", "ddrl: run.yaml: no seed\n"),
        ("ddrl train", "ddrl: ddrl train: no seed\n"),  # a file of this name
        ("ddrl runs/run.yaml", "ddrl: ddrl runs/run.yaml: no seed\n"),
        (Command("ddrl train"), "ddrl train: no seed\n"),
    ],
)
def test_only_the_line_about_a_command_begins_without_ddrl(
    subject: str | Command, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda: raised(UserError("no seed"), subject)) == 2
    assert capsys.readouterr().err == line


def test_what_is_about_a_file_of_a_command_begins_with_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        with about("run.yaml"):
            raised(UserError("no seed"), Command("ddrl train"))

    assert exit_code(command) == 2
    assert capsys.readouterr().err == "ddrl: run.yaml: ddrl train: no seed\n"


def test_the_status_of_an_error_outlasts_what_is_put_before_it() -> None:
    error = UserError("busy")
    error.status = TRY_AGAIN
    assert exit_code(lambda: raised(error, Command("ddrl train"))) == TRY_AGAIN


def test_no_message_spells_its_command_out() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "UserError"
        and ast.unparse(node.args[0]).lstrip("f'\"(").startswith("ddrl ")
    ]
    assert found == []
