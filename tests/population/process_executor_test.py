"""Members in processes of their own, without the processes: what their supervisor does when they do not stop."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray
from ray.exceptions import RayError

from ddrl.coordinator.restarts import RestartPolicy
from ddrl.errors import UserError
from ddrl.population import process_executor
from ddrl.population.process_executor import ProcessExecutor
from ddrl.runtimes.ray import cluster
from ddrl.training.records import checkpoint


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> ProcessExecutor:
    """The host of member 3, which says nothing any more."""
    monkeypatch.setattr(ray, "wait", lambda references, **_: ([], references))
    monkeypatch.setattr(ray, "kill", MagicMock())
    made = ProcessExecutor.__new__(ProcessExecutor)
    job: Any = SimpleNamespace(member=3, start_frames=1200, segment=2)
    made._view, made._free = MagicMock(), []
    made._busy = {"outcome": (MagicMock(), job, 0)}
    made._interrupt_asked, made._interrupt_told, made._pulse = False, None, cluster.Pulse()
    return made


def test_a_member_that_does_not_stop_is_given_up_after_a_bound(
    busy: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_executor, "STOPPING_SECONDS", 0.0)
    assert busy.next_ended() is None, "nobody has asked it to stop"
    busy.interrupt()
    outcome = busy.next_ended()
    assert outcome is not None and (outcome.member, outcome.interrupted) == (3, True)
    assert not busy._busy


@pytest.mark.parametrize(
    ("updates", "says"), [([], "has no checkpoint yet, and begins anew"), ([7], "goes on from its newest checkpoint")]
)
def test_a_member_whose_process_died_says_whether_it_has_a_checkpoint(
    busy: ProcessExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, updates: list[int], says: str
) -> None:
    for number in updates:
        checkpoint.save(tmp_path / "checkpoints", number, {})
    monkeypatch.setattr(process_executor, "what_is_gone", lambda: "")
    monkeypatch.setattr(process_executor, "last_words", lambda pids: "")
    busy._policy, busy._member_process, busy._begin_in = RestartPolicy(), MagicMock(), MagicMock()  # type: ignore[method-assign]
    segment: Any = SimpleNamespace(member=3, number=0, directory=tmp_path)
    assert busy._replace(MagicMock(), segment, 0, RayError("killed")) is None
    assert busy._view.note.call_args.args[0].endswith(f"; it {says}")  # type: ignore[attr-defined]


def test_members_of_a_cluster_that_is_gone_are_not_waited_for(
    busy: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PULSE_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "what_is_gone", lambda: "its raylet on this node")
    assert busy.next_ended() is None, "once may be a moment's trouble"
    with pytest.raises(UserError, match="the Ray cluster is gone: its raylet on this node") as caught:
        busy.next_ended()
    assert caught.value.status == 75
