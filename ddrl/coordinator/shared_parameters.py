"""Shared parameters: actors read the live tensors of the learner's network and apply their gradients to them.

There are no copies of versions as in `ddrl.coordinator.parameter_server`, and nobody waits for anybody: what an actor
reads may be half of one update and half of the next (Mnih et al. 2016, section 4, after Recht et al. 2011, Hogwild).
Where the shards of a parameter server have processes of their own (`ddrl.runtimes.ray.shard_process`), the tensors are
there, and here are the count of updates and the gate that a checkpoint closes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ddrl.coordinator.parameter_server import ParameterServer, Version, copies, load, tensors_of
from ddrl.errors import Closed
from ddrl.interfaces import Shards
from ddrl.system.cuda_streams import Mark
from ddrl.system.wait_clock import WaitClock
from ddrl.types import Begun, Gradients, Metrics


class Tally:
    """Metrics of several gradients: means, and of what is called `_max` the largest."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: Metrics = {}

    def add(self, metrics: Metrics) -> None:
        """Those of one gradient."""
        self.count += 1
        for name, value in metrics.items():
            before = self._sums.get(name, 0.0)
            self._sums[name] = max(before, value) if name.endswith("_max") else before + value

    def mean(self) -> Metrics:
        """Over the gradients; there must be one."""
        return {name: value if name.endswith("_max") else value / self.count for name, value in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """Sums and number."""
        return {"count": self.count, "sums": dict(self._sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.count, self._sums = state["count"], dict(state["sums"])


class LiveParameters:
    """The parameters that all actors share; a version is the number of updates so far."""

    pull_waited = 0.0
    """No schedule makes an actor wait."""

    def __init__(self, network: nn.Module, shards: Shards | None = None) -> None:
        """`shards`: where the parameters are, if not in `network`."""
        self._network = network
        self._shards = shards
        self._version = 0
        self._update: Callable[..., Metrics] | None = None
        self._begin: Callable[[], Begun] | None = None
        self._changed = threading.Condition()
        self._applying = 0
        self._frozen = False
        self._closed = False
        self._applied = Tally()
        self._insert_clock, self._take_clock = WaitClock(), WaitClock()

    @property
    def version(self) -> int:
        """Updates so far."""
        return self._version

    def can_pull(self, unroll_index: int) -> bool:
        """Always: actors are asynchronous."""
        return True

    def pass_gate(self, unroll_index: int) -> None:
        """There is none to wait at. Raises `Closed` at the run's end."""
        if self._closed:
            raise Closed

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Copies the parameters as they are into `network`; returns the version. Raises `Closed` at the run's end."""
        self.pass_gate(unroll_index)
        return self.pull_newest(network)

    def pull_newest(self, network: nn.Module) -> int:
        """As `pull`, also after the end."""
        version = self._version  # before the copy: what is half new counts as old
        if self._shards:
            self._shards.pull(network)
        else:
            load(network, tensors_of(self._network))
        return version

    def lend(self, network: nn.Module) -> None:
        """Makes `network` another one with the live tensors themselves, on the same device."""
        for own, live in zip(tensors_of(network), tensors_of(self._network), strict=True):
            own.data = live.data

    def refresh(self, network: nn.Module, known: int) -> int:
        """Makes `network` act with the parameters as they are; returns the version. One that was lent them has them."""
        version = self._version
        if version != known and tensors_of(network)[0].data_ptr() != tensors_of(self._network)[0].data_ptr():
            load(network, tensors_of(self._network))
        return version

    def acquire(self, unroll_index: int) -> Version:
        """A copy, for actors in other processes; without tensors where shards have them. Raises as `pull`."""
        self.pass_gate(unroll_index)
        version = self._version
        tensors = [] if self._shards else copies(self._network)
        return Version(version, tensors, Mark(next(self._network.parameters()).device))

    def publish(self, network: nn.Module) -> int:
        """Counts an update, which is in the live tensors already; the caller counts one at a time."""
        self._version += 1
        return self._version

    def serve(self, update: Callable[..., Metrics], begin: Callable[[], Begun] | None = None) -> None:
        """`update` is what applies a gradient, or counts one that was begun with `begin`."""
        self._update, self._begin = update, begin

    def apply(self, gradients: Gradients) -> None:
        """Applies a gradient in the calling thread, beside others; waits only while `frozen`. Raises `Closed`."""
        self._enter()
        self._leave(gradients)

    def begin(self) -> Begun:
        """Lets shards in processes of their own apply a gradient; waits and raises as `apply`.

        `finish` must follow, or `abandon`: until then nothing can be saved.
        """
        self._enter()
        assert self._begin is not None
        return self._begin()

    def finish(self, gradients: Gradients, begun: Begun) -> None:
        """The shards have applied it; `gradients` need no tensors."""
        self._leave(gradients, begun)

    def abandon(self) -> None:
        """Whoever had begun an update is gone; it is not counted, whichever shards have applied it."""
        with self._changed:
            self._applying -= 1
            self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            with self._insert_clock.running():
                self._changed.wait_for(lambda: self._closed or not self._frozen)
            if self._closed:
                raise Closed
            self._applying += 1

    def _leave(self, *update: Any) -> None:
        assert self._update is not None
        metrics: Metrics | None = None
        try:
            metrics = self._update(*update)
        finally:
            with self._changed:
                self._applying -= 1
                if metrics is not None:
                    self._applied.add(metrics)
                self._changed.notify_all()

    def can_take(self) -> bool:
        """Whether `take` would return at once."""
        return self._applied.count > 0

    def take(self) -> Metrics:
        """Of the gradients applied since the last call, for the record; waits for one.

        Raises `Closed` once the run is over and all of them were taken.
        """
        with self._changed:
            with self._take_clock.running():
                self._changed.wait_for(lambda: self._closed or self.can_take())
            if not self.can_take():
                raise Closed
            applied, self._applied = self._applied, Tally()
        return applied.mean()

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited to apply gradients, over all of them."""
        return self._insert_clock.seconds

    @property
    def sample_waited(self) -> float:
        """Seconds without a gradient."""
        return self._take_clock.seconds

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within it no gradient is applied: what is saved belongs together."""
        with self._changed:
            self._frozen = True
            self._changed.wait_for(lambda: not self._applying)
        try:
            yield
        finally:
            with self._changed:
                self._frozen = False
                self._changed.notify_all()

    def restart_rounds(self) -> None:
        """There are no rounds."""

    def close(self) -> None:
        """Ends every wait with `Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """The version, and what nobody has taken; the tensors are the learner's, and saved with it."""
        return {"version": self._version, "applied": self._applied.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self._version = state["version"]
        self._applied.load_state_dict(state["applied"])


AnyParameters = ParameterServer | LiveParameters
"""What a learner publishes its parameters to: versions of them, or the ones that all share."""
