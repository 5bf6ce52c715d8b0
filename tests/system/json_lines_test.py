"""What damaged a file that a run appends to is named and set aside; what is whole stays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ddrl.errors import UserError
from ddrl.population.journal import BURN_IN, Decision, Journal, Start
from ddrl.system.json_lines import split
from ddrl.training.records.finished import DECISIONS
from ddrl.training.records.recorder import Recorder, read_curves, write_curves
from tests.training.records.recorder_test import counts, record

GARBAGE = {"text": b"garbage\n", "bytes": b"\x00\xff\xfe\n", "other": b'{"a": 1}\n', "list": b"[1]\n", "empty": b"\n"}


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def resumed(directory: Path, state: dict[str, object]) -> tuple[Recorder, str]:
    recorder = Recorder(directory, period_frames=100)
    return recorder, recorder.load_state_dict(state)


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_garbage_between_the_records_is_set_aside_and_no_record_is_lost(
    tmp_path: Path, garbage: bytes, place: int
) -> None:
    recorder = record(tmp_path, 1, 6)
    state = recorder.state_dict()
    record(tmp_path, 7, 9, recorder).close()  # after the checkpoint: it is cut off
    path = tmp_path / "curves.jsonl"
    whole = lines_of(path)
    path.write_bytes(b"".join([*whole[:place], garbage, *whole[place:]]))
    with pytest.raises(UserError, match=rf"curves\.jsonl: line {place + 1} cannot be read; the same command again"):
        read_curves(path)
    recorder, told = resumed(tmp_path, state)
    if place < 2:
        assert told == f"{path}: line {place + 1} cannot be read, now in curves.jsonl.damaged"
        assert (tmp_path / "curves.jsonl.damaged").read_bytes() == garbage
    else:
        assert told == ""  # it came after the checkpoint, as the records that are cut off
    assert lines_of(path) == whole[:2] and recorder.lost_bytes == 0
    record(tmp_path, 7, 9, recorder).close()
    assert read_curves(path).query("metric == 'loss'").env_frames.tolist() == [120, 200, 320]


def test_a_record_that_garbage_took_the_place_of_is_counted_as_lost(tmp_path: Path) -> None:
    state = record(tmp_path, 1, 9).state_dict()
    path = tmp_path / "curves.jsonl"
    first, second, third = lines_of(path)
    path.write_bytes(first + b"#" * (len(second) - 1) + b"\n" + third)
    recorder, told = resumed(tmp_path, state)
    assert lines_of(path) == [first, third]
    assert f"line 2 cannot be read, now in curves.jsonl.damaged; {len(second)} bytes from before the" in told
    assert recorder.lost_bytes == recorder.state_dict()["lost_bytes"] == len(second)
    again, told = resumed(tmp_path, recorder.state_dict())
    assert told == "" and again.lost_bytes == len(second)  # it stays known


def test_a_lost_file_is_one_line_and_known_from_then_on(tmp_path: Path) -> None:
    state = record(tmp_path, 1, 9).state_dict()
    (tmp_path / "curves.jsonl").unlink()
    recorder, told = resumed(tmp_path, state)
    assert told.endswith("from before the checkpoint are lost; the curves have a gap there, and run.json will say so")
    assert recorder.lost_bytes == state["offset"]


def test_a_record_that_is_there_twice_is_kept_once(tmp_path: Path) -> None:
    state = record(tmp_path, 1, 9).state_dict()
    path = tmp_path / "curves.jsonl"
    whole = lines_of(path)
    table = read_curves(path)
    path.write_bytes(b"".join([whole[0], whole[0], *whole[1:]]))
    assert read_curves(path).equals(table)
    recorder, told = resumed(tmp_path, state)
    assert told == f"{path}: 1 line is there twice"
    assert lines_of(path) == whole and recorder.lost_bytes == 0


def test_the_lines_of_a_checkpoint_are_found_also_where_its_offset_is_no_place_any_more(tmp_path: Path) -> None:
    recorder = record(tmp_path, 1, 6)
    state = recorder.state_dict()
    whole = lines_of(tmp_path / "curves.jsonl")
    (tmp_path / "curves.jsonl").write_bytes(b"x\n" + whole[0] + whole[1])
    recorder, _ = resumed(tmp_path, state)
    record(tmp_path, 7, 9, recorder).close()  # and killed before the next checkpoint
    recorder, told = resumed(tmp_path, state)
    assert lines_of(tmp_path / "curves.jsonl") == whole and told == ""


def test_many_damaged_lines_are_not_all_spelled_out() -> None:
    found = split(b"x\n" * 9 + b"{}\n{}\n{}\n{", bool)
    assert found.describe() == "lines 1, 2, 3, 4, 5 and 7 more cannot be read"
    assert split(b'{"a": 1}\n' * 3, bool).describe() == "2 lines are there twice"


# Populations ----------------------------------------------------------------------------------------------------------


def decision(member: int, number: int) -> Decision:
    values = {field.name: 0 for field in dataclasses.fields(Decision)}
    given = {"member": member, "decision": number, "kind": BURN_IN, "before": {}, "after": {}}
    return Decision(**values | given)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    written = Journal(tmp_path)
    written.begin({"identity": "population-a"}, Start("now", None))
    for number in range(2):
        for member in range(2):
            written.append(decision(member, number))
    return written


def unnumbered(path: Path) -> None:
    """As former versions wrote it."""
    records = [json.loads(line) for line in lines_of(path)]
    texts = [json.dumps({key: value for key, value in one.items() if key != "line"}) for one in records]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "of a former version"])
@pytest.mark.parametrize("place", [0, 1, 3, 6])
def test_garbage_in_a_lineage_is_set_aside_and_every_decision_stays(
    tmp_path: Path, journal: Journal, place: int, numbered: bool
) -> None:
    if not numbered:
        unnumbered(journal.path)
    whole = lines_of(journal.path)
    journal.path.write_bytes(b"".join([*whole[:place], b"\xff\x00garbage\n", *whole[place:]]))
    read = Journal(tmp_path)
    assert (read.identity, read.starts, read.decisions) == (journal.identity, journal.starts, journal.decisions)
    assert read.note == f"{journal.path}: line {place + 1} cannot be read, now in {DECISIONS}.damaged"
    assert lines_of(journal.path) == whole
    read.append(decision(0, 2))
    assert Journal(tmp_path).decisions == [*journal.decisions, decision(0, 2)]


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "of a former version"])
def test_a_decision_that_is_there_twice_counts_once(tmp_path: Path, journal: Journal, numbered: bool) -> None:
    if not numbered:
        unnumbered(journal.path)
    whole = lines_of(journal.path)
    journal.path.write_bytes(b"".join([*whole[:4], whole[2], *whole[4:]]))
    read = Journal(tmp_path)
    assert read.decisions == journal.decisions
    assert read.note == f"{journal.path}: 1 line is there twice"
    assert lines_of(journal.path) == whole


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "of a former version"])
@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_population_whose_lineage_has_lost_a_line_is_refused(
    tmp_path: Path, journal: Journal, place: int, numbered: bool
) -> None:
    if not numbered:
        unnumbered(journal.path)
    whole = lines_of(journal.path)
    whole[place] = b"#" * 20 + b"\n"
    journal.path.write_bytes(b"".join(whole))
    with pytest.raises(UserError) as caught:
        Journal(tmp_path)
    assert str(caught.value).startswith(f"{journal.path}: ") and f"(line {place + 1} cannot be read)" in str(
        caught.value
    )
    assert lines_of(journal.path) == whole  # nothing is touched


def test_two_starts_of_a_former_version_may_look_the_same(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for _ in range(2):
        journal.begin({"identity": "population-a"}, Start("now", None))
    unnumbered(journal.path)
    assert len(Journal(tmp_path).starts) == 2


def test_curves_of_a_run_with_damage_have_no_such_rows(tmp_path: Path) -> None:
    recorder = record(tmp_path, 1, 6)
    recorder.close()
    path = tmp_path / "curves.jsonl"
    path.write_bytes(path.read_bytes() + b'{"env_frames": 1}\n')
    with pytest.raises(UserError, match="line 3 cannot be read"):
        write_curves(tmp_path)
    assert not (tmp_path / "curves.parquet").exists() and counts(1)
