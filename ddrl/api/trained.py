"""A trained agent: the newest parameters of a run, from its checkpoints or from its exported policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ddrl import algorithms
from ddrl.actors.policy import LocalInference, Policy, Sampler
from ddrl.api import policy_file
from ddrl.environments.base import registry
from ddrl.environments.base.adapter import OwnTerms
from ddrl.environments.base.task_suites import common_spec
from ddrl.environments.tools.named import NamedEnv, make_env, spec_of
from ddrl.errors import UserError
from ddrl.population.results import newest_of_best
from ddrl.system.notes import say
from ddrl.system.seeding import seed_for, torch_generator
from ddrl.training.builder import evaluated_environment
from ddrl.training.config.run_config import RunConfig, load_run_config
from ddrl.training.device import resolve_device
from ddrl.training.records import checkpoint
from ddrl.training.records.checkpoint_layout import migrated
from ddrl.types import EnvSpec


@dataclass(frozen=True)
class Trained:
    """The newest parameters of a run, with their configuration and the frames that they were trained for."""

    config: RunConfig
    network: nn.Module
    env_frames: int

    @cached_property
    def spec(self) -> EnvSpec:
        """Return the shapes that the network takes and gives."""
        return registry.spec_for(**self.config.environment)

    @property
    def own_terms(self) -> OwnTerms | None:
        """Return how the simulator's own environment of the task is spoken with, None where nothing is known of it."""
        return registry.own_terms(**self.config.environment)

    def policy(self, num_envs: int, seed: int, role: str, index: int = 0, *, greedy: bool = False) -> Policy:
        """Return a policy for `num_envs` environments that draws from the random stream (seed, role, index).

        `greedy`: the likeliest action, the one of highest value, or the mean of continuous actions, every time.
        """
        sample = self.sampler(num_envs, greedy=greedy)
        return Policy(self.inference(), num_envs, torch_generator(seed, role, index), sample)

    def inference(self) -> LocalInference:
        """Return inference with the network, on the device of the configuration."""
        device = resolve_device(self.config.device)
        return LocalInference(self.network, device=device, precision=self.config.precision)

    def sampler(self, num_envs: int, *, greedy: bool) -> Sampler:
        """Return what chooses actions for `num_envs` environments: as evaluations do, or the best ones."""
        if greedy:
            return greedy_sampler(self.spec)
        make_sampler = algorithms.load(self.config.algorithm).make_sampler
        return make_sampler(self.config.hyperparameters, self.network, envs=None, num_envs=num_envs)

    def evaluated(self, changes: Mapping[str, Any] | None = None, *, where: str = "environment") -> dict[str, Any]:
        """Return name and options of the environment of the run's evaluations, with `changes` of them.

        Raise UserError naming `where` for options that are unknown or not read, and where the agent cannot act.
        """
        return self._changed(evaluated_environment(self.config), changes or {}, where)

    def trained_on(self, changes: Mapping[str, Any] | None = None, *, where: str = "environment") -> dict[str, Any]:
        """Return name and options of the environment that the run trained on, with `changes` as in `evaluated`."""
        return self._changed(self.config.environment, changes or {}, where)

    def _changed(self, environment: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
        chosen = {**environment, **changes}
        if changes:
            common_spec(where, [self.spec, spec_of(chosen, given=changes, where=where)])
        return chosen

    def environment(
        self,
        num_envs: int,
        seed: int,
        *,
        task: str | None = None,
        what: str,
        changes: Mapping[str, Any] | None = None,
    ) -> NamedEnv:
        """Make environments as `evaluated` says, or of another `task`; `what` they are for is named in errors."""
        chosen = self.evaluated(changes)
        name = task or chosen["name"]
        own = seed_for(seed, "player-environment")
        described = f"{what}, environment {name}, environment seed {own}"
        return make_env(chosen | {"name": name}, num_envs, own, num_threads=1, name=described)


def greedy_sampler(spec: EnvSpec) -> Sampler:
    """Return what chooses the best action by the network's output [B, P], always the same."""
    if spec.action_size:
        return lambda output, generator: output[:, : spec.action_size]  # the means come first
    return lambda output, generator: output.argmax(dim=-1)


def new_network(config: RunConfig) -> nn.Module:
    """Make the network of a configuration, whose parameters are to be replaced."""
    spec = registry.spec_for(**config.environment)
    make_network = algorithms.load(config.algorithm).make_network
    return make_network(spec, config.hyperparameters, torch_generator(0, "unused"))


def load_trained(run: Path) -> Trained:
    """Load the newest valid checkpoint of a run, or of the best member of a population; print why others were skipped.

    Without a checkpoint, load the exported policy. Raise `UserError` where there is no configuration, or neither.
    """
    config, folder = load_run_config(run / "config.json"), run
    exported = run / policy_file.NAME
    if config.population and (exported.exists() and not (run / "members").exists()):
        return _exported(exported)
    if config.population:
        config, folder = newest_of_best(run)
    network, damaged = new_network(config), list[str]()
    for path, found in checkpoint.whole(folder / "checkpoints", damaged.append):
        try:
            learner = migrated(found)["learner"]
            frames, _, _ = learner["counters"]
            network.load_state_dict(learner["network"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            damaged.append(checkpoint.passed_over(path, f"is of another layout ({words})"))
            continue
        _say_all(damaged)
        return Trained(config, network, frames)
    if exported.exists():
        _say_all(damaged)
        return _exported(exported)
    reasons = "; ".join(damaged) or "the folder checkpoints/ holds none"
    raise UserError(f"{run}: no valid checkpoint ({reasons}) and no {policy_file.NAME}")


def _exported(path: Path) -> Trained:
    """Load an exported policy. Raise `UserError` where it is damaged, or is not that of the run beside it."""
    about, tensors = policy_file.read(path)
    if about.version != algorithms.load(about.config.algorithm).VERSION:
        say(f"{path}: is of version {about.version} of {about.config.algorithm}, which has changed since")
    network = new_network(about.config)
    policy_file.fill(network, tensors, path)
    return Trained(about.config, network, about.env_frames)


def _say_all(lines: Sequence[str]) -> None:
    for line in lines:
        say(line)
