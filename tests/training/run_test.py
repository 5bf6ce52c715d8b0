"""Whole runs: bits, schedules, lag, resume, interruption, errors."""

from __future__ import annotations

import json
import os
import signal
import threading
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ddrl.algorithms import impala
from ddrl.api.launch import train
from ddrl.errors import UserError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.system.locks import locked
from ddrl.training.config.run_config import RunConfig, fingerprint, parse_run_config
from ddrl.training.records import checkpoint
from ddrl.training.records import manifest as provenance_module
from ddrl.training.records.recorder import read_curves
from ddrl.training.run import Run
from ddrl.training.run_records import RunRecords
from tests.runs import BASE, REPLAY, REPLAYING, base_of, config, curves, local_run, merged, small

SYNCHRONOUS = {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 4}


def test_serial_repeats_bit_for_bit(tmp_path: Path) -> None:
    for name in "ab":
        assert train(config(), tmp_path / name, quiet=True) == "budget_reached"
    pd.testing.assert_frame_equal(curves(tmp_path / "a"), curves(tmp_path / "b"))


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    train(config(), tmp_path / "a", quiet=True)
    train(config(seed=4), tmp_path / "b", quiet=True)
    assert not curves(tmp_path / "a").equals(curves(tmp_path / "b"))


def test_serial_and_synchronous_threads_agree_bit_for_bit(tmp_path: Path) -> None:
    evaluation = {"period_frames": None, "episodes": 3, "final_episodes": 5}
    for runtime in ("serial", "threads"):
        topology = SYNCHRONOUS | {"runtime": runtime}
        train(config(topology=topology, evaluation=evaluation), tmp_path / runtime, quiet=True)
    columns = ["env_frames", "metric", "value"]
    serial, threads = (
        table[~table.metric.isin(["episode_return", "episode_length"])][columns].reset_index(drop=True)
        for table in (curves(tmp_path / "serial"), curves(tmp_path / "threads"))
    )
    # An actor may have begun its next unroll when a record is written, so episodes may fall into the record after.
    keep = serial.metric != "episodes"
    pd.testing.assert_frame_equal(serial[keep], threads[threads.metric != "episodes"])


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_the_synchronous_schedule_has_no_lag(tmp_path: Path, runtime: str) -> None:
    train(config(topology=SYNCHRONOUS | {"runtime": runtime}), tmp_path, quiet=True)
    table = curves(tmp_path)
    assert table[table.metric == "policy_lag_max"].value.max() == 0


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_a_parameter_delay_is_exactly_the_lag(tmp_path: Path, runtime: str) -> None:
    train(config(topology=SYNCHRONOUS | {"runtime": runtime, "parameter_delay": 3}), tmp_path, quiet=True)
    lag = curves(tmp_path).query("metric in ('policy_lag_mean', 'policy_lag_max')")
    assert lag.value.iloc[-1] == 3
    assert lag.value.max() == 3


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_bounded_lag_stays_within_its_bound(tmp_path: Path, runtime: str) -> None:
    topology = {"runtime": runtime, "schedule": "bounded_lag", "max_policy_lag": 2, "num_actors": 3}
    train(config(topology=topology), tmp_path, quiet=True)
    lag = curves(tmp_path).query("metric == 'policy_lag_max'").value
    assert lag.max() <= 2
    if runtime == "serial":
        assert lag.max() == 2


def test_the_serial_interleaving_makes_lag_that_varies(tmp_path: Path) -> None:
    train(config(topology={"queue_capacity": 16}), tmp_path, quiet=True)
    lag = curves(tmp_path).query("metric == 'policy_lag_mean'").value
    assert lag.max() > 1
    assert lag.nunique() > 3


