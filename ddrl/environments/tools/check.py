"""The contract of `ddrl.types.VectorEnv` as a check that every environment passes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ddrl.environments.base import registry
from ddrl.system.seeding import numpy_generator
from ddrl.types import Array, EnvStep, VectorEnv

_NUM_ENVS = 2
_AFTERWARDS = 30
"""Steps compared after a state was restored."""


class ConformanceError(Exception):
    """An environment breaks the contract; the message says what, and where."""


@dataclass(frozen=True)
class Conformance:
    """The findings of the check: the protocol, and the number of ends of each kind."""

    protocol: str
    terminated: int
    truncated: int


def check_environment(name: str, steps: int = 200, **options: Any) -> Conformance:
    """Check `name` with `options`; without any, with those of the adapter's example, if it is one.

    Raise ConformanceError, or UserError for an unknown name or option.
    """
    chosen = options or registry.examples().get(name, {})
    return check(lambda seed: registry.make(name, _NUM_ENVS, seed, **chosen), name, steps)


def check(make: Callable[[int], VectorEnv], name: str, steps: int = 200) -> Conformance:
    """Check the environments that `make(seed)` builds, over `steps` steps of seeded random actions.

    Raise ConformanceError.
    """
    with ExitStack() as stack:

        def build(seed: int) -> VectorEnv:
            return stack.enter_context(closing(make(seed)))

        env = build(1)
        _check_spec(env, name)
        plan = _plan(env, steps + _AFTERWARDS)
        trace, states = _roll(env, plan, with_states=True)
        _check_steps(env, trace, name)
        # Only one of the two was asked for its state, so this also shows that asking changes nothing.
        _check_same(name, "the same seed and actions", trace, _roll(build(1), plan)[0], first=0)
        other = _roll(build(2), plan)[0]
        _require(any(_differences(a, b) for a, b in zip(trace, other, strict=True)), name, "seeds change nothing")
        # A fresh environment takes the first state, one that was stepped takes the others.
        restored = build(1)
        for moment in _moments(trace, steps):
            restored.load_state_dict(states[moment])
            replayed = [restored.step(actions) for actions in plan[moment : moment + _AFTERWARDS]]
            original = trace[moment + 1 : moment + 1 + _AFTERWARDS]
            _check_same(name, f"the state saved after step {moment}", original, replayed, first=moment + 1)
        if env.spec.action_size:
            clipped = np.clip(plan[:_AFTERWARDS], -1, 1)
            expected = trace[: _AFTERWARDS + 1]
            _check_same(name, "actions clipped to [-1, 1]", expected, _roll(build(1), clipped)[0], first=0)
        _check_illegal_actions(env, name)
    return Conformance(
        protocol=env.spec.protocol,
        terminated=sum(int((step.terminated & step.ended).sum()) for step in trace),
        truncated=sum(int(step.truncated.sum()) for step in trace),
    )


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise ConformanceError(f"{name}: {message}")


def _plan(env: VectorEnv, steps: int) -> Array:
    """Return seeded random actions: [steps, B] int64, or [steps, B, A] float32, a third of them beyond [-1, 1]."""
    generator = numpy_generator(1, "check")
    if env.spec.action_size:
        return generator.uniform(-1.5, 1.5, (steps, env.num_envs, env.spec.action_size)).astype(np.float32)
    return generator.integers(0, env.spec.num_actions, (steps, env.num_envs))


def _roll(env: VectorEnv, plan: Array, *, with_states: bool = False) -> tuple[list[EnvStep], list[dict[str, Any]]]:
    """Return the N + 1 steps of `plan` [N, B] or [N, B, A] from a reset, and the state after each, read from a file.

    Raise ConformanceError if a step already returned changes later.
    """
    trace, states, checksums = [env.reset()], [], []
    for actions in [*plan, None]:
        checksums.append(zlib.crc32(np.ascontiguousarray(trace[-1].observation).tobytes()))
        if with_states:
            states.append(_through_a_file(env.state_dict(), env.spec.name))
        if actions is not None:
            trace.append(env.step(actions))
    for index, (step, checksum) in enumerate(zip(trace, checksums, strict=True)):
        kept = zlib.crc32(np.ascontiguousarray(step.observation).tobytes()) == checksum
        _require(kept, env.spec.name, f"step {index}: the observation was overwritten by a later step")
    return trace, states


def _through_a_file(state: dict[str, Any], name: str) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        loaded: dict[str, Any] = torch.load(file, weights_only=True)
    except Exception as error:
        raise ConformanceError(f"{name}: state_dict holds more than tensors, numbers, strings, lists, dicts") from error
    return loaded


def _check_spec(env: VectorEnv, name: str) -> None:
    spec = env.spec
    _require(spec.name == name, name, f"the spec names itself '{spec.name}'")
    _require(bool(spec.protocol.strip()), name, "the protocol id is empty")
    _require(spec.observation_dtype in ("uint8", "float32"), name, f"observation dtype '{spec.observation_dtype}'")
    kinds = f"num_actions is {spec.num_actions} and action_size {spec.action_size}"
    discrete, continuous = spec.num_actions >= 2, spec.num_actions == 0 and spec.action_size >= 1
    _require(continuous or (discrete and spec.action_size == 0), name, kinds)
    _require(spec.frame_skip >= 1, name, f"frame_skip is {spec.frame_skip}")


def _check_steps(env: VectorEnv, trace: list[EnvStep], name: str) -> None:
    """Check shapes, types and the alignment of ends, dead steps and starts."""
    first = trace[0]
    for field in ("reward", "terminated", "truncated", "ended"):
        _require(not getattr(first, field).any(), name, f"reset returns a nonzero {field}")
    _require(bool(first.start.all() and first.valid.all()), name, "reset must return start and valid True")
    for index, step in enumerate(trace):
        _check_arrays(env, step, name, f"step {index}")
    resets = any((step.start & step.terminated & ~step.ended).any() for step in trace)
    for index, (before, step) in enumerate(pairwise(trace), start=1):
        where, dead = f"step {index}", before.ended
        life_lost = step.terminated & ~step.ended
        for broken, message in (
            (step.terminated & step.truncated, "terminated and truncated at once"),
            (step.truncated & ~step.ended, "truncated but not ended"),
            (step.ended & ~(step.terminated | step.truncated), "ended, but neither terminated nor truncated"),
            (step.valid != ~dead, "the step after an end must be dead (valid False), and no other"),
            (dead & (step.reward != 0), "a dead step has a reward"),
            (dead & (step.terminated | step.truncated), "a dead step ends an episode"),
            (
                step.start != (dead | (life_lost & resets)),
                "start must mark the dead steps, and the lost lives or none of them, and nothing else",
            ),
        ):
            _require(not broken.any(), name, f"{where}: {message}")
    ends = sum(int(step.ended[:-1].any()) for step in trace[: -_AFTERWARDS - 1])
    _require(ends > 0, name, f"no episode ended in {len(trace) - _AFTERWARDS - 1} steps: allow more of them")


def _check_arrays(env: VectorEnv, step: EnvStep, name: str, where: str) -> None:
    shape, dtype = (env.num_envs, *env.spec.observation_shape), env.spec.observation_dtype
    forms = {"observation": (shape, dtype), "reward": ((env.num_envs,), "float32")}
    for field, array in step._asdict().items():
        shape, dtype = forms.get(field, ((env.num_envs,), "bool"))
        found = f"{array.dtype} {array.shape}"
        _require(array.shape == shape and array.dtype == dtype, name, f"{where}: {field} is {found}")
        _require(bool(np.isfinite(array).all()), name, f"{where}: the {field} is not finite")


def _differences(a: EnvStep, b: EnvStep) -> list[str]:
    return [field for field in a._fields if not np.array_equal(getattr(a, field), getattr(b, field))]


def _check_same(name: str, what: str, expected: list[EnvStep], found: list[EnvStep], *, first: int) -> None:
    for index, (a, b) in enumerate(zip(expected, found, strict=True), start=first):
        differing = _differences(a, b)
        _require(not differing, name, f"{what}: step {index} differs in {', '.join(differing)}")


def _moments(trace: list[EnvStep], steps: int) -> list[int]:
    """Return the steps after which a state is restored: an end, its dead step, a lost life, and one in between."""
    conditions = (
        lambda step: step.ended.any(),
        lambda step: not step.valid.all(),
        lambda step: (step.terminated & ~step.ended).any(),
    )
    found = {steps // 2}
    for condition in conditions:
        found.update([index for index, step in enumerate(trace[: steps + 1]) if condition(step)][-1:])
    return sorted(found)


def _check_illegal_actions(env: VectorEnv, name: str) -> None:
    num_envs, num_actions, action_size = env.num_envs, env.spec.num_actions, env.spec.action_size
    if action_size:
        zeros = np.zeros((num_envs, action_size), dtype=np.float32)
        nan = zeros.copy()
        nan[-1, -1] = np.nan
        illegal = {
            "NaN in the last environment's action": nan,
            "one number for each action": zeros[:, 0],
            "one dimension too many": np.hstack([zeros, zeros[:, :1]]),
            "one action too many": np.vstack([zeros, zeros[:1]]),
            "actions that are not float32": zeros.astype(np.int64),
        }
    else:
        ones = np.ones(num_envs, dtype=np.int64)
        illegal = {
            f"action {num_actions}": ones * num_actions,
            "action -1": ones * -1,
            "one action too many": np.append(ones, 1),
            "actions that are not integers": ones.astype(np.float32),
        }
    for what, actions in illegal.items():
        try:
            env.step(actions)
        except ValueError:
            continue
        raise ConformanceError(f"{name}: {what}: step must raise ValueError")
