"""Versioned parameters: the learner publishes, actors and evaluators pull, and the gate says when an actor may."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ddrl.coordinator.schedule import Gate
from ddrl.errors import Closed
from ddrl.system.cuda_streams import Mark
from ddrl.system.wait_clock import WaitClock


class Version(NamedTuple):
    """Parameters of one version."""

    number: int
    tensors: list[torch.Tensor]
    """Parameters and buffers, which nobody may change."""
    made: Mark
    """For other streams of a GPU than the learner's: from when on the tensors hold what they should."""


class ParameterServer:
    """Holds the newest parameters and, for controlled lag, the `delay` versions before them.

    Version 0 is the initial network; each `publish` adds one. A published version is never changed again, so a pull
    sees one whole version.
    """

    def __init__(self, network: nn.Module, gate: Gate, *, delay: int = 0) -> None:
        self._gate = gate
        self._history: deque[Version] = deque([_version(0, copies(network))], maxlen=delay + 1)
        self._first_version = 0
        self._changed = threading.Condition()
        self._closed = False
        self._pull_clock = WaitClock()

    @property
    def version(self) -> int:
        """The newest version."""
        return self._history[-1].number

    def publish(self, network: nn.Module) -> int:
        """Makes the network's present parameters the next version; returns it."""
        tensors = copies(network)
        with self._changed:
            version = _version(self.version + 1, tensors)
            self._history.append(version)
            self._changed.notify_all()
        return version.number

    @property
    def pull_waited(self) -> float:
        """Seconds that actors waited for the schedule's gate, over all of them."""
        return self._pull_clock.seconds

    def refresh(self, network: nn.Module, known: int) -> int:
        """Copies what actors act with now into `network`, unless it is the version `known`; returns the version."""
        version = self._history[0]
        if version.number != known:
            version.made.wait(version.tensors)
            load(network, version.tensors)
        return version.number

    def can_pull(self, unroll_index: int) -> bool:
        """Whether the schedule lets an actor begin its unroll `unroll_index` now."""
        return self.version >= self._gate.needed_version(unroll_index, since=self._first_version)

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Copies the version an actor acts with (`delay` updates old) into `network`; returns it.

        Waits for the schedule's gate. Raises `Closed` once the run is over.
        """
        version = self.acquire(unroll_index)
        load(network, version.tensors)
        return version.number

    def acquire(self, unroll_index: int) -> Version:
        """The one that `pull` would copy; waits and raises as it."""
        with self._changed:
            self.pass_gate(unroll_index)
            return self._history[0]

    def pass_gate(self, unroll_index: int) -> None:
        """Waits and raises as `pull`, and copies nothing."""
        with self._changed:  # a lock that its owner may take again
            with self._pull_clock.running():
                self._changed.wait_for(lambda: self._closed or self.can_pull(unroll_index))
            if self._closed:
                raise Closed

    def pull_newest(self, network: nn.Module) -> int:
        """Copies the newest version into `network`; returns it. Never waits."""
        version = self._history[-1]
        load(network, version.tensors)
        return version.number

    def restart_rounds(self) -> None:
        """Actors begin at unroll 0 again, with the present version as their first (a resume that lost their state)."""
        self._first_version = self.version

    def close(self) -> None:
        """Ends every wait with `Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """All versions held."""
        return {
            "history": [[version.number, version.tensors] for version in self._history],
            "first_version": self._first_version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with the versions of `state`."""
        self._history.clear()
        self._history.extend(_version(number, list(tensors)) for number, tensors in state["history"])
        self._first_version = state["first_version"]


def _version(number: int, tensors: list[torch.Tensor]) -> Version:
    """Of tensors that this thread has just begun to make."""
    return Version(number, tensors, Mark(tensors[0].device))


def copies(network: nn.Module) -> list[torch.Tensor]:
    """Of what a version consists of, as it is now."""
    return [tensor.detach().clone() for tensor in tensors_of(network)]


def load(network: nn.Module, tensors: list[torch.Tensor]) -> None:
    """Copies a version into `network`."""
    with torch.no_grad():
        torch._foreach_copy_(tensors_of(network), tensors)


def tensors_of(network: nn.Module) -> list[torch.Tensor]:
    """What a version consists of: parameters, and buffers such as the statistics of a normalisation.

    A network's are written to and never replaced, once it is on its device.
    """
    tensors = _TENSORS.get(network)
    if tensors is None:
        tensors = _TENSORS[network] = [*network.parameters(), *network.buffers()]
    return tensors


_TENSORS: WeakKeyDictionary[nn.Module, list[torch.Tensor]] = WeakKeyDictionary()
"""They are listed once a network: to walk the modules of a small one takes as long as to copy its tensors."""
