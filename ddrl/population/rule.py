"""What a member does when it decides (Espeholt et al. 2018, Appendix F): pure functions of fitness and random draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ddrl.population.settings import Initial, Population, Values
from ddrl.seeding import numpy_generator, seed_for


class Standing(NamedTuple):
    """A member at its last decision."""

    fitness: float | None
    """None: it has ended no episode since the one before."""
    values: Values
    """Of the hyperparameters that it had that fitness with."""


class Evolution(NamedTuple):
    """What a member decides."""

    compared_with: int
    """The other member."""
    compared_fitness: float | None
    """None: it has not decided yet, or has ended no episode."""
    copied: bool
    values: Values
    """Of its hyperparameters from now on."""


def evolve(
    rule: Population, member: int, own: Standing, others: Mapping[int, Standing], generator: np.random.Generator
) -> Evolution:
    """One decision after the burn-in.

    1. A random other member is selected. 2. If its fitness is higher by more than `rule.margin` (absolute), its weights
    and hyperparameters are copied. 3. Copied or not, each hyperparameter is perturbed with `rule.perturb_probability`:
    multiplied or divided, both as likely, by `rule.perturb_factor`.

    Args:
        member: who decides, of 0 .. rule.size - 1.
        others: members that have decided before -> where they stood then.
        generator: of this decision alone. As many numbers are drawn whatever comes of them.
    """
    other = (member + 1 + int(generator.integers(rule.size - 1))) % rule.size  # 1
    standing = others.get(other)
    fitness = standing.fitness if standing else None
    copied = fitness is not None and own.fitness is not None and fitness > own.fitness + rule.margin  # 2
    values = standing.values if copied and standing else own.values
    return Evolution(other, fitness, copied, perturbed(rule, values, generator))  # 3


def replaced(rule: Population, others: Mapping[int, Standing], generator: np.random.Generator) -> Evolution:
    """What becomes of a member whose training diverged: one of those that have a fitness, each as likely, perturbed.

    Not in the paper. Such a member is worse than any other, whoever is selected.

    Args:
        others: as `evolve` has them; at least one has a fitness.
    """
    known = sorted(member for member, standing in others.items() if standing.fitness is not None)
    other = known[int(generator.integers(len(known)))]
    return Evolution(other, others[other].fitness, True, perturbed(rule, others[other].values, generator))


def perturbed(rule: Population, values: Values, generator: np.random.Generator) -> Values:
    """Each value as it is, or with `rule.perturb_probability` times or over `rule.perturb_factor`."""
    result = {}
    for key in sorted(values):
        changes, grows = generator.random() < rule.perturb_probability, generator.random() < 0.5
        factor = rule.perturb_factor if grows else 1.0 / rule.perturb_factor
        result[key] = values[key] * factor if changes else values[key]
    return result


def initial_values(rule: Population, run_seed: int, member: int) -> Values:
    """What a member starts with."""
    generator = numpy_generator(run_seed, f"population-{member}-initial")
    return {key: _draw(rule.tuned[key], generator) for key in sorted(rule.tuned)}


def _draw(initial: Initial, generator: np.random.Generator) -> float:
    if initial.values:
        return initial.values[int(generator.integers(len(initial.values)))]
    low, high = initial.bounds
    return min(high, max(low, math.exp(generator.uniform(math.log(low), math.log(high)))))


def decision_generator(run_seed: int, member: int, decision: int) -> np.random.Generator:
    """Of one decision of a member: the same however often the population was killed before it."""
    return numpy_generator(run_seed, f"population-{member}-decision", decision)


def member_seed(run_seed: int, member: int) -> int:
    """Of a member's own run."""
    return seed_for(run_seed, "population-member", member)


def segment_end(rule: Population, env_frames: int, budget: int) -> int:
    """Frames at which a member that stands at `env_frames` decides next, at the latest.

    With a period its next multiple; the last segment is the longer for what would be left of the budget. With counted
    episodes nobody knows: the budget.
    """
    if rule.period_frames is None:
        return budget
    end = (env_frames // rule.period_frames + 1) * rule.period_frames
    return budget if budget - end < rule.period_frames else end
