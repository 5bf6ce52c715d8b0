"""Keys of a population: defaults of the paper, and one clear line for what could not train."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddrl.errors import UserError
from ddrl.training.config.population import Initial, Population, tunable, with_values
from ddrl.training.config.run_config import RunConfig, parse_run_config, to_json
from tests.runs import BASE, merged

SMALL: dict[str, Any] = {"size": 3, "burn_in_frames": 400, "period_frames": 400, "fitness": "episode_return"}


def population(changes: dict[str, Any] | None = None, **overrides: Any) -> RunConfig:
    """The base configuration with a small population."""
    return parse_run_config(merged(BASE, overrides | {"population": SMALL | (changes or {})}), "config.json")


def test_defaults_are_appendix_f_and_table_d1() -> None:
    values = Population()
    assert (values.size, values.burn_in_frames, values.ready_episodes, values.margin) == (24, 20_000_000, 5000, 0.05)
    assert (values.perturb_probability, values.perturb_factor, values.fitness) == (0.33, 1.2, "mean_capped_score")
    assert values.tuned == {
        "entropy_cost": Initial(low=5e-5, high=1e-2),
        "optimizer.learning_rate": Initial(low=5e-6, high=5e-3),
        "optimizer.epsilon": Initial(values=(1e-1, 1e-3, 1e-5, 1e-7)),
    }


def test_the_usual_tuned_keys_are_not_blamed_on_the_user() -> None:
    given = {"size": 2, "burn_in_frames": 200, "period_frames": 200, "fitness": "episode_return"}
    keys = BASE | {"algorithm": "d4pg", "environment": {"name": "gymnasium/Pendulum-v1"}, "hyperparameters": {}}
    with pytest.raises(UserError, match=r"'population.tuned' is IMPALA's where it is left out, .* no 'entropy_cost'"):
        parse_run_config(keys | {"population": given})


def test_a_configuration_with_a_population_survives_json() -> None:
    config = population()
    assert parse_run_config(json.loads(json.dumps(to_json(config)))) == config
    assert parse_run_config(BASE).population is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 1}, "key 'population.size': Input should be greater than or equal to 2"),
        ({"siz": 3}, "unknown key 'population.siz' (did you mean 'population.size'?)"),
        ({"tuned": {"entropy": {"values": [1]}}}, "unknown hyperparameter to tune 'entropy'"),
        ({"tuned": {"batch_size": {"values": [8]}}}, "unknown hyperparameter to tune 'batch_size'"),
        ({"tuned": {"network": {"values": [8]}}}, "unknown hyperparameter to tune 'network'"),
        ({"tuned": {"entropy_cost": {"low": 1}}}, "key 'population.tuned.entropy_cost' must be a range"),
        ({"tuned": {"entropy_cost": {"low": 2, "high": 1}}}, "must be a range"),
        ({"tuned": {"entropy_cost": {"low": 1, "high": 2, "values": [1]}}}, "must be a range"),
        ({"tuned": {"entropy_cost": {"values": []}}}, "must be a range"),
        ({"tuned": {"entropy_cost": {"lo": 1}}}, "unknown key 'population.tuned.entropy_cost.lo'"),
        ({"tuned": {"entropy_cost": {"values": [0]}}}, "Input should be greater than 0"),
        ({"tuned": {"discount": {"values": [0.9]}}}, "discount cannot be tuned"),
        ({"tuned": {}}, "key 'population.tuned' must name at least one"),
        ({"parallel": 4}, "key 'population.parallel' must be at most the size, 3 (got 4)"),
        ({"ready_episodes": 10}, "key 'population.ready_episodes' would not be read beside period_frames"),
        ({"burn_in_frames": 2000}, "key 'population.burn_in_frames' must be below env_frames, 2000"),
        ({"period_frames": 2000}, "key 'population.period_frames' must be below env_frames, 2000"),
    ],
)
def test_what_cannot_be_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        population(changes)
    assert str(caught.value).startswith("config.json: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_members_may_have_several_learners_and_have_versions_of_their_parameters() -> None:
    config = population({"parallel": 2}, topology={"runtime": "ray", "num_learners": 2})
    assert (config.topology.num_learners, config.population and config.population.parallel) == (2, 2)
    for runtime in ("serial", "threads"):
        with pytest.raises(UserError, match=r"key 'topology.num_learners' may exceed 1 only with .*runtime: ray"):
            population(topology={"runtime": runtime, "num_learners": 2})
    with pytest.raises(UserError, match=r"key 'topology.num_learners' must divide topology.num_actors"):
        population(topology={"runtime": "ray", "num_learners": 4})
    tuned = {"tuned": {"entropy_cost": {"values": [0.01]}}}
    with pytest.raises(UserError, match="a3c shares its parameters without versions"):
        parse_run_config(
            merged(BASE, {"algorithm": "a3c", "topology": {"envs_per_actor": 1}, "population": SMALL | tuned})
            | {"hyperparameters": {"network": "mlp"}}
        )


def test_values_are_put_where_their_keys_say() -> None:
    before = parse_run_config(BASE).hyperparameters
    after = with_values(before, {"entropy_cost": 0.5, "optimizer.epsilon": 0.25})
    assert (after.entropy_cost, after.optimizer.epsilon) == (0.5, 0.25)
    same = with_values(after, {name: tunable(before)[name] for name in ("entropy_cost", "optimizer.epsilon")})
    assert same == before
