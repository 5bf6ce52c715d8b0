"""Members in processes of their own: as many decisions, processes that die, signals, errors."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddrl.api.launch import train
from ddrl.environments.toy import ToyEnvs
from ddrl.errors import UserError
from ddrl.population import process_executor
from ddrl.training.config.run_config import to_json
from tests.population.population_test import lineage, small, summary
from tests.runtimes.conftest import disconnected, forking, held, holder
from tests.runtimes.ray.clusters import meanwhile, start, wait_until, workers

__all__ = ["disconnected", "forking", "held", "holder"]

PARALLEL = {"parallel": 2}
SELDOM = {"period_frames": 2000}
"""To write a checkpoint to the disk takes as long as to train some hundred frames."""


@pytest.mark.system
@pytest.mark.usefixtures("holder")
def test_members_train_at_once_and_all_reach_the_budget(tmp_path: Path) -> None:
    assert train(small(PARALLEL), tmp_path, quiet=True) == "budget_reached"
    table = lineage(tmp_path)
    assert (table.groupby("member").kind.last() == "final").all()
    assert len(table) == 15
    for _, own in table.groupby("member"):
        assert list(own.decision) == list(range(5))
    assert summary(tmp_path)["decisions"] == 15


@pytest.mark.system
def test_a_process_that_dies_is_replaced_and_its_segment_goes_on(
    tmp_path: Path, holder: psutil.Process, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill_one() -> None:
        wait_until(lambda: len(lines(tmp_path)) >= 3 and bool(workers(holder, "MemberProcess")))
        workers(holder, "MemberProcess")[0].kill()

    killing = meanwhile(kill_one)
    try:
        assert train(small(PARALLEL, env_frames=20_000, checkpoint=SELDOM), tmp_path) == "budget_reached"
    finally:
        killing.join()
    said = r"its process died \(.*\); it (goes on from its newest checkpoint|has no checkpoint yet, and begins anew)"
    assert re.search(said, capsys.readouterr().err)
    table = lineage(tmp_path)
    for _, own in table.groupby("member"):
        assert list(own.decision) == list(range(len(own)))
        assert own.env_frames.is_monotonic_increasing


class DyingHost(process_executor.MemberProcess):
    """Its process ends at once, without a word."""

    def train(self, job: Any) -> Any:
        os._exit(1)


@pytest.mark.system
@pytest.mark.usefixtures("holder")
def test_processes_that_keep_dying_end_the_population_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_executor, "MemberProcess", DyingHost)
    with pytest.raises(UserError, match=r"^member \d: its process died 3 times in a row without a checkpoint"):
        train(small(PARALLEL), tmp_path, quiet=True)


class RaisingHost(process_executor.MemberProcess):
    """The environments of its process raise."""

    def train(self, job: Any) -> Any:
        def step(*_: object) -> None:
            raise ArithmeticError("the ball fell through\nthe floor")

        ToyEnvs.step = step  # type: ignore[assignment, method-assign]
        return super().train(job)


@pytest.mark.usefixtures("holder")
def test_what_a_member_raised_is_its_traceback_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process_executor, "MemberProcess", RaisingHost)
    with pytest.raises(UserError, match=r"^actor \d, environment toy/catch, .*ArithmeticError: the ball fell"):
        train(small(PARALLEL), tmp_path, quiet=True)
    assert "ArithmeticError: the ball fell through\nthe floor" in capfd.readouterr().err


@pytest.mark.system
def test_sigterm_stops_all_members_with_checkpoints_and_the_next_start_goes_on(
    tmp_path: Path, forking: dict[str, str]
) -> None:
    config = to_json(
        small(PARALLEL | {"period_frames": 8000, "burn_in_frames": 0}, env_frames=24_000, checkpoint=SELDOM)
    )
    process = start(config, tmp_path, **forking)
    wait_until(
        lambda: len(list(tmp_path.glob("members/*/checkpoints/*.sha256"))) >= 3 or process.returncode is not None
    )
    process.send_signal(signal.SIGTERM)
    said = process.ended(60)
    assert process.returncode == 75, said
    assert "Traceback" not in said
    stopped = {path: path.stat().st_mtime_ns for path in tmp_path.glob("members/*/checkpoints/*.pt")}
    assert stopped
    again = start(config, tmp_path, **forking)
    said = again.ended(120)
    assert again.returncode == 0, said
    table = lineage(tmp_path)
    assert (table.groupby("member").kind.last() == "final").all()
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1


def lines(directory: Path) -> list[str]:
    """Of the lineage so far."""
    path = directory / "lineage.jsonl"
    return path.read_text().splitlines() if path.exists() else []