RECURRENT = {
    "hyperparameters": {"lstm_size": 8, "feed_last_action_and_reward": True},
    "environment": {"name": "toy/memory"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"hyperparameters": {"replay_fraction": 0.5, "replay_capacity": 20}},
        RECURRENT,
        {"topology": {"schedule": "bounded_lag", "max_policy_lag": 3, "parameter_delay": 2}},
        RECURRENT | {"topology": {"inference": "central", "parameter_delay": 1}},
        {"algorithm": "a3c", "topology": {"envs_per_actor": 1}, "env_frames": 1000},
        {"algorithm": "gorila", "topology": {"envs_per_actor": 1, "parameter_shards": 2}, "env_frames": 800},
        {"algorithm": "ga3c", "topology": {"inference": "central"}, "env_frames": 1500},
        {"algorithm": "apex_dqn"},
        {"algorithm": "r2d2", "environment": {"name": "toy/memory"}},
        {"algorithm": "r2d2", "topology": {"inference": "central", "parameter_delay": 1}},
    ],
    ids=["plain", "replay", "lstm", "bounded lag", "central", "A3C", "GORILA", "GA3C", "Ape-X", "R2D2", "central R2D2"],
)
def test_a_serial_run_cut_again_and_again_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any]
) -> None:
    class Cut(Exception):
        pass

    def cut(self: Run, updates: int) -> None:
        if self.learner.core.updates >= updates:
            raise Cut  # nothing is saved: what was done since the last checkpoint is lost
        learn(self)

    overrides = {"checkpoint": {"period_frames": 100}} | overrides  # A3C makes an update every five frames
    chosen, learn = small_config(**overrides) if "algorithm" in overrides else config(**overrides), Run._learn
    train(chosen, tmp_path / "straight", quiet=True)
    for updates in (1, 9, 33):  # before the first checkpoint, and after some
        monkeypatch.setattr(Run, "_learn", partialmethod(cut, updates))
        with pytest.raises(Cut):
            train(chosen, tmp_path / "cut", quiet=True)
    monkeypatch.setattr(Run, "_learn", learn)
    train(chosen, tmp_path / "cut", quiet=True)
    pd.testing.assert_frame_equal(curves(tmp_path / "straight"), curves(tmp_path / "cut"))
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["resumes"] >= 1, "else nothing was continued"


def small_config(**overrides: Any) -> RunConfig:
    """The base configuration of another algorithm, with its own small hyperparameters."""
    return parse_run_config(merged(base_of(overrides["algorithm"]), overrides))


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["saved", "refilled"])
@pytest.mark.parametrize("algorithm", REPLAYING)
def test_a_continued_run_has_its_replay_or_refills_it_before_it_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str, replay: str
) -> None:
    overrides: dict[str, Any] = {
        "algorithm": algorithm,
        "topology": {"runtime": "threads"},
        "checkpoint": {"period_frames": 600, "replay": replay},
        "recording": {"period_frames": 1},
        "evaluation": {"period_frames": None},
    }
    train(small_config(**overrides | {"env_frames": 1500}), tmp_path, quiet=True)
    before = curves(tmp_path)
    assert train(small_config(**overrides | {"env_frames": 4500}), tmp_path) == "budget_reached"
    told = capsys.readouterr().err
    table = curves(tmp_path)
    items, ratio = (table[table.metric == f"replay_{name}"] for name in ("items", "samples_per_insert"))
    kept = before[before.metric == "replay_items"].value.iloc[-1]
    first_after = items[items.updates > before.updates.max()].iloc[0]
    assert first_after.value >= 0.9 * kept, "steps that were collected in the meantime push some out"
    assert table.updates.is_monotonic_increasing
    if replay == "refilled":
        assert "the replay was not saved: it is refilled with" in told
        assert first_after.env_frames - before.env_frames.max() > kept / 2, "it was played anew, and that was counted"
    else:
        assert "refilled" not in told
        assert first_after.env_frames - before.env_frames.max() < kept / 2
    # A ratio of 1 is kept to within the buffer and what the actors were about to insert, however long the run was.
    counted = before.updates.max() if replay == "refilled" else 0
    drawn = small(algorithm)["batch_size"] * (ratio.updates.iloc[-1] - counted)
    inserted = drawn / ratio.value.iloc[-1]
    topology = BASE["topology"]
    unrolls = topology["num_actors"] * topology["envs_per_actor"] * small(algorithm)["unroll_length"]
    assert -REPLAY["error_buffer"] <= inserted - drawn <= REPLAY["error_buffer"] + unrolls
    assert inserted > 3 * unrolls, "enough of them, so that another ratio would be seen"


def test_a_replay_is_refilled_only_where_there_is_one_and_nothing_promises_the_same_bits() -> None:
    for overrides in ({"algorithm": "apex_dqn"}, {"algorithm": "impala", "topology": {"runtime": "threads"}}):
        with pytest.raises(UserError, match=r"checkpoint\.replay.* may be refilled only with a prioritized replay"):
            small_config(**overrides | {"checkpoint": {"replay": "refilled"}})


def test_a_threads_run_loses_no_more_than_one_checkpoint_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(topology={"runtime": "threads"})
    reached = []

    def cut(self: Run) -> None:
        learn(self)
        if self.learner.core.env_frames > 1000:
            reached.append(self.learner.core.env_frames)
            raise RuntimeError("cut")

    learn = Run._learn
    monkeypatch.setattr(Run, "_learn", cut)
    with pytest.raises(RuntimeError, match="cut"):
        train(chosen, tmp_path, quiet=True)
    monkeypatch.setattr(Run, "_learn", learn)
    resumed = local_run(chosen, tmp_path, quiet=True)
    resumed.resume()
    assert reached[0] - resumed.learner.core.env_frames <= chosen.checkpoint.period_frames
    train(chosen, tmp_path, quiet=True)
    table = curves(tmp_path)
    for name in ("env_frames", "agent_steps", "updates"):
        assert table[name].is_monotonic_increasing
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1


