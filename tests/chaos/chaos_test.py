"""The short form of `make chaos`, in `make regression`; and that the harness sees what it looks for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.system.files import write_whole
from ddrl.training.config.run_config import parse_run_config
from tests.chaos import bad_files, faults, messages
from tests.chaos.__main__ import _repeatable
from tests.chaos.child import Ended, run
from tests.chaos.faults import Fault, disturb
from tests.chaos.kills import uneven
from tests.chaos.outside import watched
from tests.chaos.systems import all_systems, leftovers, unequal
from tests.chaos.tally import Tally

ROOT = Path(__file__).parents[2]


@pytest.mark.regression
def test_runs_that_are_disturbed_lose_nothing(tmp_path: Path) -> None:
    sizes = ["--kills", "50", "--faults", "60", "--messages", "50000", "--files", "45", "--soak", "0.05"]
    command = [sys.executable, "-m", "tests.chaos", *sizes, "--systems", "serial", "threads", "--folder", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_system_is_allowed_and_has_a_name_of_its_own_and_all_runtimes_are_there() -> None:
    systems = all_systems()
    assert len({system.name for system in systems}) == len(systems)
    assert {system.runtime for system in systems} == {"serial", "threads", "ray"}
    for system in systems:
        parse_run_config(system.config, system.name)
    assert set(bad_files.SYSTEMS) <= {system.name for system in systems}


@pytest.mark.parametrize(
    "other",
    [
        {"a": [1, 2.0], "b": torch.ones(2)},
        {"a": [1, 2], "b": torch.zeros(2)},
        {"a": [1, 2.0], "b": torch.tensor([0.0, -0.0])},
        {"a": [1, 2.0], "b": torch.zeros(2, dtype=torch.float64)},
        {"a": [1, 2.0, 3], "b": torch.zeros(2)},
        {"a": [1, 2.0]},
        {"a": [1, 2.0], "b": torch.zeros(2), "c": 0},
    ],
)
def test_states_that_differ_in_a_bit_are_told_apart(other: dict[str, Any]) -> None:
    state = {"a": [1, 2.0], "b": torch.zeros(2)}
    assert unequal(state, other)
    assert not unequal(state, {"a": [1, 2.0], "b": torch.zeros(2)})
    assert unequal(0.0, -0.0) and not unequal(float("nan"), float("nan"))


@pytest.mark.parametrize(
    ("ended", "held"),
    [
        (Ended(0, "", 1.0), True),
        (Ended(75, "", 1.0), True),
        (Ended(2, "resumed\nddrl: a line\n", 1.0), True),
        (Ended(2, "usage", 1.0), False),
        (Ended(1, "", 1.0), False),
        (Ended(0, "Traceback (most recent call last)\n", 1.0), False),
        (Ended(None, "", 1.0), False),
        (Ended(-9, "", 1.0), False),
    ],
)
def test_how_a_command_ended_is_judged(ended: Ended, held: bool) -> None:
    assert (ended.complaint == "") is held


def test_a_fault_strikes_the_call_that_it_names(tmp_path: Path) -> None:
    def work(fault: Fault) -> None:
        disturb(tmp_path, fault, None)
        for name in ("one", "two"):
            write_whole(tmp_path / name, b"12345678")

    ended = run(["--help"], tmp_path / "log", partial(work, Fault("replace", 2, "EIO")))
    assert ended.code == 1 and "Input/output error" in ended.said
    assert (tmp_path / "one").read_bytes() == b"12345678" and not (tmp_path / "two").exists()
    ended = run(["--help"], tmp_path / "log", partial(work, Fault("write", 1, "half, then kill")))
    assert ended.code == -signal.SIGKILL
    assert [path.read_bytes() for path in tmp_path.glob("*.tmp")] == [b"1234"]


def test_records_and_resumes_that_run_backwards_are_seen(tmp_path: Path) -> None:
    def record(frames: int) -> str:
        return json.dumps(
            {"env_frames": frames, "agent_steps": frames, "updates": frames, "metrics": {"episodes": [1]}}
        )

    (tmp_path / "run.json").write_text(json.dumps({"history": [{"env_frames": 0}, {"env_frames": 100}]}))
    (tmp_path / "curves.jsonl").write_text("\n".join(map(record, (100, 200, 300))))
    assert uneven(tmp_path) == []
    (tmp_path / "curves.jsonl").write_text("\n".join(map(record, (100, 300, 200))))
    assert len(uneven(tmp_path)) == 1
    (tmp_path / "run.json").write_text(json.dumps({"history": [{"env_frames": 100}, {"env_frames": 0}]}))
    assert len(uneven(tmp_path)) == 2


def test_what_is_left_behind_is_seen(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints-unusable").mkdir()  # set aside: kept on purpose
    assert leftovers(tmp_path) == []
    (tmp_path / "checkpoints" / ".1.pt.9.tmp").touch()
    (tmp_path / "core").touch()
    assert len(leftovers(tmp_path)) == 2


def test_what_is_left_in_the_temporary_folder_is_seen_once(tmp_path: Path) -> None:
    with watched(tmp_path / "t", own=True) as left:
        assert tempfile.gettempdir() == str(tmp_path / "t")
        Path(tempfile.mkdtemp(prefix="ddrl-")).joinpath("file").touch()
        assert len(left()) == 1 and left() == []
    assert tempfile.gettempdir() != str(tmp_path / "t")


def test_shared_memory_that_nobody_maps_is_seen_and_that_of_another_program_is_not(tmp_path: Path) -> None:
    with watched(tmp_path / "t", own=True) as left:
        used = SharedMemory(create=True, size=64)  # mapped by this process
        nobodys = Path("/dev/shm") / f"ddrl-test-{os.getpid()}"
        nobodys.write_bytes(b"\0" * 64)
        gone = Path("/dev/shm") / f"ddrl-test-gone-{os.getpid()}"
        gone.touch()
        timer = threading.Timer(0.5, gone.unlink)
        timer.start()
        try:
            found = left()
            assert str(nobodys) in found
            assert not {str(gone), f"/dev/shm/{used.name.removeprefix('/')}"} & set(found)
        finally:
            timer.join()
            nobodys.unlink()
            used.close()
            used.unlink()


def test_fuzzed_messages_differ_and_only_refusals_count_as_held() -> None:
    generator, good = np.random.default_rng(0), messages.seeds()
    made = {messages.fuzzed(good, generator) for _ in range(500)}
    assert len(made - set(good)) > 400
    said: list[str] = []
    tally = Tally(said.append)
    with tally.row("messages", "decoder") as row:
        messages.decoder(200, generator, row, tally)
    assert len(row.done) == 200
    assert said[0].startswith("messages decoder")


def test_the_command_in_a_result_names_no_place_of_this_machine() -> None:
    given = ["--json", "/some/where.json", "--kills", "3", "--folder", "/else/where", "--systems", "serial a2c"]
    assert _repeatable(given) == ["--kills", "3", "--systems", "serial a2c"]


def test_all_calls_are_planned_and_each_once() -> None:
    planned = faults._planned({"fsync": 2, "write": 3}, 1000, np.random.default_rng(0))
    assert len(planned) == len(set(planned)) == 2 * 4 + 3 * 6


def test_an_exception_in_a_part_fails_its_row_alone() -> None:
    tally = Tally(lambda line: None)
    with tally.row("kills", "broken"):
        raise ValueError("a mistake of the harness")
    assert tally.failed == 1 and "a mistake of the harness" in tally.rows[0].failures[0]


def test_the_guide_prints_the_figures_of_the_committed_runs() -> None:
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "tests" / "chaos" / "results").glob("*.json"))]
    rows = [row for one in found for row in one["rows"]]
    assert not any(one["git_dirty"] for one in found)
    guide = ROOT / "docs" / "guide" / "reliability.md"
    table = guide.read_text(encoding="utf-8").partition("What `make chaos` did")[2].split("\n\n")[1]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    for part, words in (("kills", "SIGKILL"), ("messages", "fuzzed"), ("files", "damaged"), ("soak", "hours")):
        own = [row for row in rows if row["part"] == part]
        done = f"{sum(row['seconds'] for row in own) / 3600:.1f}" if part == "soak" else f"{total(own):,}"
        failed = sum(len(row["failures"]) for row in own)
        assert [line[1:] for line in lines if line[0].startswith(words)] == [[done, str(failed)]]


def total(rows: list[dict[str, Any]]) -> int:
    """Disturbances of some rows."""
    return sum(row["disturbances"] for row in rows)
