"""Docstrings are plain English, verb first: "Return the V-trace targets." and no riddles ("What ...", "Whose ...")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VERBS = frozenset(
    """
    accept act add adjust allow append apply ask attach average begin block build call cancel cap change check close
    compare complete compute connect continue copy count create cut decide describe divide do draw end estimate
    evaluate exclude expand expect fail fill film flush forget format free give handle have hold ignore import
    increase insert interrupt join keep kill label leave let list listen load lock make map mark max-pool measure
    merge move multiply name note open pack pad parse plan play prepare print publish put queue raise read record
    redirect refuse register release remove rename repeat replace report reset restore resume return run sample save
    say scale send separate set show silence split start step stop store take tell test time train truncate typeset
    undo unpack update use wait work write yield
    """.split()  # noqa: SIM905
)
"""Imperatives that a docstring of a function may begin with; add one where it is the plain word for what is done."""
RIDDLES = frozenset({"what", "whether", "of", "nobody", "whose", "whoever", "those", "as", "until"})
PROPERTIES = {"property", "cached_property", "functools.cached_property"}


def first_word(text: str) -> str:
    """Return the first word, in lower case; "`" where a name begins the text."""
    return "`" if text.startswith("`") else (re.match(r"[\w-]*", text) or [""])[0].lower()


def riddles(tree: ast.AST) -> Iterator[str]:
    """Yield one line for each docstring of a function that does not begin with a verb, or of a property with a riddle.

    A constructor may describe a parameter at once: its class says what is made.
    """
    for node in ast.walk(tree):
        described = (ast.get_docstring(node) or "") if isinstance(node, ast.ClassDef | ast.Module) else ""
        if first_word(described) in RIDDLES - {"what"}:
            yield f"line {getattr(node, 'lineno', 1)}: {described.splitlines()[0]}"
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not (text := ast.get_docstring(node)):
            continue
        word = first_word(text)
        if PROPERTIES & {ast.unparse(one) for one in node.decorator_list}:
            if word in RIDDLES:
                yield f"line {node.lineno}: property {node.name}: {text.splitlines()[0]}"
        elif word not in VERBS and not (node.name == "__init__" and word == "`"):
            yield f"line {node.lineno}: {node.name}: {text.splitlines()[0]}"


@pytest.mark.parametrize("path", [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "ddrl").rglob("*.py"))])
def test_docstrings_of_functions_begin_with_a_verb(path: str) -> None:
    assert list(riddles(ast.parse((ROOT / path).read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Whether it is."""',
        'def f():\n    """Returns it."""',
        'def f(x):\n    """`x`: a number."""',
        'class C:\n    """Whose call it is."""',
        'class C:\n    @property\n    def p(self):\n        """Of the process."""',
    ],
)
def test_a_docstring_that_is_none_of_that_is_found(source: str) -> None:
    assert len(list(riddles(ast.parse(source)))) == 1
