"""`ddrl.train` trains what `ddrl train` trains, and a run shows its configuration, curves, manifest and score."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ddrl
from ddrl import cli
from ddrl.api import launch, runs
from ddrl.system.text_files import read_json
from ddrl.training.config.run_config import to_json
from ddrl.training.records import checkpoint
from tests.api.agents import trained
from tests.runs import BASE

WORDS = ["impala", "gymnasium/CartPole-v1"]
SHORT = {"env_frames": 600, "evaluation.final_episodes": 2, "topology.envs_per_actor": 4, "topology.runtime": "serial"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_line_trains_as_the_command_line_does(capsys: pytest.CaptureFixture[str]) -> None:
    run = ddrl.train(*WORDS, **SHORT)
    assert run.directory == Path("runs/impala/gymnasium/CartPole-v1/1-1")
    assert "run directory: runs/impala" in capsys.readouterr().err
    settings = [f"{key}={value}" for key, value in SHORT.items()]
    assert cli.main(["train", *WORDS, *settings, "--directory", "other", "--quiet"]) == 0
    assert read_json(Path("other/config.json")) == read_json(run.directory / "config.json")
    timed = ["seconds", "metric", "value"]
    assert ddrl.load_run("other").curves.drop(columns=timed).equals(run.curves.drop(columns=timed))


def test_a_run_shows_its_configuration_curves_manifest_and_score() -> None:
    run = trained(Path("run"))
    assert (run.is_finished, run.config.algorithm, run.config.env_frames) == (True, "impala", 320)
    assert list(run.curves) == ["env_frames", "agent_steps", "updates", "seconds", "metric", "value"]
    last = run.curves[run.curves.metric == "evaluation_return"].value
    assert len(last) == 2
    assert run.final_return == last.mean()
    assert run.final_returns == {"toy/catch": run.final_return}
    assert run.manifest["env_frames"] >= 320
    assert repr(run) == f"Run(impala on toy/catch, seed 3, 320 frames, final return {run.final_return:.2f}, 'run')"


def test_an_unfinished_run_shows_its_curves_so_far_and_has_no_score() -> None:
    run = trained(Path("run"))
    (run.directory / "run.json").unlink()
    (run.directory / "curves.parquet").unlink()
    unfinished = ddrl.load_run("run")
    assert not unfinished.is_finished
    assert isinstance(unfinished.curves, pd.DataFrame) and len(unfinished.curves)
    assert "not finished" in repr(unfinished)
    with pytest.raises(ddrl.UserError, match="run: the run has not finished"):
        _ = unfinished.final_return
    with pytest.raises(ddrl.UserError, match="run: the run has not finished"):
        _ = unfinished.manifest


def test_a_configuration_is_a_file_a_mapping_or_that_of_another_run() -> None:
    run = trained(Path("run"))
    again = ddrl.train(config=run.config, seed=4, directory="again", progress=False)
    assert to_json(again.config) == to_json(run.config) | {"seed": 4}
    Path("mine.json").write_bytes((run.directory / "config.json").read_bytes())
    third = ddrl.train(config="mine.json", environment="toy/chain", directory="third", progress=False)
    assert to_json(third.config) == to_json(run.config) | {"environment": {"name": "toy/chain"}}


def test_a_nested_setting_and_a_dotted_one_are_the_same() -> None:
    base: dict[str, Any] = {"config": BASE, "progress": False, "env_frames": 80, "evaluation.period_frames": None}
    dotted = ddrl.train(**base, **{"hyperparameters.optimizer.learning_rate": 0.01}, directory="a")
    nested = ddrl.train(**base, hyperparameters={"optimizer": {"learning_rate": 0.01}}, directory="b")
    assert dotted.config == nested.config


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "ddrl.train: name an algorithm and a task, such as train"),
        ({"algorithm": "impala"}, "ddrl.train: name an algorithm and a task"),
        ({"algorithm": "impla", "environment": "toy/catch"}, "did you mean 'impala'"),
        (
            {"algorithm": "impala", "environment": "toy/cach"},
            "ddrl.train: environment.name: unknown task of toy 'cach'",
        ),
        (
            {"algorithm": "impala", "environment": "toy/catch", "learning_rate": 1},
            "hyperparameters.optimizer.learning_r",
        ),
        ({"algorithm": "impala", "environment": "toy/catch", "env_frames": "many"}, "ddrl.train: key 'env_frames'"),
        ({"config": "none.yaml"}, "none.yaml: no such file"),
        ({"config": {"algorithm": "impala"}}, "ddrl.train: key 'environment.name' must be a text"),
        ({"algorithm": "r2d2", "environment": "gymnasium/Pendulum-v1"}, "continuous actions"),
    ],
)
def test_a_slip_is_one_error_that_says_where(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ddrl.UserError) as raised:
        ddrl.train(**arguments, progress=False)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not Path("runs").exists()


def test_a_finished_other_run_is_refused_unless_it_is_to_be_overwritten() -> None:
    trained(Path("run"))
    with pytest.raises(ddrl.UserError, match=r"run: a run of another configuration has finished there.*overwrite=True"):
        trained(Path("run"), seed=4)
    assert (
        ddrl.train(config=BASE, env_frames=80, seed=4, directory="run", overwrite=True, progress=False).config.seed == 4
    )


def test_an_interrupted_run_raises_what_ends_a_loop_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "train", lambda *arguments, **options: "interrupted")
    with pytest.raises(KeyboardInterrupt, match="run: interrupted before a checkpoint; the call begins anew"):
        trained(Path("run"))
    checkpoint.save(Path("run/checkpoints"), 7, {})
    with pytest.raises(KeyboardInterrupt, match="run: interrupted after a checkpoint; the same call goes on"):
        trained(Path("run"))


def test_training_leaves_the_number_of_threads_of_torch_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trained(Path("run"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_another_thread_than_the_main_one_is_refused() -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            runs.train("impala", "toy/catch")
        except ddrl.UserError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "ddrl.train must be called in the main thread, because it handles signals; elsewhere start" in str(raised[0])


def test_what_is_no_run_is_one_line() -> None:
    with pytest.raises(ddrl.UserError, match="nowhere: no such folder"):
        ddrl.load_run("nowhere")
    Path("empty").mkdir()
    with pytest.raises(ddrl.UserError, match="empty: holds no run"):
        ddrl.load_policy("empty")
