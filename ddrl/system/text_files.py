"""Files that people or other programs wrote: text, JSON, YAML. What is wrong with one is a line that names it.

YAML is read as version 1.2 says (its core schema): `on`, `yes` and `1:30:00` are texts, and `010`, which is 8 in one
version and 10 in the other, is refused. So is a key that is given twice, in JSON too. No torch here.
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
"""Of values in values; no file of this project has ten."""
MAX_REPEATED = 100_000
"""Values that aliases may stand for in one file; a few lines of aliases to aliases would stand for billions."""
MAX_DIGITS = 400
"""No float is longer."""
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
    """The text of a file in UTF-8. Raises `UserError` where it cannot be read, or is no such text."""
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
    """Plain data of a JSON file. Raises `UserError` as `read_text`, for what is no JSON, and for a key given twice."""
    with about(path):
        return parse_json(_unnamed(path))


def parse_json(text: str) -> Any:
    """Plain data of JSON. Raises `UserError` for what is none, and for a key given twice."""
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
    """Plain data of a YAML file. Raises `UserError` as `read_text`, and as `parse_yaml` with the file's name."""
    with about(path):
        return parse_yaml(_unnamed(path))


def _unnamed(path: Path) -> str:
    """The text of a file, whose name `about` puts before what is wrong with it."""
    try:
        return read_text(path)
    except UserError as error:
        raise UserError(str(error).removeprefix(f"{path}: ")) from None


def parse_yaml(text: str) -> Any:
    """Plain data of one YAML document: mappings, lists, texts, numbers, booleans, None.

    Raises `UserError` naming the line for what is no YAML, a key given twice, a number that versions of YAML read
    differently, a tag, values too deep in each other, and aliases that stand for too much.
    """
    try:
        return _Document(yaml.parse(text, Loader=yaml.CSafeLoader)).value()
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True)
class _Node:
    """A value, and how many it is, counting what is within and what aliases stand for."""

    value: Any
    size: int = 1


class _Document:
    """Builds the values from libyaml's events: its parser does not recurse, and what is refused is never built."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events: Iterator[Any] = (one for one in events if isinstance(one, (NodeEvent, CollectionEndEvent)))
        self._anchors: dict[str, _Node | None] = {}
        """None: it is not complete, so an alias would stand in itself."""
        self._repeated = 0

    def value(self) -> Any:
        """Of the document; None where there is none. Raises `UserError` for a second one."""
        first = next(self._events, None)
        if first is None:
            return None
        found = self._node(first, 1, "").value
        if (more := next(self._events, None)) is not None:
            raise _refused(more, "a second document begins here; allowed: one")
        return found

    def _node(self, event: Any, depth: int, place: str) -> _Node:
        """`place`: the key whose value it is, for messages."""
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
        """What `<<` merges comes first, so that the mapping's own keys win."""
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        size = 1
        while not isinstance(event := next(self._events), CollectionEndEvent):
            if _is_plain(event) and event.value == _MERGE:
                value = self._node(next(self._events), depth + 1, f"key '{_MERGE}': ")
                merged = _merged(value.value, event) | merged
            else:
                key = self._key(event, depth)
                if key in own:
                    raise _refused(event, f"key '{key}' is given twice")
                value = self._node(next(self._events), depth + 1, f"key '{key}': ")
                own[key] = value.value
            size += 1 + value.size
        return _Node(merged | own, size)

    def _key(self, event: Any, depth: int) -> Any:
        key = self._node(event, depth + 1, "").value
        if isinstance(key, (dict, list)):
            raise _refused(event, "a key must be a text, a number or a boolean")
        return key


def _merged(value: Any, event: Any) -> dict[Any, Any]:
    """Of one mapping, or of several, of which the first wins."""
    found: dict[Any, Any] = {}
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            raise _refused(event, f"'{_MERGE}' merges mappings, and this is none")
        found = one | found
    return found


def _is_plain(event: Any) -> bool:
    """Whether it is a scalar without quotes and tag, whose type follows from its text."""
    return isinstance(event, ScalarEvent) and event.tag is None and event.implicit[0]


def _scalar(event: ScalarEvent, place: str) -> Any:
    """By the core schema of YAML 1.2."""
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
