"""What the operating system refuses is one line and exit code 2, and loses nothing; errors of the program stay loud."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ddrl import cli
from ddrl.errors import UserError
from ddrl.system.exit_code import exit_code
from ddrl.system.files import below
from ddrl.system.locks import locked
from ddrl.system.temporary import claim, remove_left
from ddrl.training.records import checkpoint
from ddrl.training.run import Run
from tests.runs import BASE, config, curves, local_run, merged

HALF = 1000
Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a small file system of its own, or makes it larger; skips where that is not permitted."""
    mounted: list[Path] = []

    def mount(options: str, again: Path | None = None) -> Path:
        place = again or tmp_path / f"disk{len(mounted)}"
        place.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"remount,{options}" if again else options, "tmpfs", str(place)]
        tried = subprocess.run(command, capture_output=True, text=True) if shutil.which("mount") else None
        if tried is None or tried.returncode:
            pytest.skip(f"no file system can be mounted here: {tried.stderr.strip() if tried else 'no mount'}")
        if again is None:
            mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration's file."""
    path = tmp_path_factory.mktemp("stated") / "config.yaml"
    path.write_text(json.dumps(BASE))
    return path


@pytest.fixture(scope="module")
def whole(stated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has disturbed."""
    directory = tmp_path_factory.mktemp("whole")
    assert cli.main(["train", str(stated), "--directory", str(directory), "--quiet"]) == 0
    return directory


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """The directory of the same run, interrupted half-way."""
    directory = tmp_path / "half"
    run = local_run(config(), directory, quiet=True)
    run.pause = lambda: run.learner.core.env_frames >= HALF
    run.resume()
    assert run.train_segment() == "segment_over"
    return directory


def train(stated: Path, directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str]]:
    """Exit code, and lines on standard error."""
    capsys.readouterr()
    code = cli.main(["train", str(stated), "--directory", str(directory), *options])
    return code, capsys.readouterr().err.splitlines()


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


# Where the line is drawn ----------------------------------------------------------------------------------------------


def failing(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only file system"),
        (errno.EISDIR, "is a folder, not a file"),
        (errno.ENOTDIR, "a part of this path is a file, not a folder"),
        (errno.EEXIST, "exists, and is no folder"),
        (errno.ENOENT, "no such file or folder"),
        (errno.ENOSPC, "no space left on device"),
        (errno.ESTALE, "stale file handle"),
        (errno.EIO, "input/output error"),
        (errno.EMFILE, "too many open files"),
    ],
)
def test_a_file_that_the_system_refuses_is_one_line(
    number: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(failing(OSError(number, os.strerror(number), "a/file"))) == 2
    assert capsys.readouterr().err == f"ddrl: a/file: {words}\n"


@pytest.mark.parametrize(
    "error",
    [
        KeyError("key"),
        TypeError("expected a path"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "of no file"),
        OSError("without a number"),
        OSError(errno.ENOSPC, "of no file"),
        OSError(errno.EINVAL, "of no disk", "file"),
        ConnectionResetError(errno.ECONNRESET, "of a socket"),
        BrokenPipeError(errno.EPIPE, "of the display"),
    ],
    ids=repr,
)
def test_an_error_of_the_program_keeps_its_traceback(error: BaseException) -> None:
    with pytest.raises(type(error)):
        exit_code(failing(error))


# A run's own directory ------------------------------------------------------------------------------------------------


def folder_at(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).mkdir(parents=True)


def file_at(name: str, content: bytes = b"") -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)

    return spoil


def pipe_at(name: str) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(directory / name)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (pipe_at("lock"), "/lock: is a pipe or a device, not a file"),
        (pipe_at("curves.jsonl"), "/curves.jsonl: is a pipe or a device, not a file"),
        (file_at(""), "exists, and is no folder"),
        (file_at("../file"), "/../file/run: a part of this path is a file, not a folder"),
        (folder_at("lock"), "/lock: is a folder, not a file"),
        (folder_at("config.json"), "/config.json: is a folder, not a file"),
        (folder_at("curves.jsonl"), "/curves.jsonl: is a folder, not a file"),
        (file_at("checkpoints"), "/checkpoints: exists, and is no folder; there is none before it"),
        (file_at("config.json", b"\x80\x03\x00"), "/config.json: is not text in UTF-8 (byte 0x80 in line 1)"),
        (file_at("config.json", b"{"), "/config.json: not valid JSON"),
    ],
    ids=[
        "pipe as lock",
        "pipe as curves",
        "directory",
        "parent",
        "lock",
        "config",
        "curves",
        "checkpoints",
        "binary config",
        "cut config",
    ],
)
def test_what_stands_in_the_way_of_a_run_is_one_line(
    spoil: Callable[[Path], None], words: str, stated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    spoil(directory)
    if "/../file" in words:
        directory = directory / ".." / "file" / "run"
        directory.parents[2].mkdir(exist_ok=True)
        words = words.removeprefix("/../file/run")
    code, lines = train(stated, directory, capsys, "--quiet")
    assert code == 2 and len(lines) == 1 and lines[0].startswith("ddrl: ") and words in lines[0], lines


@pytest.mark.parametrize("name", ["checkpoints/000000000099.pt", "run.json", "curves.parquet"])
def test_nobody_waits_for_a_pipe_in_a_run_s_directory(
    name: str, stated: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To open one waits until somebody writes, in a call that no signal ends."""
    os.mkfifo(half / name)
    code, _ = train(stated, half, capsys, "--quiet")
    assert code == (0 if name.startswith("checkpoints") else 2)


RESULTS = ("config.json", "run.json", "curves.parquet")
TRAINED = ("config.json", "checkpoints")
NEEDED = {"verify": RESULTS, "merge": RESULTS, "resume": RESULTS, "evaluate": TRAINED, "watch": TRAINED}
"""What a command says that it cannot read, where something else stands there."""


@pytest.mark.parametrize("command", NEEDED)
@pytest.mark.parametrize("name", ["config.json", "run.json", "curves.parquet", "curves.jsonl", "checkpoints"])
def test_no_command_waits_for_a_pipe_in_the_place_of_a_run_s_file(
    command: str, name: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "results" / "smoke" / "a_paper_2018" / "study" / "one" / "toy-catch" / "seed3"
    shutil.copytree(whole, run)
    for path in run.glob("checkpoints/*") if name == "checkpoints" else [run / name]:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    options = {
        "evaluate": ["--episodes", "1"],
        "watch": ["--episodes", "1", "--output", str(tmp_path / "film.mp4")],
        "merge": ["--into", str(tmp_path / "merged")],
    }
    place = tmp_path / "results" if command == "merge" else run
    assert cli.main([command, str(place), *options.get(command, [])]) in (0, 1, 2)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if name in NEEDED[command]:
        assert Path(name).stem in said.out + said.err


@pytest.mark.parametrize("command", ["evaluate", "watch"])
def test_a_checkpoint_that_is_passed_over_is_told_by_those_that_only_look(
    command: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    oldest, newest = (sorted(run.glob("checkpoints/*.pt"))[place] for place in (0, -1))
    assert oldest != newest
    newest.write_bytes(newest.read_bytes()[:-1])
    film = ["--output", str(tmp_path / "film.mp4")] if command == "watch" else []
    assert cli.main([command, str(run), "--episodes", "1", *film]) == 0
    assert f"{newest}: checksum does not match; passed over" in capsys.readouterr().err


def test_a_disk_that_is_read_only_is_one_line(
    stated: Path, mount: Mount, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = mount("size=4m")
    shutil.copytree(whole / "checkpoints", disk / "run" / "checkpoints")
    (disk / "run" / "config.json").write_bytes((whole / "config.json").read_bytes())
    mount("ro", disk)
    for directory, name in ((disk / "run", "run/lock"), (disk / "other", "other")):
        code, lines = train(stated, directory, capsys, "--quiet")
        assert (code, lines) == (2, [f"ddrl: {disk / name}: read-only file system"])


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_directory_that_goes_away_while_it_is_trained_in_ends_the_run_with_one_line(
    how: str, stated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, learn = tmp_path / "run", Run._learn

    def learn_without(run: Run) -> None:
        if run.counts.updates == 3:
            directory.rename(tmp_path / "elsewhere")
            if how == "removed":
                shutil.rmtree(tmp_path / "elsewhere")
            elif how == "replaced":
                shutil.copytree(tmp_path / "elsewhere", directory)
        learn(run)

    monkeypatch.setattr(Run, "_learn", learn_without)
    code, lines = train(stated, directory, capsys, "--quiet")
    assert code == 2 and len(lines) == 1 and str(directory / "curves.jsonl") in lines[0], lines
    assert directory.exists() == (how == "replaced")  # it is not made anew for a checkpoint alone


# Records --------------------------------------------------------------------------------------------------------------


def test_garbage_among_the_records_is_told_at_the_start_and_costs_none(
    half: Path, whole: Path, stated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = half / "curves.jsonl"
    first, *rest = lines_of(path)
    path.write_bytes(b"".join([first, b"\xff\x00garbage\n", first, *rest]))
    code, lines = train(stated, half, capsys)
    assert code == 0
    assert f"{path}: line 2 cannot be read, now in curves.jsonl.damaged and 1 line is there twice" in lines or (
        f"{path}: line 2 cannot be read and 1 line is there twice, now in curves.jsonl.damaged" in lines
    )
    assert curves(half).equals(curves(whole))
    assert cli.main(["verify", str(half)]) == 0


def test_records_that_are_lost_are_told_of_at_the_start_in_run_json_and_by_verify(
    half: Path, stated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = half / "curves.jsonl"
    size = path.stat().st_size
    path.unlink()
    code, lines = train(stated, half, capsys)
    assert code == 0 and any(f"{path}: {size:,} bytes from before the checkpoint are lost" in line for line in lines)
    assert json.loads((half / "run.json").read_text())["records_lost_bytes"] == size
    assert cli.main(["verify", str(half)]) == 1
    assert f"run.json: {size:,} bytes of records were lost" in capsys.readouterr().out


def test_a_row_that_is_there_twice_does_not_pass_verify(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    table = pd.read_parquet(copy / "curves.parquet")
    pd.concat([table.iloc[:1], table]).to_parquet(copy / "curves.parquet", index=False)
    assert cli.main(["verify", str(copy)]) == 1
    assert f"metric '{table.metric[0]}' has two values at {table.env_frames[0]} env_frames" in capsys.readouterr().out


# Full disks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kib", [16, 40, 72, 104, 136, 200, 264, 328, 392])
def test_a_checkpoint_that_a_full_disk_does_not_take_is_one_line_and_the_one_before_stays(
    mount: Mount, kib: int
) -> None:
    disk = mount(f"size={kib}k")
    checkpoint.save(disk, 1, {"updates": 1})
    with pytest.raises(UserError) as caught:
        checkpoint.save(disk, 2, {"tensors": [torch.ones(size) for size in (100_000, 10, 1000, 3)]})
    words = rf"{disk}/000000000002.pt: cannot be saved: No space left on device ("
    assert str(caught.value).startswith(words) and str(caught.value).endswith("; the checkpoint before it is whole")
    assert sorted(path.name for path in disk.iterdir()) == ["000000000001.pt", "000000000001.sha256"]
    assert checkpoint.load_newest(disk) == ({"updates": 1}, [])
    mount("size=4m", disk)
    checkpoint.save(disk, 2, {"updates": 2})
    assert checkpoint.load_newest(disk) == ({"updates": 2}, [])


def test_a_checkpoint_is_not_lost_where_it_cannot_be_written_again(mount: Mount) -> None:
    disk = mount("size=48k")
    checkpoint.save(disk, 1, {"updates": 1})
    with pytest.raises(UserError, match="No space left on device"):
        checkpoint.save(disk, 1, {"tensor": torch.ones(100_000)})
    assert checkpoint.load_newest(disk) == ({"updates": 1}, [])


def fill(disk: Path, mount: Mount, whole: Path, capfd: pytest.CaptureFixture[str], **recording: Any) -> str:
    """Trains there, until it is full, and again, once there is room; returns the last line of the first time."""
    stated = disk.parent / "config.yaml"
    stated.write_text(json.dumps(merged(BASE, {"recording": recording, "checkpoint": {"period_frames": 100_000}})))
    code, lines = train(stated, disk / "run", capfd, "--quiet")
    *told, last = lines
    assert code == 2 and "no space left on device" in last.lower(), lines
    assert all(line.startswith("tracking by tensorboard has stopped (") for line in told) and len(told) <= 1, lines
    mount("size=8m", disk)
    assert train(stated, disk / "run", capfd, "--quiet") == (0, [])
    assert curves(disk / "run").equals(curves(whole))
    return last


@pytest.mark.parametrize(
    ("kib", "tensorboard", "file"),
    [(4, True, "config.json"), (12, True, "curves.jsonl"), (8, False, "curves.jsonl"), (160, False, ".pt")],
)
def test_a_run_on_a_full_disk_ends_with_one_line_and_begins_again_once_there_is_room(
    kib: int, tensorboard: bool, file: str, mount: Mount, whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert f"{file}: " in fill(mount(f"size={kib}k"), mount, whole, capfd, tensorboard=tensorboard)


@pytest.mark.parametrize("pages", [1, 2])
def test_results_that_a_full_disk_does_not_take_are_written_once_there_is_room(
    pages: int, mount: Mount, whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [path for path in whole.iterdir() if path.is_file()]
    files += sorted((whole / "checkpoints").iterdir())[-2:]
    needed = sum(-(-path.stat().st_size // os.sysconf("SC_PAGE_SIZE")) for path in files)
    told = fill(mount(f"size={(needed - pages) * os.sysconf('SC_PAGE_SIZE')}"), mount, whole, capfd)
    assert "curves.parquet: " in told or "run.json: " in told


# What a killed process leaves -----------------------------------------------------------------------------------------


def test_what_a_killed_run_was_writing_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    (tmp_path / f".config.json.{gone.pid}.tmp").touch()
    (tmp_path / f".config.json.{os.getpid()}.tmp").touch()
    with locked(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [f".config.json.{os.getpid()}.tmp", "lock"]


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
from ddrl.system.temporary import claim
lock = claim(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    left, used, begun, other = (tmp_path / name for name in ("own-left", "own-used", "own-begun", "other-left"))
    for folder in (left, used, begun, other):
        folder.mkdir()
        (folder / "socket").touch()
    for folder in (left, other):
        subprocess.run([sys.executable, "-c", KILLED, str(folder)], cwd=Path(__file__).parents[2])
    with claim(used):
        remove_left(tmp_path, "own-")
        assert sorted(tmp_path.iterdir()) == sorted([used, begun, other])
    remove_left(tmp_path, "own-")
    assert sorted(tmp_path.iterdir()) == sorted([begun, other])


def test_verify_says_where_a_folder_stands_in_the_place_of_a_manifest(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "other"):
        shutil.copytree(whole, tmp_path / name)
    (tmp_path / "other" / "run.json").unlink()
    (tmp_path / "other" / "run.json").mkdir()
    assert cli.main(["verify", str(tmp_path)]) == 1
    assert f"FAILED  {tmp_path / 'other' / 'run.json'}: not looked into: is a folder" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("seconds", [1.0], "column 'seconds' is list<element: double>; allowed: float64"),
        ("metric", 1, "column 'metric' is int64; allowed: string"),
        ("extra", 1, "columns are env_frames, agent_steps, updates, seconds, metric, value, extra; allowed: "),
    ],
)
def test_verify_refuses_curves_that_reports_would_refuse(
    column: str, value: Any, words: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    table = pd.read_parquet(run / "curves.parquet")
    table[column] = [value] * len(table)
    table.to_parquet(run / "curves.parquet", index=False, write_page_checksum=True)
    assert cli.main(["verify", str(run)]) == 1
    assert words in capsys.readouterr().out


# Links ----------------------------------------------------------------------------------------------------------------


def test_verify_follows_links_and_says_where_one_leads_nowhere(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scale, results = tmp_path / "disk" / "smoke", tmp_path / "results"
    shutil.copytree(whole, scale / "run")
    results.mkdir()
    (results / "smoke").symlink_to(scale)
    (scale / "loop").symlink_to(results)  # and back again
    assert cli.main(["verify", str(results)]) == 0
    assert capsys.readouterr().out.endswith("1 check: 1 passed\n")
    (scale / "run" / "curves.parquet").write_bytes(b"damaged")
    assert cli.main(["verify", str(results)]) == 1
    assert f"FAILED  {results / 'smoke' / 'run'}: cannot be read" in capsys.readouterr().out
    shutil.rmtree(scale / "run")
    assert cli.main(["verify", str(results)]) == 2
    (results / "paper").symlink_to(tmp_path / "gone")
    assert cli.main(["verify", str(results)]) == 2
    assert f"holds no finished run (no run.json); {results / 'paper'}: leads nowhere" in capsys.readouterr().err
    shutil.copytree(whole, results / "other")
    assert cli.main(["verify", str(results)]) == 1
    assert f"FAILED  {results / 'paper'}: not looked into: leads nowhere" in capsys.readouterr().out


def test_each_folder_is_visited_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "c").symlink_to(tmp_path / "a")
    assert below(tmp_path, "file") == [tmp_path / "a" / "b" / "file"]
