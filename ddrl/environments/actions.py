"""What `VectorEnv.step` accepts, checked before anything moves."""

from __future__ import annotations

import numpy as np

from ddrl.types import Array


def discrete_actions(actions: Array, num_envs: int, num_actions: int) -> Array:
    """`actions` as int64 [B].

    Raises: ValueError for another shape or type, or an action outside 0..num_actions - 1.
    """
    if actions.shape != (num_envs,) or actions.dtype.kind not in "iu":
        raise ValueError(f"actions must be integers of shape ({num_envs},), not {actions.dtype} {actions.shape}")
    if int(actions.min()) < 0 or int(actions.max()) >= num_actions:
        raise ValueError(f"actions must lie in 0..{num_actions - 1}, got {actions.min()}..{actions.max()}")
    return actions.astype(np.int64, copy=False)


def continuous_actions(actions: Array, num_envs: int, action_size: int) -> Array:
    """`actions`, float32 [B, A], clipped to [-1, 1].

    Raises: ValueError for another shape or type, or NaN.
    """
    if actions.shape != (num_envs, action_size) or actions.dtype != np.float32:
        wanted = f"float32 of shape ({num_envs}, {action_size})"
        raise ValueError(f"actions must be {wanted}, not {actions.dtype} {actions.shape}")
    if np.isnan(actions).any():
        rows = np.nonzero(np.isnan(actions).any(axis=1))[0].tolist()
        raise ValueError(f"actions hold NaN in the environments {rows}")
    clipped: Array = np.clip(actions, np.float32(-1.0), np.float32(1.0))
    return clipped
