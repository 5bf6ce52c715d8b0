"""Whole populations on toy/catch: bits, kills at every phase, resumes, what they write, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ddrl import cli
from ddrl.api.launch import train
from ddrl.errors import UserError
from ddrl.population import controller, member
from ddrl.population.journal import Journal
from ddrl.population.member import begun, fitness_of
from ddrl.training.config.run_config import RunConfig, parse_run_config, to_json
from ddrl.training.records import checkpoint
from ddrl.training.run import Run
from tests.runs import BASE, curves, merged
from tests.runs import small as tiny
from tests.training.config.population_test import SMALL, population
from tests.training.turns import interrupted_after

EVALUATION = {"period_frames": None, "final_episodes": 5}
COPYING = {"margin": 0.0, "burn_in_frames": 400}


def small(changes: dict[str, Any] | None = None, **overrides: Any) -> RunConfig:
    """Three members, five decisions each, and some copies."""
    return population(COPYING | (changes or {}), **merged({"evaluation": EVALUATION}, overrides))


def lineage(directory: Path) -> pd.DataFrame:
    """Without what a clock decides."""
    return pd.read_parquet(directory / "lineage.parquet").drop(columns="seconds")


def summary(directory: Path) -> dict[str, Any]:
    """The block about the population."""
    block: dict[str, Any] = json.loads((directory / "run.json").read_text())["population"]
    return block


def same(one: Path, other: Path) -> None:
    """Both finished with the same bits."""
    pd.testing.assert_frame_equal(lineage(one), lineage(other))
    pd.testing.assert_frame_equal(curves(one), curves(other))
    assert summary(one) == summary(other)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A population that nothing has cut."""
    directory = tmp_path_factory.mktemp("straight")
    assert train(small(), directory, quiet=True) == "budget_reached"
    assert summary(directory)["copies"] > 0
    return directory


def test_a_serial_population_repeats_bit_for_bit(tmp_path: Path, straight: Path) -> None:
    train(small(), tmp_path, quiet=True)
    same(straight, tmp_path)


def test_another_seed_decides_otherwise(tmp_path: Path, straight: Path) -> None:
    train(small(seed=4), tmp_path, quiet=True)
    assert not lineage(tmp_path).equals(lineage(straight))


