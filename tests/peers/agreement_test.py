"""One whole update from the same parameters and batch ends at the same parameters, in our code and in theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddrl.peers.catalogue import Peer, peers
from tests.peers.one_update import after_one_q_update, after_one_update, after_updates, largest_difference

pytestmark = [pytest.mark.peers, pytest.mark.slow]
CARTPOLE, CHEETAH, BREAKOUT = "gymnasium/CartPole-v1", "mujoco/HalfCheetah-v5", "atari/breakout"
PENDULUM, DOOM = "gymnasium/Pendulum-v1", "firstperson/vizdoom_basic"
PLAIN = {"observation_normalisation": False, "reward_normalisation": False, "reward_clipping": "none"}
RATE = 3e-3
"""A learning rate with which an update moves parameters by far more than the tolerance."""
TOLERANCE = 1e-5


def installed(name: str) -> Peer:
    """Return a peer; skip the test where its environment is missing."""
    found = peers()[name]
    if not found.is_installed:
        pytest.skip(f".peers/{name} is missing; make peers installs it")
    return found


def differences(name: str, algorithm: str, task: str, folder: Path, **settings: Any) -> tuple[float, float]:
    """Return how far theirs is from ours, and how far ours has moved."""
    before, ours, theirs = after_one_update(installed(name), algorithm, task, folder, **settings)
    return largest_difference(ours, theirs), largest_difference(before, ours)


@pytest.mark.parametrize(
    ("task", "more"),
    [
        (CARTPOLE, {"network": "mlp", "separate_value_network": False}),
        (CARTPOLE, {"network": "tanh_mlp", "separate_value_network": True}),
        (CHEETAH, {"entropy_cost": 0.01}),
        (BREAKOUT, {"network": "shallow", "separate_value_network": False}),
    ],
)
def test_an_update_of_ppo_is_stable_baselines3_s(tmp_path: Path, task: str, more: dict[str, Any]) -> None:
    settings = {"num_epochs": 3, "num_minibatches": 4, "normalise_advantages": False, "clip_epsilon": 0.1}
    settings |= {"optimizer": {"learning_rate": RATE}, "entropy_cost": 0.02, "max_grad_norm": 0.5}
    apart, moved = differences("stable_baselines3", "ppo", task, tmp_path, **settings | PLAIN | more)
    assert apart < TOLERANCE < moved / 100


@pytest.mark.parametrize("optimizer", ["tensorflow", "torch"])
@pytest.mark.parametrize("task", [CARTPOLE, CHEETAH])
def test_an_update_of_a2c_is_stable_baselines3_s(tmp_path: Path, task: str, optimizer: str) -> None:
    inside = optimizer == "tensorflow"
    kind = {"learning_rate": RATE, "epsilon_inside_sqrt": inside, "initial_mean_square": float(inside)}
    apart, moved = differences("stable_baselines3", "a2c", task, tmp_path, optimizer=kind, **PLAIN)
    assert apart < TOLERANCE < moved / 10


def test_an_update_of_a2c_with_raw_pixels_is_stable_baselines3_s(tmp_path: Path) -> None:
    more = {"network": "shallow", "scaled_pixels": False, "optimizer": {"learning_rate": RATE}}
    apart, moved = differences("stable_baselines3", "a2c", BREAKOUT, tmp_path, **PLAIN | more)
    assert apart < TOLERANCE < moved / 10


@pytest.mark.parametrize(
    ("task", "more"),
    [
        (CARTPOLE, {"separate_value_network": False, "recompute_advantages": True}),
        (CHEETAH, {"entropy_cost": 0.01}),
        (BREAKOUT, {"network": "shallow", "separate_value_network": False}),
    ],
)
def test_an_update_of_ppo_is_tianshou_s(tmp_path: Path, task: str, more: dict[str, Any]) -> None:
    settings = {"num_epochs": 3, "num_minibatches": 4, "normalise_advantages": False, "clip_epsilon": 0.1}
    settings |= {"optimizer": {"learning_rate": RATE}, "entropy_cost": 0.02, "max_grad_norm": 0.5}
    settings |= {"value_clip_epsilon": 0.1}
    apart, moved = differences("tianshou", "ppo", task, tmp_path, **settings | PLAIN | more)
    assert apart < TOLERANCE < moved / 100


@pytest.mark.parametrize("task", [CARTPOLE, CHEETAH])
def test_an_update_of_a2c_is_tianshou_s(tmp_path: Path, task: str) -> None:
    kind = {"learning_rate": RATE, "epsilon_inside_sqrt": False, "initial_mean_square": 0.0}
    apart, moved = differences("tianshou", "a2c", task, tmp_path, optimizer=kind, **PLAIN)
    assert apart < TOLERANCE < moved / 10


TORCH_RMSPROP = {"name": "rmsprop", "learning_rate": RATE, "epsilon": 1e-3, "epsilon_inside_sqrt": False}


@pytest.mark.parametrize(
    ("task", "more"),
    [
        (CARTPOLE, {}),
        (CARTPOLE, {"double_q": False, "dueling": False, "n_step": 1}),
        (CARTPOLE, {"n_step": 5, "max_grad_norm": 0.1}),
        (CARTPOLE, {"optimizer": TORCH_RMSPROP | {"centered": True, "decay_frames": None}, "max_grad_norm": 0.1}),
        (CARTPOLE, {"optimizer": TORCH_RMSPROP | {"decay_frames": 4000}}),
        (BREAKOUT, {"network": "nature", "scaled_pixels": False, "head_size": 32}),
    ],
)
def test_an_update_of_ape_x_dqn_is_tianshou_s_with_its_new_priorities(
    tmp_path: Path, task: str, more: dict[str, Any]
) -> None:
    settings = {"optimizer": {"name": "adam", "learning_rate": RATE}, "reward_clipping": "none", "max_grad_norm": None}
    before, ours, theirs = after_one_q_update(installed("tianshou"), task, tmp_path, **settings | more)
    assert largest_difference(ours, theirs) < TOLERANCE < largest_difference(before, ours) / 100


def test_an_update_of_a2c_with_scaled_returns_is_tianshou_s(tmp_path: Path) -> None:
    """Advantages stay as they are, targets of the value are divided by the deviation, which is then renewed."""
    kind = {"learning_rate": RATE, "epsilon_inside_sqrt": False, "initial_mean_square": 0.0}
    scaling = {"return_scaling": True, "gae_lambda": 0.95, "separate_value_network": True, "entropy_cost": 0.01}
    before, ours, theirs = after_one_update(
        installed("tianshou"), "a2c", CARTPOLE, tmp_path, optimizer=kind, **PLAIN | scaling
    )
    assert largest_difference(ours, theirs) < TOLERANCE < largest_difference(before, ours) / 10
    assert abs(float(ours["return_variance"]) - 9.0) > 0.1


@pytest.mark.parametrize("task", [CARTPOLE, CHEETAH])
def test_twelve_updates_of_a2c_over_ends_of_episodes_are_tianshou_s(tmp_path: Path, task: str) -> None:
    """The deviation of returns grows from the first batch on, and values after a time limit count."""
    kind = {"learning_rate": 7e-4, "epsilon_inside_sqrt": False, "initial_mean_square": 0.0, "decay_frames": None}
    scaling = {"gae_lambda": 0.95, "separate_value_network": True, "entropy_cost": 0.01, "max_grad_norm": 0.5}
    before, ours, theirs = after_updates(installed("tianshou"), task, tmp_path, 12, optimizer=kind, **PLAIN | scaling)
    assert largest_difference(ours, theirs) < TOLERANCE < largest_difference(before, ours) / 100


@pytest.mark.parametrize("recompute", [False, True])
def test_an_update_of_ppo_with_scaled_returns_is_tianshou_s(tmp_path: Path, recompute: bool) -> None:
    settings = {"num_epochs": 3, "num_minibatches": 4, "normalise_advantages": False, "clip_epsilon": 0.1}
    settings |= {"optimizer": {"learning_rate": RATE}, "entropy_cost": 0.02, "max_grad_norm": 0.5}
    settings |= {"value_clip_epsilon": 0.1, "return_scaling": True, "recompute_advantages": recompute}
    before, ours, theirs = after_one_update(installed("tianshou"), "ppo", CARTPOLE, tmp_path, **settings | PLAIN)
    assert largest_difference(ours, theirs) < TOLERANCE < largest_difference(before, ours) / 100
    assert abs(float(ours["return_variance"]) - 9.0) > 0.1


def impala(folder: Path, reduction: str, drift: float, **more: Any) -> tuple[float, float]:
    optimizer = {"name": "adam", "learning_rate": RATE}
    settings = {"loss_reduction": reduction, "optimizer": optimizer, "max_grad_norm": 0.5, **PLAIN, **more}
    return differences("rllib", "impala", CARTPOLE, folder, drift=drift, **settings)


@pytest.mark.parametrize(("reduction", "drift"), [("mean", 0.0), ("mean", 0.5), ("sum", 0.5)])
def test_an_update_of_impala_is_rllib_s_once_that_bootstraps(tmp_path: Path, reduction: str, drift: float) -> None:
    apart, moved = impala(tmp_path, reduction, drift, extra={"bootstrapped": True})
    assert apart < TOLERANCE < moved / 100


IMPACT = {"optimizer": {"name": "adam", "learning_rate": RATE}, "gae_lambda": 1.0, "max_grad_norm": 0.5, **PLAIN}
PENALTY = {"kl_cost": 0.5, "kl_target": None}


@pytest.mark.parametrize(
    ("task", "drift", "more"),
    [
        (CARTPOLE, 0.0, {"kl_cost": 0.0, "kl_target": None}),
        (CARTPOLE, 0.5, {"kl_cost": 0.0, "kl_target": None, "clip_epsilon": 0.1, "entropy_cost": 0.02}),
        (CARTPOLE, 0.5, PENALTY | {"separate_value_network": False}),
        (CHEETAH, 0.2, PENALTY),
        (BREAKOUT, 0.5, PENALTY | {"network": "shallow", "separate_value_network": False}),
        (BREAKOUT, 0.5, PENALTY | {"network": "shallow", "separate_value_network": False, "scaled_pixels": False}),
    ],
)
def test_an_update_of_impact_is_that_of_rllib_s_appo_once_that_bootstraps(
    tmp_path: Path, task: str, drift: float, more: dict[str, Any]
) -> None:
    extra = {"bootstrapped": True}
    apart, moved = differences("rllib", "impact", task, tmp_path, drift=drift, extra=extra, **IMPACT | more)
    assert apart < TOLERANCE < moved / 100


def test_rllib_s_appo_leaves_out_the_value_after_an_unroll_as_its_impala_does(tmp_path: Path) -> None:
    apart, _ = differences("rllib", "impact", CARTPOLE, tmp_path, **IMPACT | PENALTY)
    assert apart > 100 * TOLERANCE


def test_rllib_s_v_trace_leaves_out_the_value_after_an_unroll(tmp_path: Path) -> None:
    """The step that RLlib 2.60 appends has reward 0 and discount 0, and its error, -V, enters the trace before it."""
    apart, _ = impala(tmp_path, "mean", 0.0)
    assert apart > 100 * TOLERANCE


APPO = PLAIN | {
    "optimizer": {"learning_rate": 0.03, "epsilon": 0.1},  # with a small one a step hides the size of a gradient
    "num_epochs": 1,
    "num_minibatches": 1,
    "max_grad_norm": 10.0,
    "value_clip_epsilon": 0.2,
}
SHALLOW = {"network": "shallow", "separate_value_network": False}
PARTS = {"num_epochs": 3, "num_minibatches": 3, "max_grad_norm": 0.5}
KL = {"exploration": "symmetric_kl", "entropy_cost": 0.02}


def appo(folder: Path, task: str, drift: float, *, extra: Any = None, **more: Any) -> tuple[float, float]:
    """Return how far Sample Factory is from ours, and how far ours has moved; both divide by the deviation over n."""
    extra = {"population_deviation": True} | dict(extra or {})
    return differences("sample_factory", "appo", task, folder, drift=drift, extra=extra, **APPO | more)


@pytest.mark.parametrize(
    ("task", "drift", "more"),
    [
        (CARTPOLE, 0.0, {}),
        (CARTPOLE, 0.5, PARTS | {"entropy_cost": 0.02}),
        (CARTPOLE, 2.0, PARTS | KL | {"separate_value_network": False, "network": "mlp"}),
        (CARTPOLE, 0.5, {"value_clip_epsilon": None, "max_grad_norm": None, "gae_lambda": 0.8, "discount": 0.9}),
        (CARTPOLE, 0.5, {"optimizer": {"learning_rate": 0.03, "epsilon": 0.1, "decay_frames": 10_000}}),
        (CARTPOLE, 0.5, {"stale": 2, "max_policy_lag": 1}),
        (CARTPOLE, 0.5, {"stale": 2, "max_policy_lag": 2}),
        (PENDULUM, 0.2, PARTS | {"entropy_cost": 0.01}),
        (BREAKOUT, 0.5, PARTS | KL | SHALLOW),
        (BREAKOUT, 0.5, SHALLOW | {"scaled_pixels": False}),
        (DOOM, 0.5, KL | SHALLOW),
    ],
)
def test_an_update_of_appo_is_sample_factory_s(tmp_path: Path, task: str, drift: float, more: dict[str, Any]) -> None:
    apart, moved = appo(tmp_path, task, drift, **more)
    assert apart < TOLERANCE < moved / 100


@pytest.mark.parametrize(
    ("drift", "more"),
    [
        (0.0, {"ends": True}),
        (0.5, PARTS | {"ends": True, "entropy_cost": 0.02}),
        (0.5, PARTS | KL | {"ends": True, "rho_bar": 0.7, "c_bar": 0.9}),
        (3.0, {"ends": True}),
        (0.5, {"ends": True, "stale": 2, "max_policy_lag": 1}),
        (0.0, {"extra": {"bootstrapped": True}}),
        (0.5, KL | {"extra": {"bootstrapped": True}}),
    ],
)
def test_an_update_of_appo_with_v_trace_is_sample_factory_s_once_that_bootstraps(
    tmp_path: Path, drift: float, more: dict[str, Any]
) -> None:
    """Where an episode ends with each unroll nothing is bootstrapped, and both are the same as they are."""
    apart, moved = appo(tmp_path, CARTPOLE, drift, vtrace=True, **more)
    assert apart < TOLERANCE < moved / 100


@pytest.mark.parametrize(
    "more", [{"extra": {}, "vtrace": False}, {"extra": {"population_deviation": True}, "vtrace": True}]
)
def test_sample_factory_differs_in_the_deviation_and_in_v_trace_s_bootstrap(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    apart, _ = differences("sample_factory", "appo", CARTPOLE, tmp_path, drift=0.5, **APPO | more)
    assert apart > 3 * TOLERANCE
