"""Source code in pages: functions by name, and the statements that carry the numbers of pseudo-code lines."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBERED = re.compile(r"#\s+(\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)(?:\s\s|$)")
_STEPS = re.compile(r"^<!-- generated: steps (.+) -->\n\n?((?:\d+(?:-\d+)?\. .*\n(?:   .*\n)*)+)", re.MULTILINE)


def function(path: str, name: str) -> str:
    """Return a function or class of a source file as a code block, titled with the file's path."""
    text = (ROOT / path).read_text(encoding="utf-8")
    (found,) = (
        node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    )
    return block("\n".join(text.splitlines()[found.lineno - 1 : found.end_lineno]), path)


def block(source: str, path: str) -> str:
    """Return a titled block of Python code."""
    return f'```python title="{path}"\n{textwrap.dedent(source)}\n```'


def numbered_lines(paths: Iterable[str]) -> dict[int, list[tuple[str, str]]]:
    """Return pseudo-code number -> (path, statement) for every numbered comment of some source files."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in paths:
        text = (ROOT / path).read_text(encoding="utf-8")
        lines = text.splitlines()
        for at, line in enumerate(lines, 1):
            if (comment := NUMBERED.search(line)) is None:
                continue
            first, last = _statement(ast.parse(text), at if line[: comment.start()].strip() else at + 1)
            shown = textwrap.dedent("\n".join(lines[min(first, at) - 1 : last]))
            for number in _numbers(comment[1]):
                found.setdefault(number, []).append((path, shown))
    return found


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(", "):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _statement(tree: ast.Module, line: int) -> tuple[int, int]:
    """Return the first and last line of the smallest statement around a line; of a compound one, its head alone."""
    around = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    smallest = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    inner = [part for part in ast.iter_child_nodes(smallest) if isinstance(part, ast.stmt)]
    last = inner[0].lineno - 1 if inner else smallest.end_lineno or line
    return smallest.lineno, last


def steps(*paths: str) -> str:
    """Return the numbered statements of source files in order, for a page without pseudo-code of its own."""
    return "\n".join(_row(str(number), "", code) for number, code in sorted(numbered_lines(paths).items()))


def with_steps(markdown: str) -> str:
    """Return a page whose pseudo-code lists each have the code of their numbers beside them."""

    def table(match: re.Match[str]) -> str:
        found = numbered_lines(match[1].split())
        rows = []
        for item in re.findall(r"(\d+(?:-\d+)?)\. ((?:.*\n)(?:   .*\n)*)", match[2]):
            code = [one for number in _numbers(item[0]) for one in found.get(number, [])]
            rows.append(_row(item[0], " ".join(item[1].split()), list(dict.fromkeys(code))))
        return "\n".join(rows) + "\n"

    return _STEPS.sub(table, markdown)


def _row(number: str, text: str, found: list[tuple[str, str]]) -> str:
    code = "\n\n".join(block(source, path) for path, source in found)
    return (
        f'<div class="step" markdown>\n<div class="step-text" markdown>\n\n**{number}**&nbsp; {text}\n\n</div>\n'
        f'<div class="step-code" markdown>\n\n{code}\n\n</div>\n</div>\n'
    )
