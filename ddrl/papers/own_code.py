"""The functions of a replication's own `figures.py` and `tables.py`, and a check of them before anything is trained."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.papers.paper import Paper

FIGURES, TABLES = "figures.py", "tables.py"


def own_function(paper_dir: Path, file: str, name: str) -> Callable[..., Any]:
    """Return the function `name` of a replication's own module.

    Raise UserError, with the line, where the module cannot be imported, and where it has no such function.
    """
    path = paper_dir / file
    spec = importlib.util.spec_from_file_location(f"replications_{paper_dir.name}_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise UserError(f"{path}: no such file")
    parent = str(paper_dir.resolve().parents[1])
    if parent not in sys.path:  # a folder of papers is not part of an installed package
        sys.path.append(parent)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the module raises
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{_place(error, path)}: {said}") from error
    function = vars(module).get(name)
    if not callable(function):
        raise UserError(f"{path}: has no function '{name}', which paper.yaml wants")
    found: Callable[..., Any] = function
    return found


def _place(error: Exception, path: Path) -> str:
    """Return the file and line of the paper's own code where `error` was raised."""
    folder = path.parent
    if isinstance(error, SyntaxError) and error.filename:
        places = [(error.filename, error.lineno or 1)]
    else:
        places = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(Path(file), line) for file, line in places if Path(file).resolve().is_relative_to(folder.resolve())]
    file, line = own[-1] if own else (path, 1)
    return f"{folder / file.resolve().relative_to(folder.resolve())}: line {line}"


def check_own_code(paper: Paper) -> None:
    """Raise UserError where `figures.py` or `tables.py` lacks a function that paper.yaml wants, or cannot be imported.

    Each must be able to take its tables, and nothing else, as keyword arguments.
    """
    for table in paper.derived:
        _check(paper, TABLES, table.name, table.tables)
    for figure in paper.figures:
        _check(paper, FIGURES, figure.name, figure.tables)


def _check(paper: Paper, file: str, name: str, tables: Sequence[str]) -> None:
    signature = inspect.signature(own_function(paper.directory, file, name))
    try:
        signature.bind(**dict.fromkeys(tables))
    except TypeError as error:
        given = ", ".join(tables)
        raise UserError(
            f"{paper.directory / file}: {name}{signature}: {error}; paper.yaml gives it the tables {given}"
        ) from None
