"""Types of configuration keys that several parts share, and what refuses a key that nobody would read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from ddrl.errors import UserError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Of every dataclass that a configuration fills: no unknown key, no NaN, nothing infinite."""

Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def check_read(config: Any, unread: Mapping[str, str]) -> None:
    """Raises `UserError` where a key of `unread` (-> what would read it) is not at its default.

    A default may stand in a configuration that has no use for it; any other value says that somebody expects an effect.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in unread and value != field.default:
            raise UserError(
                f"key 'hyperparameters.{field.name}': {json.dumps(value)} would not be read; it goes with "
                f"{unread[field.name]}; allowed otherwise: {json.dumps(field.default)}"
            )


def check_penalty(kl_cost: float, kl_target: float | None) -> None:
    """Raises `UserError` where a target would adapt nothing: `adapted_kl_cost` scales, and 0 stays 0."""
    if kl_target is not None and not kl_cost:
        raise UserError(
            "key 'hyperparameters.kl_target' adapts kl_cost, which is 0; allowed: null, or a kl_cost above 0"
        )
