"""`ddrl plot`: which runs are one line, what the lines are called, and how far they go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ddrl import cli
from ddrl.analysis.figures import plots
from ddrl.analysis.figures.curves import curve, draw
from ddrl.analysis.statistics.bootstrap import bootstrap
from ddrl.cli.plotting import curves_of, distinguishing
from ddrl.cli.run_folders import find
from ddrl.errors import UserError
from ddrl.training.config.run_config import to_json
from ddrl.training.records.recorder import Counts, Recorder, write_curves
from ddrl.types import Episode
from tests.runs import config

EVERY = {"metric": "episode_return", "axis": "frames", "points": 100}


def written(directory: Path, *, records: int = 10, finished: bool = True, **overrides: Any) -> Path:
    """A run of 100 frames a record, whose return is its seed in every one."""
    chosen = config(**overrides)
    recorder = Recorder(directory, period_frames=100)
    for number in range(1, records + 1):
        recorder.episode(Episode("toy/catch", float(chosen.seed), 9))
        metrics = {"loss": 1.0, "policy_lag_mean": 0.0, "policy_lag_max": 0.0}
        recorder.update(Counts(100 * number, 100 * number, number), metrics)
    recorder.evaluation(Counts(100 * records, 100 * records, records), [(Episode("toy/catch", 1.0, 9), records)])
    recorder.close()
    (directory / "config.json").write_text(json.dumps(to_json(chosen)))
    if finished:
        write_curves(directory)
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three seeds of one learning rate, two of another, and one on another task."""
    for seed in (1, 2, 3):
        written(tmp_path / "slow" / str(seed), seed=seed)
    for seed in (5, 6):
        faster = {"hyperparameters": {"optimizer": {"learning_rate": 0.01}}}
        written(tmp_path / "fast" / f"seed{seed}", seed=seed, **faster)
    written(tmp_path / "other", seed=1, environment={"name": "toy/chain"})
    return tmp_path


def test_runs_that_differ_only_in_their_seed_are_one_line_and_the_label_says_what_others_differ_in(runs: Path) -> None:
    found = {(one.environment, one.title): one for one in curves_of([runs], **EVERY)}
    assert list(found) == [
        ("toy/catch", "learning_rate=0.001 (3 seeds)"),
        ("toy/catch", "learning_rate=0.01 (2 seeds)"),
        ("toy/chain", "learning_rate=0.001 (1 seed)"),
    ]
    assert found["toy/catch", "learning_rate=0.001 (3 seeds)"].iqm == pytest.approx(2.0)


def test_the_interval_is_that_of_the_stratified_bootstrap(runs: Path) -> None:
    import pandas as pd

    three, two, _ = curves_of([runs], **EVERY)
    table = pd.DataFrame({"environment": "toy/catch", "seed": [1, 2, 3], "return": [1.0, 2.0, 3.0]})
    expected = bootstrap(table, "return", "iqm", generator=np.random.default_rng(0), resamples=2000)
    assert three.low == pytest.approx(expected.low) and three.high == pytest.approx(expected.high)
    assert np.isnan(two.low).all()  # of two seeds there is none


def test_few_and_short_keys_tell_configurations_apart() -> None:
    base = {"algorithm": '"impala"', "a.long_key": "1", "b.k": "1"}
    other = base | {"a.long_key": "2", "b.k": "2"}
    assert distinguishing([("t", base)]) == []
    assert distinguishing([("t", base), ("t", other)]) == ["b.k"]
    assert distinguishing([("t", base), ("t", other | {"algorithm": '"ppo"'})]) == ["algorithm"]
    assert distinguishing([("t", base), ("u", base)]) == []
    assert distinguishing([("t", base), ("t", other), ("t", base | {"a.long_key": "3"})]) == ["a.long_key"]


def test_keys_that_change_no_result_split_no_line(tmp_path: Path) -> None:
    written(tmp_path / "a", seed=1, tracking=["tensorboard"])
    written(tmp_path / "b", seed=2, tracking=[], recording={"period_frames": 7}, checkpoint={"period_frames": 9})
    (one,) = curves_of([tmp_path], **EVERY)
    assert one.title == "impala (2 seeds)"


def test_a_run_that_goes_on_is_drawn_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2, 3):
        written(tmp_path / str(seed), seed=seed, records=10 if seed < 3 else 4, finished=seed < 3)
    (one,) = curves_of([tmp_path], **EVERY)
    assert one.x[-1] == 400
    assert sorted(float(x[-1]) for x, _ in one.runs) == [400, 1000, 1000]
    assert capsys.readouterr().err == f"{tmp_path}/3: has not finished; drawn to 400 frames\n"
    with (tmp_path / "3" / "curves.jsonl").open("a") as file:
        file.write('{"env_frames": 5')  # a record is being written
    assert curves_of([tmp_path], **EVERY)[0].x[-1] == 400


def test_a_folder_inside_of_a_run_is_no_run_of_its_own(tmp_path: Path) -> None:
    run = written(tmp_path / "run")
    written(run / "finished-500")
    assert find([tmp_path, run, run / "curves.parquet"]) == [run]


