"""Texts of any length become one short line."""

from __future__ import annotations

import ast
from pathlib import Path

from ddrl.system.wording import shortened

ROOT = Path(__file__).parents[2] / "ddrl"


def test_a_long_text_becomes_one_line_that_says_by_dots_that_more_was_there() -> None:
    assert shortened("a\n b\t c") == "a b c"
    assert shortened("a" * 160) == "a" * 160
    assert shortened("a" * 161) == "a" * 157 + "..."
    assert shortened("word " * 9, 10) == "word wo..."
    assert shortened("word word", 8) == "word..."
    assert shortened(ValueError("no\nfile")) == "no file"


def test_no_other_file_cuts_a_text_off() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and node.slice.upper is not None
            and ast.unparse(node.value).startswith(("repr(", "' '.join(str("))
        )
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "textwrap.shorten")
    }
    assert found == set()
