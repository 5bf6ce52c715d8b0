"""The actor of IMPALA, IMPACT and PPO: pull parameters, collect one unroll, send it."""

from __future__ import annotations

from typing import Any, Protocol

from ddrl.actors.unroll import UnrollCollector
from ddrl.interfaces import Parameters, Queue


class HasUnrollLength(Protocol):
    """An algorithm's configuration, as its actor sees it."""

    @property
    def unroll_length(self) -> int:
        """T, agent steps."""


class UnrollActor:
    """One call of `step` = one unroll (Espeholt et al. 2018, section 3)."""

    def __init__(self, config: HasUnrollLength, collector: UnrollCollector, params: Parameters, queue: Queue) -> None:
        self._length = config.unroll_length
        self._collector = collector
        self._params = params
        self._queue = queue

    def ready(self) -> bool:
        """Whether `step` would not wait."""
        return self._params.can_pull(self._collector.next_index) and self._queue.can_insert()

    def step(self) -> None:
        """Acts for `unroll_length` steps with one version of the parameters; with central inference with the newest."""
        self._collector.policy.pull(self._params, self._collector.next_index)  # 1  mu <- pi
        unroll = self._collector.collect(self._length)  # 2  x, a, r, mu(a|x), and the initial recurrent state
        self._queue.insert(unroll)  # 3  send the trajectory

    def state_dict(self) -> dict[str, Any]:
        """Nothing: all there is belongs to the collector."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""
