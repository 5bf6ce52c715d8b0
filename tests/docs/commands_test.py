"""The commands that pages hand to their readers are accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ddrl import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands() -> list[str]:
    """Every `ddrl train ALGORITHM TASK ...` that is no example with a package of the reader's own, on one line."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line for line in lines if re.match(r"ddrl train [a-z0-9_]+ [a-z_]+/\S+", line)]
    return sorted({command for command in found if "my_" not in command})


@pytest.mark.parametrize("command", commands())
def test_a_run_that_a_page_tells_to_train_is_accepted(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command, comments=True)
    assert cli.main([*words[1:], "--print-config"]) == 0, capsys.readouterr().err


def test_pages_have_such_commands() -> None:
    assert len(commands()) > 10
