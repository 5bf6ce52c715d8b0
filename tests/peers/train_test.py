"""A run by another library has the records of our own runs; a driver that fails leaves one error and no results."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddrl.analysis.runs.run_data import final_episodes, load_run, training_returns
from ddrl.api.launch import train
from ddrl.api.settings import run_config
from ddrl.cli import main
from ddrl.errors import UserError
from ddrl.training.config.run_config import RunConfig, fingerprint, load_run_config, to_json
from tests.peers.fake import install


@pytest.fixture
def how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says how the fake peer behaves; the working directory has no other peer."""
    monkeypatch.chdir(tmp_path)
    return install(tmp_path)


def config_of(**settings: Any) -> RunConfig:
    short = {"env_frames": 600, "recording": {"period_frames": 200}, "tracking": []}
    evaluation = {"final_episodes": 6, "final_versions": 3, "final_window_fraction": 0.5}
    values = {"peer": "fake", "evaluation": evaluation, **short, **settings}
    return run_config("test", values, algorithm="ppo", environment="toy/catch")


RUN = Path("toy-catch/seed1")


def test_the_records_are_those_of_our_own_runs(how: Path) -> None:
    assert train(config_of(), RUN, quiet=True) == "budget_reached"
    run = load_run(RUN, "run", "paper", "experiment", "variant")
    assert list(training_returns(run)["value"]) == [15.0, 35.0, 55.0]
    assert list(training_returns(run)["env_frames"]) == [200, 400, 600]
    assert list(final_episodes(run)) == [300.0, 300.0, 500.0, 500.0, 600.0, 600.0]
    assert {"policy_lag_mean", "policy_lag_max", "episodes", "cpu_seconds", "entropy"} <= set(run.rows_of)
    assert run.manifest["agent_steps"] == 600
    assert run.manifest["updates"] == 6
    assert run.manifest["episodes"] == 6
    assert run.manifest["parameters"] == 12
    assert load_run_config(RUN / "config.json") == config_of()


def test_the_manifest_says_who_made_the_run_and_what_was_not_mapped(how: Path) -> None:
    train(config_of(), RUN, quiet=True)
    manifest = json.loads((RUN / "run.json").read_text())
    made = manifest["peer"]
    assert (made["name"], made["title"], made["versions"]) == ("fake", "A Fake", {"fake": "1.0"})
    assert made["unmapped"] == [
        {"key": "clip_epsilon", "ours": 0.2, "theirs": 0.3, "why": "it is fixed"},
        {"key": "gae_lambda", "ours": 0.95, "theirs": None, "why": "the driver maps no such key"},
    ]
    assert made["effective"] == {"lr": config_of().hyperparameters.optimizer.learning_rate}
    assert (made["gradient_steps"], made["trained_samples"]) == (12, 1200)
    assert manifest["config"]["peer"] == "fake"


def test_the_driver_gets_task_network_and_hyperparameters(how: Path) -> None:
    train(config_of(), RUN, quiet=True)
    request = json.loads(Path(f"{how}.request").read_text())
    task = {"kind": "catch", "options": {"rows": 10, "columns": 5}, "reward_clipping": "none", "frame_skip": 1}
    assert request["task"] == task | {"time_limits": "bootstrap"}
    torso = {"kind": "mlp", "hidden": [256, 256], "activation": "tanh", "scale": 1.0}
    assert request["network"]["torso"] == torso
    assert request["network"]["gains"] == [pytest.approx(2**0.5), 0.01, 1.0]
    assert request["settings"]["optimizer.name"] == "adam"
    assert request["evaluation"] == {"episodes": 6, "versions": 3, "window_fraction": 0.5}


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (
            "silent",
            "ended with code 4 before it had finished (toy-catch/seed1/peer.log: a traceback on standard output)",
        ),
        ("raises", "ended with code 1 before it had finished (toy-catch/seed1/peer.log:"),
        ("killed", "was killed by signal 9 before it had finished"),
        ("garbage", "wrote 'Hello!', which is no line of the protocol"),
        ("incomplete", 'wrote \'{"kind": "progress", "steps": 3}\', which is no line of the protocol'),
        ("nan", "which is no line of the protocol"),
    ],
)
def test_a_driver_that_fails_leaves_one_error_and_no_results(how: Path, behaviour: str, message: str) -> None:
    how.write_text(behaviour)
    with pytest.raises(UserError) as error:
        train(config_of(), RUN, quiet=True)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert {path.name for path in RUN.iterdir()} <= {"config.json", "curves.jsonl", "lock", "peer.log"}
    how.write_text("works")
    assert train(config_of(), RUN, quiet=True) == "budget_reached"
    assert len(training_returns(load_run(RUN, "run", "p", "e", "v"))) == 3


