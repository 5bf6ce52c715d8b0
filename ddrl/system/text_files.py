"""Reading text, JSON and YAML files from outside; every error is a `UserError` of one line that names the file.

YAML is read by the core schema of version 1.2: `on`, `yes` and `1:30:00` are texts. `010`, which is 8 in version 1.1
and 10 in version 1.2, is refused, and so is a key that is given twice, in JSON too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, MappingStartEvent, NodeEvent, ScalarEvent, SequenceStartEvent

from ddrl.errors import UserError, about, file_error
from ddrl.system.files import read_file

MAX_DEPTH = 64
"""Nesting depth; no file of this project has ten levels."""
MAX_REPEATED = 100_000
"""The number of values that aliases in one file may stand for: nested aliases could stand for billions."""
MAX_DIGITS = 400
"""More than any float has."""
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_OLD_OCTAL = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MERGE = "<<"
_TEXT = "tag:yaml.org,2002:str"


def read_text(path: Path) -> str:
    """Read a text file in UTF-8. Raise `UserError` if it cannot be read or is not UTF-8."""
    try:
        found = read_file(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise file_error(error, path) from None
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: is not text in UTF-8 (byte 0x{found[error.start]:02x} in line {line}); allowed: UTF-8"
        ) from None


def read_json(path: Path) -> Any:
    """Read a JSON file. Raise `UserError` as `read_text` and `parse_json`."""
    text = read_text(path)
    with about(path):
        return parse_json(text)


def parse_json(text: str) -> Any:
    """Parse JSON. Raise `UserError` if it is invalid or a key is given twice."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeated_keys)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON: {_one_line(error)}") from None


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UserError(f"key '{key}' is given twice")
        found[key] = value
    return found


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raise `UserError` as `read_text` and `parse_yaml`."""
    text = read_text(path)
    with about(path):
        return parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """Parse one YAML document into mappings, lists, texts, numbers, booleans and None.

    Raise `UserError` naming the line for invalid YAML, a key given twice, a number that versions of YAML read
    differently, a tag, too deep nesting, and aliases that stand for too many values.
    """
    try:
        return _Document(yaml.parse(text, Loader=yaml.CSafeLoader)).value()
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True)
class _Node:
    """A value, and the number of values in it, counting those that aliases stand for."""

    value: Any
    size: int = 1


class _Document:
    """Builds values from libyaml's events, whose parser does not recurse; nothing that is refused gets built."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events: Iterator[Any] = (one for one in events if isinstance(one, (NodeEvent, CollectionEndEvent)))
        self._anchors: dict[str, _Node | None] = {}
        """None while a node is being built: an alias to it there would contain itself."""
        self._repeated = 0

    def value(self) -> Any:
        """Return the document's value, None if it is empty. Raise `UserError` for a second document."""
        first = next(self._events, None)
        if first is None:
            return None
        found = self._node(first, 1, "").value
        if (more := next(self._events, None)) is not None:
            raise _refused(more, "a second document begins here; allowed: one")
        return found

    def _node(self, event: Any, depth: int, place: str) -> _Node:
        """Build the node that begins with `event`. `place`: the key that it is the value of, for messages."""
        if isinstance(event, AliasEvent):
            return self._alias(event)
        if event.tag not in (None, "!", _TEXT):
            raise _refused(event, f"{place}tag '{event.tag}' is not allowed")
        if depth > MAX_DEPTH:
            raise _refused(event, f"values stand more than {MAX_DEPTH} deep in each other")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, MappingStartEvent):
            node = self._mapping(depth)
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(depth, place)
        else:
            node = _Node(_scalar(event, place))
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: AliasEvent) -> _Node:
        if event.anchor not in self._anchors:
            raise _refused(event, f"alias '*{event.anchor}' stands for nothing before it")
        node = self._anchors[event.anchor]
        if node is None:
            raise _refused(event, f"alias '*{event.anchor}' stands in what it stands for")
        self._repeated += node.size
        if self._repeated > MAX_REPEATED:
            raise _refused(event, f"aliases stand for more than {MAX_REPEATED:,} values")
        return node

    def _sequence(self, depth: int, place: str) -> _Node:
        nodes = []
        while not isinstance(event := next(self._events), CollectionEndEvent):
            nodes.append(self._node(event, depth + 1, place))
        return _Node([node.value for node in nodes], 1 + sum(node.size for node in nodes))

    def _mapping(self, depth: int) -> _Node:
        """Build a mapping, in which its own keys win over those merged by `<<`."""
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        size = 1
        while not isinstance(event := next(self._events), CollectionEndEvent):
            if _is_plain(event) and event.value == _MERGE:
                value = self._node(next(self._events), depth + 1, f"key '{_MERGE}': ")
                merged = _merged(value.value, event) | merged
            else:
                key = self._node(event, depth + 1, "").value
                if isinstance(key, (dict, list)):
                    raise _refused(event, "a key must be a text, a number or a boolean")
                if key in own:
                    raise _refused(event, f"key '{key}' is given twice")
                value = self._node(next(self._events), depth + 1, f"key '{key}': ")
                own[key] = value.value
            size += 1 + value.size
        return _Node(merged | own, size)


def _merged(value: Any, event: Any) -> dict[Any, Any]:
    """Merge one mapping, or a list of mappings of which earlier ones win."""
    found: dict[Any, Any] = {}
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            raise _refused(event, f"'{_MERGE}' merges mappings, and this is none")
        found = one | found
    return found


def _is_plain(event: Any) -> bool:
    """Return whether an event is a scalar without quotes or tag, whose type follows from its text."""
    return isinstance(event, ScalarEvent) and event.tag is None and event.implicit[0]


def _scalar(event: ScalarEvent, place: str) -> Any:
    """Return the value of a scalar by the core schema of YAML 1.2."""
    text = event.value
    if not _is_plain(event):
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _OLD_OCTAL.fullmatch(text):
        raise _refused(
            event,
            f"{place}{text} is one number in YAML 1.1 and another in 1.2; allowed: a number without the leading "
            f"0, or '{text}' in quotes as a text",
        )
    if _INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise _refused(event, f"{place}a number of more than {MAX_DIGITS} digits")
        return int(text, 0)
    if _FLOAT.fullmatch(text) or _NO_NUMBER.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _refused(event: Any, reason: str) -> UserError:
    return UserError(f"line {event.start_mark.line + 1}: {reason}")
