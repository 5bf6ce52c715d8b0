"""The actor of a prioritized replay: pulls parameters now and then, collects unrolls, sends them with priorities."""

from __future__ import annotations

from typing import Any, cast

from ddrl.actors.adders import Items
from ddrl.actors.exploration import EpsilonGreedy
from ddrl.actors.unroll import UnrollCollector
from ddrl.interfaces import Parameters, Replay
from ddrl.types import RecurrentState


class ReplayActor:
    """An actor of which one call of `step` makes one unroll (Horgan et al. 2018, Algorithm 1)."""

    def __init__(
        self,
        unroll_length: int,
        pull_period: int,
        collector: UnrollCollector,
        params: Parameters,
        replay: Replay,
        items: Items,
        exploration_steps: int | None = None,
    ) -> None:
        """`pull_period` is the number of unrolls collected with one version of the parameters.

        `exploration_steps`: steps of this actor, dead ones too, over which its epsilons fall; None: they do not.
        """
        self._length = unroll_length
        self._pull_period = pull_period
        self._collector = collector
        self._params = params
        self._replay = replay
        self._items = items
        self._exploration_steps = exploration_steps
        self._until_pull = 0

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""
        return self._replay.can_insert()

    def step(self) -> None:
        """Act for `unroll_length` steps and send them."""
        if not self._until_pull:
            self._collector.policy.pull(self._params, self._collector.next_index)  # 13  the learner's parameters
            self._until_pull = self._pull_period
        self._until_pull -= 1
        if self._exploration_steps is not None:
            acted = self._collector.next_index * self._length * self._collector.env.num_envs
            for policy in self._collector.policies:
                cast(EpsilonGreedy, policy.sampler).fall(acted, self._exploration_steps)
        states: list[RecurrentState] = []
        unroll = self._collector.collect(self._length, states if self._items.keeps_states else None)  # 5-6  act
        self._replay.insert(self._items.make(unroll, states))  # 9-11  initial priorities, send

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished items and when parameters are pulled next; the collector is saved separately."""
        return {"until_pull": self._until_pull, "items": self._items.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._until_pull = state["until_pull"]
        self._items.load_state_dict(state["items"])
