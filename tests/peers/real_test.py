"""Each library that is installed trains on a small task; its records are read as those of our own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddrl.analysis.runs.run_data import final_episodes, load_run, training_returns
from ddrl.api.launch import train
from ddrl.api.settings import run_config
from ddrl.peers.catalogue import peers
from tests.peers.agreement_test import installed

pytestmark = [pytest.mark.peers, pytest.mark.slow]
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"unroll_length": 64, "batch_size": 8, "num_epochs": 4, "num_minibatches": 4},
    "a2c": {"unroll_length": 16, "batch_size": 8},
    "impala": {"unroll_length": 16, "batch_size": 8},
    "impact": {"unroll_length": 16, "batch_size": 8, "num_slots": 2, "num_traversals": 2, "gae_lambda": 1.0},
    "appo": {"unroll_length": 16, "batch_size": 8, "num_epochs": 4, "num_minibatches": 2, "value_clip_epsilon": None},
    "apex_dqn": {"unroll_length": 10, "batch_size": 32, "samples_per_insert": 8.0, "min_replay_size": 500},
}
STEPS = 4096


@pytest.mark.parametrize(
    ("name", "algorithm"), [(one.name, kind) for one in peers().values() for kind in one.algorithms]
)
def test_a_peer_trains_and_learns(tmp_path: Path, name: str, algorithm: str) -> None:
    installed(name)
    plain: dict[str, Any] = {"reward_clipping": "none", "network": "mlp"}
    if algorithm != "apex_dqn":
        plain |= {"observation_normalisation": False, "reward_normalisation": False, "separate_value_network": True}
    hyperparameters = SMALL[algorithm] | plain
    values = {
        "hyperparameters": hyperparameters | {"optimizer": {"name": "adam", "learning_rate": 2e-3}},
        "env_frames": STEPS,
        "topology": {"num_actors": 1, "envs_per_actor": 8},
        "evaluation": {"final_episodes": 4, "final_versions": 1},
        "recording": {"period_frames": 512},
        "tracking": [],
        "peer": name,
    }
    config = run_config("test", values, algorithm=algorithm, environment="gymnasium/CartPole-v1")
    directory = tmp_path / "gymnasium-CartPole-v1" / "seed1"
    assert train(config, directory, quiet=True) == "budget_reached"
    run = load_run(directory, "run", "paper", "experiment", "variant")
    assert run.manifest["peer"]["name"] == name
    assert STEPS <= run.manifest["agent_steps"] < 2 * STEPS
    assert run.manifest["peer"]["gradient_steps"] > 0
    if algorithm in ("impact", "apex_dqn"):  # steps are learned from again, and count as frames once
        assert run.manifest["peer"]["trained_samples"] > run.manifest["agent_steps"]
    assert len(final_episodes(run)) == 4
    returns = training_returns(run)["value"]
    always_the_same_action = 8 if algorithm == "apex_dqn" else 10  # as a new Q-network mostly chooses
    assert always_the_same_action < returns.iloc[0] < 40
    assert returns.max() > returns.iloc[0]
