"""`ddrl plan`: estimates jobs, hours, GPU hours and storage of every experiment of a scale before anything runs.

Hours are ranges, from the measurements that are most like a run (`ddrl.cli.speeds`). A sum of ranges adds their ends,
as if all runs were cheap or all were dear together: runs that are predicted from the same measurement are. A run that
nothing measured is like is left out of the hours, and counted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddrl.cli.speeds import Cost, System, cost_of, measured, system_of
from ddrl.papers.experiments import ROOT, PlannedRun, Roots
from ddrl.slurm.site import TRAIN, Job, Site
from ddrl.system.wording import counted
from ddrl.training.config.experiments import expand

if TYPE_CHECKING:
    from ddrl.training.builder import Builder
    from ddrl.types import EnvSpec

PARAMETER_COPIES = 4
"""Copies in a checkpoint: the parameters, two moments of Adam, and a target network (some algorithms have fewer)."""
RECORD_BYTES = 1500
"""Bytes of one record in curves.jsonl, curves.parquet and TensorBoard together (measured: 1,000 to 1,500)."""
WIDE = 30.0
"""How many times as much as its low end the high end of a range is at least that a line tells of."""
REASONS = {
    "other algorithm": "same network and simulator",
    "other simulator": "same algorithm and network",
    "other network": "same simulator alone",
    "network alone": "same network alone",
}
"""A step of `ddrl.cli.speeds.STEPS` by which a run is estimated -> what those runs have in common with it."""
Shapes = tuple[tuple[int, ...], ...]


class Estimate(NamedTuple):
    """The expected hours of one run, at least and at most, and the cost of a frame behind them (None: not measured)."""

    run: PlannedRun
    low: float
    high: float
    cost: Cost | None
    bytes: int
    measured: bool
    """Whether a run alike was measured: algorithm, network, simulator, runtime, machine and budget; else estimated."""


def plan(chosen: Sequence[str], scale: str, *, results: Path, root: Roots = ROOT) -> list[Estimate]:
    """Estimate each run. Raise `UserError` for a paper or a scale that does not exist."""
    known = measured(results)
    costs = cache(lambda system: cost_of(system, known))  # once for all seeds and scales of a system
    return [estimate(run, costs) for paper in chosen for run in expand(paper, scale, root=root)]


def estimate(run: PlannedRun, costs: Callable[[System], Cost | None]) -> Estimate:
    """Return what a run takes: its frames at the cost of one, spread over its cores; 0 hours where nothing is known.

    `costs` says what a frame of a system costs.
    """
    system = system_of(run.config, gpu=run.resources.gpus > 0)
    cost, cores = costs(system), run.resources.threads * run.resources.nodes
    hours = frames_of(run.config) / cores / 3600
    low, high = (0.0, 0.0) if cost is None else (hours * cost.low, hours * cost.high)
    alike = cost is not None and cost.measured(system, cores, frames_of(run.config))
    return Estimate(run, low, high, cost, storage_bytes(run), alike)


def frames_of(config: Mapping[str, Any]) -> int:
    """Return the frames of a run; in a population, of all members."""
    population = config.get("population")
    return int(config["env_frames"]) * (int(population["size"]) if population else 1)


def storage_bytes(run: PlannedRun) -> int:
    """Return the bytes that a run keeps on disk: its newest checkpoints and its records."""
    from ddrl.training.records.checkpoint import KEPT  # imports torch

    members = frames_of(run.config) // int(run.config["env_frames"])
    records = frames_of(run.config) // run.config["recording"]["period_frames"]
    key = json.dumps({**run.config, "seed": 0, "env_frames": 1, "population": None}, sort_keys=True)
    return members * KEPT * checkpoint_bytes(key) + int(records) * RECORD_BYTES


@cache
def checkpoint_bytes(config: str) -> int:
    """Return the bytes of a checkpoint by the configuration (JSON): parameters with moments, and the full store."""
    import torch

    from ddrl.training.builder import Builder
    from ddrl.training.config.run_config import parse_run_config

    builder = Builder(parse_run_config(json.loads(config), where="plan"), torch.device("cpu"))
    spec = replace(builder.spec, name="", protocol="")  # tasks whose spec has the same shapes share a network
    parameter_bytes, state_shapes = network_size(builder.config.algorithm, spec, builder.config.hyperparameters)
    return PARAMETER_COPIES * parameter_bytes + _stored_bytes(builder, state_shapes)


def _stored_bytes(builder: Builder, state_shapes: Shapes) -> int:
    """Return the bytes of the store in a checkpoint; 0 where a continued run refills it."""
    import torch

    from ddrl.replay.prioritized import ITEM_BYTES
    from ddrl.runtimes.ray.launch import step_bytes
    from ddrl.training.learner_node import make_history

    config, keys = builder.config, builder.config.hyperparameters
    if config.checkpoint.replay == "refilled":
        return 0
    if config.system.store == "prioritized":
        with torch.device("meta"):  # takes no memory
            history = make_history(builder, state_shapes)
        return history.nbytes + ITEM_BYTES * history.num_streams * history.length  # at most an item for each step
    return keys.stored_columns * (keys.unroll_length + 1) * step_bytes(builder.spec)


@cache
def network_size(algorithm: str, spec: EnvSpec, hyperparameters: Any) -> tuple[int, Shapes]:
    """Return the bytes of a network's parameters, and the shapes of the parts of its recurrent state."""
    import torch

    from ddrl import algorithms

    with torch.device("meta"):  # takes no memory, and draws no weights, which takes long
        network: Any = algorithms.load(algorithm).make_network(spec, hyperparameters, torch.Generator().manual_seed(0))
    parameter_bytes = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
    return parameter_bytes, tuple(tuple(part.shape[1:]) for part in network.initial_state(1))


