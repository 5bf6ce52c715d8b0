"""Separate episodes of a run with fixed parameters: of its task, or one after another of the tasks of a suite."""

from __future__ import annotations

from collections.abc import Callable

from ddrl.acting import Builder
from ddrl.actors import evaluator
from ddrl.actors.policy import LocalInference
from ddrl.errors import UserError
from ddrl.types import Episode


def evaluate(
    builder: Builder,
    inference: LocalInference,
    index: int,
    episodes: int,
    *,
    should_stop: Callable[[], bool],
    note: Callable[[str], None],
) -> list[Episode] | None:
    """`episodes` episodes of each task, on the seeds of evaluation `index`; None where it was stopped.

    Of several tasks, one that fails is left out and `note` is told why. Raises UserError where the only one fails.
    """
    tasks, played = builder.evaluated_tasks, []
    for number, task in enumerate(tasks, index * len(tasks)):
        try:
            own = _play(builder, inference, task, number, episodes, should_stop)
        except UserError as error:
            if len(tasks) == 1:
                raise
            note(f"{error}; the other tasks are evaluated")
            continue
        if len(own) < episodes:
            return None
        played += own
    return played


def _play(
    builder: Builder,
    inference: LocalInference,
    task: str,
    number: int,
    episodes: int,
    should_stop: Callable[[], bool],
) -> list[Episode]:
    columns = evaluator.num_envs(episodes)
    policy = builder.policy("evaluation", number, columns, inference)
    env = builder.evaluation_env(task, number, columns)
    try:
        return evaluator.play(env, policy, episodes, should_stop=should_stop)
    finally:
        env.close()
