"""The layout of a run's checkpoints: its number, and what makes of an older layout the present one.

A state that has no number is of layout 1. A change of layout raises `SCHEMA` and adds a step to `MIGRATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SCHEMA = 2


def migrated(state: Any) -> dict[str, Any]:
    """The state of a run in the present layout; one that has it already comes back as it is.

    Raises ValueError, with what is wrong in a few words, for what is no state of a run, or of a layout to come.
    """
    if not isinstance(state, dict) or not isinstance(state.get("identity"), str):
        raise ValueError("holds no state of a run")
    number = state.get("schema", 1)
    if not isinstance(number, int) or not 1 <= number <= SCHEMA:
        raise ValueError(f"is of layout {number!r}, and this version of ddrl knows those up to {SCHEMA}")
    found: dict[str, Any] = state
    try:
        for one in range(number, SCHEMA):
            for step in MIGRATIONS[one]:
                found = step(found)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"is of another layout ({type(error).__name__}: {error})") from error
    return found | {"schema": SCHEMA}


def without_marks(state: dict[str, Any]) -> dict[str, Any]:
    """Before populations nobody led a run, and before Ray no actor was replaced."""
    return {"marks": {}, "actor_restarts": 0} | state


def without_tasks(state: dict[str, Any]) -> dict[str, Any]:
    """Before suites nobody kept scores of tasks, and an episode did not say which one it was of: return and length."""
    recorder: dict[str, Any] = {"task_scores": {}} | dict(state["recorder"])
    episodes = [["", *episode] if len(episode) == 2 else episode for episode in recorder["episodes"]]
    return state | {"recorder": recorder | {"episodes": episodes}}


def without_actors(state: dict[str, Any]) -> dict[str, Any]:
    """Before replays an actor had nothing to keep beside its collector."""
    if "collectors" not in state:
        return state
    return {"actors": [{} for _ in state["collectors"]]} | state


def with_one_optimizer(state: dict[str, Any]) -> dict[str, Any]:
    """Before parameter servers the learner of shared parameters had one optimizer for all of them."""
    learner = dict(state["learner"])
    if "normalisation" not in learner and "optimizer" in learner:
        learner["optimizers"] = [learner.pop("optimizer")]
    return state | {"learner": learner}


def collectors_of_before(state: dict[str, Any]) -> dict[str, Any]:
    """Nothing was acted ahead before GA3C; environments that nobody had stepped were saved before they were reset."""
    if "collectors" not in state:
        return state
    return state | {"collectors": [_collector(saved) for saved in state["collectors"]]}


def _collector(saved: Mapping[str, Any]) -> dict[str, Any]:
    never_acted = {"env": None, "step": None} if saved["next_index"] == 0 else {}
    return {"acted": []} | dict(saved) | never_acted


Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: dict[int, tuple[Migration, ...]] = {
    1: (without_marks, without_tasks, without_actors, with_one_optimizer, collectors_of_before),
}
"""Layout -> what makes the next one of it."""
