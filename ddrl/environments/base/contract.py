"""The common parts of all vector environments: the first step, the check of actions, and that of saved states."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ddrl.errors import UserError
from ddrl.types import Array, EnvSpec, EnvStep

_LOW, _HIGH = np.float32(-1.0), np.float32(1.0)
_FLOAT32 = np.dtype(np.float32)


def first_step(observation: Array) -> EnvStep:
    """Return what `reset` returns for the first observations [B, ...]."""
    num_envs = len(observation)
    everywhere, nowhere = np.ones(num_envs, dtype=np.bool_), np.zeros(num_envs, dtype=np.bool_)
    rewards = np.zeros(num_envs, dtype=np.float32)
    return EnvStep(observation, rewards, nowhere, nowhere, nowhere, everywhere, everywhere)


def accepted_actions(actions: Array, spec: EnvSpec, num_envs: int) -> Array:
    """Return `actions` as int64 [B], or as float32 [B, A] clipped to [-1, 1].

    Raise ValueError for another shape or type, an action outside 0..num_actions - 1, or NaN.
    """
    if not spec.action_size:
        if actions.shape != (num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers of shape ({num_envs},), not {actions.dtype} {actions.shape}")
        if int(actions.min()) < 0 or int(actions.max()) >= spec.num_actions:
            raise ValueError(f"actions must lie in 0..{spec.num_actions - 1}, got {actions.min()}..{actions.max()}")
        return actions.astype(np.int64, copy=False)
    if actions.shape != (num_envs, spec.action_size) or actions.dtype != _FLOAT32:
        wanted = f"float32 of shape ({num_envs}, {spec.action_size})"
        raise ValueError(f"actions must be {wanted}, not {actions.dtype} {actions.shape}")
    clipped: Array = np.minimum(np.maximum(actions, _LOW), _HIGH)
    if math.isnan(np.vdot(clipped, clipped)):
        rows = np.nonzero(np.isnan(actions).any(axis=1))[0].tolist()
        raise ValueError(f"actions hold NaN in the environments {rows}")
    return clipped


def saved_state(spec: EnvSpec, seed: int, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return a state that `check_state` accepts: copies of `arrays` as tensors, which checkpoints hold."""
    import torch  # worker processes step environments and save none

    return {"protocol": spec.protocol, "seed": seed} | {
        name: torch.from_numpy(array.copy()) for name, array in arrays.items()
    }


def check_state(state: Mapping[str, Any], keys: set[str], spec: EnvSpec, seed: int, num_envs: int) -> None:
    """Raise UserError unless environments of this spec, seed and number can continue where `state` was taken.

    `keys` are those that the environments read; `episode` or `loads` is among them, an array [B].
    """
    if missing := sorted(keys - set(state)):
        raise UserError(f"environment state: {', '.join(missing)} missing: written by another version of ddrl")
    for key, own in (("protocol", spec.protocol), ("seed", seed)):
        if state[key] != own:
            raise UserError(f"environment state: {key} is '{state[key]}', but this run has '{own}'")
    count = len(state["loads" if "loads" in keys else "episode"])
    if count != num_envs:
        raise UserError(f"environment state: {count} environments; allowed: {num_envs}")


def loaded_arrays(
    state: Mapping[str, Any], keys: Collection[str], spec: EnvSpec, seed: int, num_envs: int
) -> dict[str, Array]:
    """Return copies of the arrays of a state from `saved_state`, by key. Raise as `check_state`."""
    check_state(state, set(keys), spec, seed, num_envs)
    return {key: state[key].numpy().copy() for key in keys}
