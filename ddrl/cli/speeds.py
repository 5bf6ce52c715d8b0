"""What a frame of a run costs, from finished runs and benchmarks: a range, and what stands behind it.

The closest measurements count, by the steps `STEPS`. A range reaches from the cheapest to the dearest of them, without
the outer tenth at each end, and is widened by the step's factor: the looser the likeness, the wider. Cost is in
core-seconds per frame, so a run's hours follow from its cores; this leaves out that a learner does not use many cores
well.

The factors are such that of the reference runs, each predicted from the runs of other experiments alone, about nine in
ten lie in their range at every step (`share_inside`, held by a test). What a GPU gains is in no reference run:
`OTHER_DEVICE` is a guess, and the plan says where it was used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.papers.experiments import MANIFESTS
from ddrl.system.files import read_file

AGENTS = "*/agents/**/run.json"
"""The manifests of trained agents that are kept: runs of no paper."""
SHORT_FRAMES = 10_000
"""A run of fewer frames mostly measures its start-up: it counts only where there is nothing longer."""
TRAINING = ("unroll_length", "batch_size", "num_epochs", "num_minibatches", "num_traversals", "samples_per_insert")
"""Keys that say how much of training a frame takes part in, where an algorithm has them."""
OTHER_DEVICE = 10.0
"""How many times less a frame may cost with a GPU than measured without; and more without than measured with one."""
ALIKE_CORES = 2.0
"""How many times as many cores a machine that counts as alike may have, and as few."""
ALIKE_FRAMES = 10.0
"""How many times as long a run that counts as alike may be, and as short."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, ZeroDivisionError)


@dataclass(frozen=True)
class System:
    """What the cost of a frame depends on."""

    algorithm: str
    environment: str
    network: str
    layout: str
    gpu: bool
    training: tuple[Any, ...] = ()
    """The values of `TRAINING`."""

    @property
    def runtime(self) -> str:
        """The runtime, which is the first word of the layout."""
        return self.layout.partition(" ")[0]

    @property
    def simulator(self) -> str:
        """The environment's prefix."""
        return self.environment.partition("/")[0]


@dataclass(frozen=True)
class Measured:
    """A finished run, or a benchmark or an agent (whose place is empty)."""

    system: System
    core_seconds: float
    """Seconds of one core per frame."""
    place: tuple[str, ...] = ()
    """Scale, paper, experiment, variant."""
    short: bool = False
    """Whether it mostly measures its start-up."""
    cores: float = 1.0
    """Number of cores that it held."""
    frames: int | None = None
    """Its frames; None for a benchmark, which measures a steady speed."""

    def is_like(self, system: System, cores: float, frames: int) -> bool:
        """Return whether it measured a run such as this one: its runtime, its kind of machine and its budget.

        Alike are machines with a GPU or without, and numbers of cores up to `ALIKE_CORES` apart; budgets up to
        `ALIKE_FRAMES`. A benchmark has no budget.
        """
        machine = self.system.gpu == system.gpu and _near(self.cores, cores, ALIKE_CORES)
        budget = self.frames is None or _near(self.frames, frames, ALIKE_FRAMES)
        return self.system.runtime == system.runtime and machine and budget


class Step(NamedTuple):
    """A likeness between runs: what must be equal, and by how much a range is widened to both sides."""

    name: str
    factor: float
    key: Callable[[System], tuple[Any, ...]]
    same: bool
    """Whether algorithm, network and simulator are the same, without which a run is estimated and not measured."""


STEPS = (
    Step("same task", 1.4, lambda one: (one.algorithm, one.network, one.environment, one.layout, one.training), True),
    Step("same system", 1.9, lambda one: (one.algorithm, one.network, one.simulator), True),
    Step("other algorithm", 4.7, lambda one: (one.network, one.simulator), False),
    Step("other simulator", 5.0, lambda one: (one.algorithm, one.network), False),
    Step("other network", 5.5, lambda one: (one.simulator,), False),
    Step("network alone", 6.0, lambda one: (one.network,), False),
)
"""From the closest likeness to the loosest."""


