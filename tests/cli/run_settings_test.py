"""`ddrl train ALGORITHM TASK KEY=VALUE`: what it trains, where, and what it says of a slip of the keyboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddrl import cli
from ddrl.api.settings import RUNS, run_directory
from ddrl.cli.run_settings import file_of, run_config
from ddrl.errors import UserError
from ddrl.system.locks import locked
from ddrl.training.config.run_config import parse_run_config, to_json

WORDS = ["impala", "toy/catch"]
QUICK = [
    *WORDS,
    "env_frames=600",
    "evaluation.final_episodes=2",
    "topology.envs_per_actor=4",
    "topology.runtime=serial",
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(path: str, values: dict[str, Any]) -> str:
    """A configuration file; returns its path."""
    Path(path).write_text(json.dumps(values))
    return path


def test_settings_are_numbers_texts_and_lists_as_people_write_them() -> None:
    learning_rate = "hyperparameters.optimizer.learning_rate=3e-4"
    config = run_config([*WORDS, "env_frames=2e6", "seed=1_000", learning_rate, "topology.runtime=serial"])
    values = to_json(config)
    assert (config.env_frames, config.seed) == (2_000_000, 1000)
    assert isinstance(config.env_frames, int)
    assert values["hyperparameters"]["optimizer"]["learning_rate"] == 3e-4
    assert values["hyperparameters"]["optimizer"]["name"] == "adam"  # the others of it are those for this kind of task
    assert values["topology"]["runtime"] == "serial"


def test_settings_change_a_file_and_not_the_other_way_round() -> None:
    values = to_json(run_config([*WORDS, "seed=3"]))
    path = written("mine.json", values)
    assert to_json(run_config([path])) == values
    assert run_config(["env_frames=5_000", path, "seed=4"]).seed == 4
    assert run_config([written("seed=9.json", values)]).seed == 3  # a file, and no setting


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["impla", "toy/catch"], "ddrl train: unknown algorithm 'impla' (did you mean 'impala'?)"),
        (["impala"], "ddrl train: on which task? Such as: ddrl train impala atari/pong"),
        (["seed=1"], "ddrl train: got 0 names (none); allowed: a configuration file, or an algorithm and a task"),
        (["impala", "toy/catch", "toy/chain"], "ddrl train: got 3 names (impala, toy/catch, toy/chain)"),
        (["none.yaml"], "none.yaml: no such file"),
        ([*WORDS, "learning_rate=1"], "'learning_rate' (did you mean 'hyperparameters.optimizer.learning_rate'?)"),
        ([*WORDS, "topology.envs=1"], "unknown key 'topology.envs' (did you mean"),
        ([*WORDS, "=3"], "ddrl train: '=3' is not allowed; allowed: key=value"),
        ([*WORDS, "seed=[1"], "ddrl train: seed=[1: not valid YAML"),
        ([*WORDS, "env_frames=2.5"], "ddrl train: key 'env_frames'"),
        ([*WORDS, "env_frames=true"], "ddrl train: key 'env_frames' must be a number"),
        ([*WORDS, "hyperparameters=3"], "ddrl train: key 'hyperparameters"),
        ([*WORDS, "lr=1"], "unknown key 'lr' (did you mean 'hyperparameters.optimizer.learning_rate'?)"),
        ([*WORDS, "hyperparameters.gamma=1"], "(did you mean 'hyperparameters.discount'?)"),
        ([*WORDS, "env_frames="], "ddrl train: key 'env_frames': Input should be a valid integer (got no value)"),
        ([*WORDS, "env_frames=1e30"], "ddrl train: key 'env_frames': too large (got 1e+30)"),
        (["impala", "toy/cach"], "unknown task of toy 'cach' (did you mean 'catch'?)"),
    ],
)
def test_a_slip_is_one_line_that_names_what_was_meant(words: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        run_config(words)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_file_may_leave_out_what_the_command_line_may() -> None:
    path = written("mine.json", {"algorithm": "impala", "environment": {"name": "toy/catch"}})
    assert to_json(run_config([path])) == to_json(run_config(WORDS))


@pytest.mark.parametrize("key", ["seed", "env_frames"])
def test_a_key_that_is_missing_is_named_without_the_rest_of_the_configuration(key: str) -> None:
    values = {name: value for name, value in to_json(run_config(WORDS)).items() if name != key}
    with pytest.raises(UserError, match=rf"^configuration: key '{key}' is missing$"):
        parse_run_config(values)


def test_a_value_of_another_kind_is_not_shown_at_length() -> None:
    with pytest.raises(UserError) as error:
        run_config([*WORDS, f"hyperparameters.discount={list(range(1000))}"])
    assert len(str(error.value)) < 300


def test_each_run_gets_a_directory_of_its_own_and_the_same_command_goes_on_where_it_was_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["train", *QUICK]) == 0
    first = Path("runs/impala/toy/catch/1-1")
    assert f"run directory: {first}" in capsys.readouterr().err
    before = (first / "curves.parquet").read_bytes()
    second = run_directory(run_config(QUICK), file_of(QUICK))
    assert second == Path("runs/impala/toy/catch/1-2")
    second.mkdir()
    written(str(second / "config.json"), to_json(run_config(QUICK)))  # as an interrupted run leaves it
    assert run_directory(run_config(QUICK), file_of(QUICK)) == second
    other = [*QUICK, "hyperparameters.entropy_cost=0.02"]
    assert run_directory(run_config(other), file_of(other)) == Path("runs/impala/toy/catch/1-3")
    with locked(second):
        assert run_directory(run_config(QUICK), file_of(QUICK)) == Path("runs/impala/toy/catch/1-3")
    assert cli.main(["train", *QUICK, "--quiet"]) == 0
    assert (second / "run.json").exists()
    assert (first / "curves.parquet").read_bytes() == before


def test_the_configuration_that_a_run_keeps_stands_for_its_directory() -> None:
    Path("mine").mkdir()
    words = [written("mine/config.json", to_json(run_config(QUICK)))]
    assert run_directory(run_config(words), file_of(words)) == Path("mine")
    other = [written("mine/other.json", to_json(run_config(QUICK)))]
    assert run_directory(run_config(other), file_of(other)) == Path("runs/impala/toy/catch/1-1")


def test_names_of_tasks_make_no_folder_elsewhere() -> None:
    name = "gymnasium/my_games.sub:Game-v0"
    config = run_config(WORDS)
    object.__setattr__(config, "environment", {"name": name})
    assert run_directory(config) == RUNS / "impala/gymnasium/my_games.sub_Game-v0/1-1"


def test_a_finished_other_run_stays_unless_it_is_to_be_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *QUICK, "--quiet", "--directory", "here"]) == 0
    other = ["train", *QUICK, "seed=2", "--directory", "here"]
    before = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file() and path.name != "lock"}
    capsys.readouterr()
    assert cli.main(other) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert (
        "a run of another configuration has finished there, which differs in seed; train in another directory" in said
    )
    assert "--overwrite" in said
    assert {path: path.read_bytes() for path in before} == before
    assert cli.main([*other, "--overwrite"]) == 0
    assert json.loads(Path("here/run.json").read_text())["config"]["seed"] == 2
    assert len(list(Path("here/tensorboard").iterdir())) == 1  # nothing of the other run
    after = Path("here/curves.parquet").read_bytes()
    assert cli.main([*other, "--overwrite"]) == 0  # the same run is finished, and no other
    assert Path("here/curves.parquet").read_bytes() == after
