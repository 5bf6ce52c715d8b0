"""Trackers show a run's curves by group, go on where a run is resumed, and never end a run."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddrl import cli
from ddrl.errors import UserError
from ddrl.training.config.run_config import fingerprint, parse_run_config, to_json
from ddrl.training.records import trackers
from ddrl.training.records.recorder import Counts, Recorder, read_curves, tag_of
from ddrl.training.records.trackers import Trackers, check_installed
from ddrl.types import Episode
from tests.runs import BASE, config, local_run, merged

VALUES = to_json(config())


@pytest.fixture(autouse=True)
def without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def events_of(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return events


def of_wandb(directory: Path) -> Iterator[tuple[str, Any]]:
    """Every record of every offline run in a directory: its kind, and it."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        for data in leveldb_records(path.read_bytes(), begin=7):  # after wandb's own header
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield str(record.WhichOneof("record_type")), record


def leveldb_records(content: bytes, begin: int) -> Iterator[bytes]:
    """The records of a log of LevelDB: blocks of 32 KiB with parts, each with a checksum, its length and its kind."""
    place, parts = begin, b""
    while place < len(content):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield parts
            parts = b""


def history_of_wandb(directory: Path) -> list[dict[str, Any]]:
    records = [record.history for kind, record in of_wandb(directory) if kind == "history"]
    rows = [{(item.key or item.nested_key[0]): json.loads(item.value_json) for item in row.item} for row in records]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def history_of_mlflow(directory: Path, tag: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(directory / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("ddrl").experiment_id])
    return sorted((one.step, one.value) for one in client.get_metric_history(run.info.run_id, tag))


@pytest.mark.parametrize(
    ("metric", "tag"),
    [
        ("episode_return", "train/episode_return"),
        ("episode_return/toy/catch", "train/episode_return/toy/catch"),
        ("policy_lag_mean", "train/policy_lag_mean"),
        ("policy_loss", "loss/policy_loss"),
        ("loss", "loss/loss"),
        ("entropy", "loss/entropy"),
        ("frames_per_second", "time/frames_per_second"),
        ("evaluation_return", "evaluation/return"),
        ("evaluation_length/toy/catch", "evaluation/length/toy/catch"),
    ],
)
def test_every_metric_has_a_group(metric: str, tag: str) -> None:
    assert tag_of(metric) == tag


def test_tensorboard_has_the_groups_the_configuration_and_the_hyperparameters(tmp_path: Path) -> None:
    local_run(config(tracking=["tensorboard"]), tmp_path, quiet=True).train()
    events = events_of(tmp_path)
    assert {tag.partition("/")[0] for tag in events.Tags()["scalars"]} == {"train", "loss", "time", "evaluation"}
    table = read_curves(tmp_path / "curves.jsonl")
    losses = table[table.metric == "policy_loss"]
    assert [event.step for event in events.Scalars("loss/policy_loss")] == losses.env_frames.tolist()
    (text,) = events.Tensors("configuration/text_summary")
    assert '"batch_size": 8' in text.tensor_proto.string_val[0].decode()
    kept = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"hyperparameters.optimizer.learning_rate" in kept


def test_wandb_and_mlflow_have_what_the_curves_have_without_a_network(tmp_path: Path) -> None:
    local_run(config(env_frames=1000, tracking=["wandb", "mlflow"]), tmp_path, quiet=True).train()
    table = read_curves(tmp_path / "curves.jsonl")
    losses = table[table.metric == "value_loss"]
    expected = list(zip(losses.env_frames, losses.value, strict=True))
    shown = [(row["env_frames"], row["loss/value_loss"]) for row in history_of_wandb(tmp_path) if len(row) > 5]
    assert shown == expected
    assert history_of_mlflow(tmp_path, "loss/value_loss") == expected
    assert not (tmp_path / "tensorboard").exists()


def test_a_resumed_run_goes_on_in_the_same_run_of_every_tracker(tmp_path: Path) -> None:
    for start in (100, 300):
        shown = Trackers(["wandb", "mlflow"], tmp_path, VALUES)
        for frames in (start, start + 100, start + 50):  # an evaluation is recorded at frames from before
            shown.log(frames, {"train/episode_return": float(frames)})
        shown.close()
    steps = [100, 150, 200, 300, 350, 400]
    assert history_of_mlflow(tmp_path, "train/episode_return") == [(step, float(step)) for step in steps]
    assert sorted(row["env_frames"] for row in history_of_wandb(tmp_path)) == steps
    assert len({record.run.run_id for kind, record in of_wandb(tmp_path) if kind == "run"}) == 1


def test_a_run_that_begins_anew_is_another_run_of_a_tracker(tmp_path: Path) -> None:
    (tmp_path / "aside").mkdir()
    shown = Trackers(["mlflow"], tmp_path, VALUES)
    shown.log(100, {"loss/loss": 1.0})
    shown.begin_anew(tmp_path / "aside")
    shown.log(40, {"loss/loss": 2.0})
    shown.close()
    assert history_of_mlflow(tmp_path, "loss/loss") == [(40, 2.0)]
    assert history_of_mlflow(tmp_path / "aside", "loss/loss") == [(100, 1.0)]


