"""Trained agents for the user's own programs: policies, evaluations, exports (`ddrl.load_policy`, `ddrl.evaluate`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.api import arguments, evaluation
from ddrl.api import export as exporting
from ddrl.api.evaluation import Evaluated
from ddrl.api.policy import TrainedPolicy
from ddrl.api.runs import AnyRun, directory_of
from ddrl.api.trained import load_trained


@dataclass(frozen=True)
class Evaluation:
    """The episodes that an agent has played."""

    tasks: tuple[Evaluated, ...]
    """One entry for each task; a run on a single task has one."""

    @property
    def returns(self) -> list[float]:
        """The raw return of every episode."""
        return [one for task in self.tasks for one in task.returns]

    @property
    def lengths(self) -> list[int]:
        """The agent steps of every episode."""
        return [one for task in self.tasks for one in task.lengths]

    @property
    def mean_return(self) -> float:
        """The mean raw return; of a suite, over its tasks."""
        return sum(task.mean_return for task in self.tasks) / len(self.tasks)

    def __repr__(self) -> str:
        lines = [task.describe(with_task=len(self.tasks) > 1) for task in self.tasks]
        return f"Evaluation({'; '.join(lines)})"


@arguments.one_line()
def load_policy(run: AnyRun, *, seed: int = 0) -> TrainedPolicy:
    """Return the newest policy of a run, from its checkpoint or from its exported `policy.safetensors`.

    Args:
        run: a run, or its directory.
        seed: of the random numbers with which `act` draws actions.

    Raises:
        UserError: the run has neither, or what it has is damaged.
    """
    folder = directory_of(run, "ddrl.load_policy: run")
    return TrainedPolicy(load_trained(folder), seed=arguments.integer("ddrl.load_policy: seed", seed))


@arguments.one_line()
def evaluate(
    run: AnyRun,
    *,
    episodes: int = 10,
    greedy: bool = False,
    seed: int = 0,
    environment: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Play episodes with the newest policy of a run, as `ddrl evaluate` does.

    Args:
        run: a run, or its directory.
        episodes: number of episodes of each task.
        greedy: take the best action each time, instead of drawing actions as the run's evaluations do.
        seed: of the episodes and of the drawn actions.
        environment: options in which the environment is to differ from the one of the run's evaluations, such as
            `{"friction": 0.4}`.

    Raises:
        UserError: the run has no policy, its environment cannot be made here, or the agent cannot act in it.
    """
    found = evaluation.evaluate(
        directory_of(run, "ddrl.evaluate: run"),
        episodes=arguments.integer("ddrl.evaluate: episodes", episodes, least=1),
        seed=arguments.integer("ddrl.evaluate: seed", seed),
        greedy=arguments.flag("ddrl.evaluate: greedy", greedy),
        environment=_options("ddrl.evaluate: environment", environment),
        where="ddrl.evaluate: environment",
    )
    return Evaluation(tuple(found))


def _options(name: str, environment: object) -> dict[str, Any]:
    """Return the options of an environment. Raise UserError for what is no mapping."""
    if not isinstance(environment, Mapping | None):
        raise arguments.refused(name, "a mapping such as {'friction': 0.4}", environment)
    return {str(key): arguments.plain(value) for key, value in (environment or {}).items()}


@arguments.one_line()
def export(run: AnyRun) -> Path:
    """Write the newest policy of a run to `policy.safetensors` in its directory, and return the path.

    The file holds the parameters alone and no code. With `config.json` beside it, it can be evaluated, watched and
    loaded without the run's checkpoints.

    Args:
        run: a run, or its directory.

    Raises:
        UserError: the run has no checkpoint.
    """
    return exporting.export(directory_of(run, "ddrl.export: run")).path
