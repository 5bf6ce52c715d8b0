"""Types of configuration keys that several parts share, and checks for keys without effect."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from ddrl.errors import UserError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""For every configuration dataclass: no unknown keys, no NaN, no infinity."""

Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def check_read(config: Any, unread: Mapping[str, str]) -> None:
    """Raise `UserError` if a key of `unread`, which maps keys to what would read them, is not at its default."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in unread and value != field.default:
            raise UserError(
                f"key 'hyperparameters.{field.name}': {json.dumps(value)} would not be read; it goes with "
                f"{unread[field.name]}; allowed otherwise: {json.dumps(field.default)}"
            )


def check_penalty(kl_cost: float, kl_target: float | None) -> None:
    """Raise `UserError` if there is a KL target but a `kl_cost` of 0, which scaling leaves at 0."""
    if kl_target is not None and not kl_cost:
        raise UserError(
            "key 'hyperparameters.kl_target' adapts kl_cost, which is 0; allowed: null, or a kl_cost above 0"
        )
