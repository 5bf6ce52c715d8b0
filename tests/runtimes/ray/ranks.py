"""A learner of a rank, fed by hand; `tests/runtimes/ray/ranks_test.py` starts several in processes of their own."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from ddrl import algorithms
from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.interfaces import Reducer
from ddrl.learners.all_reduce import DistributedReducer
from ddrl.learners.core import Setting
from ddrl.replay.queue import UnrollQueue
from ddrl.runtimes.ray.launch import make_learner
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.training.config.run_config import RunConfig
from tests.algorithms.rigs import SPECS, acted_unroll

RANKS = 2
UPDATES = 5
OWN_SHARE = {"explained_variance"}
"""Diagnostics of a rank's own columns."""
NORMALISED = {"observation_normalisation": True, "reward_normalisation": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "impala": {"loss_reduction": "mean"},
    "a2c": {},
    "ppo": {"num_epochs": 3, "num_minibatches": 4},
    "impact": {"num_slots": 2, "num_traversals": 2},
    "appo": {"num_epochs": 3, "num_minibatches": 4, "values_at": "update"},
}
CASES = [
    (algorithm, spec, extra) for algorithm in SETTINGS for spec, extra in (("discrete", {}), ("continuous", NORMALISED))
]
CASES += [
    ("appo", "discrete", {"vtrace": True, "num_minibatches": 2}),
    (
        "appo",
        "discrete",
        {"vtrace": True, "num_minibatches": 4, "lstm_size": 8},
    ),  # a rank has no column of half of them
]


def learned(algorithm: str, spec: str, extra: dict[str, Any], reducer: Reducer) -> tuple[list[Any], list[torch.Tensor]]:
    """Metrics of every update, and the parameters and buffers after the last, of one rank's learner."""
    module, columns = algorithms.load(algorithm), 4
    settings = {"network": "tanh_mlp", "unroll_length": 6, "batch_size": columns}
    config = module.Config(**settings | SETTINGS[algorithm] | extra)
    network = module.make_network(SPECS[spec], config, torch_generator(0, "network"))
    acting = copy.deepcopy(network)
    params = ParameterServer(network, ScheduleRule(None, columns, columns, config.first_update))
    queue = UnrollQueue(capacity=100)
    learner = module.Learner(
        config,
        network,
        params,
        queue,
        Setting(
            frame_skip=1,
            device=torch.device("cpu"),
            precision="float32",
            num_threads=1,
            generator=numpy_generator(0, "replay", reducer.rank),
            reducer=reducer,
        ),
    )
    share, metrics = columns // reducer.size, []
    for update in range(UPDATES):
        unroll = acted_unroll(acting, SPECS[spec], config.unroll_length, columns, update, 0.1, True, 0)
        queue.insert(unroll.columns(reducer.rank * share, (reducer.rank + 1) * share))
        made = learner.step() | {"env_frames": learner.core.env_frames}
        metrics.append({name: value for name, value in made.items() if name not in OWN_SHARE})
    learner.core.close()
    return metrics, [tensor.detach() for tensor in [*network.parameters(), *network.buffers()]]


def run(rank: int, port: int, directory: Path) -> None:
    """All cases on one rank; what they learned goes to `<rank>.pt`."""
    torch.set_num_threads(1)
    reducer = DistributedReducer(TCPStore("127.0.0.1", port, is_master=False), rank, RANKS, torch.device("cpu"))
    torch.save([learned(*case, reducer) for case in CASES], directory / f"{rank}.pt")
    reducer.close()


def lose(rank: int, port: int, directory: Path) -> None:
    """Rank 1 vanishes after the first sum; what rank 0 makes of it goes to `0.txt`."""
    reducer = DistributedReducer(TCPStore("127.0.0.1", port, is_master=False), rank, RANKS, torch.device("cpu"))
    reducer.sum_([torch.ones(1)])
    if rank:
        os._exit(0)
    try:
        reducer.sum_([torch.ones(1)])
    except Exception as error:
        (directory / "0.txt").write_text(type(error).__name__)
    finally:
        reducer.close()  # torch's threads must be gone when the process ends


def missing_learner(
    config: RunConfig, directory: Path, folder: Path | None, rank: int, *others: Any, **options: Any
) -> Any:
    """A learner whose rank 1 raises before the ranks have met."""
    if rank == 1:
        raise ArithmeticError("rank 1 stays away")
    return make_learner(config, directory, folder, rank, *others, **options)