def test_an_interrupted_run_saves_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config(), tmp_path / "straight", quiet=True)

    def interrupt(self: Run) -> None:
        learn(self)
        self.interrupted = self.learner.core.updates == 20

    learn = Run._learn
    monkeypatch.setattr(Run, "_learn", interrupt)
    assert train(config(), tmp_path / "cut", quiet=True) == "interrupted"
    assert not (tmp_path / "cut" / "curves.parquet").exists()
    monkeypatch.setattr(Run, "_learn", learn)
    assert train(config(), tmp_path / "cut", quiet=True) == "budget_reached"
    pd.testing.assert_frame_equal(curves(tmp_path / "straight"), curves(tmp_path / "cut"))


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_the_last_line_after_ctrl_c_says_where_the_run_stopped_and_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    def learn_and_press(self: Run) -> None:
        learn(self)
        if self.learner.core.updates == 10:
            os.kill(os.getpid(), signal.SIGINT)

    learn = Run._learn
    monkeypatch.setattr(Run, "_learn", learn_and_press)
    chosen = config(topology={"runtime": runtime}, env_frames=2**40, evaluation={"period_frames": None})
    assert train(chosen, tmp_path) == "interrupted"
    newest = max((tmp_path / "checkpoints").glob("*.pt"))
    frames = checkpoint.load(newest.parent, int(newest.stem))["learner"]["counters"][0]
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"stopped at {frames:,} frames, which are saved; the same command goes on from {newest}"


@pytest.mark.parametrize("runtime", ["serial", "threads"])
@pytest.mark.parametrize("role", ["_learn", "episode", "_is_over"])
def test_an_error_in_any_role_ends_the_run_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, role: str
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError(role)

    monkeypatch.setattr(RunRecords if role == "episode" else Run, role, fail)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match=role):
        train(config(topology={"runtime": runtime}), tmp_path, quiet=True)
    assert threading.active_count() <= before + 1


def test_the_manifest_says_where_a_result_comes_from(tmp_path: Path) -> None:
    chosen = config()
    train(chosen, tmp_path, quiet=True)
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest["fingerprint"] == fingerprint(chosen)
    assert manifest["exit_reason"] == "budget_reached"
    assert manifest["protocol"]
    assert manifest["packages"]["torch"]
    assert manifest["hardware"]["cores"] >= 1
    assert manifest["env_frames"] >= chosen.env_frames
    table = curves(tmp_path)
    final = table[(table.metric == "evaluation_return") & (table.env_frames == manifest["env_frames"])]
    assert len(final) == chosen.evaluation.final_episodes
    assert set(table[table.metric == "evaluation_return"].env_frames) != {manifest["env_frames"]}


def unfinished(directory: Path) -> str:
    """Takes a run's results away, as the workflow does before it trains anew; returns its records."""
    for name in ("run.json", "curves.parquet"):
        (directory / name).unlink()
    return (directory / "curves.jsonl").read_text()


@pytest.mark.parametrize("change", ["configuration", "version"])
def test_checkpoints_of_another_configuration_or_version_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    train(config(), tmp_path / "old", quiet=True)
    recorded = unfinished(tmp_path / "old")
    chosen = config(seed=9) if change == "configuration" else config()
    if change == "version":
        monkeypatch.setattr(impala, "VERSION", impala.VERSION + 1)
    train(chosen, tmp_path / "new", quiet=True)
    train(chosen, tmp_path / "old", quiet=True)
    pd.testing.assert_frame_equal(curves(tmp_path / "old"), curves(tmp_path / "new"))
    assert len(list((tmp_path / "old").glob("checkpoints-*/*.pt"))) == 2
    assert [path.read_text() for path in (tmp_path / "old").glob("checkpoints-*/curves.jsonl")] == [recorded]
    assert json.loads((tmp_path / "old" / "run.json").read_text())["resumes"] == 0


def test_damaged_checkpoints_are_out_of_the_way_of_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(), tmp_path, quiet=True)
    unfinished(tmp_path)
    damaged = sorted((tmp_path / "checkpoints").glob("*.pt"))
    for path in damaged:
        path.write_bytes(b"damaged")

    def interrupt(self: Run) -> None:
        learn(self)
        self.interrupted = self.learner.core.updates == 20  # fewer than the damaged ones have

    learn = Run._learn
    monkeypatch.setattr(Run, "_learn", interrupt)
    assert train(config(), tmp_path) == "interrupted"
    assert "no checkpoint can be continued: starting anew" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("checkpoints-unusable/*.pt")) == [path.name for path in damaged]
    assert local_run(config(), tmp_path, quiet=True).resume() == 20


