"""Reference convergence points: do new seeds learn as fast, and end as high, as the committed ones?

After the reference convergence points of MLPerf. The reference seeds of one configuration are a sample; the mean of m
new seeds must lie where the mean of m further seeds of the same kind would fall (one-sided prediction interval of
Student's t: mean +- t s sqrt(1/n + 1/m)). All tests of one call together raise a false alarm with probability `LEVEL`
at most (Bonferroni). torch is imported only where configurations are read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.analysis.runs.flags import flatten, same
from ddrl.analysis.runs.milestones import recent_returns
from ddrl.analysis.runs.run_data import RunData, final_episodes, load_run
from ddrl.analysis.statistics.claim_tests import first_reached
from ddrl.analysis.statistics.significance import EQUAL_BUDGET, Sample, prediction_interval
from ddrl.errors import UserError
from ddrl.papers.experiments import ROOT
from ddrl.papers.paper import load_paper
from ddrl.regression.checks import Check
from ddrl.system.files import below
from ddrl.training.config.run_config import parse_run_config, to_json

LEVEL = 0.05
MIN_REFERENCE_SEEDS = 2
RESOLUTION = 0.01
"""A final return lower by less than this part of the reference mean is no regression, however small the spread."""
IGNORED = ("seed", "env_frames", "evaluation", "recording", "checkpoint", "device")
"""Keys in which new runs may differ: seed, budget, bookkeeping."""
IGNORED_IN_TOPOLOGY = ("topology.env_threads", "topology.learner_threads")
"""How a machine computes the same thing."""


@dataclass(frozen=True)
class _Group:
    """New runs of one folder experiment/variant/environment, and the reference runs of that name."""

    name: str
    new: tuple[RunData, ...]
    reference: tuple[RunData, ...]
    threshold: float | None


@dataclass(frozen=True)
class _Test:
    """One measure of one group: higher is worse where `sign` is 1, lower where it is -1."""

    name: str
    sign: int
    reference: Sample
    new: Sample
    resolution: float
    """Differences below this are never a regression."""
    unfinished: int
    """New runs that never reached the threshold; their value is their budget, and the truth is more."""


def verify_against(runs: Path, reference: Path, *, replications: Path = ROOT) -> list[Check]:
    """Tests finished runs anywhere below `runs` (.../experiment/variant/environment/seed<k>) against `reference`.

    A run is compared with the reference runs of the same experiment, variant and environment whose configuration is
    equal but for `IGNORED`. A check with `passed` None says why nothing was compared. Raises: UserError where a folder
    is missing, `runs` holds no run, or the paper of the reference runs cannot be read.
    """
    start = time.perf_counter()
    groups, checks = _groups(runs, reference, replications)
    tests: list[_Test] = []
    for group in groups:
        found, skipped = _tests(group)
        tests += found
        checks += skipped
    share = (time.perf_counter() - start) / max(1, len(tests))
    level = LEVEL / max(1, len(tests))
    return [_decide(test, level, share) for test in tests] + checks


def _groups(runs: Path, reference: Path, replications: Path) -> tuple[list[_Group], list[Check]]:
    for folder in (runs, reference):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder")
    inside = reference.resolve()
    folders = sorted({path.parent.parent for path in below(runs, "config.json") if path.parent.name.startswith("seed")})
    folders = [folder for folder in folders if not folder.resolve().is_relative_to(inside)]
    if not folders:
        raise UserError(
            f"{runs}: holds no run (experiment/variant/environment/seed<k>/config.json) outside of {reference}"
        )
    groups, checks = [], []
    for folder in folders:
        experiment, variant, environment = folder.resolve().parts[-3:]
        name = f"{experiment}/{variant}/{environment}"
        # The same folder names may stand in several papers: the one that the runs lie in comes first.
        paper = folder.resolve().parts[-4]
        places = sorted(reference.glob(f"*/{name}"), key=lambda place: place.parents[2].name != paper)
        if not places:
            checks.append(Check(name, None, f"{reference} has no runs of this name", 0.0))
            continue
        key = places[0].parents[2].name
        new, damaged = _load(folder, "run", key)
        old, damaged_reference = _load(places[0], "reference", key)
        milestones = load_paper(replications / key).milestones
        threshold = milestones.get(old[0].environment) if old else None
        groups.append(_Group(name, tuple(new), tuple(old), threshold))
        checks += damaged + damaged_reference
    return groups, checks


def _load(folder: Path, origin: str, paper: str) -> tuple[list[RunData], list[Check]]:
    """The runs of one folder experiment/variant/environment; a failed check for each that cannot be read."""
    experiment, variant = folder.resolve().parts[-3:-1]
    found, failed = [], []
    for directory in sorted(folder.glob("seed*")):
        try:
            found.append(load_run(directory, origin, paper, experiment, variant))
        except UserError as error:
            failed.append(Check(f"{experiment}/{variant}/{folder.name}/{directory.name}", False, str(error), 0.0))
    return found, failed


def _tests(group: _Group) -> tuple[list[_Test], list[Check]]:
    """What can be tested, and a check with `passed` None for what cannot."""
    if not group.new or not group.reference:
        seeds = f"{len(group.reference)} reference and {len(group.new)} new"
        return [], [Check(group.name, None, f"too few seeds: {seeds} can be read", 0.0)]
    setting = group.reference[0].config
    reference = [run for run in group.reference if not departures(run.config, setting)]
    new, skipped = [], []
    for run in group.new:
        keys = departures(run.config, setting)
        if keys:
            line = f"another configuration: {'; '.join(keys[:3])}"
            skipped.append(Check(f"{group.name}/seed{run.seed}", None, line, 0.0))
        else:
            new.append(run)
    if not new:
        return [], skipped
    if len(reference) < MIN_REFERENCE_SEEDS:
        line = f"too few seeds: {len(reference)} in the reference; at least {MIN_REFERENCE_SEEDS} are needed"
        return [], [*skipped, Check(group.name, None, line, 0.0)]
    tests = []
    for outcome in (_frames_test(group, new, reference), _return_test(group, new, reference)):
        if isinstance(outcome, _Test):
            tests.append(outcome)
        elif outcome is not None:
            skipped.append(outcome)
    return tests, skipped


def departures(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """`key 1 instead of 2` for every key in which two configurations differ, but for `IGNORED`.

    A key that came after a run was made has its default there.
    """
    ours, theirs = flatten(_complete(config)), flatten(_complete(other))
    return [
        f"{key} {ours.get(key)} instead of {theirs.get(key)}"
        for key in dict.fromkeys([*ours, *theirs])
        if key.split(".")[0] not in IGNORED
        and key not in IGNORED_IN_TOPOLOGY
        and not same(ours.get(key), theirs.get(key))
    ]


def _complete(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With every key there is today; as it was written down where it is not allowed any more."""
    try:
        return to_json(parse_run_config(config))
    except UserError:
        return config