def test_it_may_be_interrupted_before_its_members_have_acted(
    tmp_path: Path, straight: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At turns that follow each other: nobody has acted, one actor has, ...; and after some segments."""
    for turns in (0, 1, 1, 90):
        with interrupted_after(turns):
            assert train(small(), tmp_path) == "interrupted"
        last = capsys.readouterr().err.splitlines()[-1]
        assert re.match(r"stopped at [\d,]+ frames of all members; the same command goes on from the members'", last)
    assert train(small(), tmp_path, quiet=True) == "budget_reached"
    same(straight, tmp_path)


class Cut(Exception):
    pass


def cut_at(call: int, function: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    """`function`, where its call of that number is cut before, or after, it has done its work."""
    calls = 0

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Cut
        result = function(*arguments, **keywords)
        if calls == call:
            raise Cut
        return result

    return wrapped


PHASES: dict[str, tuple[Any, str, bool]] = {
    "within a segment": (Run, "_learn", False),
    "before a checkpoint": (Run, "_save", False),
    "after a checkpoint": (Run, "_save", True),
    "before a snapshot": (member, "snapshot", False),
    "before the decision is written": (Journal, "append", False),
    "after the decision is written": (Journal, "append", True),
    "before a copy": (controller, "carry_over", False),
    "after a copy": (controller, "carry_over", True),
    "before the next segment": (controller.Controller, "_segment", True),
    "before the evaluation": (controller, "evaluate_finally", False),
    "after the evaluation": (controller, "evaluate_finally", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_population_cut_at_any_phase_goes_on_with_the_same_bits(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    place, name, after = PHASES[phase]
    original, cuts = getattr(place, name), 0
    for call in {"_learn": (3, 20, 31)}.get(name, (1, 2, 3)):
        monkeypatch.setattr(place, name, cut_at(call, original, after=after))
        try:
            train(small(), tmp_path, quiet=True)
        except Cut:
            cuts += 1
        monkeypatch.setattr(place, name, original)
    assert cuts
    train(small(), tmp_path, quiet=True)
    same(straight, tmp_path)


def test_a_copy_cut_between_its_two_files_is_made_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    checkpoint.save(source / "snapshots", 3, {"learner": {"network": {}}})
    member.carry_over(source, 3, target, 5)
    (target / "adopted" / "000000000005.sha256").unlink()
    (target / "adopted" / "000000000005.pt").write_bytes(b"half")
    member.carry_over(source, 3, target, 5)
    assert checkpoint.load(target / "adopted", 5) == {"learner": {"network": {}}}
    checkpoint.save(source / "snapshots", 3, {"learner": "later"})
    member.carry_over(source, 3, target, 5)
    assert checkpoint.load(target / "adopted", 5) == {"learner": {"network": {}}}, "what was copied stays"
    member.carry_over(source, 3, target, 6)
    assert sorted(path.name for path in (target / "adopted").glob("*.pt")) == ["000000000006.pt"]


def test_an_interrupted_population_goes_on_with_the_same_bits(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, updates = Run._learn, 0

    def interrupting(self: Run) -> None:
        nonlocal updates
        updates += 1
        if updates == 30:
            led.interrupt()
        learn(self)

    led = controller.Controller(small(), tmp_path, quiet=True)
    monkeypatch.setattr(Run, "_learn", interrupting)
    assert led.train() == "interrupted"
    assert not (tmp_path / "run.json").exists()
    monkeypatch.setattr(Run, "_learn", learn)
    assert train(small(), tmp_path, quiet=True) == "budget_reached"
    same(straight, tmp_path)


def test_rounds_are_in_turn_and_the_burn_in_is_kept(tmp_path: Path, straight: Path) -> None:
    table = lineage(straight)
    assert list(table.member) == [0, 1, 2] * 5
    assert set(table.groupby("decision").kind.first()) == {"evolve", "final"}
    train(small({"burn_in_frames": 1000}), tmp_path, quiet=True)
    table = lineage(tmp_path)
    early = table[table.env_frames < 1000]
    assert set(early.kind) == {"burn_in"}
    assert not early.copied.any()
    assert early.compared_with.isna().all()
    for key in ("entropy_cost", "optimizer.epsilon", "optimizer.learning_rate"):
        assert (early[f"{key}_before"] == early[f"{key}_after"]).all()
    assert set(table[table.env_frames >= 1000].kind) == {"evolve", "final"}


def test_a_copy_is_the_weights_and_hyperparameters_that_had_the_fitness(straight: Path) -> None:
    table = lineage(straight)
    for _, row in table[table.copied].iterrows():
        source = table[(table.member == row.source_member) & (table.decision == row.source_decision)].iloc[0]
        assert row.compared_fitness == source.fitness > row.fitness
        assert row.source_env_frames == source.env_frames
        for key in ("entropy_cost", "optimizer.epsilon", "optimizer.learning_rate"):
            ratio = row[f"{key}_after"] / source[f"{key}_before"]
            assert min(abs(ratio - allowed) for allowed in (1, 1.2, 1 / 1.2)) < 1e-9
    newest = table.sort_values("decision").groupby("member").tail(1)
    assert (newest.kind == "final").all()


def test_members_train_with_the_hyperparameters_that_were_decided(straight: Path) -> None:
    table = lineage(straight)
    for number in range(3):
        own = table[table.member == number]
        records = pd.DataFrame(
            [
                (line["env_frames"], line["metrics"]["learning_rate"][0])
                for line in map(json.loads, (straight / "members" / str(number) / "curves.jsonl").open())
                if "learning_rate" in line["metrics"]
            ],
            columns=["env_frames", "learning_rate"],
        )
        start = 0
        for _, row in own.iterrows():
            within = records[(records.env_frames > start) & (records.env_frames <= row.env_frames)]
            assert within.learning_rate.to_numpy() == pytest.approx(row["optimizer.learning_rate_before"])
            start = row.env_frames


def test_a_segment_begins_with_the_weights_of_the_source_and_its_own_counters() -> None:
    def learner(value: float, epsilon: float) -> dict[str, Any]:
        return {
            "network": {"w": torch.tensor([value])},
            "optimizer": {"state": {0: value}, "param_groups": [{"epsilon": epsilon}]},
            "counters": [int(value), 1, 2],
            "normalisation": value,
            "kl_cost": value,
        }

    own = {
        "learner": learner(1.0, 0.1),
        "params": {"history": [[6, [torch.tensor([0.0])]], [7, [torch.tensor([1.0])]]], "first_version": 0},
        "collectors": [{"policy": {"network": {"w": torch.tensor([1.0])}, "version": 7}, "env": "own"}],
        "recorder": {"offset": 3, "task_scores": {"task": 1.0}},
        "queue": "own",
    }
    theirs = {"learner": {key: learner(9.0, 0.9)[key] for key in ("network", "optimizer")}, "tensors": ["theirs"]}
    fresh = learner(0.0, 0.5)
    state = begun(own, theirs, fresh, ("kl_cost",))
    assert state["learner"]["network"]["w"] == 9.0
    assert state["learner"]["optimizer"] == {"state": {0: 9.0}, "param_groups": [{"epsilon": 0.5}]}
    assert state["learner"]["counters"] == [1, 1, 2]
    assert (state["learner"]["normalisation"], state["learner"]["kl_cost"], state["queue"]) == (1.0, 0.0, "own")
    assert state["params"]["history"] == [[6, ["theirs"]], [7, ["theirs"]]]
    assert state["collectors"][0]["policy"] == {"network": {"w": torch.tensor([9.0])}, "version": 7}
    assert state["recorder"] == {"offset": 3, "task_scores": {}}
    alone = begun(own, None, fresh, ())
    assert alone["learner"]["network"] is own["learner"]["network"]
    assert alone["learner"]["optimizer"] == {"state": {0: 1.0}, "param_groups": [{"epsilon": 0.5}]}
    assert alone["recorder"]["task_scores"] == {"task": 1.0}


def test_fitness_is_the_mean_over_episodes_of_a_window(tmp_path: Path) -> None:
    def line(frames: int, **metrics: float) -> str:
        head = {"env_frames": frames, "agent_steps": frames, "updates": 1, "seconds": 1.0}
        return json.dumps(head | {"metrics": {name: [value] for name, value in metrics.items()}}) + "\n"

    path = tmp_path / "curves.jsonl"
    rows = [(100, 4.0, 10.0), (200, 5.0, 1.0), (300, 8.0, 2.0), (400, 9.0, 50.0)]
    path.write_text("".join(line(at, episodes=count, episode_return=value) for at, count, value in rows))
    assert fitness_of(path, "episode_return", 100, 300) == pytest.approx((1 * 1.0 + 3 * 2.0) / 4)
    assert fitness_of(path, "episode_return", 0, 100) == 10.0
    assert fitness_of(path, "episode_return", 400, 500) is None
    with pytest.raises(UserError, match=r"has no metric 'mean_capped_score'; it has: episode_return, episodes"):
        fitness_of(path, "mean_capped_score", 0, 400)


def test_the_command_line_trains_resumes_verifies_and_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json(small({"size": 2}))))
    assert cli.main(["evaluate", str(tmp_path)]) == 2
    assert "a population that is not finished has no best member yet" in capsys.readouterr().err
    assert cli.main(["train", str(path)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("member ") for line in told) == 10
    assert told[-1].startswith("done: ")
    assert "best fitness" in told[-1]
    table = curves(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    final = table[(table.metric == "evaluation_return") & (table.env_frames == record["env_frames"])]
    assert len(final) == 5
    assert record["population"]["env_frames"] > 1.9 * record["env_frames"]
    assert cli.main(["resume", str(tmp_path), "--quiet"]) == 0
    pd.testing.assert_frame_equal(table, curves(tmp_path))
    assert cli.main(["verify", str(tmp_path)]) == 0
    assert cli.main(["evaluate", str(tmp_path), "--episodes", "2"]) == 0
    capsys.readouterr()
    (tmp_path / "lineage.parquet").write_bytes(b"")
    assert cli.main(["verify", str(tmp_path)]) == 1
    assert "lineage.parquet: cannot be read" in capsys.readouterr().out


def test_a_longer_budget_goes_on_where_the_members_were(tmp_path: Path) -> None:
    train(small({"size": 2}, env_frames=1200), tmp_path, quiet=True)
    before = Journal(tmp_path).decisions
    train(small({"size": 2}), tmp_path, quiet=True)
    after = Journal(tmp_path).decisions
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert not list(tmp_path.glob("members-*"))


def test_another_configuration_starts_anew_and_deletes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small({"size": 2}, env_frames=1200), tmp_path, quiet=True)
    for name in ("run.json", "curves.parquet"):  # as the workflow does before it trains anew
        (tmp_path / name).unlink()
    train(small({"size": 2, "margin": 0.5}, env_frames=1200), tmp_path)
    assert "the configuration has changed (population.margin): starting anew; old state in" in capsys.readouterr().err
    (aside,) = tmp_path.glob("members-*")
    assert (aside / "0" / "curves.jsonl").exists()
    assert (aside / "lineage.jsonl").exists()
    assert len(lineage(tmp_path)) == 6


def test_a_fitness_that_is_not_recorded_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json(small({"fitness": "score"}))))
    assert cli.main(["train", str(path), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ddrl: key 'population.fitness': ")


def test_members_decide_after_so_many_episodes(tmp_path: Path) -> None:
    config = small({"size": 2, "period_frames": None, "ready_episodes": 30}, env_frames=1500)
    train(config, tmp_path, quiet=True)
    table = lineage(tmp_path)
    for _, own in table.groupby("member"):
        counted = own.episodes.diff().fillna(own.episodes.iloc[0])[own.kind != "final"]
        assert len(counted) >= 2
        assert counted.between(30, 45).all()
    assert set(table[table.env_frames >= 1500].kind) == {"final"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("a2c", {"topology": {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 4}}),
        ("ppo", {"topology": {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 4}}),
        ("impact", {}),
        ("apex_dqn", {}),
        ("impala", {"topology": {"runtime": "threads"}}),
        ("impala", {"topology": {"inference": "central"}}),
    ],
)
def test_members_may_learn_by_any_algorithm_with_versions(
    tmp_path: Path, algorithm: str, overrides: dict[str, Any]
) -> None:
    tuned = {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2}}
    values = merged(BASE, overrides | {"algorithm": algorithm})
    values |= {"population": SMALL | COPYING | {"tuned": tuned, "size": 2}, "hyperparameters": tiny(algorithm)}
    assert train(parse_run_config(values), tmp_path, quiet=True) == "budget_reached"
    assert summary(tmp_path)["decisions"] >= 8
