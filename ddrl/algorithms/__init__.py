"""Algorithms, one per file; CONTRIBUTING.md says what each module must export."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

NAMES = sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Any:
    """Return the module of one algorithm; `name` is one of NAMES."""
    return importlib.import_module(f"{__name__}.{name}")
