"""Collects unrolls as tensors on the device where a run trains: acting without NumPy, and without a copy for each step.

In a step the host only hands work to the device: environments, network, sampling and the unroll are there, and nothing
asks for a number. What the host needs, which is episodes that are over and steps that were made, comes in one small
transfer after an unroll. The learner gets the tensors that were written, so nothing is copied between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ddrl.actors.policy import Policy
from ddrl.actors.unroll import EpisodeSink, empty_unroll
from ddrl.types import DeviceVectorEnv, Episode, PolicyInput, PolicyStep, RecurrentState, TensorStep, Unroll

_STEP = ("reward", "terminated", "truncated", "valid")
"""What an unroll holds of a step that led somewhere."""


class DeviceCollector:
    """Steps B environments with a policy, as `ddrl.actors.unroll.UnrollCollector`, on one device.

    On the CPU, with the same environments, network and generator, the two make the same unrolls, bit for bit.
    """

    def __init__(
        self,
        env: DeviceVectorEnv,
        policy: Policy,
        *,
        device: torch.device,
        actor: int,
        on_episode: EpisodeSink,
        tasks: Sequence[str],
        first_index: int = 0,
        check: Callable[[Mapping[str, Tensor]], None] = lambda unroll: None,
    ) -> None:
        """`policy` samples on `device`; `tasks` [B] names each environment's task.

        `check` is given each unroll's tensors by name, and raises for numbers that are not allowed.
        """
        self.env = env
        self.policy = policy
        self.next_index = first_index
        """Number of unrolls collected so far."""
        self.agent_steps = 0
        """Steps made in this process, without dead ones."""
        self.abandoned = 0
        """Number of episodes whose environment was lost before their end (see `ddrl.types`)."""
        self._device = device
        self._on_episode = on_episode
        self._tasks = tasks
        self._check = check
        self._step: TensorStep | None = None
        self._returns = torch.zeros(env.num_envs, dtype=torch.float64, device=device)
        self._lengths = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
        self._actor = torch.full((env.num_envs,), actor, device=device)
        self._envs = torch.arange(env.num_envs, device=device)

    def collect(
        self,
        length: int,
        states: list[RecurrentState] | None = None,
        values: list[Tensor] | None = None,
        *,
        last_value: bool = True,
    ) -> Unroll:
        """Return the next unroll of `length` transitions, in memory of its own.

        Appends the recurrent state before each transition to `states`, if given, and the `length` values [B] that were
        predicted to `values`, if given. `last_value` must then be False: no value of the last observation is known.
        """
        assert values is None or not last_value
        last = self._step = self._step or self.env.reset()
        initial_state = tuple(part.clone() for part in self.policy.state)
        unroll: dict[str, Any] = empty_unroll(self.env.spec, self.env.num_envs, length, self._device)
        ended = torch.empty_like(unroll["valid"])
        inputs = self._observe(unroll, 0, last)
        for t in range(length):
            if states is not None:
                states.append(self.policy.state)
            acted = self.policy.answer(inputs)
            step = self.env.step(acted.action)
            _write(unroll, t, acted, step)
            ended[t].copy_(step.ended)
            inputs = self._observe(unroll, t + 1, step)
            if values is not None:
                values.append(acted.value)
            self._step = step
        unroll["version"].fill_(int(acted.version[0]))  # of the host's own tensor: the same one acted all the time
        self._check(unroll)
        self._count(unroll, ended, last.ended)
        index = torch.full_like(self._actor, self.next_index)
        self.next_index += 1
        return Unroll(**unroll, actor=self._actor, env=self._envs, index=index, initial_state=initial_state)

    def _observe(self, unroll: Mapping[str, Tensor], t: int, step: TensorStep) -> PolicyInput:
        """Write what is seen at step t; return what the policy is given, where 0 stands for what led to a start."""
        last = self.policy.last_action
        action = last.masked_fill(step.start if last.dim() == 1 else step.start.unsqueeze(-1), 0)
        reward = step.reward.masked_fill(step.start, 0.0)
        inputs = PolicyInput(step.observation, action, reward, step.start, self.policy.state)
        for name, value in zip(PolicyInput._fields[:4], inputs[:4], strict=True):
            unroll[name][t].copy_(value)
        return inputs

    def _count(self, unroll: Mapping[str, Tensor], ended: Tensor, before: Tensor) -> None:
        """Count steps and episodes of an unroll, given the ends of its steps [T, B] and of the step before it [B].

        Environments that were lost are marked, as `ddrl.types` says.
        """
        valid, rewards = unroll["valid"], unroll["reward"]
        lost = unroll["start"][1:] & ~valid & ~torch.cat([before.unsqueeze(0), ended[:-1]])
        unroll["truncated"][:-1] |= lost[1:] & valid[:-1] & ~unroll["terminated"][:-1]
        over = ended | lost
        totals, lengths = torch.empty_like(rewards, dtype=torch.float64), torch.empty_like(unroll["version"])
        for t in range(len(valid)):
            totals[t].copy_(self._returns.add_(rewards[t]))
            lengths[t].copy_(self._lengths.add_(valid[t]))
            self._returns.masked_fill_(over[t], 0.0)
            self._lengths.masked_fill_(over[t], 0)
        at, column = over.nonzero().unbind(1)
        episodes = [column, totals[at, column], lengths[at, column], lost[at, column]]
        sums = torch.stack([valid.sum(), lost.sum(), *valid.new_zeros(2, dtype=torch.int64)])
        found = torch.cat([sums.double().unsqueeze(0), torch.stack([part.double() for part in episodes], dim=1)])
        (steps, abandoned, *_), *rows = found.tolist()  # the one transfer
        self.agent_steps += int(steps)
        self.abandoned += int(abandoned)
        for place, total, count, was_lost in rows:
            self._on_episode(Episode(self._tasks[int(place)], total, int(count), bool(was_lost)))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environments, policy, last step and unfinished episodes, without changing them.

        It has the form of `UnrollCollector.state_dict`, on the CPU.
        """
        step = self._step
        return {
            "env": None if step is None else self.env.state_dict(),
            "policy": self.policy.state_dict(),
            "step": None if step is None else [part.cpu().clone() for part in step],
            "acted": [],
            "next_index": self.next_index,
            "returns": self._returns.cpu().clone(),
            "lengths": self._lengths.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; the environments must not have been reset before."""
        if state["env"] is not None:
            self.env.load_state_dict(state["env"])
            self._step = TensorStep(*(part.to(self._device) for part in state["step"]))
        self.policy.load_state_dict(state["policy"])
        self.next_index = state["next_index"]
        self._returns, self._lengths = (state[name].to(self._device, copy=True) for name in ("returns", "lengths"))


def _write(unroll: Mapping[str, Tensor], t: int, acted: PolicyStep, step: TensorStep) -> None:
    """Write transition t: what was done, and what it led to."""
    unroll["action"][t].copy_(acted.action)
    unroll["distribution"][t].copy_(acted.distribution)
    parts = step._asdict()
    for name in _STEP:
        unroll[name][t].copy_(parts[name])
