"""An environment that says which one it is when it fails."""

from __future__ import annotations

from ddrl.errors import crash
from ddrl.types import Array, EnvStep, VectorEnv


class NamedEnv:
    """A `VectorEnv` whose errors are a `ddrl.errors.crash` of that name, with what was raised as its cause."""

    def __init__(self, env: VectorEnv, name: str) -> None:
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.state_dict = env.state_dict
        self.load_state_dict = env.load_state_dict
        self.close = env.close
        self._env = env
        self._name = name

    def reset(self) -> EnvStep:
        """The environment's own. Raises UserError where it fails."""
        try:
            return self._env.reset()
        except Exception as error:
            raise crash(self._name, error) from error

    def step(self, actions: Array) -> EnvStep:
        """The environment's own. Raises UserError where it fails."""
        try:
            return self._env.step(actions)
        except Exception as error:
            raise crash(self._name, error) from error
