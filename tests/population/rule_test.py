"""The rule of Appendix F against a second, slow spelling, and what must hold whatever is drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddrl.population.exploit_explore import (
    Evolution,
    Standing,
    decision_generator,
    evolve,
    initial_values,
    member_seed,
    perturbed,
    segment_end,
)
from ddrl.training.config.population import TABLE_D1, Population

FITNESS = st.none() | st.floats(0, 1)
OWN = {"entropy_cost": 0.001, "optimizer.learning_rate": 0.0005, "optimizer.epsilon": 0.1}
THEIRS = {"entropy_cost": 0.009, "optimizer.learning_rate": 0.00007, "optimizer.epsilon": 1e-5}


def appendix_f(
    rule: Population, member: int, own: Standing, others: dict[int, Standing], generator: np.random.Generator
) -> Evolution:
    """The same in the order of the paper's sentences, one member and one hyperparameter at a time."""
    candidates = [(member + step) % rule.size for step in range(1, rule.size)]
    selected = candidates[generator.integers(len(candidates))]
    score = others[selected].fitness if selected in others else None
    values = dict(own.values)
    copied = False
    if score is not None and own.fitness is not None and score - rule.margin > own.fitness:
        values, copied = dict(others[selected].values), True
    for name in sorted(values):
        permuted, up = generator.random(), generator.random()
        if permuted < rule.perturb_probability:
            values[name] = values[name] * rule.perturb_factor if up < 0.5 else values[name] / rule.perturb_factor
    return Evolution(selected, score, copied, values)


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(2, 6),
    own=FITNESS,
    theirs=st.lists(FITNESS, min_size=6, max_size=6),
    decided=st.sets(st.integers(0, 5)),
)
def test_matches_appendix_f(
    seed: int, size: int, own: float | None, theirs: list[float | None], decided: set[int]
) -> None:
    rule = Population(size=size)
    member = seed % size
    others = {one: Standing(theirs[one], THEIRS) for one in decided if one < size and one != member}
    generators = [np.random.default_rng(seed) for _ in range(2)]
    ours = evolve(rule, member, Standing(own, OWN), others, generators[0])
    slow = appendix_f(rule, member, Standing(own, OWN), others, generators[1])
    assert ours[:3] == slow[:3]
    assert ours.values == pytest.approx(slow.values, rel=1e-12)


@given(seed=st.integers(0, 10_000), own=st.floats(0, 1), theirs=st.floats(0, 1))
def test_it_copies_beyond_the_margin_and_never_below(seed: int, own: float, theirs: float) -> None:
    rule = Population(size=2)
    evolved = evolve(rule, 0, Standing(own, OWN), {1: Standing(theirs, THEIRS)}, np.random.default_rng(seed))
    assert evolved.copied == (theirs > own + 0.05)
    base = THEIRS if evolved.copied else OWN
    for name, value in evolved.values.items():
        ratio = value / base[name]
        assert any(math.isclose(ratio, allowed, rel_tol=1e-12) for allowed in (1.0, 1.2, 1 / 1.2))


@given(seed=st.integers(0, 10_000), size=st.integers(2, 24))
def test_nobody_is_compared_with_itself(seed: int, size: int) -> None:
    member = seed % size
    other = evolve(Population(size=size), member, Standing(0.5, OWN), {}, np.random.default_rng(seed)).compared_with
    assert other != member
    assert 0 <= other < size


def test_every_other_member_is_selected_as_often() -> None:
    generator, rule = np.random.default_rng(0), Population(size=5)
    selected = [evolve(rule, 2, Standing(0.5, OWN), {}, generator).compared_with for _ in range(8000)]
    counts = np.bincount(selected, minlength=5)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3, 4]] - 2000).max() < 5 * math.sqrt(8000 * 0.25 * 0.75)


def test_each_hyperparameter_changes_by_itself_with_the_probability_and_both_ways_alike() -> None:
    generator, rule, draws = np.random.default_rng(0), Population(), 20_000
    ratios = np.array([[perturbed(rule, OWN, generator)[name] / OWN[name] for name in OWN] for _ in range(draws)])
    changed = ~np.isclose(ratios, 1.0)
    deviation = math.sqrt(0.33 * 0.67 / draws)
    assert np.abs(changed.mean(axis=0) - 0.33).max() < 5 * deviation
    assert abs((ratios[changed] > 1).mean() - 0.5) < 5 * math.sqrt(0.25 / changed.sum())
    assert np.abs(np.corrcoef(changed.T) - np.eye(3)).max() < 5 / math.sqrt(draws)


def test_perturbing_does_not_drift() -> None:
    """On the logarithm, unlike Jaderberg et al.'s 1.2 and 0.8."""
    generator, rule = np.random.default_rng(1), Population(perturb_probability=1.0)
    logs = [math.log(perturbed(rule, {"x": 1.0}, generator)["x"]) for _ in range(20_000)]
    assert abs(np.mean(logs)) < 5 * math.log(1.2) / math.sqrt(len(logs))


def test_whoever_has_no_fitness_copies_nobody_and_is_not_copied() -> None:
    rule = Population(size=2, margin=0.0)
    for own, theirs in ((None, 1.0), (0.0, None), (None, None)):
        others = {1: Standing(theirs, THEIRS)}
        assert not evolve(rule, 0, Standing(own, OWN), others, np.random.default_rng(0)).copied
    assert evolve(rule, 0, Standing(0.0, OWN), {}, np.random.default_rng(0)).compared_fitness is None


def test_first_values_follow_table_d1() -> None:
    rule = Population()
    drawn = [initial_values(rule, 7, member) for member in range(2000)]
    for name in ("entropy_cost", "optimizer.learning_rate"):
        low, high = TABLE_D1[name].bounds
        positions = [math.log(values[name] / low) / math.log(high / low) for values in drawn]
        assert 0 <= min(positions) <= max(positions) <= 1
        assert abs(np.mean(positions) - 0.5) < 5 * math.sqrt(1 / 12 / 2000)
    epsilons = [values["optimizer.epsilon"] for values in drawn]
    assert {one: epsilons.count(one) > 400 for one in set(epsilons)} == dict.fromkeys((1e-1, 1e-3, 1e-5, 1e-7), True)


def test_draws_are_named_by_seed_member_and_decision() -> None:
    def draw(*place: int) -> float:
        return float(decision_generator(*place).random())

    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4)}) == 4
    assert initial_values(Population(), 1, 0) == initial_values(Population(), 1, 0)
    assert initial_values(Population(), 1, 0) != initial_values(Population(), 1, 1)
    assert len({member_seed(1, member) for member in range(24)}) == 24


def test_a_segment_ends_at_the_next_multiple_and_the_last_one_at_the_budget() -> None:
    rule = Population(period_frames=1000)
    assert [segment_end(rule, at, 4500) for at in (0, 990, 1000, 1007, 2500, 3004)] == [
        1000,
        1000,
        2000,
        2000,
        3000,
        4500,
    ]
    assert segment_end(Population(), 123, 4500) == 4500
