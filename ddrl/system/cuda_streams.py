"""CUDA streams for threads that use the GPU beside training, and tensors that pass between streams.

PyTorch queues the GPU work of all threads in one stream, so inference would wait for the training step before it unless
its thread has its own stream. On the CPU, where work is done at once, these classes do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch


class SideStream:
    """A stream of a device, in addition to the default one that all threads share."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def running(self) -> AbstractContextManager[object]:
        """Queue the GPU work of this thread in this stream, on this device, while the block runs."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


class StreamEvent:
    """A point in this thread's current stream of `device`, after the work queued so far."""

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def wait(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make this thread's stream wait for the point before it goes on.

        `tensors`, made before that point, stay allocated until this stream has finished its present work on them.
        """
        if self._event is None:
            return
        stream = torch.cuda.current_stream()
        stream.wait_event(self._event)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(stream)
