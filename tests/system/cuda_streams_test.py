"""Streams of a GPU, on a stand-in that writes down what is asked of it (a GPU itself: tests marked `gpu`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ddrl.system.cuda_streams import SideStream, StreamEvent

GPU, CPU = torch.device("cuda"), torch.device("cpu")


class FakeStream:
    def __init__(self, gpu: FakeGpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def wait_event(self, event: FakeEvent) -> None:
        self.gpu.said.append(f"{self.name} waits for {event.stream}")


class FakeEvent:
    stream = "nothing"

    def record(self, stream: FakeStream) -> None:
        self.stream = stream.name


class FakeTensor:
    def __init__(self, gpu: FakeGpu, *, is_cuda: bool) -> None:
        self.gpu, self.is_cuda = gpu, is_cuda

    def record_stream(self, stream: FakeStream) -> None:
        self.gpu.said.append(f"a tensor is kept for {stream.name}")


class FakeGpu:
    """In place of `torch.cuda`."""

    Event = FakeEvent

    def __init__(self) -> None:
        self.said: list[str] = []
        self.streams = [FakeStream(self, "default")]
        self.made = 0

    def Stream(self, device: torch.device) -> FakeStream:
        self.made += 1
        return FakeStream(self, f"side {self.made}")

    def current_stream(self, device: torch.device | None = None) -> FakeStream:
        return self.streams[-1]

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.streams.append(stream)
        yield
        self.streams.pop()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    for name in ("Event", "Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    return gpu


def test_a_side_stream_is_current_within_and_no_longer(gpu: FakeGpu) -> None:
    with SideStream(GPU).running():
        assert gpu.current_stream().name == "side 1"
    assert gpu.current_stream().name == "default"


def test_what_the_training_makes_is_waited_for_by_the_stream_that_uses_it_and_kept_for_it(gpu: FakeGpu) -> None:
    made = StreamEvent(GPU)
    tensors: list[Any] = [FakeTensor(gpu, is_cuda=True), FakeTensor(gpu, is_cuda=False)]
    with SideStream(GPU).running():
        made.wait(tensors)
    assert gpu.said == ["side 1 waits for default", "a tensor is kept for side 1"]


def test_what_is_made_in_a_side_stream_is_waited_for_by_the_training(gpu: FakeGpu) -> None:
    with SideStream(GPU).running():
        made = StreamEvent(GPU)
    made.wait([])
    assert gpu.said == ["default waits for side 1"]


def test_on_the_cpu_nothing_is_asked_of_a_gpu(gpu: FakeGpu) -> None:
    tensor = torch.zeros(2)
    with SideStream(CPU).running():
        StreamEvent(CPU).wait([tensor])
    assert gpu.said == [] and gpu.made == 0