class Cost(NamedTuple):
    """A range of core-seconds per frame, the step and the measurements that it follows from."""

    low: float
    high: float
    step: Step
    measurements: tuple[Measured, ...]
    same_device: bool

    def measured(self, system: System, cores: float, frames: int) -> bool:
        """Return whether a run such as this one was measured: its algorithm, network and simulator together."""
        return self.step.same and any(one.is_like(system, cores, frames) for one in self.measurements)


def cost_of(system: System, known: Sequence[Measured]) -> Cost | None:
    """Return what a frame of `system` costs by the closest measurements; None if nothing is like it."""
    for step in STEPS:
        alike = [one for one in known if step.key(one.system) == step.key(system)]
        alike = [one for one in alike if not one.short] or alike
        if alike:
            own = [one for one in alike if one.system.gpu == system.gpu]
            used = tuple(own or alike)
            costs = sorted(one.core_seconds for one in used)
            low, high = costs[len(costs) // 10] / step.factor, costs[-1 - len(costs) // 10] * step.factor
            if not own:
                low, high = (low / OTHER_DEVICE, high) if system.gpu else (low, high * OTHER_DEVICE)
            return Cost(low, high, step, used, bool(own))
    return None


def _near(one: float, other: float, factor: float) -> bool:
    """Return whether two numbers are at most a factor apart."""
    return other / factor <= one <= other * factor


def share_inside(known: Sequence[Measured]) -> dict[str, tuple[int, int]]:
    """Return, by step, how many runs are inside their predicted range, and how many were predicted.

    A run is predicted from the benchmarks and the runs of other experiments. Runs of which nothing can be said count
    as "not measured".
    """
    found: dict[str, tuple[int, int]] = {}
    for run in (one for one in known if one.place):
        cost = cost_of(run.system, [one for one in known if one.place[1:3] != run.place[1:3]])
        name = "not measured" if cost is None else cost.step.name
        inside, number = found.get(name, (0, 0))
        hit = cost is not None and cost.low <= run.core_seconds <= cost.high
        found[name] = (inside + hit, number + 1)
    return found


def system_of(config: Mapping[str, Any], *, gpu: bool) -> System:
    """Return what matters of a configuration with all its defaults."""
    keys, topology = config["hyperparameters"], config["topology"]
    cells = keys.get("lstm_size") or 0
    return System(
        algorithm=" by ".join(filter(None, [config["algorithm"], config.get("peer")])),
        environment=config["environment"]["name"],
        network=f"{keys['network']} + LSTM {cells}" if cells else str(keys["network"]),
        layout=f"{topology['runtime']} {topology.get('num_actors')} x {topology.get('envs_per_actor')}",
        gpu=gpu,
        training=tuple(keys.get(key) for key in TRAINING),
    )


def measured(results: Path) -> list[Measured]:
    """Read the finished runs, benchmarks and agents below `results`, with the committed ones in its folder `reference`.

    Files that cannot be read are left out: `ddrl verify` names what is damaged.
    """
    found = []
    for path in sorted([*results.glob(MANIFESTS), *results.glob(AGENTS)]):
        with suppress(*UNREADABLE):
            manifest = json.loads(read_file(path).decode())
            frames = manifest.get("population", manifest)["env_frames"]  # of all members
            speed = frames / manifest["seconds"]
            place = path.relative_to(results).parts[:4] if path.match(MANIFESTS) else ()
            found.append(_measured(manifest["config"], manifest["hardware"], speed, place, frames))
    for path in sorted(results.glob("*/bench/**/*.json")):
        with suppress(*UNREADABLE):
            bench = json.loads(read_file(path).decode())
            for one in bench.get("measurements", [bench]):
                found.append(_measured(one["config"], bench["hardware"], one["median_training_frames_per_second"]))
    return found


def _measured(
    config: Any, hardware: Any, speed: float, place: tuple[str, ...] = (), frames: int | None = None
) -> Measured:
    """Return a measurement; a serial run works on one core, a population on one for each member at once."""
    serial = config["topology"]["runtime"] == "serial"
    parallel = (config.get("population") or {"parallel": 1})["parallel"]
    cores = min(parallel, hardware["cores"]) if serial else hardware["cores"]
    short = frames is not None and frames < SHORT_FRAMES
    return Measured(system_of(config, gpu=hardware["gpu"] is not None), cores / speed, place, short, cores, frames)
