"""A thread makes the next batch ready: the queue's batches, in its order, one at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from ddrl.errors import Closed, UserError
from ddrl.replay.prefetch import Prefetch
from ddrl.replay.queue import UnrollQueue
from ddrl.run import train
from tests.runs import config, curves
from tests.runtimes.clusters import wait_until
from tests.unrolls import make_unroll


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
    prefetch = Prefetch(queue, 4, pin_memory=False)
    thread = prefetching(prefetch)
    for _ in range(6):
        one, other = prefetch.sample(4), plain.sample(4)
        assert torch.equal(one.observation, other.observation)
        assert torch.equal(one.index, other.index)
    prefetch.close()
    thread.join(10)


def test_one_batch_waits_and_no_more() -> None:
    queue = UnrollQueue(capacity=100)
    prefetch = Prefetch(queue, 2, pin_memory=False)
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
    prefetch = Prefetch(UnrollQueue(capacity=1), 2, pin_memory=False)
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


@pytest.mark.gpu
def test_for_a_gpu_batches_are_in_pinned_memory() -> None:
    queue = UnrollQueue(capacity=2)
    queue.insert(make_unroll(columns=2, index=0))
    prefetch = Prefetch(queue, 2, pin_memory=True)
    prefetch.step()
    assert prefetch.sample(2).observation.is_pinned()
