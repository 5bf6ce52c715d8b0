"""Every key of a run's configuration, with its type, default and meaning, read from the dataclasses that check it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from ddrl import algorithms
from ddrl.training.config.run_config import HYPERPARAMETERS, RunConfig, dataclasses_in

_COMMENT = re.compile(r"#\s*(.*)$")
_BOUNDS = {Gt: "above", Ge: "at least", Lt: "below", Le: "at most"}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key."""

    name: str
    """In full: `hyperparameters.optimizer.learning_rate`."""
    type: str
    """What is allowed, in words."""
    default: str
    """As JSON; empty where the key must be given."""
    text: str
    """Its meaning, or the source of its default."""


def all_keys(algorithm: str | None = None) -> tuple[Key, ...]:
    """Return every key of a run of `algorithm`, in the order of the configuration; None: without hyperparameters."""
    found = list(_keys_of(RunConfig, ""))
    if algorithm is None:
        return tuple(key for key in found if not key.name.startswith("hyperparameters"))
    own = list(_keys_of(algorithms.load(algorithm).Config, HYPERPARAMETERS))
    place = next(i for i, key in enumerate(found) if key.name == "hyperparameters")
    return (*found[:place], *own, *found[place + 1 :])


def _keys_of(target: Any, prefix: str) -> Iterator[Key]:
    """Yield the keys of a dataclass, those of the dataclasses in it after the key that holds them."""
    hints, texts = get_type_hints(target, include_extras=True), _texts(target)
    for field in dataclasses.fields(target):
        name, annotation, default = prefix + field.name, hints[field.name], _default(field)
        parts = dataclasses_in(annotation)
        if not parts or type(None) in get_args(annotation) or not dataclasses.is_dataclass(default):
            yield Key(name, _words(annotation), _spelled(default, field), texts.get(field.name, ""))
        for part in dict.fromkeys(parts):
            yield from _keys_of(part, f"{name}.")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _spelled(value: Any, field: dataclasses.Field[Any]) -> str:
    if value is dataclasses.MISSING:
        return ""
    return json.dumps(value, default=lambda other: dataclasses.asdict(other))


def _words(annotation: Any) -> str:
    """Return what a type allows, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " ".join([_words(arguments[0]), *_bounds(arguments[1:])])
    if origin is Literal:
        return ", ".join(json.dumps(value) if isinstance(value, bool) else str(value) for value in arguments)
    if annotation is type(None):
        return "null"
    if annotation in (int, float, bool, str):
        return {int: "an integer", float: "a number", bool: "true, false", str: "a text"}[annotation]
    if origin in (dict, Mapping):
        return "a mapping"
    if origin in (list, tuple):
        return f"a list of {_words(arguments[0])}"
    if isinstance(annotation, type):
        return "a mapping"
    return " or ".join(dict.fromkeys(_words(part) for part in arguments))


def _bounds(metadata: tuple[Any, ...]) -> Iterator[str]:
    for one in metadata:
        for part in one.metadata if isinstance(one, FieldInfo) else [one]:
            if type(part) in _BOUNDS:
                (bound,) = dataclasses.astuple(part)
                yield f"{_BOUNDS[type(part)]} {bound:g}"


@cache
def _texts(target: Any) -> dict[str, str]:
    """Return what stands in the source about each field: the text below it, or the comment behind it."""
    source = inspect.getsource(target)
    lines, (body,) = source.splitlines(), ast.parse(inspect.cleandoc(source)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        comment = _COMMENT.search(lines[(statement.end_lineno or statement.lineno) - 1])
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[name] = " ".join(after.value.value.split())
        elif comment:
            found[name] = comment[1]
    return found
