"""Slips of a new user: each is understood, or is one line that says what was meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddrl import cli
from ddrl.errors import unknown_name
from ddrl.training.config.run_config import to_json
from tests.runs import config, local_run

QUICK = ["env_frames=200", "evaluation.final_episodes=1", "topology.runtime=serial"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "mine"
    local_run(config(env_frames=400), directory, quiet=True).train()
    (directory / "config.json").write_text(json.dumps(to_json(config(env_frames=400))))
    return directory


def line_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that is said of a slip."""
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["toy/catch"], "with which algorithm? Such as: ddrl train a2c toy/catch"),
        (["toy/catch", "impala"], "the algorithm comes first: ddrl train impala toy/catch"),
        (["IMPALA", "toy/catch"], "unknown algorithm 'IMPALA' (did you mean 'impala'?)"),
        (["impala", "pong"], "'pong' is not of the form prefix/task (did you mean 'atari/pong'?); allowed prefixes: "),
        (["impala", "CartPole-v1"], "(did you mean 'gymnasium/CartPole-v1'?)"),
        (["impala", "ALE/Pong-v5"], "(did you mean 'gymnasium/ALE/Pong-v5'?)"),
        (
            ["impala", "atrai/pong"],
            "environment.name: unknown prefix 'atrai' (did you mean 'atari/pong'?); allowed pre",
        ),
        (["impala", "nothing-like-it"], "'nothing-like-it' is not of the form prefix/task; allowed prefixes: "),
        (["impala", "toy/catch", "--seed", "3"], "settings have no dashes, such as seed=3"),
        (["{run}"], "{run}: is a folder, not a file; to continue a run: ddrl resume {run}"),
        (["{run}/run.json"], "{run}/run.json: key 'algorithm' is missing; allowed: a2c, a3c"),
    ],
)
def test_train_says_what_was_meant(words: list[str], says: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = line_of(["train", *(word.format(run=run) for word in words)], capsys)
    assert says.format(run=run) in line
    assert line.count("ddrl: ") + line.count("ddrl train: ") <= 1 or "Such as: " in line


def test_settings_may_stand_behind_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "impala", "--quiet", "toy/catch", "--directory", "here", *QUICK, "--print-config", "seed=9"]
    assert cli.main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["environment"]["name"], printed["env_frames"], printed["seed"]) == ("toy/catch", 200, 9)


def test_runs_to_plot_may_stand_behind_options(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", str(run), "--metric", "value_loss", str(run), "--x", "seconds"]) == 0
    assert "(1 seed)" in capsys.readouterr().out
    assert "unrecognized arguments: other" in line_of(["resume", str(run), "--quiet", "other"], capsys)


@pytest.mark.parametrize("command", ["evaluate", "watch", "resume"])
@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("{run}/nowhere", "{run}/nowhere: no such folder"),
        ("{run}/checkpoints", "{run}/checkpoints: is no run directory (it has no config.json); allowed: {run}"),
        ("{above}", "{above}: is no run directory (it has no config.json); allowed: {run}"),
    ],
)
def test_a_path_that_is_no_run_comes_with_the_runs_near_it(
    command: str, named: str, says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"run": run, "above": run.parent}
    assert line_of([command, named.format(**paths)], capsys) == f"ddrl: {says.format(**paths)}"


def test_a_file_of_a_run_means_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(run / "run.json"), "--episodes", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{run}: mean raw return")
    assert cli.main(["resume", str(run / "config.json")]) == 0
    assert "already finished" in capsys.readouterr().err
    assert cli.main(["verify", str(run / "run.json")]) == 0
    assert cli.main(["export", str(run / "config.json")]) == 0
    assert f"{run}/policy.safetensors: " in capsys.readouterr().out
    assert cli.main(["evaluate", str(run / "policy.safetensors"), "--episodes", "1"]) == 0
    assert capsys.readouterr().out.endswith(", 1 episode, after 432 frames\n")
    (run / "policy.safetensors").unlink()


def test_an_evaluation_says_how_far_it_is(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ddrl.cli.commands.LINE_SECONDS", 0.0)
    assert cli.main(["evaluate", str(run), "--episodes", "5"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("toy/catch: 5 / 5 episodes, mean raw return ")


def test_a_part_of_a_prefix_lists_its_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "environments", "toy/ca", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["toy/catch"]


def test_capital_letters_do_not_hide_what_was_meant() -> None:
    assert "(did you mean 'pong'?)" in str(unknown_name("task", "PONG", ["breakout", "pong"]))
    assert "(did you mean 'Hopper-v5'?)" in str(unknown_name("task", "hopper-v5", ["Hopper-v5"]))


@pytest.mark.parametrize("setting", ["device=cuda", "environment.options.columns=1000"])
def test_a_run_that_is_refused_leaves_no_directory(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert "run directory" not in line_of(["train", "impala", "toy/catch", setting], capsys)
    line_of(["train", "impala", "toy/catch", setting, "--quiet", "--directory", str(tmp_path / "mine")], capsys)
    assert not list(tmp_path.iterdir())
