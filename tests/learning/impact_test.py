"""PPO and IMPACT learn small tasks to a threshold, and IMPALA one with continuous actions. `make learn`; minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.learning.impala_test import final_return

pytestmark = pytest.mark.learning

NORMALISED = {"observation_normalisation": True, "reward_normalisation": True, "separate_value_network": True}
CATCH: dict[str, dict[str, Any]] = {
    "ppo": {
        "hyperparameters": {"network": "mlp", "unroll_length": 40, "num_epochs": 4, "num_minibatches": 4},
        "topology": {"schedule": "synchronous"},
    },
    "impact": {
        "hyperparameters": {"network": "mlp", "num_slots": 4, "num_traversals": 4, "discount": 0.99},
    },
}
TRACK: dict[str, dict[str, Any]] = {
    "ppo": {
        "hyperparameters": {"network": "tanh_mlp", "unroll_length": 64, "num_epochs": 5, "num_minibatches": 8},
        "topology": {"schedule": "synchronous"},
    },
    "impact": {
        "hyperparameters": {"network": "tanh_mlp", "num_slots": 4, "num_traversals": 4, "normalise_advantages": True},
    },
    "impala": {
        "hyperparameters": {
            "network": "tanh_mlp",
            "batch_size": 4,
            "lambda_": 0.95,
            "entropy_cost": 0.0,
            "loss_reduction": "mean",
            "reward_clipping": "none",
            "max_grad_norm": 0.5,
        }
        | NORMALISED,
    },
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("algorithm", sorted(CATCH))
def test_it_learns_to_catch(tmp_path: Path, algorithm: str, seed: int) -> None:
    chosen = CATCH[algorithm] | {"algorithm": algorithm, "seed": seed}
    chosen["hyperparameters"] = chosen["hyperparameters"] | {"separate_value_network": False}
    assert final_return(tmp_path, **chosen) > 0.9


@pytest.mark.parametrize("algorithm", sorted(TRACK))
def test_it_learns_to_track_a_number_with_continuous_actions(tmp_path: Path, algorithm: str) -> None:
    """Random play has a third of the best return, which is 25."""
    chosen = TRACK[algorithm] | {"algorithm": algorithm, "environment": {"name": "toy/track"}}
    chosen["hyperparameters"] = chosen["hyperparameters"] | {
        "initial_log_std": -0.5,
        "optimizer": {"name": "adam", "learning_rate": 1e-3},
    }
    assert final_return(tmp_path, **chosen) > 0.85 * 25