def test_the_configuration_is_the_reason_where_its_checkpoints_have_no_counterparts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(), tmp_path, quiet=True)
    unfinished(tmp_path)
    lead = SingleLearner()
    lead.size = 2
    run = local_run(config(seed=4), tmp_path)
    run._reducer = lead
    assert run.resume() is None
    shown = capsys.readouterr().err
    assert "the configuration has changed (seed): starting anew" in shown
    assert "counterpart" not in shown
    assert not (tmp_path / "checkpoints").exists()


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    train(config(env_frames=1000), tmp_path, quiet=True)
    train(config(env_frames=2000), tmp_path, quiet=True)
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest["env_frames"] >= 2000
    assert manifest["resumes"] == 1
    assert manifest["history"][1]["env_frames"] >= 1000


@pytest.mark.parametrize(("budget", "most"), [(1500, "here"), (3500, "there")])
def test_a_run_continued_elsewhere_names_both_machines_and_that_which_trained_most(
    budget: int, most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = {name: provenance_module.hardware() | {"cpu": name} for name in ("here", "there")}
    for name, frames in (("here", 1000), ("there", budget)):
        monkeypatch.setattr(provenance_module, "hardware", partial(machines.get, name))
        train(config(env_frames=frames), tmp_path, quiet=True)
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert [part["hardware"]["cpu"] for part in manifest["history"]] == ["here", "there"]
    assert manifest["hardware"] == machines[most]


def test_a_run_that_did_not_save_its_actors_goes_on_with_episodes_and_actions_of_its_own(tmp_path: Path) -> None:
    topology = {"runtime": "threads"}
    train(config(topology=topology, env_frames=1000), tmp_path, quiet=True)
    run = local_run(config(topology=topology), tmp_path, quiet=True)
    first = [(one.env.reset().observation, one.policy.state_dict()["generator"]) for one in run.collectors]
    run.resume()
    later = [(one.env.reset().observation, one.policy.state_dict()["generator"]) for one in run.collectors]
    for (played, drawn), (observation, generator) in zip(first, later, strict=True):
        assert not np.array_equal(played, observation)
        assert not torch.equal(drawn, generator)


def test_two_runs_in_one_directory_are_kept_apart(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="another process"):
        train(config(), tmp_path, quiet=True)
    assert train(config(), tmp_path, quiet=True) == "budget_reached"  # the lock of a holder that is gone is free


def test_a_run_waits_for_who_is_at_its_directory(tmp_path: Path) -> None:
    taken, let_go, seen = threading.Event(), threading.Event(), []

    def hold() -> None:
        with locked(tmp_path):
            taken.set()
            let_go.wait()
            seen.append("left")

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    with pytest.raises(UserError, match="another process"), locked(tmp_path, wait=0.1):
        pass
    threading.Timer(0.2, let_go.set).start()
    with locked(tmp_path, wait=60.0):
        assert seen == ["left"]
    holder.join()


def test_a_run_killed_before_its_first_checkpoint_begins_anew_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(), tmp_path / "straight", quiet=True)
    (tmp_path / "again").mkdir()
    cut_short = (tmp_path / "straight" / "curves.jsonl").read_text()[:1000]
    (tmp_path / "again" / "curves.jsonl").write_text(cut_short)
    train(config(), tmp_path / "again")
    moved = tmp_path / "again" / "records-before" / "curves.jsonl"
    assert f"no checkpoint yet, beginning anew; what was recorded before is in {moved}" in capsys.readouterr().err
    assert (tmp_path / "again" / "records-before" / "curves.jsonl").read_text() == cut_short
    assert len(read_curves(tmp_path / "again" / "curves.jsonl")) == len(read_curves(tmp_path / "straight/curves.jsonl"))


@pytest.mark.parametrize("weighting", ["samples", "learners"])
def test_a_weighting_of_learners_where_there_is_one_is_said_to_have_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weighting: str
) -> None:
    sizes = small("ppo") | {"weighting": weighting}
    topology = SYNCHRONOUS | {"runtime": "serial"}
    values = merged(BASE, {"algorithm": "ppo", "env_frames": 200}) | {"hyperparameters": sizes, "topology": topology}
    train(parse_run_config(values), tmp_path)
    said = "key 'hyperparameters.weighting': learners has no effect with one learner"
    assert (said in capsys.readouterr().err) == (weighting == "learners")


def test_a_run_carries_the_plans_in_force_when_it_began(tmp_path: Path) -> None:
    (tmp_path / "plans.json").write_text('{"a_claim": "x-y"}')
    train(config(), tmp_path, quiet=True)
    assert json.loads((tmp_path / "run.json").read_text())["plans"] == {"a_claim": "x-y"}
    (tmp_path / "plans.json").write_text('{"a_claim": "changed-later"}')
    train(config(env_frames=2600), tmp_path, quiet=True)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["resumes"], record["plans"]) == (1, {"a_claim": "x-y"})