def rows(estimates: Sequence[Estimate]) -> list[dict[str, str]]:
    """Return what is printed: a row per experiment, one per paper, and one for all papers."""
    printed = []
    papers = _grouped(estimates, "paper")
    for paper, own in papers.items():
        printed += [_row(paper, experiment, found) for experiment, found in _grouped(own, "experiment").items()]
        printed.append(_row(paper, "all", own))
    if len(papers) > 1:
        printed.append(_row("all", "", estimates))
    return printed


def _grouped(estimates: Iterable[Estimate], *names: str) -> dict[Any, list[Estimate]]:
    """Return what these attributes of runs are -> the estimates of those runs."""
    groups: dict[Any, list[Estimate]] = {}
    for one in estimates:
        groups.setdefault(attrgetter(*names)(one.run), []).append(one)
    return groups


def _row(paper: str, experiment: str, estimates: Sequence[Estimate]) -> dict[str, str]:
    """Return the sums over runs, one after the other, and what they follow from."""
    known = [one for one in estimates if one.cost is not None]
    missing = len(estimates) - len(known)
    more = f" + {counted(missing, 'run')}" if missing and known else ""
    gpus = any(one.run.resources.gpus for one in estimates)
    return {
        "paper": paper,
        "experiment": experiment,
        "runs": f"{len(estimates):,}",
        "frames": f"{sum(frames_of(one.run.config) for one in estimates):.3g}",
        "core hours": _range(known, "threads") + more,
        "GPU hours": _range(known, "gpus") + more if gpus else "0",
        "storage": f"{sum(one.bytes for one in estimates) / 2**30:,.1f} GiB",
        "measured": _measured_share(known) if known else "",
        "from": _sources(estimates),
    }


def _range(estimates: Sequence[Estimate], unit: str) -> str:
    """Return the hours of a unit that runs hold (threads or gpus of each node), at least and at most."""
    if not estimates:
        return "not measured"
    held = [one.run.resources.nodes * attrgetter(unit)(one.run.resources) for one in estimates]
    low, high = (
        sum(hours(one) * number for one, number in zip(estimates, held, strict=True))
        for hours in (attrgetter("low"), attrgetter("high"))
    )
    return f"{_hours(low)} to {_hours(high)}"


def _measured_share(estimates: Sequence[Estimate]) -> str:
    """Return the share of the core hours (middle of each range) for which a run alike was measured."""
    total = same = 0.0
    for one in estimates:
        hours = math.sqrt(one.low * one.high) * one.run.resources.nodes * one.run.resources.threads
        total += hours
        same += hours if one.measured else 0.0
    return f"{100 * same / total:.0f} %"


