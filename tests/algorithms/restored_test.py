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

from ddrl.waiting import WaitClock
from tests.algorithms.contract_test import LEARNABLE
from tests.algorithms.rigs import SPECS, Rig
from tests.runs import GRADIENTS, REPLAYING

PENALISED: dict[str, dict[str, Any]] = {
    "ppo": {"kl_cost": 0.2, "kl_target": 1e-9},
    "impact": {"kl_cost": 0.2, "kl_target": 1e-9, "num_traversals": 3},
    "impala": {"replay_fraction": 0.5, "replay_capacity": 6},
}
"""Algorithm -> keys with which it has more to remember."""
NO_STATE: tuple[type, ...] = (WaitClock,)
NOT_SAVED = re.compile(
    r"\._queue\."  # what waits there is saved by the run itself
    r"|\._frames$"  # held by parts: what is free or given up holds anything (`tests/replay/history_test.py`)
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
    elif id(value) in seen or isinstance(value, NO_STATE):
        return
    else:
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


def all_of(*parts: Any) -> dict[str, Any]:
    """By where it stands."""
    seen: set[int] = set()
    return {where: what for n, part in enumerate(parts) for where, what in remembered(part, str(n), seen)}


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
    fresh = all_of(*parts_of(rig).values())
    for update in range(updates):
        rig.step(seed=update, drift=0.3)
    for part, restored in zip(parts_of(rig).values(), parts_of(copy).values(), strict=True):
        restored.load_state_dict(through_a_file(part.state_dict()))
    wanted, found = (all_of(*parts_of(one).values()) for one in (rig, copy))
    changed = differing(fresh, wanted)
    assert len(changed) > 5, "otherwise there was nothing to restore"
    forgotten = changed & differing(wanted, found)
    assert {where for where in forgotten if not NOT_SAVED.search(where)} == set()


def test_the_walk_comes_to_what_two_algorithms_once_forgot() -> None:
    for name, where in (("ppo", {"0._kl_cost", "0.core.setting.generator"}), ("impact", {"0._kl_cost", "0._kls.0"})):
        rig = Rig(name, **PENALISED[name])
        fresh = all_of(rig.learner)
        for update in range(7):
            rig.step(seed=update, drift=0.3)
        assert where <= differing(fresh, all_of(rig.learner))
