"""The layout number of checkpoints, and the migrations from older layouts to the present one.

A state without a number has layout 1. A change of layout raises `SCHEMA` and adds an entry to `MIGRATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SCHEMA = 2


def migrated(state: Any) -> dict[str, Any]:
    """Return the state of a run in the present layout.

    Raise ValueError, with a short reason, if it is no state of a run, or has a newer or a broken layout.
    """
    if not isinstance(state, dict) or not isinstance(state.get("identity"), str):
        raise ValueError("holds no state of a run")
    number = state.get("schema", 1)
    if not isinstance(number, int) or not 1 <= number <= SCHEMA:
        raise ValueError(f"is of layout {number!r}, and this version of ddrl knows those up to {SCHEMA}")
    found: dict[str, Any] = state
    try:
        for layout in range(number, SCHEMA):
            found = MIGRATIONS[layout](found)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"is of another layout ({type(error).__name__}: {error})") from error
    return found | {"schema": SCHEMA}


def _from_layout_1(state: dict[str, Any]) -> dict[str, Any]:
    """Add what came later: populations, suites, replays, replacement of actors (Ray), parameter servers, GA3C."""
    recorder: dict[str, Any] = {"task_scores": {}} | dict(state["recorder"])
    recorder["episodes"] = [["", *episode] if len(episode) == 2 else episode for episode in recorder["episodes"]]
    learner = dict(state["learner"])
    if "normalisation" not in learner and "optimizer" in learner:  # one optimizer for all shared parameters
        learner["optimizers"] = [learner.pop("optimizer")]
    found = {"marks": {}, "actor_restarts": 0} | state | {"recorder": recorder, "learner": learner}
    if "collectors" in state:
        found["collectors"] = [_collector(saved) for saved in state["collectors"]]
        found.setdefault("actors", [{} for _ in state["collectors"]])
    return found


def _collector(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Add the actions made ahead, and drop environments that were saved before their first reset."""
    never_acted = {"env": None, "step": None} if saved["next_index"] == 0 else {}
    return {"acted": []} | dict(saved) | never_acted


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_layout_1}
"""Layout -> the function that turns it into the next one."""
