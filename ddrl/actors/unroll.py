"""Collects unrolls, aligned as `ddrl.types` says; and the actor of IMPALA and other algorithms, which sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ddrl.actors.env_groups import AllAtOnce, EnvGroup
from ddrl.actors.policy import Policy
from ddrl.actors.preemption import Preemption
from ddrl.interfaces import Parameters, Queue
from ddrl.types import Array, EnvSpec, EnvStep, Episode, PolicyInput, PolicyStep, RecurrentState, Unroll, VectorEnv

EpisodeSink = Callable[[Episode], None]
"""Called with each finished episode."""


class Group:
    """Environments that step together, the policy that acts for them, and where the two are."""

    def __init__(self, env: EnvGroup, policy: Policy, first: int) -> None:
        """`first`: number of the first environment among those of the actor."""
        self.env = env
        self.policy = policy
        self.first = first
        self.columns = slice(first, first + env.num_envs)
        self.last_step: EnvStep | None = None
        self.acted: PolicyStep | None = None
        """What the policy already does at the newest step."""
        self.states: list[RecurrentState] = []
        """Before each transition of the unroll that is being collected."""
        self.values: list[Tensor] = []
        """Predicted at its observations."""
        self.inputs: PolicyInput | None = None

    @property
    def step(self) -> EnvStep:
        """Last step of the environments; resets them on first use, because remote ones may connect late."""
        if self.last_step is None:
            self.last_step = self.env.reset()
        return self.last_step

    def observe(self, arrays: dict[str, Array], t: int) -> None:
        """Write what is seen at step t; keep what the policy is given there."""
        self.inputs = inputs = self.policy.inputs(self.step)
        arrays["observation"][t, self.columns] = self.step.observation
        arrays["start"][t, self.columns] = self.step.start
        arrays["last_action"][t, self.columns] = inputs.last_action.numpy()
        arrays["last_reward"][t, self.columns] = inputs.last_reward.numpy()

    def act(self) -> PolicyStep:
        """Return what the policy does at the newest step."""
        assert self.inputs is not None
        acted, self.acted = self.acted or self.policy.answer(self.inputs), None
        return acted

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the policy and the last step."""
        step = self.last_step
        return {
            "policy": self.policy.state_dict(),
            "step": None if step is None else [torch.from_numpy(np.array(part)) for part in step],
            "acted": [part.clone() for part in self.acted or ()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        if state["step"] is not None:
            arrays: list[Array] = [part.numpy() for part in state["step"]]
            self.last_step = EnvStep(*arrays)
        self.policy.load_state_dict(state["policy"])
        self.acted = PolicyStep(*state["acted"]) if state["acted"] else None


class UnrollCollector:
    """Steps B environments with a policy; consecutive unrolls overlap by one observation."""

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        *,
        actor: int,
        on_episode: EpisodeSink,
        tasks: Sequence[str] | None = None,
        first_index: int = 0,
        generator: np.random.Generator | None = None,
        groups: Sequence[tuple[EnvGroup, Policy]] = (),
        preemption: Preemption | None = None,
    ) -> None:
        """`tasks` [B] names each environment's task (None: one for all); `generator` draws what is not an action.

        `groups` are those of `env`, each with a policy of its own, where they take turns (`ddrl.actors.env_groups`);
        `policy` is then the first of these. `preemption` ends unrolls early; None: all are whole.
        """
        self.env = env
        self.generator = generator
        self.policy = policy
        self.next_index = first_index
        """Number of unrolls collected so far."""
        self._actor = actor
        self._on_episode = on_episode
        self._preemption = preemption
        self._tasks = tasks or [env.spec.name] * env.num_envs
        self._groups: list[Group] = []
        for one, own in groups or [(AllAtOnce(env), policy)]:
            self._groups.append(Group(one, own, sum(group.env.num_envs for group in self._groups)))
        self.policies = [group.policy for group in self._groups]
        self.agent_steps = 0
        """Steps made in this process, without dead ones."""
        self.abandoned = 0
        """Number of episodes whose environment was lost before their end (see `ddrl.types`)."""
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)

    def collect(
        self,
        length: int,
        states: list[RecurrentState] | None = None,
        values: list[torch.Tensor] | None = None,
        *,
        last_value: bool = True,
    ) -> Unroll:
        """Return the next unroll of `length` transitions.

        Appends the recurrent state before each transition to `states`, if given, and the values [B] that the policy
        predicted at each of the `length` + 1 observations to `values`, if given. For the last value the policy already
        acts, and the next unroll starts with that action; so the policy must have no recurrent state. Without
        `last_value` there are `length` values.
        """
        env, groups = self.env, self._groups
        initial_state = joined_states([tuple(part.cpu().clone() for part in one.policy.state) for one in groups])
        buffers: dict[str, Any] = empty_unroll(env.spec, env.num_envs, length)
        arrays: dict[str, Array] = {name: buffer.numpy() for name, buffer in buffers.items()}
        for group in groups:
            group.observe(arrays, 0)
        steps = self._collect(arrays, length)
        for group in groups:
            if values is not None and last_value:
                group.acted = group.act()
                group.values.append(group.acted.value)
        if states is not None:
            states += map(joined_states, zip(*(group.states for group in groups), strict=True))
        if values is not None:
            values += map(_joined, zip(*(group.values for group in groups), strict=True))
        for group in groups:
            group.states, group.values, group.inputs = [], [], None
        if steps < length:
            _leave_out(arrays, steps)
        actor, index = (torch.full((env.num_envs,), value) for value in (self._actor, self.next_index))
        if self._preemption:
            self._preemption.finish(self.next_index)
        self.next_index += 1
        rest = {"actor": actor, "env": torch.arange(env.num_envs), "index": index, "initial_state": initial_state}
        return Unroll(**buffers | rest)

    def _collect(self, arrays: dict[str, Array], length: int) -> int:
        """Make the transitions of an unroll; return how many, fewer than `length` where it is preempted."""
        steps, preemption = length, self._preemption
        for t in range(length):
            if preemption and t and preemption.ends(self.next_index, t, length):
                steps = t
                break
            for group in self._groups:  # a group acts while the others step
                if t:
                    self._finish(group, arrays, t - 1)
                self._begin(group, arrays, t)
        for group in self._groups:
            self._finish(group, arrays, steps - 1)
        return steps

    def _begin(self, group: Group, arrays: dict[str, Array], t: int) -> None:
        """Act for a group, and begin its transition t."""
        group.states.append(group.policy.state)
        acted, columns = group.act(), group.columns
        group.values.append(acted.value)
        action = acted.action.numpy()
        group.env.begin(action)
        arrays["action"][t, columns] = action
        arrays["distribution"][t, columns] = acted.distribution.numpy()
        arrays["version"][t, columns] = acted.version.numpy()

    def _finish(self, group: Group, arrays: dict[str, Array], t: int) -> None:
        """Wait for a group's transition t, and write what it led to."""
        before, columns = group.step, group.columns
        group.last_step = step = group.env.finish()
        arrays["reward"][t, columns] = step.reward
        arrays["terminated"][t, columns] = step.terminated
        arrays["truncated"][t, columns] = step.truncated
        arrays["valid"][t, columns] = step.valid
        group.observe(arrays, t + 1)
        if np.count_nonzero(step.start):
            self._abandon(group, step.start & ~step.valid & ~before.ended, arrays, t)
        self._count_episodes(group, step)

    def _abandon(self, group: Group, lost: Array, arrays: dict[str, Array], t: int) -> None:
        """Mark the episodes of these environments, bool, as abandoned at transition t (see `ddrl.types`)."""
        if not lost.any():
            return
        if t:
            at = t - 1, group.columns
            arrays["truncated"][at] |= lost & arrays["valid"][at] & ~arrays["terminated"][at]
        self.abandoned += int(lost.sum())
        for place in np.flatnonzero(lost):
            self._end_episode(group.first + int(place), abandoned=True)

    def _count_episodes(self, group: Group, step: EnvStep) -> None:
        self._returns[group.columns] += step.reward
        self._lengths[group.columns] += step.valid
        self.agent_steps += int(np.count_nonzero(step.valid))
        if np.count_nonzero(step.ended):
            for place in step.ended.nonzero()[0]:
                self._end_episode(group.first + int(place))

    def _end_episode(self, column: int, *, abandoned: bool = False) -> None:
        self._on_episode(
            Episode(self._tasks[column], float(self._returns[column]), int(self._lengths[column]), abandoned)
        )
        self._returns[column] = 0.0
        self._lengths[column] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environments, policy, last step and unfinished episodes, without changing them.

        If nothing was collected yet, `env` and `step` are None, and the restored collector resets its environments.
        Several groups have their states under `groups`.
        """
        groups = [group.state_dict() for group in self._groups]
        return {
            "env": None if self._groups[0].last_step is None else self.env.state_dict(),
            **(groups[0] if len(groups) == 1 else {"groups": groups}),
            "next_index": self.next_index,
            "returns": torch.from_numpy(self._returns.copy()),
            "lengths": torch.from_numpy(self._lengths.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; the environments must not have been reset before."""
        if state["env"] is not None:
            self.env.load_state_dict(state["env"])
        for group, own in zip(self._groups, state.get("groups", [state]), strict=True):
            group.load_state_dict(own)
        self.next_index = state["next_index"]
        self._returns = state["returns"].numpy().copy()
        self._lengths = state["lengths"].numpy().copy()


