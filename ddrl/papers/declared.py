"""Reads constants from the syntax tree of a module, without importing or running it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.system.files import read_file


def declared(path: Path, name: str) -> Any:
    """Return the plain value that a module gives to `name` at its top level. Raise UserError if it gives none."""
    found = dict(_values(_tree(path).body, _stated))
    if name not in found:
        raise UserError(f"{path}: must state {name} as a plain value")
    return found[name]


def defaults(path: Path, class_name: str) -> dict[str, Any]:
    """Return the fields of a module's class whose defaults are plain values. Raise `UserError` as `declared`."""
    classes = {node.name: node for node in _tree(path).body if isinstance(node, ast.ClassDef)}
    if class_name not in classes:
        raise unknown_name("class", class_name, classes, where=str(path))
    return dict(_values(classes[class_name].body, ast.literal_eval))


def _tree(path: Path) -> ast.Module:
    try:
        return _parsed(read_file(path).decode())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not valid Python: {' '.join(str(error).split())}") from None


@cache
def _parsed(text: str) -> ast.Module:
    """Parse a module; cached, since the same few modules are asked for each run of a scale."""
    return ast.parse(text)


def _values(body: list[ast.stmt], value: Callable[[ast.expr], Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each assignment of a plain value to one name."""
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                with suppress(ValueError):
                    yield targets[0].id, value(node.value)


def _stated(node: ast.expr) -> Any:
    """Return a literal; a call with keywords alone, such as `System(name="PPO")`, as a mapping. Raise ValueError."""
    if isinstance(node, ast.Call) and not node.args and all(word.arg for word in node.keywords):
        return {word.arg: ast.literal_eval(word.value) for word in node.keywords}
    return ast.literal_eval(node)
