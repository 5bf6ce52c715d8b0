"""Types of configuration keys that several parts share, and checks for keys without effect."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from ddrl.errors import UserError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""For every configuration dataclass: no unknown keys, no NaN, no infinity."""

Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _layer_sizes(value: Any) -> int | tuple[int, ...]:
    """Return a number of units, or a tuple of them. Raise an error of pydantic's for anything else."""
    if _is_size(value):
        return int(value)
    if isinstance(value, list | tuple) and value and all(map(_is_size, value)):
        return tuple(value)
    raise PydanticCustomError(
        "layer_sizes", "must be a number of units above 0, or a list of such numbers, one for each layer"
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


LayerSizes = Annotated[int | tuple[int, ...], PlainValidator(_layer_sizes)]
"""Units of each of the usual layers, or of each layer of a list."""


def _layer_list(value: Any) -> tuple[int, ...]:
    """Return the units of each layer. Raise an error of pydantic's for anything but a list of them."""
    if isinstance(value, list | tuple) and value and all(map(_is_size, value)):
        return tuple(value)
    raise PydanticCustomError("layer_list", "must be a list of numbers of units above 0, one for each layer")


LayerList = Annotated[tuple[int, ...], PlainValidator(_layer_list)]
"""Units of each layer, of which there is at least one."""


def check_read(
    config: Any, unread: Mapping[str, str], task_defaults: Mapping[Any, Mapping[str, Any]] | None = None
) -> None:
    """Raise `UserError` if a key of `unread`, which maps keys to what would read them, is not at its default.

    `task_defaults` (kind of task -> defaults) are those that nobody typed either.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        usual = [field.default, *(one[field.name] for one in (task_defaults or {}).values() if field.name in one)]
        if field.name in unread and value not in usual:
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
