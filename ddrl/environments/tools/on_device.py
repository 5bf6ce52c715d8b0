"""Environments whose steps are tensors on a device: an adapter's own, or any others behind a copy for each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddrl.environments.base import finite, registry
from ddrl.environments.tools.named import GuardedCalls, NamedEnv, make_env, named
from ddrl.errors import NonFiniteError, UserError
from ddrl.types import Array, DeviceVectorEnv, EnvStep, TensorStep


class HostEnvs:
    """Environments that speak NumPy, as a `ddrl.types.DeviceVectorEnv`.

    On the CPU tensors are the arrays themselves. On a GPU actions come to the host and a step goes to it, so each step
    waits for the device; all parts of a step go in one copy from pinned memory.
    """

    def __init__(self, env: NamedEnv, device: torch.device) -> None:
        self.spec, self.num_envs = env.spec, env.num_envs
        self.state_dict, self.load_state_dict, self.close = env.state_dict, env.load_state_dict, env.close
        self._env = env
        self._parcel = None if device.type == "cpu" else _Parcel(env, device)

    def reset(self) -> TensorStep:
        """Start every environment anew. Raise as `NamedEnv.reset`."""
        return self._sent(self._env.reset())

    def step(self, actions: Tensor) -> TensorStep:
        """Apply actions [B, ...]. Raise as `NamedEnv.step`."""
        return self._sent(self._env.step(actions.cpu().numpy()))

    def check(self, unroll: Mapping[str, Tensor]) -> None:
        """Do nothing: each step was looked at."""

    def _sent(self, step: EnvStep) -> TensorStep:
        if self._parcel is not None:
            return self._parcel.send(step)
        return TensorStep(*(torch.from_numpy(np.require(part, requirements=("C", "W"))) for part in step))


class _Parcel:
    """Pinned memory for all parts of a step, which goes to the device in one copy.

    It is written again only after actions that depend on the copy have come back.
    """

    def __init__(self, env: NamedEnv, device: torch.device) -> None:
        shape, flag = (env.num_envs, *env.spec.observation_shape), ((env.num_envs,), torch.bool)
        kinds = {
            "reward": ((env.num_envs,), torch.float32),  # first, then at a multiple of its size, as views must be
            "observation": (shape, getattr(torch, env.spec.observation_dtype)),
            **dict.fromkeys(TensorStep._fields[2:], flag),
        }
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds.values()]
        self._kinds, self._sizes, self._device = kinds, sizes, device
        self._pinned = torch.empty(sum(sizes), dtype=torch.uint8).pin_memory()
        self._arrays: dict[str, Array] = {name: part.numpy() for name, part in self._views(self._pinned).items()}

    def send(self, step: EnvStep) -> TensorStep:
        """Return a step as tensors on the device, without waiting for the copy."""
        for name, part in step._asdict().items():
            self._arrays[name][...] = part
        return TensorStep(**self._views(self._pinned.to(self._device, non_blocking=True)))

    def _views(self, parcel: Tensor) -> dict[str, Tensor]:
        parts = zip(self._kinds.items(), torch.split(parcel, self._sizes), strict=True)
        return {name: part.view(dtype).view(shape) for (name, (shape, dtype)), part in parts}


class NamedDeviceEnv:
    """An adapter's own `DeviceVectorEnv`, whose errors name it, as those of a `ddrl.environments.tools.named.NamedEnv`.

    Shapes, types and devices are checked at each step. Numbers are checked after each unroll, by `check`, since to look
    at one the host would have to wait.
    """

    def __init__(self, env: DeviceVectorEnv, name: str, device: torch.device) -> None:
        self.spec, self.num_envs = env.spec, env.num_envs
        self.load_state_dict = env.load_state_dict
        self._env, self._name, self._device = env, name, device
        self._guard = GuardedCalls(env.close, name)
        self.close = self._guard.close

    def reset(self) -> TensorStep:
        """Reset the environments. Raise UserError for a step of another form, Closed after `close`."""
        return self._formed(self._guard.call(self._env.reset))

    def step(self, actions: Tensor) -> TensorStep:
        """Step the environments. Raise as `reset`."""
        return self._formed(self._guard.call(self._env.step, actions))

    def state_dict(self) -> dict[str, Any]:
        """Return the environments' state. Raise UserError where that fails."""
        state: dict[str, Any] = named(self._name, self._env.state_dict)
        return state

    def check(self, unroll: Mapping[str, Tensor]) -> None:
        """Raise UserError for a reward or an observation of an unroll, given by name, that `finite` refuses.

        Raise NonFiniteError where the actions before it were not finite. If all numbers are fine, one is transferred.
        """
        parts = [unroll[name] for name in ("observation", "reward", "action") if unroll[name].is_floating_point()]
        if bool(torch.stack([(part.abs() <= finite.LIMIT).all() for part in parts]).all()):
            return
        observation, reward, action, none = (
            unroll[name].cpu().numpy() for name in ("observation", "reward", "action", "valid")
        )
        for t in range(-1, len(reward)):
            if t >= 0 and (wrong := finite.diverged(action[t])):
                raise NonFiniteError(f"{self._name}: training diverged: {wrong}")
            paid = reward[t] if t >= 0 else np.zeros_like(reward[0])
            found = finite.fault(EnvStep(observation[t + 1], paid, *[none[0]] * 5))
            if found:
                place = f"column {found.column} of {self.num_envs}"
                raise UserError(f"{self._name}: {place}: the {found.what}; the actions before it were finite")

    def _formed(self, step: TensorStep) -> TensorStep:
        """Return the step. Raise UserError where a part has another shape or type, or is elsewhere."""
        kinds = [getattr(torch, self.spec.observation_dtype), torch.float32, *[torch.bool] * 5]
        shapes = [(self.num_envs, *self.spec.observation_shape), *[(self.num_envs,)] * 6]
        for name, part, shape, dtype in zip(TensorStep._fields, step, shapes, kinds, strict=True):
            if (part.shape, part.dtype, part.device.type) != (shape, dtype, self._device.type):
                found = f"{part.dtype} {list(part.shape)} on {part.device.type}"
                allowed = f"{dtype} {list(shape)} on {self._device.type}"
                raise UserError(f"{self._name}: the {name} is {found}; allowed: {allowed}")
        return step


def make_device_env(
    environment: Mapping[str, Any],
    num_envs: int,
    seed: int,
    *,
    device: torch.device,
    num_threads: int,
    name: str,
    first_env: int = 0,
) -> HostEnvs | NamedDeviceEnv:
    """Make environments whose steps are tensors on `device`: the adapter's own if it has any, else others with copies.

    Arguments and errors as those of `ddrl.environments.tools.named.make_env`.
    """
    own = named(
        name,
        lambda: registry.make_on_device(**environment, num_envs=num_envs, seed=seed, device=str(device)),
        keep=(UserError,),
    )
    if own is not None:
        return NamedDeviceEnv(own, name, device)
    env = make_env(environment, num_envs, seed, num_threads=num_threads, name=name, first_env=first_env)
    return HostEnvs(env, device)