def _sources(estimates: Sequence[Estimate]) -> str:
    """Return what the runs were predicted from, with their numbers: `same task 12; estimated: other network 3`.

    Runs of which a run alike was measured come first, then estimates, then runs of which nothing is known.
    """
    parts = {"": Counter[str](), "estimated: ": Counter[str](), "not measured ": Counter[str]()}
    for one in estimates:
        kind = "not measured " if one.cost is None else "" if one.measured else "estimated: "
        parts[kind]["" if one.cost is None else one.cost.step.name] += 1
    said = "; ".join(
        start + ", ".join(f"{name} {number:,}".strip() for name, number in counts.most_common())
        for start, counts in parts.items()
        if counts
    )
    other = sum(one.cost is not None and not one.cost.same_device for one in estimates)
    return said + (f"; by CPU {other:,}" if other else "")


def unmeasured(estimates: Sequence[Estimate]) -> list[str]:
    """Return a line for each kind of run that the hours leave out, with the command that would measure it."""
    return [
        f"not measured: {_kind(found)}; {_measure(found[0])}"
        for found in _kinds(one for one in estimates if one.cost is None)
    ]


def wide(estimates: Sequence[Estimate]) -> list[str]:
    """Return a line for each kind of run whose range is wide, why it is, and the command that would narrow it."""
    said = []
    for found in _kinds(one for one in estimates if one.cost and not one.cost.step.same):
        cost = max((one.cost for one in found if one.cost), key=lambda cost: cost.high / cost.low)
        if cost.high / cost.low > WIDE:
            alike, apart = REASONS[cost.step.name], cost.high / cost.low
            why = f"estimated from runs of the {alike}, so the ends of a range are up to {apart:,.0f}-fold apart"
            are = "is" if len(found) == 1 else "are"
            said.append(f"wide: {_kind(found)} {are} {why}; {_measure(found[0])}")
    return said


def _kinds(estimates: Iterable[Estimate]) -> list[list[Estimate]]:
    """Return the estimates by algorithm, network and simulator."""
    kinds: dict[tuple[str, str, str], list[Estimate]] = {}
    for one in estimates:
        system = system_of(one.run.config, gpu=False)
        kinds.setdefault((system.algorithm, system.network, system.simulator), []).append(one)
    return list(kinds.values())


def _kind(estimates: Sequence[Estimate]) -> str:
    system = system_of(estimates[0].run.config, gpu=False)
    return f"{counted(len(estimates), 'run')} of {system.algorithm} with network {system.network} on {system.simulator}"


def _measure(one: Estimate) -> str:
    """Return how such a run is measured; there are no benchmarks of other libraries."""
    if one.run.config.get("peer"):
        return "the first one that is over measures them"
    system, cells = system_of(one.run.config, gpu=False), one.run.config["hyperparameters"].get("lstm_size")
    network = system.network.partition(" ")[0] + (f" --set hyperparameters.lstm_size={cells}" if cells else "")
    command = f"ddrl bench {system.algorithm} {one.run.environment} --network {network}"
    return f"measure one: {command} --json results/own/bench/NAME.json"


def _hours(hours: float) -> str:
    """Return hours with two digits or more, never as 0 where there are some."""
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def too_long(estimates: Sequence[Estimate], site: Site, scale: str) -> list[str]:
    """Return a line for each experiment whose runs may take longer than the site file allows."""
    complaints = []
    for (paper, experiment), found in _grouped(estimates, "paper", "experiment").items():
        minutes = site.request(Job(TRAIN, scale, paper, experiment, found[0].run.resources)).minutes
        known = [one for one in found if one.cost is not None]
        low, high = (60 * sum(map(attrgetter(end), known)) / max(len(known), 1) for end in ("low", "high"))
        if minutes is not None and high > minutes:
            complaints.append(
                f"{paper}, {experiment}: a run is expected to take {low:,.0f} to {high:,.0f} minutes, and {site.path} "
                f"gives it {minutes:,}; it would be continued at the next try, from its newest checkpoint"
            )
    return complaints
