"""Keeps an interval over seeds from being narrower than the scores themselves are known.

The score of a seed is a mean over few episodes of one or several versions of its parameters. It scatters for that
alone, by its standard error (`ddrl.analysis.runs.run_data.Spread.error`). The deviation between seeds contains this
scatter, but few seeds may agree by luck. An interval from their deviation is then narrower than a single one of them is
known. (With a score of one version, the variance between versions shows in nothing but the deviation between seeds.)
"""

from __future__ import annotations

import math

import numpy as np

from ddrl.analysis.statistics.significance import Sample


def at_least(values: Sample, errors: Sample) -> Sample:
    """Return seeds [n] with the same mean, drawn apart until they deviate as much as their standard errors [n] demand.

    They are returned as they are if they do already, or if there is one. A missing error counts as 0.
    """
    if len(values) < 2:
        return values
    demanded = math.sqrt(float((np.nan_to_num(errors) ** 2).mean()))
    if demanded == 0 or float(values.std(ddof=1)) >= demanded:
        return values
    apart = values - values.mean()
    if np.ptp(values) == 0:
        apart = np.linspace(-1.0, 1.0, len(values))
    spread: Sample = values.mean() + apart * (demanded / apart.std(ddof=1))
    return spread
