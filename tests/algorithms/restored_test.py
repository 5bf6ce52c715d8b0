"""A resume forgets nothing: whatever a learner, an actor or a replay has that changes as it learns is restored.

Rather than a list of what should be saved, which would forget what its author forgot, the objects themselves are
walked: every number, tensor, list and generator below a learner is compared with that of its restored copy.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.system.wait_clock import WaitClock
from tests.algorithms.contract_test import LEARNABLE
from tests.algorithms.rigs import SPECS, Rig
from tests.runs import GRADIENTS, REPLAYING
from tests.scripted import Scripted

PENALISED: dict[str, dict[str, Any]] = {
    "a2c": {"return_scaling": True},
    "ppo": {"kl_cost": 0.2, "kl_target": 1e-9, "return_scaling": True},
    "impact": {"kl_cost": 0.2, "kl_target": 1e-9, "num_traversals": 3},
    "impala": {"replay_fraction": 0.5, "replay_capacity": 6},
}
"""Algorithm -> keys with which it has more to remember."""
NO_STATE: tuple[type, ...] = (WaitClock,)
NOT_SAVED = re.compile(
    r"\._queue\."  # what waits there is saved by the run itself
    r"|^collector\.(agent_steps|abandoned)$"  # of this process
    r"|\.sampler\."  # an epsilon that follows from the number of unrolls, before the next one
    r"|\._frames$"  # held by parts: what is free or given up holds anything (`tests/replay/step_storage_test.py`)
)
Leaf = int | float | str | bool | bytes | None


def remembered(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """(where, what) of every plain value and array below `value`, in objects of `ddrl` and torch."""
    if isinstance(value, Leaf):
        yield path, value
    elif isinstance(value, torch.Tensor):
        yield path, value.detach().clone()
    elif isinstance(value, np.ndarray):
        yield path, value.copy()
    elif isinstance(value, np.random.Generator):
        yield path, str(value.bit_generator.state)
    elif isinstance(value, torch.Generator):
        yield path, value.get_state()
    elif isinstance(value, NO_STATE):
        return
    elif isinstance(value, tuple) or id(value) not in seen:  # Python has one empty tuple for all
        seen.add(id(value))
        for name, part in below(value):
            yield from remembered(part, f"{path}.{name}", seen)


def below(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds: attributes, items, or what torch says its state is."""
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        yield from value.state_dict().items()
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | deque):
        yield "length", len(value)
        yield from ((str(number), part) for number, part in enumerate(value))
    elif type(value).__module__.startswith("ddrl."):
        yield from vars(value).items()


def all_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """By where it stands."""
    seen: set[int] = set()
    return {where: what for name, part in parts.items() for where, what in remembered(part, name, seen)}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Where two differ."""
    return {name for name in {*one, *other} if not same(one.get(name, "absent"), other.get(name, "absent"))}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def parts_of(rig: Rig) -> dict[str, Any]:
    """What is saved of a rig, by name."""
    parts = {"learner": rig.learner, "params": rig.params}
    if rig.config.__class__.__module__.rsplit(".", 1)[-1] in REPLAYING:
        parts |= {"replay": rig.queue.replay, "items": rig.queue.items}
    return parts


@pytest.mark.parametrize("updates", [3, 7])
@pytest.mark.parametrize(("name", "task"), [one for one in LEARNABLE if one[0] not in GRADIENTS])
def test_everything_that_changes_as_a_learner_learns_is_restored(name: str, task: str, updates: int) -> None:
    rig, copy = (Rig(name, SPECS[task], seed=seed, **PENALISED.get(name, {})) for seed in (0, 1))
    fresh = all_of(parts_of(rig))
    for update in range(updates):
        rig.step(seed=update, drift=0.3)
    for part, restored in zip(parts_of(rig).values(), parts_of(copy).values(), strict=True):
        restored.load_state_dict(through_a_file(part.state_dict()))
    wanted, found = (all_of(parts_of(one)) for one in (rig, copy))
    changed = differing(fresh, wanted)
    assert len(changed) > 5, "otherwise there was nothing to restore"
    forgotten = changed & differing(wanted, found)
    assert {where for where in forgotten if not NOT_SAVED.search(where)} == set()


def acting(name: str, seed: int) -> dict[str, Any]:
    """An actor in scripted environments, and all that it changes as it acts, by what saves it."""
    rig = Rig(name, seed=seed, **({"error_buffer": 1000.0} if name in REPLAYING else {}))
    network = rig.module.make_network(rig.spec, rig.config, torch_generator(seed + 10, "network"))
    env, inference = Scripted(rig.spec), LocalInference(network, device=torch.device("cpu"), precision="float32")
    sample = rig.module.make_sampler(rig.config, network, range(env.num_envs), env.num_envs)
    policy = Policy(inference, env.num_envs, torch_generator(seed, "policy"), sample)
    collector = UnrollCollector(
        env, policy, actor=0, on_episode=lambda episode: None, generator=numpy_generator(seed, "actor-replay")
    )
    replay = {"replay": rig.queue.replay} if name in REPLAYING else {}
    actor = rig.module.Actor(rig.config, collector, rig.params, replay.get("replay", rig.queue))
    core = {"learner": rig.learner.core if name in GRADIENTS else rig.learner, "params": rig.params}
    return core | replay | {"collector": collector, "actor": actor}


@pytest.mark.parametrize("steps", [1, 6, 13])
@pytest.mark.parametrize("name", ["impala", *GRADIENTS, *REPLAYING])
def test_everything_that_changes_as_an_actor_acts_is_restored(name: str, steps: int) -> None:
    own, copy = acting(name, 0), acting(name, 1)
    fresh = all_of(own)
    for _ in range(steps):
        own["actor"].step()
    for part, restored in zip(own.values(), copy.values(), strict=True):
        restored.load_state_dict(through_a_file(part.state_dict()))
    wanted, found = all_of(own), all_of(copy)
    changed = differing(fresh, wanted)
    assert len(changed) > 5, "otherwise there was nothing to restore"
    forgotten = changed & differing(wanted, found)
    assert {where for where in forgotten if not NOT_SAVED.search(where)} == set()


REMEMBERED = {
    "appo": {"core.setting.generator"},
    "ppo": {"_kl_cost", "core.setting.generator"},
    "impact": {"_kl_cost", "_kls.0"},
}


@pytest.mark.parametrize("name", sorted(REMEMBERED))
def test_the_walk_comes_to_what_an_algorithm_could_forget(name: str) -> None:
    rig = Rig(name, **PENALISED.get(name, {}))
    fresh = all_of(parts_of(rig))
    for update in range(7):
        rig.step(seed=update, drift=0.3)
    assert {f"learner.{where}" for where in REMEMBERED[name]} <= differing(fresh, all_of(parts_of(rig)))
