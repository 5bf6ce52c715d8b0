"""Streams of a GPU: what other threads do there beside the training, and tensors that cross from one stream to another.

PyTorch queues what all threads begin on a GPU in one stream, in which inference would wait for the training step before
it, unless a thread has a stream of its own. On the CPU a thread's work is done before it goes on, so this is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A stream of a device, beside the one that all threads share."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def running(self) -> Iterator[None]:
        """What this thread begins meanwhile is queued in this stream, and this device is its current one."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield


class Mark:
    """A point in a stream: what this thread has begun on `device` so far."""

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def wait(self, tensors: Iterable[torch.Tensor]) -> None:
        """This thread's stream goes on when the point is reached; `tensors`, made before it, are kept until it has
        done what it is given to do with them, whoever lets go of them first."""
        if self._event is None:
            return
        stream = torch.cuda.current_stream()
        stream.wait_event(self._event)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(stream)