class Broken:
    """A tracker that fails at the second value."""

    forgets = False

    def __init__(self, directory: Path, config: Mapping[str, Any], reached: int | None) -> None:
        self.values: list[float] = []

    def log(self, env_frames: int, values: Mapping[str, float]) -> None:
        self.values += values.values()
        if len(self.values) > 1:
            raise RuntimeError("server gone\nand more")

    def close(self) -> None:
        raise AssertionError("it is left out")


def test_a_tracker_that_fails_is_left_out_with_one_line_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "TRACKERS", {**trackers.TRACKERS, "wandb": Broken})
    told: list[str] = []
    shown = Trackers(["wandb", "tensorboard"], tmp_path, VALUES, told.append)
    for frames in (100, 200, 300):
        shown.log(frames, {"loss/loss": float(frames)})
    shown.close()
    assert told == [
        "tracking by wandb has stopped (server gone); the run goes on, and its curves are complete",
    ]
    assert [event.step for event in events_of(tmp_path).Scalars("loss/loss")] == [100, 200, 300]


def test_a_tracker_that_cannot_begin_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    (tmp_path / "mlruns").write_text("in the way")
    run = local_run(config(env_frames=400, tracking=["tensorboard", "mlflow"]), tmp_path)
    assert run.train() == "budget_reached"
    told = capsys.readouterr().err
    assert told.count("tracking by tensorboard has stopped") == told.count("tracking by mlflow has stopped") == 1


def test_a_missing_package_is_one_line_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "PACKAGES", {"wandb": "a_package_that_is_nowhere"})
    with pytest.raises(UserError, match="wandb needs a package that is not installed; type: pip install 'ddrl"):
        check_installed(["tensorboard", "wandb"])
    directory = tmp_path / "run"
    words = ["impala", "toy/catch", "env_frames=100", "tracking=[wandb]", "--directory", str(directory)]
    assert cli.main(["train", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not directory.exists()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["wand"], "key 'tracking.0': Input should be 'tensorboard', 'wandb' or 'mlflow' (got 'wand')"),
        ("wandb", "key 'tracking' must be a list, such as [wandb] (got 'wandb')"),
        (3, "key 'tracking' must be a list (got 3)"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_what_is(value: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        config(tracking=value)
    assert says in str(error.value)


def test_trackers_do_not_change_what_a_run_is(tmp_path: Path) -> None:
    assert fingerprint(config(tracking=["tensorboard", "wandb"])) == fingerprint(config(tracking=["tensorboard"]))
    first = config(env_frames=600, tracking=[])
    local_run(first, tmp_path, quiet=True).train()
    longer = local_run(config(env_frames=1200, tracking=["tensorboard"]), tmp_path, quiet=True)
    assert longer.resume() is not None
    longer.close()


def test_the_older_key_for_tensorboard_means_the_same_and_keeps_its_digest() -> None:
    older = merged(BASE, {"recording": {"tensorboard": True}})
    assert parse_run_config(older).tracking == ("tensorboard",)
    assert config().tracking == ()  # BASE has recording.tensorboard: false
    before = {key: value for key, value in json.loads(json.dumps(to_json(config()))).items() if key != "tracking"}
    before["recording"]["tensorboard"] = False
    assert fingerprint(config()) == trackers_digest(before)


def trackers_digest(values: Mapping[str, Any]) -> str:
    """The digest as it was made before there was the key."""
    import hashlib

    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def test_the_first_return_is_seen_before_the_first_record_and_changes_no_curve(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, period_frames=10**9, trackers=Trackers(["tensorboard"], tmp_path, VALUES))
    recorder.begin()
    assert recorder.episode(Episode("toy/catch", 2.0, 9), 36)
    began = time.monotonic()
    assert [(event.step, event.value) for event in events_of(tmp_path).Scalars("train/episode_return")] == [(36, 2.0)]
    assert time.monotonic() - began < 5.0  # it is on the disk at once
    assert not recorder.episode(Episode("toy/catch", 5.0, 9), 72)
    assert recorder.latest["episode_return"] == 3.5
    assert (tmp_path / "curves.jsonl").read_bytes() == b""
    state = json.loads(json.dumps(recorder.state_dict()))
    resumed = Recorder(tmp_path, period_frames=10**9)
    resumed.load_state_dict(state)
    assert not resumed.episode(Episode("toy/catch", 8.0, 9), 108)
    assert resumed.latest["episode_return"] == 5.0
    resumed.update(Counts(120, 30, 1), {"loss": 1.0})
    resumed.flush(Counts(120, 30, 1))
    resumed.episode(Episode("toy/catch", 100.0, 9), 140)
    assert resumed.latest["episode_return"] == 5.0
