"""Shared parameters: actors read the live tensors of the learner's network and apply their gradients to them.

No versions are copied as in `ddrl.coordinator.parameter_server`, and no actor waits for another: what an actor reads
may be half of one update and half of the next (Mnih et al. 2016, section 4, after Recht et al. 2011, Hogwild). If the
shards of a parameter server have processes of their own (`ddrl.runtimes.ray.shard_process`), the tensors are there;
updates are still counted here, and stopped here while a checkpoint is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import nn

from ddrl.coordinator.parameter_server import ParameterServer, Version, copies, load, tensors_of
from ddrl.errors import Closed
from ddrl.interfaces import Shards
from ddrl.system.closable_condition import ClosableCondition
from ddrl.system.cuda_streams import StreamEvent
from ddrl.system.wait_clock import WaitClock
from ddrl.types import Begun, Gradients, Metrics


class MetricMeans:
    """Metrics of several gradients: their means, and the largest of a metric whose name ends with `_max`."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: Metrics = {}

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one gradient."""
        self.count += 1
        for name, value in metrics.items():
            before = self._sums.get(name, 0.0)
            self._sums[name] = max(before, value) if name.endswith("_max") else before + value

    def mean(self) -> Metrics:
        """Return the metrics over all gradients; there must be one."""
        return {name: value if name.endswith("_max") else value / self.count for name, value in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums and the number of gradients."""
        return {"count": self.count, "sums": dict(self._sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.count, self._sums = state["count"], dict(state["sums"])


class LiveParameters:
    """The parameters that all actors share; a version is the number of updates so far."""

    pull_waited = 0.0
    """No schedule makes an actor wait."""

    def __init__(self, network: nn.Module, shards: Shards | None = None) -> None:
        """`shards`: where the parameters are, if not in `network`."""
        self.version = 0
        self._network = network
        self._shards = shards
        self._update: Callable[..., Metrics] | None = None
        self._begin: Callable[[], Begun] | None = None
        self._changed = ClosableCondition()
        self._applying = 0
        self._frozen = False
        self._applied = MetricMeans()
        self._insert_clock, self._take_clock = WaitClock(), WaitClock()

    def can_pull(self, unroll_index: int) -> bool:
        """Return True: the schedule is asynchronous."""
        return True

    def wait_for_schedule(self, unroll_index: int) -> None:
        """Do not wait. Raise `Closed` once the run is over."""
        if self._changed.closed:
            raise Closed

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Copy the parameters as they are into `network`; return the version. Raise `Closed` once the run is over."""
        self.wait_for_schedule(unroll_index)
        return self.pull_newest(network)

    def pull_newest(self, network: nn.Module) -> int:
        """Copy the newest parameters into `network`; return their version. Unlike `pull`, never raise Closed."""
        version = self.version  # before the copy: what is half new counts as old
        if self._shards:
            self._shards.pull(network)
        else:
            load(network, tensors_of(self._network))
        return version

    def lend(self, network: nn.Module) -> None:
        """Make the live tensors those of `network`, too; it must be on the same device."""
        for own, live in zip(tensors_of(network), tensors_of(self._network), strict=True):
            own.data = live.data

    def refresh(self, network: nn.Module, known: int) -> int:
        """Copy the parameters into `network` if it is older (`known`) and was lent no live ones; return the version."""
        version = self.version
        if version != known and tensors_of(network)[0].data_ptr() != tensors_of(self._network)[0].data_ptr():
            load(network, tensors_of(self._network))
        return version

    def acquire(self, unroll_index: int) -> Version:
        """Return a copy for actors in other processes, without tensors if shards have them. Raise as `pull` does."""
        self.wait_for_schedule(unroll_index)
        version = self.version
        tensors = [] if self._shards else copies(self._network)
        return Version(version, tensors, StreamEvent(next(self._network.parameters()).device))

    def publish(self, network: nn.Module) -> int:
        """Count an update, which is in the live tensors already; the caller counts one at a time."""
        self.version += 1
        return self.version

    def serve(self, update: Callable[..., Metrics], begin: Callable[[], Begun] | None = None) -> None:
        """Let `update` apply gradients, or count those that were begun with `begin`."""
        self._update, self._begin = update, begin

    def apply(self, gradients: Gradients) -> None:
        """Apply a gradient in the calling thread, beside others; wait only while `frozen`.

        Raise `Closed` once the run is over.
        """
        self._enter()
        self.finish(gradients)

    def begin(self) -> Begun:
        """Let shards in processes of their own apply a gradient; wait and raise as `apply` does.

        `finish` must follow, or `abandon`: until then nothing can be saved.
        """
        self._enter()
        assert self._begin is not None
        return self._begin()

    def finish(self, gradients: Gradients, *begun: Begun) -> None:
        """Apply a gradient; or count it, if shards have applied it since it was `begun`. It then needs no tensors."""
        assert self._update is not None
        try:
            metrics = self._update(gradients, *begun)
            with self._changed:
                self._applied.add(metrics)
        finally:
            self.abandon()  # counted or not, it is under way no more

    def abandon(self) -> None:
        """End an update that was begun; it is not counted, whichever shards have applied it."""
        with self._changed:
            self._applying -= 1
            self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_until(lambda: not self._frozen, self._insert_clock)
            self._applying += 1

    def can_take(self) -> bool:
        """Return whether `take` would return at once."""
        return self._applied.count > 0

    def take(self) -> Metrics:
        """Return the metrics of the gradients applied since the last call; wait for one.

        Raise `Closed` once the run is over and all of them were taken.
        """
        with self._changed:
            with suppress(Closed):  # what was applied before the close can still be taken
                self._changed.wait_until(self.can_take, self._take_clock)
            if not self.can_take():
                raise Closed
            applied, self._applied = self._applied, MetricMeans()
        return applied.mean()

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited to apply gradients, over all of them."""
        return self._insert_clock.seconds

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for a gradient."""
        return self._take_clock.seconds

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Apply no gradient within the block, so that what is saved there belongs together."""
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
        """Do nothing: there are no rounds."""

    def close(self) -> None:
        """End every wait with `Closed`."""
        self._changed.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the version and the metrics not taken yet; the tensors are saved with the learner."""
        return {"version": self.version, "applied": self._applied.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.version = state["version"]
        self._applied.load_state_dict(state["applied"])


AnyParameters = ParameterServer | LiveParameters
"""Parameters that a learner publishes: a server of versions, or the ones that all share."""