def _leave_out(arrays: dict[str, Array], steps: int) -> None:
    """Write what is left of an unroll after its first `steps` transitions, as `ddrl.types` says."""
    for name in ("observation", "last_action", "last_reward", "start"):
        arrays[name][steps + 1 :] = arrays[name][steps]
    for name in ("action", "distribution", "version"):
        arrays[name][steps:] = arrays[name][steps - 1]
    for name in ("reward", "terminated", "truncated", "valid"):
        arrays[name][steps:] = 0


def joined_states(states: Sequence[RecurrentState]) -> RecurrentState:
    """Return the recurrent state of all environments, from that of each group."""
    return states[0] if len(states) == 1 else tuple(map(_joined, zip(*states, strict=True)))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def empty_unroll(
    spec: EnvSpec, num_envs: int, length: int, device: torch.device | None = None
) -> dict[str, torch.Tensor]:
    """Return room for what every step of an unroll has, by the names of `Unroll`, on `device`; None: the CPU."""
    action = ((spec.action_size,), torch.float32) if spec.action_size else ((), torch.int64)
    kinds = {  # name -> (shape and type of one environment's, steps)
        "observation": ((spec.observation_shape, getattr(torch, spec.observation_dtype)), length + 1),
        "last_action": (action, length + 1),
        "last_reward": (((), torch.float32), length + 1),
        "start": (((), torch.bool), length + 1),
        "action": (action, length),
        "reward": (((), torch.float32), length),
        "terminated": (((), torch.bool), length),
        "truncated": (((), torch.bool), length),
        "valid": (((), torch.bool), length),
        "distribution": (((spec.distribution_size,), torch.float32), length),
        "version": (((), torch.int64), length),
    }
    return {
        name: torch.empty((steps, num_envs, *shape), dtype=dtype, device=device)
        for name, ((shape, dtype), steps) in kinds.items()
    }


