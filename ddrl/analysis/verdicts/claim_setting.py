"""Says how the runs of a claim differ from the paper's own setting: tasks, budget, settings, layout, hardware.

What contradicts a claim contradicts it at the paper's own setting only if nothing differs. This follows by rule from
experiments.yaml and the manifests of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddrl.analysis.runs.flags import SIZE_KEYS, changed_settings, flatten, same
from ddrl.analysis.runs.run_data import RunData
from ddrl.papers.claim_kinds import TIMED_METRICS
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Claim
from ddrl.system.wording import counted


def stand_ins(claim: Claim, experiment: Experiment, runs: Sequence[RunData], full_budget: float) -> list[str]:
    """Return what stands in for the paper's setting, in words; nothing if the runs have the paper's own.

    `full_budget`: the part of the paper's frames that counts as all of them.
    """
    found = ["other tasks than the paper's"] if experiment.proxy else []
    settings: set[str] = set()
    layout: set[str] = set()
    shares = []
    for run in runs:
        if run.variant not in experiment.variants:
            continue
        stated = experiment.paper_setting(run.variant, run.suite or run.environment)
        settings |= set(changed_settings(run.config, stated))
        ours, theirs = flatten(run.config), flatten(stated)
        layout |= {key for key in SIZE_KEYS if key in theirs and not same(ours.get(key), theirs[key])}
        if "env_frames" in stated and "env_frames" in run.config and not experiment.paper_budget:
            shares.append(int(run.config["env_frames"]) / int(stated["env_frames"]))
    if shares and min(shares) < full_budget:
        found.append(f"{min(shares):.2g} of the paper's frames")
    if settings:
        found.append(counted(len(settings), "changed setting"))
    if layout:
        found.append("another number or layout of workers")
    if claim.metric in TIMED_METRICS:
        found.append("other hardware")
    return found
