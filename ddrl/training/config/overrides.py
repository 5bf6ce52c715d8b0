"""Settings given as `key=value`, and their merging into a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddrl.errors import UserError, about
from ddrl.system.text_files import parse_yaml

_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(_[0-9]{3})+")
"""1_000_000, which Python reads as a number, and YAML 1.2 does not."""


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `overrides`, merged key by key at every depth; neither is changed."""
    result = dict(base)
    for key, value in overrides.items():
        below = result.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return result


def parse_settings(texts: Sequence[str], where: str = "") -> dict[str, Any]:
    """Parse `["topology.num_actors=2", ...]` into a nested mapping. Raise `UserError` if one is no `key=value`."""
    result: dict[str, Any] = {}
    for text in texts:
        key, equals, written = text.partition("=")
        if not (equals and all(key.split("."))):
            raise UserError(f"{where}'{text}' is not allowed; allowed: key=value, such as topology.num_actors=2")
        with about(f"{where}{text}"):
            value = parse_yaml(written.replace("_", "") if _GROUPED.fullmatch(written) else written)
        result = merged(result, nested(key, value))
    return result


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return the mapping in which the dotted `key` has this value: `a.b` and 1 give {"a": {"b": 1}}."""
    first, dot, rest = key.partition(".")
    return {first: nested(rest, value) if dot else value}
