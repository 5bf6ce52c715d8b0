"""Faults that a regression check must find, each planted for as long as a `with` lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from ddrl.algorithms import impala
from ddrl.losses import vtrace
from ddrl.replay.queue import UnrollQueue


@contextmanager
def nothing() -> Iterator[None]:
    """No fault."""
    yield


@contextmanager
def wrong_sign() -> Iterator[None]:
    """V-trace corrects in the opposite direction: v = V - (v_s - V)."""
    right = vtrace.vtrace

    def wrong(values: Any, *others: Any, **options: Any) -> Any:
        return 2 * values - right(values, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vtrace, "vtrace", wrong)
        yield


@contextmanager
def halved_learning_rate() -> Iterator[None]:
    """The optimizer gets half of the rate that is recorded."""
    right = impala.set_learning_rate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(impala, "set_learning_rate", lambda optimizer, rate: right(optimizer, rate / 2))
        yield


@contextmanager
def dropped_last_step() -> Iterator[None]:
    """The loss sees T - 1 transitions of every unroll, and bootstraps one step early."""
    right = impala.impala_loss

    def wrong(network: Any, batch: Any, config: Any, weight: float) -> Any:
        length = batch.action.shape[0]
        columns = ("actor", "index", "initial_state")
        fields = {
            name: value if name in columns else value[: length if value.shape[0] > length else length - 1]
            for name, value in batch.as_dict().items()
        }
        return right(network, type(batch)(**fields), config, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(impala, "impala_loss", wrong)
        yield


@contextmanager
def slowed_queue(seconds: float = 0.1) -> Iterator[None]:
    """Every hand-over of an unroll or a batch holds the queue for longer."""
    right = UnrollQueue._wait_for

    def wrong(self: UnrollQueue, condition: Callable[[], bool]) -> float:
        time.sleep(seconds)
        return right(self, condition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnrollQueue, "_wait_for", wrong)
        yield


OF_LEARNING: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "nothing": nothing,
    "wrong sign in V-trace": wrong_sign,
    "halved learning rate": halved_learning_rate,
    "dropped last step": dropped_last_step,
}
