"""The episodes of an evaluation: of every task of a suite, with the newest parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddrl.acting import Builder
from ddrl.actors import evaluator
from ddrl.actors.policy import LocalInference
from ddrl.errors import UserError
from ddrl.types import Episode


def play_tasks(
    builder: Builder,
    params: Any,
    index: int,
    episodes: int,
    should_stop: Callable[[], bool],
    *,
    note: Callable[[str], None],
) -> list[Episode] | None:
    """`episodes` of each task in evaluation number `index`; None where `should_stop` ended them before.

    A task of a suite that cannot be played is left out, and the user told. Raises `UserError` where it is the only one.
    """
    inference = builder.inference()
    params.pull_newest(inference.network)
    tasks = builder.evaluated_tasks
    played: list[Episode] = []
    expected = episodes * len(tasks)
    for number, task in enumerate(tasks, index * len(tasks)):
        try:
            played += _play(builder, task, number, episodes, inference, should_stop)
        except UserError as error:
            if len(tasks) == 1:
                raise
            expected -= episodes
            note(f"{error}; the other tasks are evaluated")
    return played if len(played) == expected else None


def _play(
    builder: Builder,
    task: str,
    number: int,
    episodes: int,
    inference: LocalInference,
    should_stop: Callable[[], bool],
) -> list[Episode]:
    columns = evaluator.num_envs(episodes)
    policy = builder.policy("evaluation", number, columns, inference)
    env = builder.evaluation_env(task, number, columns)
    try:
        return evaluator.play(env, policy, episodes, should_stop=should_stop)
    finally:
        env.close()
