"""Random episodes of one environment as plain arrays, and the unrolls that an actor makes of them.

Every kind of end that `ddrl.types` speaks of comes: terminated and truncated episodes with a dead step after them, lost
lives without one, that begin an episode or roll on within one, and abandoned episodes, some before their first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddrl.types import Array, RecurrentState, Unroll

ENDINGS = ("terminated", "truncated", "life", "rolling", "abandoned")
NUM_ACTIONS = 3
STACK = 4

Observe = Callable[[np.random.Generator, int, int, Array | None], Array]
"""(generator, step, episode, the observation before, None where an environment was reset) -> observation."""


@dataclass(frozen=True)
class Stream:
    """The steps of one environment, arrays [steps, ...] named as in `Unroll`."""

    observation: Array
    start: Array
    last_action: Array
    last_reward: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    """Where an episode was abandoned as well."""
    over: Array
    """The last valid step of an episode (or life that begins one)."""
    valid: Array
    version: Array
    distribution: Array
    abandoned: Array
    """The last valid step of such an episode: an unroll that ends there does not know it."""
    episode: Array
    """Number of each step's episode (or life); a dead step belongs to the one before it."""

    def __len__(self) -> int:
        return len(self.start)

    def first(self, step: int) -> int:
        """The step with which the episode of `step` began."""
        return int(np.searchsorted(self.episode, self.episode[step]))

    def last(self, step: int) -> int | None:
        """The last step of the episode of `step`; None where it goes on when the stream ends."""
        return _first_at(self.over, step)

    def last_paid(self, step: int) -> int | None:
        """The last step whose reward counts in the return of `step`: of its life, where lives roll on."""
        return _first_at(self.terminated | self.truncated, step)


def _first_at(flags: Array, step: int) -> int | None:
    """The first of `flags` [steps] from `step` on."""
    after = np.flatnonzero(flags[step:])
    return step + int(after[0]) if len(after) else None


def random_stream(
    seed: int,
    steps: int,
    observe: Observe,
    *,
    longest: int = 12,
    shortest: int = 1,
    endings: Sequence[str] = ENDINGS,
) -> Stream:
    """Episodes of `shortest` to `longest` steps, one after the other."""
    rng = np.random.default_rng(seed)
    observations: list[Array] = []
    kinds = ("start", "valid", "terminated", "truncated", "abandoned", "over")
    flags: dict[str, list[bool]] = {kind: [] for kind in kinds}
    episodes: list[int] = []
    episode, is_reset, begins = 0, True, True

    def add(*names: str) -> None:
        reset = is_reset and "start" in names
        observations.append(observe(rng, len(episodes), episode, None if reset else observations[-1]))
        episodes.append(episode)
        for kind in kinds:
            flags[kind].append(kind in names)

    marks = {"life": ("terminated", "over"), "rolling": ("terminated",), "abandoned": ("truncated", "abandoned")}
    while len(episodes) < steps:
        ending = str(rng.choice(endings))
        length = int(rng.integers(0 if ending == "abandoned" else shortest, longest + 1))
        for step in range(length):
            add(
                "valid",
                *(["start"] if begins and step == 0 else []),
                *(marks.get(ending, (ending,)) if step == length - 1 else ()),
            )
        is_reset = ending not in ("life", "rolling")
        if is_reset:
            if episodes:
                flags["over"][-1] = flags["valid"][-1]
            add(*(["start"] if begins and not length else []))  # dead
        begins = ending != "rolling"
        episode += begins

    arrays = {kind: np.array(values[:steps]) for kind, values in flags.items()}
    reward = np.where(arrays["valid"], rng.normal(size=steps), 0.0).astype(np.float32)
    action = rng.integers(NUM_ACTIONS, size=steps)
    before = ~arrays["start"]
    return Stream(
        observation=np.stack(observations[:steps]),
        last_action=np.where(before, np.roll(action, 1), 0),
        last_reward=np.where(before, np.roll(reward, 1), 0.0).astype(np.float32),
        action=action,
        reward=reward,
        version=np.arange(steps) // 7,
        distribution=rng.normal(size=(steps, NUM_ACTIONS)).astype(np.float32),
        episode=np.array(episodes[:steps]),
        **arrays,
    )


def named(stream: int) -> Observe:
    """Observations [3] float32 that say where they belong: (stream, step, episode)."""
    return lambda rng, step, episode, before: np.array([stream, step, episode], dtype=np.float32)


def stacked(rng: np.random.Generator, step: int, episode: int, before: Array | None) -> Array:
    """Stacks of four frames [4, 3, 3] uint8, as Atari's: the first frame after a reset is repeated."""
    frame = rng.integers(0, 256, size=(1, 3, 3), dtype=np.uint8)
    return np.repeat(frame, STACK, axis=0) if before is None else np.concatenate([before[1:], frame])


def unrolls(streams: Sequence[Stream], length: int, *, actor: int = 0) -> list[Unroll]:
    """All whole unrolls of an actor that has these environments, in order."""
    number = (len(streams[0]) - 1) // length
    return [_unroll(streams, start, length, actor) for start in range(0, number * length, length)]


def _unroll(streams: Sequence[Stream], begin: int, length: int, actor: int) -> Unroll:
    def cut(name: str, size: int) -> Tensor:
        parts = [getattr(stream, name)[begin : begin + size] for stream in streams]
        return torch.from_numpy(np.stack(parts, axis=1))

    columns = len(streams)
    truncated = cut("truncated", length)
    truncated[-1] &= ~cut("abandoned", length)[-1]
    points = {name: cut(name, length + 1) for name in ("observation", "last_action", "last_reward", "start")}
    steps = ("action", "reward", "terminated", "valid", "distribution", "version")
    return Unroll(
        **points,
        **{name: cut(name, length) for name in steps},
        truncated=truncated,
        actor=torch.full((columns,), actor),
        env=torch.arange(columns),
        index=torch.full((columns,), begin // length),
        initial_state=(),
    )


def states(numbers: Sequence[int], begin: int, length: int) -> list[RecurrentState]:
    """What a network could have had before each step of an unroll: two kinds, that say which stream and which step."""
    names = torch.tensor(numbers, dtype=torch.float32)
    return [
        (torch.stack([names, torch.full_like(names, step)], dim=1), torch.full((len(numbers), 1), step + 0.5))
        for step in range(begin, begin + length)
    ]