def frames_to(run: RunData, threshold: float) -> float | None:
    """env_frames of the first record where `recent_returns` reach `threshold`; None where they never do."""
    reached = first_reached(recent_returns(run), threshold, "env_frames")
    return reached if math.isfinite(reached) else None


def _frames_test(group: _Group, new: Sequence[RunData], reference: Sequence[RunData]) -> _Test | Check | None:
    threshold = group.threshold
    if threshold is None:
        return None
    name = f"{group.name}: frames to {threshold:g}"
    old = [frames_to(run, threshold) for run in reference]
    if None in old:
        line = f"{old.count(None)} of {len(old)} reference runs never reached {threshold:g}"
        return Check(name, None, line, 0.0)
    now = [frames_to(run, threshold) for run in new]
    values = [
        float(run.manifest["env_frames"]) if frames is None else frames for frames, run in zip(now, new, strict=True)
    ]
    spacing = max(_record_spacing(run) for run in (*reference, *new))
    return _Test(name, 1, np.array(old, dtype=np.float64), np.array(values), spacing, now.count(None))


def _record_spacing(run: RunData) -> float:
    """Frames between two records (median): what a time to a threshold is known to."""
    frames = np.unique(run.curves["env_frames"][run.curves["metric"] == "episode_return"].to_numpy(dtype=np.float64))
    return float(np.median(np.diff(frames))) if len(frames) > 1 else 0.0


def _return_test(group: _Group, new: Sequence[RunData], reference: Sequence[RunData]) -> _Test | Check:
    name = f"{group.name}: final return"
    budgets = [float(run.manifest["env_frames"]) for run in (*reference, *new)]
    if max(budgets) > (1 + EQUAL_BUDGET) * min(budgets):
        return Check(name, None, f"budgets differ: {min(budgets):,.0f} to {max(budgets):,.0f} frames", 0.0)
    old, now = (np.array([float(final_episodes(run).mean()) for run in runs]) for runs in (reference, new))
    return _Test(name, -1, old, now, RESOLUTION * abs(float(old.mean())), 0)


def _decide(test: _Test, level: float, seconds: float) -> Check:
    """Is the mean of the new seeds on the bad side of the one-sided prediction limit of `level`?"""
    mean, now = float(test.reference.mean()), float(test.new.mean())
    interval = prediction_interval(test.reference, 1 - 2 * level, len(test.new))
    half = max((interval[1] - interval[0]) / 2, test.resolution)
    limit = mean + test.sign * half
    worse = test.sign * (now - limit) > 0
    shown = f"{{:,.{0 if test.sign > 0 else 3}f}}".format
    censored = f", {test.unfinished} of them never (counted as their budget)" if test.unfinished else ""
    bound = "at most" if test.sign > 0 else "at least"
    line = (
        f"{shown(now)} over {_seeds(len(test.new))}{censored}; {bound} {shown(limit)} at level {level:.2g} (reference "
        f"{shown(mean)} over {_seeds(len(test.reference))})"
    )
    if test.unfinished and not worse:
        return Check(test.name, None, f"budget too small to tell: {line}", seconds)
    return Check(test.name, not worse, line, seconds)


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"
