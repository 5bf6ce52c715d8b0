"""A policy of a `gymnasium/<id>` task acts in the environment of `gymnasium.make(id)` as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import ddrl
from ddrl.api.settings import run_config
from ddrl.api.trained import Trained, new_network
from ddrl.environments.gymnasium import RegisteredSimulation

OWN = """
import gymnasium, numpy as np
from gymnasium import spaces

class Mixed(gymnasium.Env):
    observation_space = spaces.Dict(count=spaces.Discrete(99), noise=spaces.Box(-1, 1, (2, 2)))
    action_space = spaces.MultiDiscrete([2, 3], start=[1, 5])
    def _seen(self):
        noise = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return {"count": self.count, "noise": noise}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}
    def step(self, action):
        assert self.action_space.contains(action)
        self.count += 1
        return self._seen(), float(action @ [1, 10]), False, False, {}

class Picture(Mixed):
    observation_space = spaces.Box(0, 255, (40, 50, 3), np.uint8)
    action_space = spaces.Discrete(3, start=-1)
    def _seen(self):
        return self.np_random.integers(0, 256, (40, 50, 3)).astype(np.uint8)
    def step(self, action):
        assert self.action_space.contains(action)
        return self._seen(), float(action), False, False, {}

gymnasium.register("Mixed-v0", Mixed)
gymnasium.register("Picture-v0", Picture)
"""
IDS: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": {},
    "Blackjack-v1": {},
    "CartPole-v1": {},
    "Pendulum-v1": {},
    "mixed_spaces:Mixed-v0": {},
    "mixed_spaces:Picture-v0": {},
    "mixed_spaces:Picture-v0 grey": {"grey": True, "image_size": 36},
}


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module of the user's own, which registers environments."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mixed_spaces.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    for name in ("Mixed-v0", "Picture-v0"):
        gymnasium.registry.pop(name, None)


def untrained(task: str, options: dict[str, Any]) -> ddrl.TrainedPolicy:
    """A policy with the parameters that a run begins with."""
    config = run_config("test", {}, algorithm="impala", environment={"name": f"gymnasium/{task}", **options})
    return ddrl.TrainedPolicy(Trained(config, new_network(config), 0))


@pytest.mark.parametrize("task", IDS)
def test_it_plays_gymnasiums_environment_as_it_plays_the_adapters(task: str) -> None:
    name, options = task.partition(" ")[0], IDS[task]
    policy = untrained(name, options)
    env = gymnasium.make(name)
    asked = {"grey": False, "image_size": 0, "frame_stack": 1} | options
    adapted = RegisteredSimulation(name, asked)
    observation, own = env.reset(seed=7)[0], adapted.reset(7)
    state = adapted_state = None
    for _ in range(12):
        action, state = policy.act(observation, state, greedy=True)
        again, _ = policy.act(own, adapted_state, greedy=True)
        batch, adapted_state = policy.act(own[None], adapted_state, greedy=True)
        assert env.action_space.contains(action)
        assert np.array_equal(action, again)  # one observation of the adapter's is as good
        observation, reward, over, _, _ = env.step(action)
        own, adapted_reward, adapted_over, _ = adapted.step(batch[0])
        assert (float(reward), over) == (adapted_reward, adapted_over)
        if over:
            break


def test_acting_in_an_environment_of_ones_own_reads_no_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, env = untrained("mixed_spaces:Mixed-v0", {}), gymnasium.make("mixed_spaces:Mixed-v0")
    observation = env.reset(seed=7)[0]
    monkeypatch.setattr("ddrl.environments.gymnasium.packages_distributions", lambda: pytest.fail("takes a second"))
    for _ in range(3):
        policy.act(observation)


def test_a_continuous_action_for_one_observation_is_within_the_environments_bounds() -> None:
    policy = untrained("Pendulum-v1", {})
    observation = np.zeros(3, dtype=np.float32)
    torques = [policy.act(observation)[0] for _ in range(40)]
    batch = policy.act(np.zeros((40, 3), dtype=np.float32))[0]
    assert all(torque.dtype == np.float32 and torque.shape == (1,) for torque in torques)
    assert 1 < np.abs(torques).max() <= 2  # Pendulum's bounds
    assert np.abs(batch).max() <= 1  # as `policy.environment` takes it


@pytest.mark.parametrize(
    ("task", "options", "observation", "says"),
    [
        ("FrozenLake-v1", {}, 16, r"observation has shape \[\]; allowed for 'gymnasium/FrozenLake-v1': \[16\]"),
        ("mixed_spaces:Mixed-v0", {}, {"count": 1}, "observation must be numbers or what env.step"),
        ("mixed_spaces:Picture-v0", {}, np.zeros((40, 50, 3)), r"observation has shape \[40, 50, 3\]; allowed"),
        (
            "mixed_spaces:Picture-v0",
            {"frame_stack": 4},
            np.zeros((40, 50, 3), dtype=np.uint8),
            "observation is one image, and the policy takes 4 .option frame_stack.*policy.environment",
        ),
    ],
)
def test_what_is_no_observation_of_the_environment_is_one_error(
    task: str, options: dict[str, Any], observation: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ddrl.UserError, match=says):
        untrained(task, options).act(observation)
