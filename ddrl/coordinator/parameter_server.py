"""Versioned parameters: the learner publishes them, actors and evaluators pull them."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ddrl.coordinator.schedule import ScheduleRule
from ddrl.system.closable_condition import ClosableCondition
from ddrl.system.cuda_streams import StreamEvent
from ddrl.system.wait_clock import WaitClock


class Version(NamedTuple):
    """Parameters of one version."""

    number: int
    tensors: list[torch.Tensor]
    """Parameters and buffers, which nobody may change."""
    made: StreamEvent
    """The point in the learner's GPU stream from which the tensors are complete, for other streams to wait for."""


class ParameterServer:
    """The newest version of the parameters and the `delay` versions before it, of which actors pull the oldest.

    Version 0 is the initial network; each `publish` adds one. A published version is never changed again, so a pull
    sees one whole version.
    """

    def __init__(self, network: nn.Module, schedule: ScheduleRule, *, delay: int = 0) -> None:
        self._schedule = schedule
        self._history: deque[Version] = deque([_version(0, copies(network))], maxlen=delay + 1)
        self._first_version = 0
        self._changed = ClosableCondition()
        self._pull_clock = WaitClock()

    @property
    def version(self) -> int:
        """The newest version."""
        return self._history[-1].number

    def publish(self, network: nn.Module) -> int:
        """Make the network's present parameters the next version; return its number."""
        tensors = copies(network)
        with self._changed:
            version = _version(self.version + 1, tensors)
            self._history.append(version)
            self._changed.notify_all()
        return version.number

    @property
    def pull_waited(self) -> float:
        """Seconds that actors waited for the schedule, over all of them."""
        return self._pull_clock.seconds

    def refresh(self, network: nn.Module, known: int) -> int:
        """Copy the version that actors pull now into `network`, unless it is `known`; return its number."""
        version = self._history[0]
        if version.number != known:
            version.made.wait(version.tensors)
            load(network, version.tensors)
        return version.number

    def can_pull(self, unroll_index: int) -> bool:
        """Return whether the schedule lets an actor begin its unroll `unroll_index` now."""
        return self.version >= self._schedule.needed_version(unroll_index, since=self._first_version)

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Wait for the schedule, then copy the version `delay` updates old into `network`; return its number.

        Raise `Closed` once the run is over.
        """
        version = self.acquire(unroll_index)
        load(network, version.tensors)
        return version.number

    def acquire(self, unroll_index: int) -> Version:
        """Return the version that `pull` would copy; wait and raise as `pull` does."""
        with self._changed:
            self.wait_for_schedule(unroll_index)
            return self._history[0]

    def wait_for_schedule(self, unroll_index: int) -> None:
        """Wait and raise as `pull` does, and copy nothing."""
        with self._changed:  # a lock that its owner may take again
            self._changed.wait_until(lambda: self.can_pull(unroll_index), self._pull_clock)

    def pull_newest(self, network: nn.Module) -> int:
        """Copy the newest version into `network` without waiting; return its number."""
        version = self._history[-1]
        load(network, version.tensors)
        return version.number

    def restart_rounds(self) -> None:
        """Let actors begin at unroll 0 again from the present version, after a resume that lost their state."""
        self._first_version = self.version

    def close(self) -> None:
        """End every wait with `Closed`."""
        self._changed.close()

    def state_dict(self) -> dict[str, Any]:
        """Return all versions held."""
        return {
            "history": [[version.number, version.tensors] for version in self._history],
            "first_version": self._first_version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the versions of `state`."""
        self._history.clear()
        self._history.extend(_version(number, list(tensors)) for number, tensors in state["history"])
        self._first_version = state["first_version"]


def _version(number: int, tensors: list[torch.Tensor]) -> Version:
    """Make a version of tensors that this thread has just begun to compute."""
    return Version(number, tensors, StreamEvent(tensors[0].device))


def copies(network: nn.Module) -> list[torch.Tensor]:
    """Return copies of the network's parameters and buffers as they are now."""
    with torch.no_grad():
        return [tensor.clone() for tensor in tensors_of(network)]


def load(network: nn.Module, tensors: list[torch.Tensor]) -> None:
    """Copy parameters and buffers into `network`."""
    with torch.no_grad():
        torch._foreach_copy_(tensors_of(network), tensors)


def tensors_of(network: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and the buffers, such as the statistics of a normalisation, that make up a version.

    On its device a network's tensors are written to and never replaced.
    """
    tensors = _TENSORS.get(network)
    if tensors is None:
        tensors = _TENSORS[network] = [*network.parameters(), *network.buffers()]
    return tensors


_TENSORS: WeakKeyDictionary[nn.Module, list[torch.Tensor]] = WeakKeyDictionary()
"""Listed once for each network: walking the modules of a small one takes as long as copying its tensors."""
