"""The common parts of the MuJoCo adapters: bounds of actions, specs, and the simulator's warnings.

- Time: one agent step is one time-step, and what the papers count; the simulator's own sub-steps (gymnasium's
  `frame_skip`, dm_control's `n_sub_steps`) are part of the environment. So a spec's `frame_skip` is 1.
- Actions are float32 [B, A] in the agent's units: each dimension is clipped to [-1, 1] and mapped affinely to its
  actuator's bounds. An actuator without bounds takes the clipped action as it is.
- Threads: none. Two were no faster than one here, since Python's lock changes hands several times within 0.1 ms;
  several actors, each in a process of its own, are.
- Seeds and states: see `replayed`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import mujoco

from ddrl.environments.base.adapter import Option
from ddrl.environments.worlds.spaces import Bounds
from ddrl.types import EnvSpec

MAX_STEPS = Option(1000, 1, 100_000)
"""Steps after which an episode is truncated."""
_LOGGER = logging.getLogger(__name__)
_OF_THE_MODEL_FILES = "compiler attribute 'settotalmass' is deprecated"


def flat_spec(name: str, parts: Sequence[str], max_steps: int, size: int, bounds: Bounds) -> EnvSpec:
    """Return the spec of a task with `size` float32 numbers as observation and an action for each actuator.

    Protocol id: `parts`, which the simulators do not share; actions; cap; autoreset; rewards.
    """
    shared = ("actions-clipped-to-1,actions-scaled-to-bounds", f"cap{max_steps}", "autoreset-next-step;raw-rewards")
    return EnvSpec(
        name=name,
        observation_shape=(size,),
        observation_dtype="float32",
        num_actions=0,
        frame_skip=1,
        protocol=";".join((*parts, *shared)),
        action_size=len(bounds.centre),
    )


def route_warnings() -> None:
    """Send the simulator's warnings to `logging`; by itself it writes a file into the current folder."""
    mujoco.set_mju_user_warning(_warn)


def _warn(message: str | bytes) -> None:
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    if _OF_THE_MODEL_FILES not in text:
        _LOGGER.warning("mujoco: %s", " ".join(text.split()))
