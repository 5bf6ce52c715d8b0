"""The public names of `ddrl` that need torch or pandas. `ddrl` imports this file when one of them is first used."""

from __future__ import annotations

from ddrl.api.agents import Evaluation, evaluate, export, load_policy
from ddrl.api.comparison import compare
from ddrl.api.policy import PolicyState, TrainedPolicy
from ddrl.api.runs import Run, load_run, train

__all__ = (
    "Evaluation",
    "PolicyState",
    "Run",
    "TrainedPolicy",
    "compare",
    "evaluate",
    "export",
    "load_policy",
    "load_run",
    "train",
)
