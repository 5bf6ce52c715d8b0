"""Checks YAML files against the JSON schemas of `workflows/schemas`; an error is one clear line."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddrl.errors import UserError, unknown_name
from ddrl.system.files import read_file
from ddrl.system.text_files import read_yaml
from ddrl.system.wording import shortened

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

SCHEMAS = Path(__file__).parents[2] / "workflows" / "schemas"


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the schema `workflows/schemas/<name>.schema.yaml`."""
    return dict(read_yaml(SCHEMAS / f"{name}.schema.yaml"))


@cache
def _validator(name: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # takes long to import

    return Draft202012Validator(schema(name))


def check_known(kind: str, names: Iterable[object], allowed: Iterable[str], *, where: str = "") -> None:
    """Raise UserError for the first of `names` that is not `allowed`; `kind` says what they are names of."""
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            raise unknown_name(kind, name, allowed, where=where)


def load_checked(path: Path, name: str) -> dict[str, Any]:
    """Read a YAML file and check it against schema `name`. Raise `UserError` naming file, key and what is allowed."""
    return copy.deepcopy(_checked(path, name, read_file(path) if path.is_file() else b""))


@cache
def _checked(path: Path, name: str, content: bytes) -> dict[str, Any]:
    """Return the checked data of a file; the cache spares a process that reads it again from checking it again."""
    data = read_yaml(path)
    check(data, name, where=str(path))
    return dict(data)


def check(data: Any, name: str, *, where: str) -> None:
    """Check plain data against schema `name`. Raise `UserError` naming `where`, the key and what is allowed."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator(name).iter_errors(data))
    if error is not None:
        raise _explained(error, where)


def _explained(error: ValidationError, where: str) -> UserError:
    key = ".".join(str(part) for part in error.absolute_path)
    if (
        error.validator == "additionalProperties"
        and isinstance(error.instance, dict)
        and isinstance(error.schema, dict)
    ):
        allowed = list(error.schema.get("properties", {}))
        extra = next((name for name in error.instance if name not in allowed), "")
        return unknown_name("key", extra, allowed, where=f"{where}: {key}" if key else where)
    if error.validator == "enum" and isinstance(error.validator_value, list):
        return unknown_name(f"value of '{key}':", error.instance, map(str, error.validator_value), where=where)
    found = repr(error.instance)
    said = error.message.replace(found, shortened(found))
    return UserError(f"{where}: key '{key}': {said}" if key else f"{where}: {said}")
