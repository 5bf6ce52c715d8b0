"""Curves survive a crash, and say what happened once."""

import json
import math
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from ddrl.errors import NonFiniteError
from ddrl.training.records.recorder import COLUMNS, TIMING_METRICS, Counts, Recorder, read_curves, tag_of, write_curves
from ddrl.training.records.trackers import Trackers
from ddrl.types import Episode

CONFIG = {"algorithm": "impala", "environment": {"name": "toy/catch"}, "seed": 3}


def counts(updates: int) -> Counts:
    return Counts(env_frames=updates * 40, agent_steps=updates * 10, updates=updates)


def shown(directory: Path) -> Trackers:
    """TensorBoard alone."""
    return Trackers(["tensorboard"], directory, CONFIG)


def record(directory: Path, first: int, last: int, recorder: Recorder | None = None) -> Recorder:
    recorder = recorder or Recorder(directory, period_frames=100)
    for updates in range(first, last + 1):
        recorder.episode(Episode("toy/catch", float(updates), 5))
        recorder.update(counts(updates), {"loss": float(updates), "policy_lag_max": float(updates % 3)})
    return recorder


def test_what_was_recorded_is_readable_before_the_run_ends(tmp_path: Path) -> None:
    record(tmp_path, 1, 6)  # never closed, as after a kill
    table = read_curves(tmp_path / "curves.jsonl")
    assert list(table.columns) == COLUMNS
    assert table[table.metric == "loss"].env_frames.tolist() == [120, 200]


def test_a_record_holds_means_since_the_last_and_the_maximum_of_maxima(tmp_path: Path) -> None:
    record(tmp_path, 1, 5)
    table = read_curves(tmp_path / "curves.jsonl").pivot_table(index="env_frames", columns="metric", values="value")
    assert table.loss.tolist() == [2.0, 4.5]
    assert table.policy_lag_max.tolist() == [2.0, 2.0]
    assert table.episode_return.tolist() == [2.0, 4.5]
    assert table.episodes.tolist() == [3.0, 5.0]


def test_a_metric_that_some_updates_lack_is_the_mean_of_the_others(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, period_frames=120)
    for updates, metrics in enumerate([{"stale": 1.0}, {"loss": 2.0, "stale": 0.0}, {"loss": 4.0, "stale": 0.5}], 1):
        recorder.update(counts(updates), metrics)
    values = read_curves(tmp_path / "curves.jsonl").set_index("metric").value
    assert (values["loss"], values["stale"]) == (3.0, 0.5)


def test_an_episode_whose_environment_was_lost_on_the_way_is_no_score(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, period_frames=100)
    for episode_return, abandoned in ((1.0, False), (50.0, True), (3.0, False)):
        recorder.episode(Episode("toy/catch", episode_return, int(episode_return), abandoned))
    recorder.update(counts(3), {"loss": 0.0})
    values = read_curves(tmp_path / "curves.jsonl").set_index("metric").value
    assert (values["episode_return"], values["episode_length"], values["episodes"]) == (2.0, 2.0, 2.0)


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, 1, 6).close()
    path = tmp_path / "curves.jsonl"
    whole = read_curves(path)
    path.write_text(path.read_text() + '{"env_frames": 12')
    assert read_curves(path).equals(whole)


def test_a_resume_cuts_the_lines_back_to_the_checkpoint(tmp_path: Path) -> None:
    straight = read_curves(record(tmp_path / "a", 1, 12)._path)
    recorder = record(tmp_path / "b", 1, 4)
    state = json.loads(json.dumps(recorder.state_dict()))
    record(tmp_path / "b", 5, 9, recorder).close()  # lost with the kill
    resumed = Recorder(tmp_path / "b", period_frames=100)
    assert resumed.load_state_dict(state) == ""
    again = read_curves(record(tmp_path / "b", 5, 12, resumed)._path)
    for table in (straight, again):
        table.drop(table.index[table.metric.isin(TIMING_METRICS)], inplace=True)
    assert straight.drop(columns="seconds").equals(again.drop(columns="seconds"))


def test_a_state_names_lines_that_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record(tmp_path, 1, 4)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    assert recorder.state_dict()["offset"] == synced[0] > 0


def test_lines_that_a_crash_of_the_machine_took_are_missed_but_the_run_goes_on(tmp_path: Path) -> None:
    recorder = record(tmp_path, 1, 9)
    state = recorder.state_dict()
    recorder.close()
    path = tmp_path / "curves.jsonl"
    path.write_bytes(path.read_bytes()[:-10])  # the checkpoint was on the disk, the end of the curves was not
    resumed = Recorder(tmp_path, period_frames=100)
    assert "before the checkpoint are lost" in resumed.load_state_dict(state)
    record(tmp_path, 10, 12, resumed).close()
    write_curves(tmp_path)
    table = read_curves(path)
    assert table[table.metric == "loss"].env_frames.tolist() == [120, 200, 400]  # 320 is lost