class Collector(Protocol):
    """What `UnrollActor` acts with: an `UnrollCollector`, or one whose unrolls are made on a device."""

    policy: Policy
    next_index: int

    def collect(
        self,
        length: int,
        states: list[RecurrentState] | None = None,
        values: list[Tensor] | None = None,
        *,
        last_value: bool = True,
    ) -> Unroll:
        """Return the next unroll, as `UnrollCollector.collect` does."""


class HasUnrollLength(Protocol):
    """The hyperparameter that `UnrollActor` reads."""

    @property
    def unroll_length(self) -> int:
        """T, agent steps."""


class UnrollActor:
    """An actor of which one call of `step` makes one unroll (Espeholt et al. 2018, section 3)."""

    def __init__(
        self,
        config: HasUnrollLength,
        collector: Collector,
        params: Parameters,
        queue: Queue,
        process: Callable[[Unroll, list[Tensor]], Unroll] | None = None,
        *,
        last_value: bool = True,
    ) -> None:
        """`process` changes an unroll before it is sent, given the T + 1 values [B] predicted while acting.

        Without `last_value` it gets T values.
        """
        self._last_value = last_value
        self._length = config.unroll_length
        self._collector = collector
        self._params = params
        self._queue = queue
        self._process = process
        if process is None:
            collector.policy.inference.leave_out_values()

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""
        return self._params.can_pull(self._collector.next_index) and self._queue.can_insert()

    def step(self) -> None:
        """Act for `unroll_length` steps with one version of the parameters (central inference: the newest) and send."""
        self._collector.policy.pull(self._params, self._collector.next_index)  # 1  mu <- pi
        values: list[Tensor] = []
        # 2  x, a, r, mu(a|x), and the initial recurrent state
        unroll = self._collector.collect(
            self._length, values=values if self._process else None, last_value=self._last_value
        )
        self._queue.insert(self._process(unroll, values) if self._process else unroll)  # 3  send the trajectory

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the whole state belongs to the collector."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
