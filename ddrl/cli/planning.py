"""`ddrl plan`: estimates jobs, hours, GPU hours and storage of every experiment of a scale before anything runs.

Hours follow from finished runs and benchmarks, one's own and committed ones; the closest counts:

`same`    the same experiment, variant and scale: as many frames per second as those runs.
`scaled`  the same algorithm, kind of task and network: core-seconds per frame, spread over the run's cores. This leaves
          out that a learner does not use many cores well, and that a GPU learns faster where none was measured.
`none`    nothing like it was measured: a sum that leaves such runs out is printed as more than (>) that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddrl.papers.experiments import MANIFESTS, PlannedRun
from ddrl.slurm.site import TRAIN, Job, Site
from ddrl.system.files import read_file
from ddrl.training.config.experiments import expand

if TYPE_CHECKING:
    from ddrl.training.builder import Builder
    from ddrl.types import EnvSpec

PARAMETER_COPIES = 4
"""Copies in a checkpoint: the parameters, two moments of Adam, and a target network (some algorithms have fewer)."""
RECORD_BYTES = 1500
"""Bytes of one record in curves.jsonl, curves.parquet and TensorBoard together (measured: 1,000 to 1,500)."""
QUALITY = ("same", "scaled", "none")
SHORT = "smoke"
Shapes = tuple[tuple[int, ...], ...]
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, ZeroDivisionError)


@dataclass(frozen=True)
class Measured:
    """A finished run, or a benchmark (whose scale, experiment and variant are empty)."""

    algorithm: str
    environment: str
    network: str
    frames_per_second: float
    cores: int
    gpu: bool
    scale: str = ""
    experiment: str = ""
    variant: str = ""


class Estimate(NamedTuple):
    """The expected cost of one run; `measured` is one of `QUALITY` (`none`: 0 hours)."""

    run: PlannedRun
    hours: float
    measured: str
    bytes: int


def plan(chosen: Sequence[str], scale: str, *, results: Path, root: Path = Path("replications")) -> list[Estimate]:
    """Estimate each run. Raise `UserError` for a paper or a scale that does not exist."""
    known = measured(results)
    estimates = []
    for run in (run for paper in chosen for run in expand(paper, scale, root=root)):
        seconds, quality = seconds_of(run, known)
        estimates.append(Estimate(run, seconds / 3600, quality, storage_bytes(run)))
    return estimates


def seconds_of(run: PlannedRun, known: Sequence[Measured]) -> tuple[float, str]:
    """Return the seconds of training that a run is expected to take, and their quality (`none`: 0 seconds)."""
    frames = frames_of(run.config)
    same = [
        one
        for one in known
        if (one.scale, one.experiment, one.variant) == (run.scale, run.experiment, run.variant)
        and _kind(one.environment) == _kind(run.environment)
    ]
    if same:
        return frames / _mean(one.frames_per_second for one in same), "same"
    hyperparameters = run.config.get("hyperparameters", {})
    wanted = (run.config["algorithm"], _kind(run.environment), hyperparameters.get("network"))
    alike = [one for one in known if (one.algorithm, _kind(one.environment), one.network) == wanted]
    alike = [one for one in alike if one.scale != SHORT] or alike  # short runs mostly measure the start-up
    alike = [one for one in alike if one.gpu == (run.resources.gpus > 0)] or alike
    if not alike:
        return 0.0, "none"
    core_seconds = _mean(one.cores / one.frames_per_second for one in alike)
    return frames * core_seconds / (run.resources.threads * run.resources.nodes), "scaled"


def frames_of(config: Mapping[str, Any]) -> int:
    """Return the frames of a run; in a population, of all members."""
    population = config.get("population")
    return int(config["env_frames"]) * (int(population["size"]) if population else 1)


def _kind(environment: str) -> str:
    return environment.partition("/")[0]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def measured(results: Path) -> list[Measured]:
    """Read the finished runs and benchmarks below `results`, with the committed ones in its folder `reference`.

    Files that cannot be read are left out: `ddrl verify` names what is damaged.
    """
    found = []
    for path in sorted(results.glob(MANIFESTS)):
        scale, _, experiment, variant, *_ = path.relative_to(results).parts
        with suppress(*UNREADABLE):
            manifest = json.loads(read_file(path).decode())
            frames = manifest.get("population", manifest)["env_frames"]  # of all members
            speed = frames / manifest["seconds"]
            place = {"scale": scale, "experiment": experiment, "variant": variant}
            found.append(_measured(manifest["config"], manifest["hardware"], speed, **place))
    for path in sorted(results.glob("*/bench/**/*.json")):
        with suppress(*UNREADABLE):
            bench = json.loads(read_file(path).decode())
            for one in bench.get("measurements", [bench]):
                speed = one["median_training_frames_per_second"]
                found.append(_measured(one["config"], bench["hardware"], speed))
    return found


def _measured(config: Any, hardware: Any, speed: float, **place: str) -> Measured:
    serial = config["topology"]["runtime"] == "serial"
    parallel = (config.get("population") or {"parallel": 1})["parallel"]
    return Measured(
        algorithm=config["algorithm"],
        environment=config["environment"]["name"],
        network=config["hyperparameters"]["network"],
        frames_per_second=speed,
        cores=min(parallel, hardware["cores"]) if serial else hardware["cores"],
        gpu=hardware["gpu"] is not None,
        **place,
    )


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

    from ddrl.runtimes.ray.launch import step_bytes
    from ddrl.training.learner_node import make_history

    config, keys = builder.config, builder.config.hyperparameters
    if config.checkpoint.replay == "refilled":
        return 0
    if config.system.store == "prioritized":
        with torch.device("meta"):  # takes no memory
            return make_history(builder, state_shapes).nbytes
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
    """Return the sums over runs, one after the other, and the worst of `QUALITY` among them."""
    measured = max((one.measured for one in estimates), key=QUALITY.index)
    more = "> " if measured == "none" else ""
    needs = [(one.hours * one.run.resources.nodes, one.run.resources) for one in estimates]
    gpu_hours = more + _hours(sum(node_hours * needed.gpus for node_hours, needed in needs))
    return {
        "paper": paper,
        "experiment": experiment,
        "runs": f"{len(estimates):,}",
        "frames": f"{sum(frames_of(one.run.config) for one in estimates):.3g}",
        "core hours": more + _hours(sum(node_hours * needed.threads for node_hours, needed in needs)),
        "GPU hours": gpu_hours if any(needed.gpus for _, needed in needs) else "0",
        "storage": f"{sum(one.bytes for one in estimates) / 2**30:,.1f} GiB",
        "measured": measured,
    }


def _hours(hours: float) -> str:
    return f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}"


def too_long(estimates: Sequence[Estimate], site: Site, scale: str) -> list[str]:
    """Return a line for each experiment whose runs are expected to take longer than the site file allows."""
    complaints = []
    for (paper, experiment), found in _grouped(estimates, "paper", "experiment").items():
        minutes = site.request(Job(TRAIN, scale, paper, experiment, found[0].run.resources)).minutes
        expected = sum(one.hours for one in found) * 60 / len(found)
        if minutes is not None and expected > minutes:
            complaints.append(
                f"{paper}, {experiment}: a run is expected to take {expected:,.0f} minutes, and {site.path} "
                f"gives it {minutes:,}; it would be continued at the next try, from its newest checkpoint"
            )
    return complaints
