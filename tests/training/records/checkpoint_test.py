"""A checkpoint is whole or it is not believed."""

import errno
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from ddrl.errors import UserError
from ddrl.training.records import checkpoint
from ddrl.training.records.checkpoint_layout import SCHEMA
from ddrl.training.records.identity import Identity
from ddrl.training.records.resume import Checkpoints


def test_the_newest_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    for updates in (1, 2, 10):
        checkpoint.save(tmp_path, updates, {"updates": updates, "tensor": torch.arange(updates)})
    state, damaged = checkpoint.load_newest(tmp_path)
    assert state is not None
    assert state["updates"] == 10
    assert torch.equal(state["tensor"], torch.arange(10))
    assert damaged == []
    assert sorted(path.stem for path in tmp_path.glob("*.pt")) == ["000000000002", "000000000010"]


def test_a_save_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    (tmp_path / f".000000000001.pt.{gone.pid}.tmp").touch()
    checkpoint.save(tmp_path, 2, {"updates": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000002.pt", "000000000002.sha256"]


@pytest.mark.parametrize("damage", ["cut", "flip", "no hash"])
def test_a_damaged_checkpoint_is_passed_over_with_one_line(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, 1, {"updates": 1})
    newest = checkpoint.save(tmp_path, 2, {"updates": 2})
    data = newest.read_bytes()
    if damage == "cut":
        newest.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        newest.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    else:
        newest.with_suffix(".sha256").unlink()
    state, damaged = checkpoint.load_newest(tmp_path)
    assert state == {"updates": 1}
    assert len(damaged) == 1
    assert str(newest) in damaged[0]


def test_a_full_disk_is_one_clear_line_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"updates": 1})
    (tmp_path / f".000000000002.pt.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"000000000002\.pt: cannot be saved: No space left on device .* is whole$"):
        checkpoint.save(tmp_path, 2, {"tensor": torch.zeros(100_000)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000001.pt", "000000000001.sha256"]
    assert checkpoint.load_newest(tmp_path) == ({"updates": 1}, [])


def test_the_configuration_is_the_reason_before_missing_counterparts(tmp_path: Path) -> None:
    """Another one may have had no counterparts: that nothing is whole would be the wrong reason."""
    folder, said = tmp_path / "checkpoints", list[str]()
    for name, noted in (("new", 0), ("old", 1)):
        checkpoint.save(folder, 1, {"identity": "old", "schema": SCHEMA, "learner": {"counters": [0, 0, 1]}})
        found = Checkpoints(tmp_path, Identity(name, {}, 1, by_name=True), 2, said.append)
        assert list(found.newest_first()) == []
        assert len(said) == noted
    assert "has no whole counterpart in" in said[0]
    assert "rank1" in said[0]


@pytest.mark.parametrize("later", [True, False], ids=["of another moment", "never written"])
def test_a_part_that_does_not_belong_to_the_rest_is_passed_over(tmp_path: Path, later: bool) -> None:
    folder, said = tmp_path / "checkpoints" / "replay", list[str]()

    def newest() -> int:
        found = Checkpoints(tmp_path, Identity("one", {}, 1, by_name=True), 1, said.append)
        return next(int(state["updates"]) for state in found.newest_first())

    for updates in (1, 2):
        part = checkpoint.save(folder, updates, {"replay": updates})
        state = {"identity": "one", "schema": SCHEMA, "learner": {"counters": [0, 0, updates]}, "updates": updates}
        checkpoint.save(folder.parent, updates, state | {"beside": {"replay": checkpoint.checksum(part)}})
    assert newest() == 2 and not said
    if later:
        checkpoint.save(folder, 2, {"replay": "of a run that went on from 1 and was killed before it wrote the rest"})
    else:
        part.unlink()
    assert newest() == 1
    assert len(said) == 1 and "000000000002.pt" in said[0] and "counterpart" in said[0]


def test_an_empty_directory_has_no_state(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "none") == (None, [])


def test_a_checkpoint_that_runs_code_when_loaded_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("loaded",)

    checkpoint.save(tmp_path, 1, {"trap": Trap()})
    state, damaged = checkpoint.load_newest(tmp_path)
    assert state is None
    assert len(damaged) == 1


@pytest.mark.parametrize("of", ["000000000002.pt", "000000000002.sha256"])
def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Going back behind it would lose what a network's disk keeps back for a moment."""
    for updates in (1, 2):
        checkpoint.save(tmp_path, updates, {"identity": "a", "updates": updates})
    opened = Path.open

    def open_(self: Path, *arguments: Any, **rest: Any) -> Any:
        if self.name == of:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self))
        return opened(self, *arguments, **rest)

    monkeypatch.setattr(Path, "open", open_)
    with pytest.raises(UserError, match=r"000000000002\.pt: stale file handle; make it readable, or remove it"):
        checkpoint.load_newest(tmp_path)
    monkeypatch.undo()
    state, damaged = checkpoint.load_newest(tmp_path)
    assert (state or {})["updates"] == 2
    assert not damaged


@pytest.mark.parametrize(("name", "left"), [("000000000001.pt", [3, 4]), ("000000000001.sha256", [1, 3, 4])])
def test_a_folder_among_old_checkpoints_stays_and_stops_no_save(tmp_path: Path, name: str, left: list[int]) -> None:
    checkpoint.save(tmp_path, 1, {"number": 1})
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    for number in (2, 3, 4):
        checkpoint.save(tmp_path, number, {"number": number})
    assert (tmp_path / name).is_dir()
    assert sorted(int(path.stem) for path in tmp_path.glob("*.pt") if path.is_file()) == left
    assert checkpoint.load_newest(tmp_path)[0] == {"number": 4}


def test_what_a_killed_save_left_does_not_go_with_a_folder_that_is_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    rank = folder / "rank1"
    for place in (folder, rank):
        checkpoint.save(place, 1, {"a": 1})
        (place / f".000000000002.sha256.{free_process_id()}.tmp").write_text("half")
    aside = checkpoint.set_aside(folder, "unusable")
    assert not list(aside.rglob("*.tmp"))
    assert checkpoint.load_newest(aside / "rank1")[0] == {"a": 1}


@pytest.mark.parametrize("suffix", [".pt", ".sha256"])
def test_a_folder_in_the_place_of_one_of_its_two_files_stops_a_save_before_the_other_is_replaced(
    tmp_path: Path, suffix: str
) -> None:
    checkpoint.save(tmp_path, 7, {"a": 1})
    path, other = (tmp_path / f"000000000007{one}" for one in (suffix, ".pt" if suffix == ".sha256" else ".sha256"))
    path.unlink()
    path.mkdir()
    before = other.read_bytes()
    with pytest.raises(
        UserError, match=rf"^{re.escape(str(tmp_path))}/000000000007.pt: cannot be saved: .*is a folder"
    ):
        checkpoint.save(tmp_path, 7, {"a": 2})
    assert other.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


def free_process_id() -> int:
    """The id of a process that is over."""
    with subprocess.Popen(["true"]) as gone:
        pass
    return gone.pid
