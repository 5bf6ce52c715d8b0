"""ddrl: reproducible replications of distributed deep reinforcement learning papers.

Whatever is in `__all__` is public. Torch and pandas are imported when one of these names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddrl.errors import UserError

if TYPE_CHECKING:
    from ddrl.api.public import (
        Evaluation,
        PolicyState,
        Run,
        TrainedPolicy,
        compare,
        evaluate,
        export,
        load_policy,
        load_run,
        train,
    )

__version__ = "0.1.0"
__all__ = (
    "Evaluation",
    "PolicyState",
    "Run",
    "TrainedPolicy",
    "UserError",
    "compare",
    "evaluate",
    "export",
    "load_policy",
    "load_run",
    "train",
)


def __getattr__(name: str) -> Any:
    """Return a public name that is not imported yet. Raise AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module 'ddrl' has no attribute '{name}'")
    from ddrl.api import public

    return vars(public)[name]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, "__version__"])
