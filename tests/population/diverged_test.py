"""A member whose numbers are not finite any more: another one takes its place, and the rest trains on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl.api.launch import train
from ddrl.errors import NonFiniteError, UserError
from ddrl.population import controller
from ddrl.population.exploit_explore import Candidate, initial_values, replaced
from ddrl.population.journal import Journal
from ddrl.training.config.population import Population
from ddrl.training.config.run_config import RunConfig
from ddrl.training.run import Run
from tests.population.population_test import Cut, cut_at, lineage, same, small
from tests.runtimes.conftest import disconnected, held, holder

__all__ = ["disconnected", "held", "holder"]

RATES = {"optimizer.learning_rate": {"values": [1e-3, 1e30]}}
"""With the second one the parameters are infinite after an update."""
SEED = 8
"""Member 1 begins with the second one, the two others with the first."""


def half_hopeless(changes: dict[str, Any] | None = None, **overrides: Any) -> RunConfig:
    config = small({"tuned": RATES} | (changes or {}), **{"seed": SEED} | overrides)
    assert config.population
    drawn = [initial_values(config.population, SEED, member) for member in range(3)]
    assert [values["optimizer.learning_rate"] for values in drawn] == [1e-3, 1e30, 1e-3]
    return config


def went_on(table: pd.DataFrame) -> pd.DataFrame:
    """All reached the budget, no decision is lost or made twice; the decisions about divergence."""
    assert list(table.groupby("member").kind.last()) == ["final"] * 3
    for _, own in table.groupby("member"):
        assert list(own.decision) == list(range(len(own)))
        assert own.env_frames.is_monotonic_increasing
    return table[table.kind == "diverged"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("straight")
    assert train(half_hopeless(), directory, quiet=True) == "budget_reached"
    return directory


def test_before_its_first_checkpoint_it_begins_anew_with_the_values_of_another(straight: Path) -> None:
    found = went_on(lineage(straight))
    first = found.iloc[0]
    assert (first.member, first.decision, first.env_frames, first.copied) == (1, 0, 0, False)
    assert np.isnan(first.fitness) and first.compared_fitness > -1
    assert first["optimizer.learning_rate_before"] == 1e30
    assert first["optimizer.learning_rate_after"] == pytest.approx(1e-3, rel=0.21)
    curves = pd.read_json(straight / "members" / "1" / "curves.jsonl", lines=True)
    assert curves.env_frames.is_monotonic_increasing and curves.env_frames.iloc[-1] >= 2000


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_cut_around_its_decision_the_population_goes_on_with_the_same_bits(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch, call: int, after: bool
) -> None:
    append = Journal.append
    monkeypatch.setattr(Journal, "append", cut_at(call, append, after=after))
    with pytest.raises(Cut):
        train(half_hopeless(), tmp_path, quiet=True)
    monkeypatch.setattr(Journal, "append", append)
    train(half_hopeless(), tmp_path, quiet=True)
    same(straight, tmp_path)


def diverging_at(call: int, function: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise NonFiniteError("update 99: training diverged: loss is nan")
        return function(*arguments, **keywords)

    return wrapped


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_later_it_goes_on_from_its_newest_checkpoint_with_the_weights_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    config = small({"burn_in_frames": 1500}, topology={"runtime": runtime})
    updates = 10  # of a segment of 400 frames
    monkeypatch.setattr(Run, "_learn", diverging_at(4 * updates + 9, Run._learn))
    assert train(config, tmp_path) == "budget_reached"
    (found,) = went_on(lineage(tmp_path)).itertuples()
    assert found.copied and found.env_frames >= 400 and found.env_frames < 1500  # in the burn-in, which copies nothing
    source = lineage(tmp_path).query(f"member == {found.source_member} and decision == {found.source_decision}").iloc[0]
    assert source.fitness == found.compared_fitness
    assert found.source_env_frames == source.env_frames
    shown = capsys.readouterr().err
    assert f"member {found.member}: update 99: training diverged: loss is nan" in shown
    assert f"| fitness none | copies member {found.source_member} (" in shown


def test_where_every_member_diverges_one_line_says_so(tmp_path: Path) -> None:
    config = small({"tuned": {"optimizer.learning_rate": {"values": [1e30]}}})
    with pytest.raises(UserError, match=r"^member 0: update \d: training diverged: .*, and no other member has a fit"):
        train(config, tmp_path, quiet=True)


def test_a_member_that_diverges_whatever_it_copies_ends_the_population(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MAX_DIVERGED", 3)
    monkeypatch.setattr(controller.exploit_explore, "replaced", lambda rule, others, generator: _hopeless(others))
    with pytest.raises(UserError, match=r"^member 1: .*for the 3th time in a row; .*tuned.optimizer.learning_rate$"):
        train(half_hopeless(), tmp_path, quiet=True)
    journal = Journal(tmp_path)
    assert [decision.kind for decision in journal.of(1)] == ["diverged", "diverged"]


def _hopeless(others: dict[int, Candidate]) -> Any:
    found = min(member for member, standing in others.items() if standing.fitness is not None)
    return controller.exploit_explore.Evolution(found, others[found].fitness, True, {"optimizer.learning_rate": 1e30})


def test_whoever_has_a_fitness_is_copied_as_often_as_any_other() -> None:
    rule = Population(size=5, perturb_probability=0.0)
    values = {member: {"entropy_cost": 0.1 * (member + 1)} for member in range(5)}
    others = {1: Candidate(None, values[1]), 2: Candidate(-3.0, values[2]), 4: Candidate(5.0, values[4])}
    generator = np.random.default_rng(0)
    found = [replaced(rule, others, generator) for _ in range(1000)]
    assert all(one.copied and one.values == values[one.compared_with] for one in found)
    assert {one.compared_with for one in found} == {2, 4}
    assert 430 < sum(one.compared_with == 2 for one in found) < 570


@pytest.mark.system
@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("changes", [{"parallel": 3}, {"topology": {"runtime": "ray"}}], ids=["hosts", "runs on Ray"])
def test_processes_of_ray_go_on_as_well(tmp_path: Path, changes: dict[str, Any]) -> None:
    topology = changes.get("topology", {})
    config = half_hopeless({"parallel": changes.get("parallel", 1)}, topology=topology, env_frames=1200)
    assert train(config, tmp_path, quiet=True) == "budget_reached"
    found = went_on(lineage(tmp_path))
    assert list(found.member)[:1] == [1]
