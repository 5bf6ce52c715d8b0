"""Convergence check: do new seeds learn as fast, and end as high, as the committed reference seeds?

After the reference convergence points of MLPerf. The reference seeds of one configuration are a sample; the mean of m
new seeds must lie where the mean of m further seeds of the same kind would fall (one-sided prediction interval of
Student's t: mean +- t s sqrt(1/n + 1/m)). All tests of one call together raise a false alarm with probability `LEVEL`
at most (Bonferroni).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
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
"""A final return that is lower by less than this part of the reference mean is no regression."""
IGNORED = ("seed", "env_frames", "evaluation", "recording", "tracking", "checkpoint", "device")
"""Keys that may differ in new runs: seed, budget, bookkeeping."""
IGNORED_IN_TOPOLOGY = ("topology.env_threads", "topology.learner_threads")
"""Keys that change how a machine computes, but not what."""


@dataclass(frozen=True)
class _Test:
    """One measure of the runs of one folder; higher is worse where `sign` is 1, lower is worse where it is -1."""

    name: str
    sign: int
    reference: Sample
    new: Sample
    resolution: float
    """Differences below this are never a regression."""
    unfinished: int
    """The number of new runs that never reached the threshold; they count as their budget, which is too little."""


def verify_against(runs: Path, reference: Path, *, replications: Path = ROOT) -> list[Check]:
    """Test the finished runs below `runs` (.../experiment/variant/environment/seed<k>) against those of `reference`.

    A run is compared with the reference runs of the same experiment, variant and environment whose configuration is
    equal but for `IGNORED`. A check with `passed` None says why nothing was compared. Raise UserError where a folder is
    missing, `runs` holds no run, or the paper of the reference runs cannot be read.
    """
    start = time.perf_counter()
    unread: list[Check] = []
    found: list[_Test | Check] = []
    for folder in _folders(runs, reference):
        paper, *parts = folder.resolve().parts[-4:]
        name = "/".join(parts)
        # Several papers may have the same folder names: the paper of the new runs comes first.
        places = sorted(reference.glob(f"*/{name}"), key=lambda place: place.parents[2].name != paper)
        if not places:
            unread.append(Check(name, None, f"{reference} has no runs of this name", 0.0))
            continue
        key = places[0].parents[2].name
        new = _load(folder, "run", key, unread)
        old = _load(places[0], "reference", key, unread)
        found += _tests(name, new, old, load_paper(replications / key).milestones)
    tests = [one for one in found if isinstance(one, _Test)]
    share, level = (time.perf_counter() - start) / max(1, len(tests)), LEVEL / max(1, len(tests))
    decided = [_decide(test, level, share) for test in tests]
    return [*decided, *unread, *(one for one in found if isinstance(one, Check))]


def _folders(runs: Path, reference: Path) -> list[Path]:
    """Return the folders experiment/variant/environment below `runs`, without those of `reference`."""
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
    return folders


def _load(folder: Path, origin: str, paper: str, checks: list[Check]) -> list[RunData]:
    """Return the runs of one folder experiment/variant/environment; add a failed check for each that cannot be read."""
    experiment, variant = folder.resolve().parts[-3:-1]
    found = []
    for directory in sorted(folder.glob("seed*")):
        try:
            found.append(load_run(directory, origin, paper, experiment, variant))
        except UserError as error:
            checks.append(Check(f"{experiment}/{variant}/{folder.name}/{directory.name}", False, str(error), 0.0))
    return found


def _tests(
    name: str, read: Sequence[RunData], references: Sequence[RunData], milestones: Mapping[str, float]
) -> Iterator[_Test | Check]:
    """Return what can be tested of the runs of one folder, and a check with `passed` None for what cannot.

    `milestones`: environment -> the training return that the frames are counted to, where the paper's file states one.
    """
    if not read or not references:
        seeds = f"{len(references)} reference and {len(read)} new"
        yield Check(name, None, f"too few seeds: {seeds} can be read", 0.0)
        return
    setting = references[0].config
    reference = [run for run in references if not departures(run.config, setting)]
    new = []
    for run in read:
        if keys := departures(run.config, setting):
            yield Check(f"{name}/seed{run.seed}", None, f"another configuration: {'; '.join(keys[:3])}", 0.0)
        else:
            new.append(run)
    if new and len(reference) < MIN_REFERENCE_SEEDS:
        line = f"too few seeds: {len(reference)} in the reference; at least {MIN_REFERENCE_SEEDS} are needed"
        yield Check(name, None, line, 0.0)
    elif new:
        threshold = milestones.get(references[0].environment)
        if threshold is not None:
            yield _frames_test(f"{name}: frames to {threshold:g}", threshold, new, reference)
        yield _return_test(f"{name}: final return", new, reference)


def departures(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return `key 1 instead of 2` for every key in which two configurations differ, but for `IGNORED`.

    A key that is newer than a run has its default there; a configuration that is no longer allowed stays as it is.
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
    try:
        return to_json(parse_run_config(config))
    except UserError:
        return config


def _frames_test(name: str, threshold: float, new: Sequence[RunData], reference: Sequence[RunData]) -> _Test | Check:
    """Compare env_frames of the first record whose `recent_returns` reach `threshold`."""
    old, now = (
        [first_reached(recent_returns(run), threshold, "env_frames") for run in runs] for runs in (reference, new)
    )
    if never := sum(map(math.isinf, old)):
        return Check(name, None, f"{never} of {len(old)} reference runs never reached {threshold:g}", 0.0)
    values = [min(frames, float(run.manifest["env_frames"])) for frames, run in zip(now, new, strict=True)]
    spacing = max(_record_spacing(run) for run in (*reference, *new))
    return _Test(name, 1, np.array(old, dtype=np.float64), np.array(values), spacing, sum(map(math.isinf, now)))


def _record_spacing(run: RunData) -> float:
    """Return the median of the frames between two records: how exactly the frames to a threshold are known."""
    frames = np.unique(run.curves["env_frames"][run.curves["metric"] == "episode_return"].to_numpy(dtype=np.float64))
    return float(np.median(np.diff(frames))) if len(frames) > 1 else 0.0


def _return_test(name: str, new: Sequence[RunData], reference: Sequence[RunData]) -> _Test | Check:
    budgets = [float(run.manifest["env_frames"]) for run in (*reference, *new)]
    if max(budgets) > (1 + EQUAL_BUDGET) * min(budgets):
        return Check(name, None, f"budgets differ: {min(budgets):,.0f} to {max(budgets):,.0f} frames", 0.0)
    old, now = (np.array([float(final_episodes(run).mean()) for run in runs]) for runs in (reference, new))
    return _Test(name, -1, old, now, RESOLUTION * abs(float(old.mean())), 0)


def _decide(test: _Test, level: float, seconds: float) -> Check:
    """Fail where the mean of the new seeds is on the worse side of the one-sided prediction limit of `level`."""
    mean, now = float(test.reference.mean()), float(test.new.mean())
    interval = prediction_interval(test.reference, 1 - 2 * level, len(test.new))
    half = max((interval[1] - interval[0]) / 2, test.resolution)
    limit = mean + test.sign * half
    worse = test.sign * (now - limit) > 0
    shown = f"{{:,.{0 if test.sign > 0 else 3}f}}".format
    censored = f", {test.unfinished} of them never (counted as their budget)" if test.unfinished else ""
    bound = "at most" if test.sign > 0 else "at least"
    line = (
        f"{shown(now)} over {len(test.new)} seed{'s' * (len(test.new) > 1)}{censored}; {bound} {shown(limit)} at level "
        f"{level:.2g} (reference {shown(mean)} over {len(test.reference)} seeds)"
    )
    if test.unfinished and not worse:
        return Check(test.name, None, f"budget too small to tell: {line}", seconds)
    return Check(test.name, not worse, line, seconds)
