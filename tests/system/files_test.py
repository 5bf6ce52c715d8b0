"""A file is whole or it is not there."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ddrl.system import files
from ddrl.system.files import remove_abandoned, replacing, write_atomically, write_whole

LIBRARY = Path(__file__).parents[2] / "ddrl"


def fail(_: object) -> None:
    raise OSError("disk full")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_nothing_stands_at_the_place_before_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename across file systems would be a copy
    assert path.read_bytes() == b"new"


def test_the_data_and_the_name_are_flushed_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(files, "_flush", lambda path: flushed.append((path.name, (tmp_path / "file").exists())))
    write_whole(tmp_path / "file", b"new")
    assert [(name.startswith(".file."), there) for name, there in flushed] == [(True, False), (False, True)]


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "file", b"new")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"new"


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from ddrl.system.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path / "file")], cwd=LIBRARY.parent)
    assert len(list(tmp_path.iterdir())) == 1
    with replacing(tmp_path / "other") as temporary:
        temporary.write_bytes(b"new")
        (tmp_path / ".notes.tmp").touch()
        remove_abandoned(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([temporary, tmp_path / ".notes.tmp"])


def test_no_other_file_of_the_library_renames_over_another() -> None:
    calls = {
        path.relative_to(LIBRARY).as_posix()
        for path in LIBRARY.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.replace"
    }
    assert calls == {"system/files.py"}
