"""YAML files checked against the JSON schemas of `workflows/schemas`: one clear line for what is wrong."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from ddrl.errors import UserError, unknown_name

SCHEMAS = Path(__file__).parents[2] / "workflows" / "schemas"


MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.CSafeLoader):
    """YAML that refuses a key given twice; libyaml reads ten times as fast as its twin in Python."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    given: set[Any] = set()
    for key_node in (key for key, _ in node.value if key.tag != MERGE):
        key = loader.construct_object(key_node, deep=True)
        if key in given:
            raise UserError(f"line {key_node.start_mark.line + 1}: key '{key}' is given twice")
        given.add(key)
    loader.flatten_mapping(node)  # puts what `<<` merges first, so that the mapping's own keys win
    pairs = ((loader.construct_object(key, deep=True), value) for key, value in node.value)
    return {key: loader.construct_object(value, deep=True) for key, value in pairs}


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> Any:
    """Plain data of a YAML file. Raises `UserError` where it cannot be read, or a key is given twice."""
    try:
        with path.open(encoding="utf-8") as file:
            return _Loader(file).get_single_data()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


@cache
def schema(name: str) -> dict[str, Any]:
    """The schema `workflows/schemas/<name>.schema.yaml`."""
    loaded: dict[str, Any] = read_yaml(SCHEMAS / f"{name}.schema.yaml")
    return loaded


def load_checked(path: Path, name: str) -> dict[str, Any]:
    """Reads a YAML file and checks it against schema `name`. Raises `UserError` naming file, key, what is allowed."""
    return copy.deepcopy(_checked(path, name, path.read_bytes() if path.exists() else b""))


@cache
def _checked(path: Path, name: str, content: bytes) -> dict[str, Any]:
    """Of a file that holds `content`: a process that reads it again need not check it again."""
    data = read_yaml(path)
    check(data, name, where=str(path))
    checked: dict[str, Any] = data
    return checked


def check(data: Any, name: str, *, where: str) -> None:
    """Checks plain data against schema `name`. Raises `UserError` naming `where`, the key and what is allowed."""
    error = best_match(Draft202012Validator(schema(name)).iter_errors(data))
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
    return UserError(f"{where}: key '{key}': {error.message}" if key else f"{where}: {error.message}")