def test_points_are_means_over_their_part_of_the_axis(tmp_path: Path) -> None:
    import pandas as pd

    frames = np.arange(100, 10_100, 100)
    table = pd.DataFrame({"env_frames": frames, "metric": "loss", "value": np.where(frames % 200, 1.0, -1.0)})
    one = curve("toy/catch", "a", [table], "loss", "frames", 10)
    assert len(one.x) == 10
    assert np.abs(one.iqm).max() < 0.1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PNG"])
def test_the_ending_of_the_name_says_the_kind_of_the_picture(
    suffix: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = runs / f"curves.{suffix}"
    assert cli.main(["plot", str(runs / "slow"), "--output", str(output), "--x", "seconds"]) == 0
    assert capsys.readouterr().out == f"{output}: 1 curve of episode_return\n"
    first = output.read_bytes()
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix.lower()])
    assert cli.main(["plot", str(runs / "slow"), "--output", str(output), "--x", "seconds"]) == 0
    assert output.read_bytes() == first


def test_the_picture_has_the_colours_of_okabe_and_ito(runs: Path) -> None:
    assert cli.main(["plot", str(runs), "--output", str(runs / "curves.png")]) == 0
    with Image.open(runs / "curves.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(10**6) or []}
    assert {(0, 0x72, 0xB2), (0xD5, 0x5E, 0)} <= colours


def test_without_output_there_is_a_chart_in_the_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", str(runs), "--metric", "loss"]) == 0
    printed = capsys.readouterr().out
    for words in ("toy/catch: loss", "toy/chain: loss", "* learning_rate=0.001 (3 seeds)", "+ learning_rate=0.01"):
        assert words in printed
    assert "\033" not in printed  # it is no terminal


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{runs}", "--metric", "episode_retrun"], "--metric: unknown metric 'episode_retrun' (did you mean 'episode_"),
        (["{runs}", "--metric", "x"], "allowed: cpu_seconds, episode_length, episode_return, episodes, evaluation_l"),
        (["{runs}/nowhere"], "{runs}/nowhere: no such folder"),
        (["{runs}/empty"], "{runs}/empty: holds no run (no folder with config.json and curves.parquet or curves.json"),
        (["{runs}", "--output", "a.jpg"], "--output a.jpg: allowed endings of the name: .png, .svg, .pdf"),
        (["{runs}", "--output", "{runs}/none/a.png"], "{runs}/none: no such folder"),
        (["{runs}/begun"], "none of these runs has records yet"),
        (["{runs}/odd"], "{runs}/odd: its configuration cannot be read"),
        (["{runs}", "--points", "0"], "argument --points: '0' is not allowed"),
    ],
)
def test_a_slip_is_one_line(words: list[str], says: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "empty").mkdir()
    if "{runs}/begun" in words:
        written(runs / "begun", finished=False)
        (runs / "begun" / "curves.jsonl").write_text("")
    if "{runs}/odd" in words:
        (written(runs / "odd") / "config.json").write_text("{")
    assert cli.main(["plot", *(word.format(runs=runs) for word in words)]) == 2
    assert says.format(runs=runs) in capsys.readouterr().err.splitlines()[-1]


def test_more_lines_than_a_figure_holds_are_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddrl.cli.plotting.MOST_LINES", 1)
    with pytest.raises(UserError, match="2 environments with up to 2 groups of runs; a figure holds 16 with 1 each"):
        curves_of([runs], **EVERY)


@pytest.mark.parametrize("below", ["slow", "."])
@pytest.mark.parametrize("axis", ["frames", "seconds"])
def test_nothing_that_is_written_in_the_picture_is_cut_off(runs: Path, below: str, axis: str) -> None:
    with plots.style():
        canvas = draw(curves_of([runs / below], "episode_return", axis, 100), "episode_return", axis, 100)
        canvas.draw_without_rendering()
    texts = [*canvas.texts, *(text for axes in canvas.axes for text in (axes.title, axes.xaxis.label))]
    outside = [text.get_text() for text in texts if not _within(text.get_window_extent(), canvas.bbox)]
    assert len(texts) >= 3 and outside == []
    (caption,) = canvas.texts
    assert not any(caption.get_window_extent().overlaps(axes.get_tightbbox()) for axes in canvas.axes)


def _within(inner: Any, outer: Any) -> bool:
    return bool(inner.x0 >= outer.x0 - 1 and inner.x1 <= outer.x1 + 1 and inner.y0 >= outer.y0 - 1)


def test_one_seed_is_not_counted_twice(runs: Path) -> None:
    shutil.copytree(runs / "slow" / "1", runs / "again")
    says = rf"^ddrl plot: seed 1 is given twice \({runs}/again, {runs}/slow/1\); allowed: each seed once in a group$"
    with pytest.raises(UserError, match=says):
        curves_of([runs], **EVERY)
    assert len(curves_of([runs / "slow", runs / "slow" / "1"], **EVERY)[0].runs) == 3


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    written(tmp_path / "runs" / "mine")
    for name in ("one", "two"):
        (tmp_path / "runs" / name).symlink_to(tmp_path / "runs")
    assert find([tmp_path]) == [tmp_path / "runs" / "mine"]
