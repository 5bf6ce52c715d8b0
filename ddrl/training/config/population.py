"""The keys of a population in a configuration. Defaults are Espeholt et al. 2018, Appendix F and Table D.1."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from ddrl.errors import UserError, unknown_name
from ddrl.system.config_types import STRICT, Probability

if TYPE_CHECKING:
    from ddrl.training.config.run_config import RunConfig

Values = dict[str, float]
"""Hyperparameter, such as optimizer.epsilon -> its value."""

READY_EPISODES = 5000
_FAR = 1e6
"""The factor by which repeated perturbations may leave the range of first values."""


@dataclass(frozen=True, config=STRICT)
class Initial:
    """The distribution of the members' first values: log-uniform from `low` to `high`, or one of `values`."""

    low: PositiveFloat | None = None
    high: PositiveFloat | None = None
    values: tuple[PositiveFloat, ...] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return (min(self.values), max(self.values)) if self.values else (self.low or 0.0, self.high or 0.0)


TABLE_D1 = {
    "entropy_cost": Initial(low=5e-5, high=1e-2),
    "optimizer.learning_rate": Initial(low=5e-6, high=5e-3),
    "optimizer.epsilon": Initial(values=(1e-1, 1e-3, 1e-5, 1e-7)),
}
"""The distribution of the sweep, with which the populations of Appendix F start."""


@dataclass(frozen=True, config=STRICT)
class Population:
    """The members of a population, when they decide to copy each other, and what they may change."""

    size: Annotated[int, Field(ge=2)] = 24
    burn_in_frames: NonNegativeInt = 20_000_000
    """Frames of a member before anything is copied or perturbed."""
    ready_episodes: PositiveInt = READY_EPISODES
    """A member decides after this many episodes since its last decision."""
    period_frames: PositiveInt | None = None
    """A member decides after this many frames instead. Not in the paper: for short runs."""
    margin: NonNegativeFloat = 0.05
    """A member copies another one whose fitness is higher by more than this, in units of the fitness."""
    perturb_probability: Probability = 0.33
    """Probability for each hyperparameter at each decision, whether something was copied or not."""
    perturb_factor: Annotated[float, Field(gt=1)] = 1.2
    """A perturbed value is multiplied or divided by it. Jaderberg et al. 2017: x 1.2 or x 0.8, which drifts."""
    tuned: dict[str, Initial] = dataclasses.field(default_factory=lambda: dict(TABLE_D1))
    """Key of the hyperparameters -> distribution of its first values."""
    fitness: str = "mean_capped_score"
    """A metric of the curves, averaged over the episodes since the last decision; for one task: episode_return."""
    parallel: PositiveInt = 1
    """The number of members training at once. 1: in turn, in this process; more: each in a process of its own, by Ray.

    With topology.runtime ray, each has processes for its learners and actors, however many train at once."""


def check_population(config: RunConfig) -> None:
    """Raise `UserError`, naming the key, for a population that cannot train or would never decide."""
    rule: Population | None = config.population
    if rule is None:
        return
    for key, problem in _problems(rule, config):
        raise UserError(f"key 'population.{key}' {problem}")
    if config.system.parameters != "versions":
        raise UserError(
            f"key 'algorithm': {config.algorithm} shares its parameters without versions, so that they cannot "
            "be copied between members; allowed with 'population': algorithms that publish versions, such as impala"
        )
    _check_tuned(config.hyperparameters, rule.tuned)


def _problems(rule: Population, config: RunConfig) -> Any:
    """Yield (key, what is wrong with it) for keys whose values do not fit together."""
    if rule.period_frames and rule.ready_episodes != READY_EPISODES:
        yield "ready_episodes", f"would not be read beside period_frames (got {rule.ready_episodes})"
    if rule.parallel > rule.size:
        yield "parallel", f"must be at most the size, {rule.size} (got {rule.parallel})"
    for key in ("burn_in_frames", "period_frames"):
        if (frames := getattr(rule, key)) and frames >= config.env_frames:
            yield key, f"must be below env_frames, {config.env_frames}: no member would ever decide (got {frames})"
    if not rule.tuned:
        yield "tuned", "must name at least one hyperparameter"


def _check_tuned(hyperparameters: Any, tuned: Mapping[str, Initial]) -> None:
    numbers = tunable(hyperparameters)
    for key, initial in tuned.items():
        name = f"population.tuned.{key}"
        if key not in numbers and tuned == TABLE_D1:
            raise UserError(
                f"key 'population.tuned' is IMPALA's where it is left out, and this algorithm has no '{key}'; give it, "
                "such as {optimizer.learning_rate: {low: 0.00001, high: 0.001}}; "
                f"allowed keys: {', '.join(numbers)}"
            )
        if key not in numbers:
            raise unknown_name("hyperparameter to tune", key, numbers, where="key 'population.tuned'")
        ranges = initial.low is not None and initial.high is not None and initial.low <= initial.high
        alone = initial.low is None and initial.high is None
        if not (ranges and initial.values is None) and not (initial.values and alone):
            raise UserError(
                f"key '{name}' must be a range, such as low: 0.001 and high: 0.1, or values: a list of one or "
                f"more numbers (got {_given(initial)})"
            )
        lowest, highest = initial.bounds
        for value in (lowest, highest, lowest / _FAR, highest * _FAR):
            try:
                with_values(hyperparameters, {key: value})
            except ValidationError as error:
                raise UserError(
                    f"key '{name}': {key} cannot be tuned, since perturbed values would leave what it allows: "
                    f"{error.errors()[0]['msg']} (got {value:g})"
                ) from None


def _given(initial: Initial) -> str:
    given = {name: value for name, value in dataclasses.asdict(initial).items() if value is not None}
    return ", ".join(f"{name}: {value}" for name, value in given.items()) or "nothing"


def tunable(hyperparameters: Any, prefix: str = "") -> Values:
    """Return the hyperparameters, by dotted key, that are floats: not counts, sizes and switches."""
    found: Values = {}
    for field in dataclasses.fields(hyperparameters):
        value = getattr(hyperparameters, field.name)
        if dataclasses.is_dataclass(value):
            found |= tunable(value, f"{prefix}{field.name}.")
        elif isinstance(value, float):
            found[prefix + field.name] = value
    return found


def with_values(hyperparameters: Any, values: Mapping[str, float]) -> Any:
    """Return the hyperparameters with `values` replaced. Raise pydantic's ValidationError if one is not allowed."""
    for key, value in values.items():
        first, _, rest = key.partition(".")
        inner = with_values(getattr(hyperparameters, first), {rest: value}) if rest else value
        hyperparameters = dataclasses.replace(cast("Any", hyperparameters), **{first: inner})
    return hyperparameters
