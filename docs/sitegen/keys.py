"""Keys of the configuration as tables, read from the dataclasses that check it."""

from __future__ import annotations

from collections.abc import Iterable

from ddrl.training.config.keys import Key, all_keys
from docs.sitegen.markdown import code, table

HYPERPARAMETERS = "hyperparameters."


def run_keys() -> str:
    """Return the keys that all algorithms share, a section for each part of the configuration."""
    groups: dict[str, list[Key]] = {}
    for key in all_keys():
        groups.setdefault(key.name.partition(".")[0] if "." in key.name else "", []).append(key)
    parts = [f"### `{name}`\n\n{_table(keys)}" if name else _table(keys) for name, keys in groups.items()]
    return "\n\n".join(parts)


def hyperparameters(algorithm: str) -> str:
    """Return the hyperparameters of an algorithm, without their common prefix."""
    own = [key for key in all_keys(algorithm) if key.name.startswith(HYPERPARAMETERS)]
    return _table(own, HYPERPARAMETERS)


def _table(keys: Iterable[Key], prefix: str = "") -> str:
    rows = (
        [code(key.name.removeprefix(prefix)), key.type, code(key.default) or "must be given", _source(key.text)]
        for key in keys
    )
    return table(["key", "allowed", "default", "meaning, source"], rows)


def _source(text: str) -> str:
    """Return a comment of the source; marks that Markdown knows stay, all but single asterisks and dollars."""
    return text.replace("*", "\\*").replace("$", "\\$").replace("<", "&lt;")
