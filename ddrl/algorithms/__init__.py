"""Algorithms, one per file, and those of other installed packages (`ddrl.system.plugins`); all are an `Algorithm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from ddrl.system.plugins import ALGORITHMS

if TYPE_CHECKING:  # a configuration, which asks for names alone, needs no torch
    import torch
    from torch import nn

    from ddrl.actors.policy import Sampler
    from ddrl.interfaces import Actor, Hyperparameters, Learner, System, TaskKind
    from ddrl.types import EnvSpec

NAMES = ALGORITHMS.built_in()
"""Those of this package; `ALGORITHMS` has those of other packages too."""


class Algorithm(Protocol):
    """The module of an algorithm. `Any` stands for what is its own: `Config`, network, parameters and store."""

    VERSION: int
    """Grows when results change."""
    SYSTEM: System
    TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]]
    """Hyperparameters for kinds of tasks that the defaults of `Config` do not fit (`ddrl.training.config.defaults`)."""
    Config: type[Hyperparameters]
    Actor: Callable[[Any, Any, Any, Any], Actor]
    """(config, collector, parameters, store) -> actor."""
    Learner: Callable[[Any, Any, Any, Any, Any], Learner]
    """(config, network, parameters, store, `ddrl.learners.core.Setting`) -> learner."""

    def check(self, config: Any, spec: EnvSpec, num_learners: int) -> None:
        """Raise `UserError` if the algorithm cannot learn this environment, or if a key would have no effect."""

    def make_network(self, spec: EnvSpec, config: Any, generator: torch.Generator) -> nn.Module:
        """Make the network, with all weights drawn from `generator` (on the CPU)."""

    def make_sampler(self, config: Any, network: Any, envs: Sequence[int] | None, num_envs: int) -> Sampler:
        """Make what samples actions for `envs`, numbers among all `num_envs` environments; None: for an evaluation."""


def load(name: str, *, where: str = "") -> Algorithm:
    """Return the module of one algorithm. Raise UserError as `ddrl.system.plugins.Modules.load`."""
    return cast(Algorithm, ALGORITHMS.load(name, where=where))
