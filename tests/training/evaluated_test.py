"""What a run's evaluations play: parameters that it has learned and published, on seeds that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ddrl.actors import evaluator
from ddrl.algorithms import NAMES, load
from ddrl.system.seeding import torch_generator
from ddrl.training import builder as building
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.run import Run
from tests.runs import DISCRETE, base_of, curves, local_run, merged

EVALUATION = {"period_frames": 150, "episodes": 2, "final_episodes": 6}


class Evaluated(NamedTuple):
    """One call of `evaluator.play`."""

    parameters: torch.Tensor
    """All of the network that played, in one vector, when it began."""
    after: torch.Tensor
    """And when it ended."""


def vector(network: Any) -> torch.Tensor:
    return torch.cat([part.detach().reshape(-1).clone() for part in network.parameters()])


def config_of(name: str, **overrides: Any) -> RunConfig:
    inference = {"inference": "central"} if name == "ga3c" else {}
    alone = {"envs_per_actor": 1} if name in ("a3c", "gorila") else {}
    keys = {"env_frames": 400, "evaluation": EVALUATION, "topology": inference | alone}
    values = merged(merged(base_of(name), keys), overrides)
    values["topology"]["schedule"] = load(name).SYSTEM.schedules[0]
    return parse_run_config(values)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, run: Run) -> Iterator[tuple[list[Evaluated], list[torch.Tensor]]]:
    """What is played within the block, and every version that the learner has published, the initial one first."""
    played: list[Evaluated] = []
    versions = [vector(run.learner.core.network)]
    own = evaluator.play

    def play(env: Any, policy: Any, episodes: int, **keywords: Any) -> Any:
        before = vector(policy.inference.network)
        found = own(env, policy, episodes, **keywords)
        played.append(Evaluated(before, vector(policy.inference.network)))
        return found

    def noting(change: Any) -> Any:
        def changed(*arguments: Any) -> Any:
            result = change(*arguments)
            versions.append(vector(run.learner.core.network))
            return result

        return changed

    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "play", play)
        patch.setattr(run.learner, "step", noting(run.learner.step))
        if hasattr(run.params, "apply"):  # actors change the parameters themselves
            patch.setattr(run.params, "apply", noting(run.params.apply))
        yield played, versions


@pytest.mark.parametrize("name", NAMES)
def test_every_evaluation_plays_parameters_that_were_learned_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = local_run(config_of(name), tmp_path, quiet=True)
    with watched(monkeypatch, run) as (played, versions):
        assert run.train() == "budget_reached"
    assert len(played) >= 2
    for one in played:
        assert torch.equal(one.parameters, one.after), "fixed for as long as it lasts"
        places = [number for number, version in enumerate(versions) if torch.equal(version, one.parameters)]
        assert places and places[-1] > 0, "one of the versions, and not the initial one"
    assert not torch.equal(played[0].parameters, played[-1].parameters)
    assert any(torch.equal(versions[-1], one.parameters) for one in played), "the newest is scored"
    final = curves(tmp_path).query("metric == 'evaluation_return'")
    assert len(final[final.env_frames == final.env_frames.max()]) == EVALUATION["final_episodes"]


def test_no_evaluation_plays_the_episodes_of_an_actor_or_of_another_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: dict[str, list[int]] = {"actor": [], "evaluation": []}
    make = building.make_env

    def noted(environment: Any, num_envs: int, seed: int, **keywords: Any) -> Any:
        seeds["evaluation" if "evaluation" in keywords["name"] else "actor"].append(seed)
        return make(environment, num_envs, seed, **keywords)

    monkeypatch.setattr(building, "make_env", noted)
    run = local_run(config_of("impala"), tmp_path, quiet=True)
    assert run.train() == "budget_reached"
    assert len(seeds["actor"]) == 2 and len(seeds["evaluation"]) >= 3
    everything = seeds["actor"] + seeds["evaluation"]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("index", range(3))
def test_the_first_observations_of_an_evaluation_are_those_of_no_actor(index: int) -> None:
    builder = Builder(config_of("impala", environment={"rows": 20, "columns": 50}), torch.device("cpu"))
    own = builder.evaluation_env("toy/catch", index, 4).reset().observation
    actors = [builder.actor_env(number).reset().observation for number in range(2)]
    others = [builder.evaluation_env("toy/catch", other, 4).reset().observation for other in range(3) if other != index]
    assert all(not np.array_equal(own, other) for other in [*actors, *others])


def test_an_evaluation_of_a_deterministic_policy_has_no_noise() -> None:
    builder = Builder(config_of("d4pg"), torch.device("cpu"))
    outputs = torch.tensor([[0.25, -1.0], [-0.5, -1.0]])  # means and the log of the noise
    network: Any = builder.network()
    assert builder.sampler(network, None)(outputs, torch_generator(0, "test")).tolist() == [[0.25], [-0.5]]
    training = builder.sampler(network, range(2))(outputs, torch_generator(0, "test"))
    assert (training != outputs[:, :1]).all()


@pytest.mark.parametrize("name", DISCRETE)
def test_an_evaluation_acts_as_in_training_or_with_the_epsilon_that_the_key_says(name: str) -> None:
    builder = Builder(config_of(name), torch.device("cpu"))
    network: Any = builder.network()
    put_out = torch.zeros(2000, builder.spec.num_actions)
    put_out[:, 1] = 0.5
    sampled = builder.sampler(network, None)(put_out, torch_generator(0, "test"))
    if hasattr(network, "family"):
        assert torch.equal(sampled, network.family.sample(put_out, torch_generator(0, "test")))
        training = builder.sampler(network, range(2000))(put_out, torch_generator(0, "test"))
        assert torch.equal(sampled, training)
        assert len(sampled.unique()) == builder.spec.num_actions
        return
    others = float((sampled != 1).float().mean())
    epsilon = builder.config.hyperparameters.evaluation_epsilon
    assert others == pytest.approx(epsilon * (1 - 1 / builder.spec.num_actions), abs=0.02)


@pytest.mark.parametrize("name", ["ppo", "a2c", "apex_dqn"])
def test_a_deterministic_evaluation_takes_the_mode_and_training_goes_on_sampling(name: str) -> None:
    config = config_of(name, evaluation={"deterministic": True, "final_episodes": 2})
    builder = Builder(config, torch.device("cpu"))
    network = builder.network()
    outputs = torch.randn(6, builder.spec.distribution_size, generator=torch.Generator().manual_seed(0))
    sample, generator = builder.sampler(network, None), torch.Generator().manual_seed(0)
    for _ in range(10):
        assert torch.equal(sample(outputs, generator), outputs.argmax(-1))
    sample = builder.sampler(network, range(6))
    assert any(not torch.equal(sample(outputs, generator), outputs.argmax(-1)) for _ in range(50))
