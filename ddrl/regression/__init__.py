"""Checks that results, learning and speed still agree with what was committed (`python -m ddrl.regression check`).

evidence     tables, figures and verdicts made anew from `results/reference/`, against the accepted ones
golden       short serial runs, record by record
convergence  frames to a threshold and final return of new seeds, against the sample of reference seeds
points       frames to a target return on a small task, for each algorithm, against recorded seeds
throughput   a short benchmark as a fraction of its sum-of-parts bound, against the committed fraction
"""

from ddrl.regression.checks import WORDS, Check, describe, exit_status, write_junit
from ddrl.regression.convergence import verify_against

__all__ = ["WORDS", "Check", "describe", "exit_status", "verify_against", "write_junit"]
