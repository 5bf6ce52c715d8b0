"""The limit of the frames to a target, from the seeds that were recorded, and what new seeds must stay below.

Frames to a target are positive and skewed, and a fault multiplies them: means and limits are those of logarithms, which
is geometric means of frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ddrl.analysis.statistics.significance import prediction_interval
from ddrl.errors import UserError
from ddrl.regression.checks import CheckOutcome

LEVEL = 0.05
"""The probability at most that one of all reference points of one call fails although nothing changed (Bonferroni)."""


def limit(frames: Sequence[float], others: int, level: float) -> float:
    """Return what the geometric mean of `others` further seeds exceeds with probability `level`.

    That is the end of the one-sided prediction interval of Student's t: mean + t s sqrt(1/n + 1/m), of logarithms.
    """
    return math.exp(prediction_interval(np.log(np.array(frames, dtype=np.float64)), 1 - 2 * level, others)[1])


def mean(frames: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(float(np.mean(np.log(frames))))


def judge(recorded: Sequence[float], new: Sequence[float], *, budget: float, level: float) -> CheckOutcome:
    """Compare the mean of new seeds with the limit; a seed that never reached the target (inf) counts as its budget."""
    allowed, never = limit(recorded, len(new), level), sum(map(math.isinf, new))
    now = mean([min(one, budget) for one in new])
    missed = f", {never} of them never (counted as their budget)" if never else ""
    line = (
        f"{now:,.0f} frames over {len(new)} seeds{missed}; at most {allowed:,.0f} at level {level:.2g} "
        f"(recorded {mean(recorded):,.0f} over {len(recorded)} seeds)"
    )
    return CheckOutcome(now <= allowed, line)


def check_budget(frames: Sequence[float], others: int, budget: float, level: float, where: str) -> None:
    """Raise `UserError` where runs of `budget` frames could not exceed the limit, so that the check could not fail."""
    if never := sum(map(math.isinf, frames)):
        raise UserError(f"{where}: {never} of {len(frames)} seeds never reached the target; raise key 'env_frames'")
    if (allowed := limit(frames, others, level)) >= budget:
        raise UserError(f"{where}: the limit is {allowed:,.0f} frames; key 'env_frames' must be above, not {budget:,}")