def test_each_evaluation_episode_is_a_row_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, period_frames=100)
    recorder.evaluation(counts(7), [(Episode("toy/catch", value, 10), 7) for value in (1.0, 2.0, 3.0)])
    write_curves(tmp_path)
    table = read_curves(tmp_path / "curves.jsonl")
    assert table[table.metric == "evaluation_return"].value.tolist() == [1.0, 2.0, 3.0]
    assert (table.env_frames == 280).all()


def test_tensorboard_files_stand_beside_the_curves(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, period_frames=100, trackers=shown(tmp_path))
    record(tmp_path, 1, 6, recorder).close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_tensorboard_shows_what_came_after_a_checkpoint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the curves do: of a run that was killed after its checkpoint, in the same step as a record, and resumed."""
    counter = event_file_writer.AtomicCounter(9)  # "10" comes before "9" in the order of names
    monkeypatch.setattr(event_file_writer, "_global_uid", counter)
    recorder = Recorder(tmp_path, period_frames=100, trackers=shown(tmp_path))
    record(tmp_path, 1, 5, recorder)  # ends with a record at 200 frames
    state = recorder.state_dict()
    recorder.evaluation(counts(5), [(Episode("toy/catch", 1.0, 5), 1)])
    record(tmp_path, 6, 11, recorder)  # and none of it was saved
    recorder.close()
    resumed = Recorder(tmp_path, period_frames=100, trackers=shown(tmp_path))
    resumed.load_state_dict(json.loads(json.dumps(state)), 200)
    resumed.evaluation(counts(5), [(Episode("toy/catch", 3.0, 5), 1)])
    record(tmp_path, 6, 14, resumed).close()
    table = read_curves(tmp_path / "curves.jsonl")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for metric in ("loss", "evaluation_return", "episodes"):
        found = [(event.step, event.value) for event in events.Scalars(tag_of(metric))]
        curve = table[table.metric == metric]
        assert found == list(zip(curve.env_frames, curve.value, strict=True))


def test_what_was_recorded_before_a_beginning_is_kept_beside(tmp_path: Path) -> None:
    record(tmp_path, 1, 6)  # never closed, as after a kill
    before = (tmp_path / "curves.jsonl").read_text()
    recorder = Recorder(tmp_path, period_frames=100)
    assert recorder.begin_anew(tmp_path / "aside") == tmp_path / "aside" / "curves.jsonl"
    record(tmp_path, 1, 3, recorder).close()
    assert (tmp_path / "aside" / "curves.jsonl").read_text() == before
    assert read_curves(tmp_path / "curves.jsonl").env_frames.max() == 120
    assert Recorder(tmp_path / "new", period_frames=100).begin_anew(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["update", "evaluation"])
def test_seconds_never_run_backwards_over_a_resume(tmp_path: Path, kind: str) -> None:
    recorder = Recorder(tmp_path, period_frames=100)
    recorder._started -= 50.0
    state = recorder.state_dict()
    recorder.close()
    resumed = Recorder(tmp_path, period_frames=100)
    resumed.load_state_dict(state)
    if kind == "update":
        record(tmp_path, 1, 3, resumed)
    else:
        resumed.evaluation(counts(3), [(Episode("toy/catch", 1.0, 1), 1)])
    assert (read_curves(tmp_path / "curves.jsonl").seconds >= 50).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_named_and_neither_written_nor_kept(tmp_path: Path, value: float) -> None:
    recorder = record(tmp_path, 1, 4)
    with pytest.raises(NonFiniteError, match=rf"^update 5: metric explained_variance is {value}$"):
        recorder.update(counts(5), {"loss": 5.0, "explained_variance": value})
    recorder.update(counts(4), {"loss": 5.0, "policy_lag_max": 0.0})
    recorder.gauges.append(lambda: {"round_trip_ms_p99": value})
    with pytest.raises(NonFiniteError, match=rf"^update 6: metric round_trip_ms_p99 is {value}$"):
        recorder.update(counts(6), {"loss": 6.0, "policy_lag_max": 0.0})
    with pytest.raises(NonFiniteError, match=rf"^update 6: metric evaluation_return is {value}$"):
        recorder.evaluation(counts(6), [(Episode("toy/catch", 1.0, 5), 1), (Episode("toy/catch", value, 5), 1)])
    assert all(math.isfinite(number) for metrics in recorder.state_dict()["updates"] for number in metrics.values())
    lines = (tmp_path / "curves.jsonl").read_text()
    assert "NaN" not in lines
    assert "Infinity" not in lines
    assert read_curves(tmp_path / "curves.jsonl").env_frames.max() == counts(3).env_frames
