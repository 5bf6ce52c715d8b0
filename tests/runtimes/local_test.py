"""Runs in one process, without the command that starts them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddrl.runtimes.local import local_runtime, train_local
from ddrl.runtimes.serial import SerialRuntime
from ddrl.runtimes.threads import ThreadsRuntime
from tests.runs import config


def test_a_run_computes_in_one_thread_whoever_trains_it(tmp_path: Path) -> None:
    """Two threads add up in another order: last digits of a curve would depend on who has started it."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert train_local(config(env_frames=40), tmp_path, quiet=True) == "budget_reached"
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "kind", "takes_turns"), [("serial", SerialRuntime, True), ("threads", ThreadsRuntime, False)]
)
def test_the_runtime_is_the_one_that_is_named_and_each_is_a_new_one(name: str, kind: type, takes_turns: bool) -> None:
    make = local_runtime(config(topology={"runtime": name}))
    first, second = make(), make()
    assert isinstance(first, kind) and first is not second
    assert (first.generator is not None) is takes_turns
