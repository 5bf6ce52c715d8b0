"""The actor of IMPALA, IMPACT, PPO, A2C and GA3C: pulls parameters, collects one unroll, and sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from ddrl.actors.unroll import UnrollCollector
from ddrl.interfaces import Parameters, Queue
from ddrl.types import Unroll


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
        collector: UnrollCollector,
        params: Parameters,
        queue: Queue,
        process: Callable[[Unroll, list[Tensor]], Unroll] | None = None,
    ) -> None:
        """`process` changes an unroll before it is sent, given the T + 1 values [B] predicted while acting."""
        self._length = config.unroll_length
        self._collector = collector
        self._params = params
        self._queue = queue
        self._process = process

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""
        return self._params.can_pull(self._collector.next_index) and self._queue.can_insert()

    def step(self) -> None:
        """Act for `unroll_length` steps with one version of the parameters (central inference: the newest) and send."""
        self._collector.policy.pull(self._params, self._collector.next_index)  # 1  mu <- pi
        values: list[Tensor] = []
        # 2  x, a, r, mu(a|x), and the initial recurrent state
        unroll = self._collector.collect(self._length, values=values if self._process else None)
        self._queue.insert(self._process(unroll, values) if self._process else unroll)  # 3  send the trajectory

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the whole state belongs to the collector."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
