"""Two toy games as tensors on any device, `ddrl.types.DeviceVectorEnv`: what a step takes is there, and stays there.

They play the very episodes of `toy/catch` and `toy/track` with their default options: the same random numbers, and the
same rewards but for the last bits of a mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ddrl.environments import toy
from ddrl.environments.base.contract import check_state
from ddrl.system.seeding import seed_for
from ddrl.types import TensorStep

ROWS, COLUMNS, LIMIT = 10, 5, 25


class TensorGames:
    """B copies of a game."""

    def __init__(self, task: str, num_envs: int, seed: int, device: str) -> None:
        self.spec = toy.spec(task, **{key: option.default for key, option in toy.OPTIONS[task].items()})
        self.num_envs = num_envs
        self._seed, self._device = seed, torch.device(device)
        self._begin, self._advance, self._see = GAMES[task]
        streams = [seed_for(seed, "toy", index) for index in range(num_envs)]
        self._streams = mixed(torch.tensor(streams, device=device))
        self._rows = torch.arange(num_envs, device=device)
        self._episode = torch.full((num_envs,), -1, device=device)
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._state = self._first()

    def reset(self) -> TensorStep:
        self._episode = self._episode + 1
        self._state, self._ended = self._first(), torch.zeros_like(self._ended)
        nowhere, everywhere = self._ended, ~self._ended
        rewards = torch.zeros(self.num_envs, device=self._device)
        return TensorStep(self._observe(), rewards, nowhere, nowhere, nowhere, everywhere, everywhere)

    def step(self, actions: Tensor) -> TensorStep:
        dead = self._ended
        draws = self._draws(self._state[:, 0] + 1)
        state, reward, terminated, truncated = self._advance(self._state, actions, draws)
        self._episode = self._episode + dead
        self._state = torch.where(dead.unsqueeze(-1), self._first(), state)
        self._ended = (terminated | truncated) & ~dead
        reward = reward.masked_fill(dead, 0.0)
        return TensorStep(self._observe(), reward, terminated & ~dead, truncated & ~dead, self._ended, dead, ~dead)

    def state_dict(self) -> dict[str, Any]:
        tensors = {"state": self._state, "episode": self._episode, "ended": self._ended}
        return {"protocol": self.spec.protocol, "seed": self._seed} | {k: v.cpu().clone() for k, v in tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(state, {"state", "episode", "ended"}, self.spec, self._seed, self.num_envs)
        self._state, self._episode, self._ended = (
            state[name].to(self._device) for name in ("state", "episode", "ended")
        )

    def close(self) -> None:
        """Nothing to free."""

    def _first(self) -> Tensor:
        return self._begin(self._draws(torch.zeros_like(self._episode)))

    def _observe(self) -> Tensor:
        return self._see(self._state, self._rows)

    def _draws(self, step: Tensor) -> Tensor:
        return mixed(mixed(self._streams ^ self._episode) ^ step)


def begin_catch(draws: Tensor) -> Tensor:
    high, low = shifted(draws, 32) % COLUMNS, (draws & 0xFFFFFFFF) % COLUMNS
    ball = (high * (2**32 % COLUMNS) + low) % COLUMNS  # draws are unsigned
    return torch.stack([torch.zeros_like(ball), ball, torch.full_like(ball, COLUMNS // 2)], dim=1)


def step_catch(state: Tensor, actions: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    row, ball = state[:, 0] + 1, state[:, 1]
    paddle = (state[:, 2] + actions - 1).clamp(0, COLUMNS - 1)
    landed = row == ROWS - 1
    reward = landed * (2.0 * (ball == paddle) - 1.0)
    return torch.stack([row, ball, paddle], dim=1), reward.float(), landed, torch.zeros_like(landed)


def see_catch(state: Tensor, rows: Tensor) -> Tensor:
    board = torch.zeros(len(state), ROWS * COLUMNS, device=state.device)
    one = torch.ones(len(state), 1, device=state.device)
    place = (state[:, 0].clamp(max=ROWS - 1) * COLUMNS + state[:, 1]).unsqueeze(-1)
    return board.scatter(1, place, one).scatter(1, ((ROWS - 1) * COLUMNS + state[:, 2]).unsqueeze(-1), one)


def begin_track(draws: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(draws), draws & 0xFFFF], dim=1)


def step_track(state: Tensor, actions: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    reward = 1.0 - (actions.clamp(-1.0, 1.0) - see_track(state, state)).abs().mean(dim=1)
    steps = state[:, 0] + 1
    cut = steps >= LIMIT
    return torch.stack([steps, draws & 0xFFFF], dim=1), reward, torch.zeros_like(cut), cut


def see_track(state: Tensor, rows: Tensor) -> Tensor:
    return ((state[:, 1:].double() + 0.5) / 2**15 - 1.0).float()


GAMES: dict[str, Any] = {
    "catch": (begin_catch, step_catch, see_catch),
    "track": (begin_track, step_track, see_track),
}


def shifted(value: Tensor, bits: int) -> Tensor:
    """The logical right shift of integers that stand for unsigned ones."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mixed(value: Tensor) -> Tensor:
    """`ddrl.system.seeding.mixed`, in wrapping int64."""
    value = value + (0x9E3779B97F4A7C15 - 2**64)
    value = (value ^ shifted(value, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    value = (value ^ shifted(value, 27)) * (0x94D049BB133111EB - 2**64)
    return value ^ shifted(value, 31)


def offer(monkeypatch: pytest.MonkeyPatch, made: list[TensorGames] | None = None) -> None:
    """Let the adapter of the toy environments make these where a run acts on its device; collect them in `made`."""

    def make(task: str, num_envs: int, seed: int, device: str, **options: Any) -> TensorGames:
        env = TensorGames(task, num_envs, seed, device)
        if made is not None:
            made.append(env)
        return env

    monkeypatch.setattr(toy, "ADAPTER", replace(toy.ADAPTER, make_on_device=make))