def test_a_driver_that_refuses_leaves_nothing_behind(how: Path) -> None:
    how.write_text("refuses")
    with pytest.raises(UserError, match="has no such network"):
        train(config_of(), RUN, quiet=True)
    assert not RUN.exists()


def test_a_run_that_is_stopped_ends_the_driver_and_begins_anew(how: Path) -> None:
    how.write_text("hangs")
    timer = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert train(config_of(), RUN, quiet=True) == "interrupted"
    assert not [one for one in psutil.Process().children(recursive=True) if "fake_driver" in " ".join(one.cmdline())]
    assert not (RUN / "run.json").exists()
    how.write_text("works")
    assert train(config_of(), RUN, quiet=True) == "budget_reached"


def test_a_finished_run_is_left_as_it_is_and_kept_from_another(how: Path) -> None:
    train(config_of(), RUN, quiet=True)
    before = (RUN / "run.json").read_bytes()
    began = time.monotonic()
    assert train(config_of(), RUN, quiet=True) == "budget_reached"
    assert time.monotonic() - began < 0.5
    with pytest.raises(UserError, match="another configuration has finished there, which differs in peer"):
        train(config_of(peer=None), RUN, quiet=True)
    assert (RUN / "run.json").read_bytes() == before


def test_a_peer_that_is_not_installed_is_named_with_what_to_type(how: Path) -> None:
    Path(".peers/fake/.ready").unlink()
    with pytest.raises(UserError, match=r"A Fake is not installed .*; type: make peers"):
        train(config_of(), RUN, quiet=True)
    assert not RUN.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peer": "other"}, "unknown peer 'other'"),
        ({"peer": "Other!"}, "key 'peer'"),
        ({"evaluation": {"environment": {"name": "toy/catch"}}}, "key 'evaluation.environment'"),
        ({"evaluation": {"deterministic": True}}, "key 'evaluation.deterministic': .*; allowed: false"),
        ({"evaluation": {"period_frames": 100}}, "key 'evaluation.period_frames': .*; allowed: null"),
        ({"environment": {"name": "toy/chain"}}, "drivers of other libraries make catch alone"),
    ],
)
def test_what_a_peer_cannot_do_is_refused_before_anything_is_written(
    how: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(config_of(**settings), RUN, quiet=True)
    assert not RUN.exists()


def test_the_command_trains_and_lists(how: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["toy/catch", "env_frames=300", "evaluation.final_episodes=2", "--directory", "there"]
    assert main(["peers", "train", "fake", "ppo", *words]) == 0
    said = capfd.readouterr().err
    assert "not mapped: clip_epsilon: ours 0.2, theirs 0.3 (it is fixed)" in said
    assert main(["peers", "list"]) == 0
    assert "fake  A Fake   yes        ppo" in capfd.readouterr().out
    assert main(["peers", "train", "fake", "a2c", "toy/catch", "--directory", "other"]) == 2
    assert "peer 'fake': runs no a2c; allowed: ppo" in capfd.readouterr().err
    assert main(["peers", "train", "fake", "ppo", "toy/catch", "peer=other", "--directory", "other"]) == 2
    assert "key 'peer': other, and the command names fake; allowed: one of them" in capfd.readouterr().err


def test_a_run_of_our_own_code_has_the_name_that_it_had_before_there_were_peers() -> None:
    own = run_config("test", {}, algorithm="ppo", environment="toy/catch")
    assert "peer" not in to_json(own)
    assert fingerprint(own) != fingerprint(config_of())
