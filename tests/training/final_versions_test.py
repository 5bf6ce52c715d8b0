"""A final score may be spread over several versions of the parameters, the same ones whatever interrupted the run."""

from __future__ import annotations

import dataclasses
import math
from functools import partialmethod
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from ddrl.analysis.runs.run_data import RunData, version_spread
from ddrl.api.launch import train
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.training.config.run_config import RunConfig
from ddrl.training.evaluation import FinalVersions, Scored
from ddrl.training.run import Run
from tests.runs import config, curves

SPREAD = {"evaluation": {"period_frames": None, "final_episodes": 10, "final_versions": 4}}


def spread_config(**evaluation: object) -> RunConfig:
    return config(evaluation=SPREAD["evaluation"] | evaluation)


def test_versions_lie_at_equal_distances_over_the_last_quarter_and_the_newest_play_what_is_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(self: Run) -> None:
        original(self)
        reached[self.counts.updates] = self.counts.env_frames

    reached, original = {}, Run._learn
    monkeypatch.setattr(Run, "_learn", learn)
    train(spread_config(), tmp_path, quiet=True)
    table = curves(tmp_path)
    updates = table[table.metric == "evaluation_updates"]["value"].tolist()
    assert [updates.count(version) for version in sorted(set(updates))] == [2, 2, 3, 3]
    wanted = (1500, 1667, 1833, 2000)
    assert sorted(set(updates)) == [min(n for n, frames in reached.items() if frames >= due) for due in wanted]
    assert len(table[table.metric == "evaluation_return"]) == 10


def test_one_version_is_the_last_one_and_records_as_before(tmp_path: Path) -> None:
    train(spread_config(final_versions=1), tmp_path, quiet=True)
    assert not (curves(tmp_path)["metric"] == "evaluation_updates").any()


def test_each_version_plays_with_its_own_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ddrl.actors.evaluator as evaluator

    played, play, published = [], evaluator.play, {}

    def watch(env: object, policy: object, episodes: int, **rest: object) -> object:
        parameters = policy.inference.network.parameters()  # type: ignore[attr-defined]
        played.append([parameter.detach().clone() for parameter in parameters])
        return play(env, policy, episodes, **rest)  # type: ignore[arg-type]

    def learn(self: Run) -> None:
        original(self)
        published[self.counts.updates] = [p.detach().clone() for p in self.learner.core.network.parameters()]

    original = Run._learn
    monkeypatch.setattr(evaluator, "play", watch)
    monkeypatch.setattr(Run, "_learn", learn)
    train(spread_config(), tmp_path, quiet=True)
    table = curves(tmp_path)
    versions = sorted(set(table[table.metric == "evaluation_updates"]["value"]))
    assert len(played) == len(versions) == 4
    for version, parameters in zip(versions, played, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(parameters, published[int(version)], strict=True))


@pytest.mark.parametrize("at", [1, 36, 39, 45])  # frames 40, 1,440, 1,560, 1,800: before the window, and within
def test_a_run_cut_anywhere_scores_the_same_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    class Cut(Exception):
        pass

    def cut(self: Run, updates: int) -> None:
        if self.learner.core.updates >= updates:
            raise Cut
        learn(self)

    learn = Run._learn
    train(spread_config(), tmp_path / "straight", quiet=True)
    monkeypatch.setattr(Run, "_learn", partialmethod(cut, at))
    with pytest.raises(Cut):
        train(spread_config(), tmp_path / "cut", quiet=True)
    monkeypatch.setattr(Run, "_learn", learn)
    train(spread_config(), tmp_path / "cut", quiet=True)
    pd.testing.assert_frame_equal(curves(tmp_path / "straight"), curves(tmp_path / "cut"))


def test_an_evaluation_that_was_interrupted_is_played_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ddrl.actors.evaluator as evaluator

    play = evaluator.play
    train(config(), tmp_path / "straight", quiet=True)

    def interrupted(env: object, policy: object, episodes: int, **rest: object) -> list[object]:
        runs[-1].interrupt()
        return []

    def remember(self: Run, *args: object, **rest: object) -> None:
        make(self, *args, **rest)  # type: ignore[arg-type]
        runs.append(self)

    runs: list[Run] = []
    make = Run.__init__
    monkeypatch.setattr(Run, "__init__", remember)
    monkeypatch.setattr(evaluator, "play", interrupted)
    assert train(config(), tmp_path / "cut", quiet=True) == "interrupted"
    monkeypatch.setattr(evaluator, "play", play)
    train(config(), tmp_path / "cut", quiet=True)
    pd.testing.assert_frame_equal(curves(tmp_path / "straight"), curves(tmp_path / "cut"))


