"""A thread makes the next batch ready: the queue's batches, in its order, one at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ddrl import algorithms
from ddrl.api.launch import train
from ddrl.errors import Closed, UserError
from ddrl.replay.prefetch import Prefetch
from ddrl.replay.queue import UnrollQueue
from tests.algorithms.rigs import Rig
from tests.runs import REPLAYING, config, curves
from tests.runtimes.ray.clusters import wait_until
from tests.system.cuda_streams_test import FakeGpu, FakeTensor
from tests.unrolls import make_unroll

CPU = torch.device("cpu")
MINIBATCHES = {"num_epochs": 2, "num_minibatches": 2}


def prefetching(prefetch: Prefetch) -> threading.Thread:
    def work() -> None:
        try:
            while True:
                prefetch.step()
        except Closed:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_batches_are_those_of_the_queue_in_its_order() -> None:
    queue, plain = UnrollQueue(capacity=100), UnrollQueue(capacity=100)
    for index in range(8):
        unroll = make_unroll(columns=3, index=index)
        queue.insert(unroll)
        plain.insert(unroll)
    prefetch = Prefetch(queue, 4, CPU, upload=True)
    thread = prefetching(prefetch)
    for _ in range(6):
        one, other = prefetch.sample(4), plain.sample(4)
        assert torch.equal(one.observation, other.observation)
        assert torch.equal(one.index, other.index)
    prefetch.close()
    thread.join(10)


def test_one_batch_waits_and_no_more() -> None:
    queue = UnrollQueue(capacity=100)
    prefetch = Prefetch(queue, 2, CPU, upload=True)
    thread = prefetching(prefetch)
    assert not prefetch.can_sample(2)
    for index in range(10):
        prefetch.insert(make_unroll(columns=1, index=index))
    wait_until(lambda: prefetch.can_sample(2))
    wait_until(lambda: len(queue) <= 6)
    time.sleep(0.05)
    assert len(queue) == 6  # two wait here, and two are in the thread's hand
    prefetch.close()
    thread.join(10)
    with pytest.raises(Closed):
        prefetch.sample(2)


def test_closing_ends_a_learner_that_waits() -> None:
    prefetch = Prefetch(UnrollQueue(capacity=1), 2, CPU, upload=True)
    ended: list[type] = []

    def learn() -> None:
        try:
            prefetch.sample(2)
        except Closed:
            ended.append(Closed)

    learner = threading.Thread(target=learn)
    learner.start()
    time.sleep(0.05)
    prefetch.close()
    learner.join(10)
    assert ended == [Closed]


def test_a_synchronous_run_has_the_same_bits_with_it(tmp_path: Path) -> None:
    for prefetch in (False, True):
        topology = {"runtime": "threads", "schedule": "synchronous", "prefetch": prefetch}
        train(config(topology=topology), tmp_path / str(prefetch), quiet=True)
    tables = [curves(tmp_path / name) for name in ("False", "True")]
    names = ["policy_loss", "value_loss", "entropy", "gradient_norm", "policy_lag_max"]
    tables = [table[table.metric.isin(names)].reset_index(drop=True) for table in tables]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_an_asynchronous_run_reaches_its_budget_with_it_and_central_inference(tmp_path: Path) -> None:
    topology = {"runtime": "threads", "prefetch": True, "inference": "central"}
    assert train(config(topology=topology), tmp_path, quiet=True) == "budget_reached"


def test_a_run_without_threads_refuses_it() -> None:
    with pytest.raises(UserError, match=r"'topology\.prefetch' may be true only"):
        config(topology={"runtime": "serial", "prefetch": True})


@pytest.mark.parametrize(
    ("algorithm", "hyperparameters", "keeps"),
    [
        ("impala", {}, False),
        ("impala", {"replay_fraction": 0.5}, True),
        ("ppo", MINIBATCHES, False),
        ("impact", {}, True),
    ],
)
def test_batches_that_are_learned_from_again_stay_in_main_memory(
    algorithm: str, hyperparameters: dict[str, Any], keeps: bool
) -> None:
    schedule = {"schedule": algorithms.load(algorithm).SYSTEM.schedules[0]}
    chosen = config(algorithm=algorithm, hyperparameters=hyperparameters, topology=schedule)
    assert (chosen.hyperparameters.stored_columns > 0) == keeps


class Batch:
    """What a queue gives, on the stand-in of a GPU: it writes down in which stream it is copied."""

    def __init__(self, gpu: FakeGpu, name: str = "a batch") -> None:
        self.gpu, self.name = gpu, name
        self.tensors = [FakeTensor(gpu, is_cuda="uploaded" in name)]

    def pin_memory(self) -> Batch:
        self.gpu.said.append(f"{self.name} is pinned")
        return Batch(self.gpu, f"{self.name}, pinned")

    def to(self, device: torch.device) -> Batch:
        self.gpu.said.append(f"{self.name} is copied in {self.gpu.current_stream().name}")
        return Batch(self.gpu, f"{self.name}, uploaded")


@pytest.mark.parametrize("upload", [False, True])
def test_a_batch_is_pinned_then_copied_beside_the_training_which_waits_for_the_copy(
    monkeypatch: pytest.MonkeyPatch, upload: bool
) -> None:
    gpu = FakeGpu()
    for name in ("Event", "Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    queue = SimpleNamespace(
        sample=lambda columns: Batch(gpu), can_insert=lambda: True, insert=lambda batch: None, update=lambda *_: None
    )
    prefetch = Prefetch(queue, 2, torch.device("cuda"), upload=upload)
    prefetch.step()
    own = ["a batch is pinned"] + ["a batch, pinned is copied in side 1"] * upload
    assert gpu.said == own, "the training is not waited for, and does not wait yet"
    batch = prefetch.sample(2)
    assert batch.name == ("a batch, pinned, uploaded" if upload else "a batch, pinned")
    assert gpu.said[len(own) :] == ["default waits for side 1"] + ["a tensor is kept for default"] * upload


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", REPLAYING)
def test_on_a_gpu_the_replay_has_the_priorities_of_what_was_learned_there(algorithm: str) -> None:
    rigs = [Rig(algorithm, device=device) for device in ("cpu", "cuda")]
    unrolls = [Rig(algorithm).unroll(seed) for seed in range(40)]
    for rig in rigs:
        turn = iter(unrolls)
        while not rig.learner.ready():
            rig.queue.insert(next(turn))
        rig.learner.step()
    (streams, steps, here), (other_streams, other_steps, there) = (rig.queue.replay.probabilities() for rig in rigs)
    assert (streams == other_streams).all() and (steps == other_steps).all()
    np.testing.assert_allclose(there, here, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("upload", [False, True])
def test_for_a_gpu_batches_are_on_it_or_in_pinned_memory(upload: bool) -> None:
    queue = UnrollQueue(capacity=2)
    queue.insert(unroll := make_unroll(columns=2, index=0))
    prefetch = Prefetch(queue, 2, torch.device("cuda"), upload=upload)
    prefetch.step()
    batch = prefetch.sample(2)
    assert all(tensor.is_cuda if upload else tensor.is_pinned() for tensor in batch.tensors if tensor.numel())
    for ready, own in zip(batch.tensors, unroll.tensors, strict=True):
        assert torch.equal(ready.cpu(), own)


@pytest.mark.gpu
@pytest.mark.parametrize(("algorithm", "hyperparameters"), [("impala", {}), ("ppo", MINIBATCHES)])
def test_on_a_gpu_a_synchronous_run_has_the_same_numbers_with_it(
    tmp_path: Path, algorithm: str, hyperparameters: dict[str, Any]
) -> None:
    for prefetch in (False, True):
        topology = {"runtime": "threads", "schedule": "synchronous", "prefetch": prefetch}
        chosen = config(algorithm=algorithm, hyperparameters=hyperparameters, topology=topology, device="cuda")
        train(chosen, tmp_path / str(prefetch), quiet=True)
    names = ["policy_loss", "value_loss", "entropy", "gradient_norm"]
    tables = [curves(tmp_path / name) for name in ("False", "True")]
    tables = [table[table.metric.isin(names)].reset_index(drop=True) for table in tables]
    pd.testing.assert_frame_equal(*tables, rtol=1e-3)