def test_threads_score_versions_of_the_window(tmp_path: Path) -> None:
    train(config(**SPREAD, topology={"runtime": "threads"}), tmp_path, quiet=True)
    table = curves(tmp_path)
    updates = set(table[table.metric == "evaluation_updates"]["value"])
    assert len(updates) == 4
    assert min(updates) >= 1500 // 40  # an update takes 40 frames at most


def test_a_raised_budget_has_a_window_of_its_own() -> None:
    short, tensors = spread_config(), [torch.zeros(1)]
    versions = FinalVersions(short)
    for updates, frames in enumerate((1500, 1667, 1833)):
        assert versions.are_due(frames)
        assert not versions.are_due(frames - 1)
        versions.keep(frames, Scored(updates, tensors))
    assert not versions.are_due(2000)
    longer = FinalVersions(dataclasses.replace(short, env_frames=2400))
    longer.load_state_dict(versions.state_dict(), 2000)
    assert [version.updates for version in longer.until(Scored(9, tensors))] == [2, 9]
    assert not longer.are_due(2199)  # 1,800 and 2,000 were passed before the budget was raised
    assert longer.are_due(2200)


def test_more_versions_than_episodes_are_refused() -> None:
    with pytest.raises(UserError, match=r"key 'evaluation.final_versions'.*allowed: 1 to 10.*\(got 11\)"):
        spread_config(final_versions=11)


@pytest.mark.parametrize("name", ["toy/memory", "mujoco/Hopper-v5", "atari/pong", "dm_control/cartpole-balance"])
def test_environments_that_are_reset_play_other_episodes(name: str) -> None:
    """Else all versions would play the same few starts."""
    env = registry.make(name, num_envs=4, seed=7)
    discrete = np.zeros(4, dtype=np.int64)
    actions = discrete if env.spec.num_actions else np.zeros((4, env.spec.action_size), dtype=np.float32)

    def begin() -> np.ndarray:
        steps = [env.reset(), *(env.step(actions) for _ in range(40))]
        return np.stack([step.observation for step in steps])

    try:
        assert (begin() != begin()).any()
    finally:
        env.close()


def run_with(returns: list[float], updates: list[float]) -> RunData:
    rows = [("evaluation_return", value) for value in returns] + [("evaluation_updates", value) for value in updates]
    table = pd.DataFrame(rows, columns=["metric", "value"])
    table = table.assign(env_frames=100, agent_steps=100, updates=9, seconds=1.0)
    return RunData("run", "paper", "experiment", "variant", "toy/catch", 1, {}, table)


def test_the_spread_between_versions_leaves_out_that_of_their_episodes() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 20, generator=generator)
    same = version_spread(run_with(noise.flatten().tolist(), [float(i // 20) for i in range(8000)]))
    assert same.versions == 400
    assert same.deviation < 0.1  # the means themselves deviate by 0.22
    means = 0.5 * torch.randn(400, 1, generator=generator)
    other = version_spread(run_with((noise + means).flatten().tolist(), [float(i // 20) for i in range(8000)]))
    assert other.deviation == pytest.approx(0.5, abs=0.05)


def test_one_version_has_no_spread() -> None:
    assert version_spread(run_with([1.0, 2.0], [])).versions == 1
    assert version_spread(run_with([1.0, 2.0], [])).error == pytest.approx(0.5)  # of two episodes: 0.71 / sqrt(2)
    assert math.isnan(version_spread(run_with([1.0], [])).error)
    assert version_spread(run_with([1.0, 2.0], [3.0, 4.0])).error == pytest.approx(0.5)
    assert math.isnan(version_spread(run_with([1.0, 2.0], [])).deviation)
    assert version_spread(run_with([1.0, 2.0], [3.0, 4.0])).versions == 2  # one episode each tell nothing
    assert math.isnan(version_spread(run_with([1.0, 2.0], [3.0, 4.0])).deviation)


def test_the_error_of_a_score_has_the_variance_between_its_versions() -> None:
    generator = np.random.default_rng(8)
    errors, scores = [], []
    for _ in range(400):
        means = generator.normal(0.0, 3.0, size=(10, 1))
        played = (means + generator.normal(0.0, 1.0, size=(10, 5))).flatten()
        scores.append(played.mean())
        errors.append(version_spread(run_with(played.tolist(), [float(i // 5) for i in range(50)])).error)
    expected = np.sqrt(9 / 10 + 1 / 50)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(expected, rel=0.03)
    assert np.std(scores) == pytest.approx(expected, rel=0.1)
    # Of one version only the episodes can be seen.
    assert version_spread(run_with(generator.normal(0.0, 1.0, size=50).tolist(), [])).error < 0.2
