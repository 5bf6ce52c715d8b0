"""PPO's learner of a rank, fed as in a run; `tests/algorithms/ppo_ranks_test.py` starts several in their own processes.

A batch is two rounds of two actors with two environments each. Actors feed the ranks in turn, so the columns of a rank
do not lie side by side in the batch of one learner.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from ddrl.algorithms import ppo
from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.interfaces import Reducer
from ddrl.learners.all_reduce import DistributedReducer
from ddrl.learners.core import Setting
from ddrl.learners.samples import Columns, Samples
from ddrl.networks.actor_critic import ActorCritic
from ddrl.replay.queue import UnrollQueue
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.types import Metrics, Unroll, concatenate
from tests.algorithms.rigs import SPECS, Recorder, acted_unroll

RANKS = 2
UPDATES = 4
INTERRUPTED_AFTER = 2
LENGTH, COLUMNS, ENVS = 6, 8, 2
OWN_SHARE = {"explained_variance"}
"""Diagnostics of a rank's own columns."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("discrete", {"num_minibatches": 4, "observation_normalisation": False}),
    "continuous": ("continuous", {"num_minibatches": 3, "kl_cost": 0.2, "kl_target": 0.001}),
    "scarce": ("continuous", {"num_minibatches": 24, "normalise_advantages": False}),
    "recurrent": ("discrete", {"num_minibatches": 3, "lstm_size": 8, "separate_value_network": False}),
    "scarce_unrolls": ("continuous", {"num_minibatches": 8, "lstm_size": 8, "separate_value_network": False}),
    "stopped": (
        "continuous",
        {"num_minibatches": 2, "value_epochs": 2, "clip_epsilon": None, "kl_cost": 0.2, "max_kl": 0.0005}
        | {"kl_target": 0.0001, "kl_excess_cost": 10.0},
    ),
}
"""Name -> task, hyperparameters. `scarce`: minibatches of one or two steps or of one unroll, so most lack a rank's."""


def share(unroll: Unroll, reducer: Reducer) -> Unroll:
    """The columns of every R-th actor, whose number is then among those of their learner (`ddrl.training.builder`)."""
    mine = [c for c in range(unroll.batch_size) if int(unroll.actor[c]) % reducer.size == reducer.rank]
    part = concatenate([unroll.columns(c, c + 1) for c in mine])
    return replace(part, actor=part.actor // reducer.size)


def batch(acting: ActorCritic, case: str, update: int) -> Unroll:
    """What one learner alone gets for its update: two rounds of (unroll index, actor), with dead steps."""
    unroll = acted_unroll(acting, SPECS[CASES[case][0]], LENGTH, COLUMNS, update, drift=0.1)
    assert not unroll.valid.all()
    actor, env = torch.arange(COLUMNS) // ENVS, torch.arange(COLUMNS) % ENVS
    return replace(unroll, actor=actor % RANKS, env=env, index=2 * update + actor // RANKS)


@dataclass(frozen=True)
class Side:
    """A learner, what it learns from, what it publishes to."""

    learner: ppo.Learner
    network: ActorCritic
    queue: UnrollQueue
    params: ParameterServer

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return copy.deepcopy({"learner": self.learner.state_dict(), "params": self.params.state_dict()})

    def step(self, unroll: Unroll) -> tuple[Metrics, list[torch.Tensor]]:
        """Learns from it; metrics, and rows that tell the steps or unrolls of each minibatch apart."""
        self.queue.insert(unroll)
        gradient = self.learner.core._gradient
        self.learner.core._gradient = recorder = Recorder(gradient)
        made = self.learner.step() | {"frames": self.learner.core.env_frames}
        self.learner.core._gradient = gradient
        metrics = {name: value for name, value in made.items() if name not in OWN_SHARE}
        return metrics, [rows_of(minibatch) for minibatch in recorder.batches]


def rows_of(minibatch: Samples | Columns) -> torch.Tensor:
    """The observations of steps [n, ...], or the rewards of unrolls [n, T]."""
    return minibatch.unroll.reward.T if isinstance(minibatch, Columns) else minibatch.observation


def make(case: str, reducer: Reducer, run_seed: int, dropping: Any = None) -> Side:
    """Everything from `run_seed`."""
    spec, keys = CASES[case]
    config = ppo.Config(**{"unroll_length": LENGTH, "batch_size": COLUMNS, "num_epochs": 2} | keys)
    ppo.check(config, SPECS[spec], reducer.size)
    network = ppo.make_network(SPECS[spec], config, torch_generator(run_seed, "network"))
    schedule = ScheduleRule(None, COLUMNS, COLUMNS, config.first_update)
    params, queue = ParameterServer(network, schedule), UnrollQueue(capacity=9)
    setting = Setting(
        frame_skip=1,
        device=torch.device("cpu"),
        precision="float32",
        num_threads=2,
        generator=numpy_generator(run_seed, "replay", reducer.rank),
        reducer=reducer,
        dropping=dropping,
    )
    return Side(ppo.Learner(config, network, params, queue, setting), network, queue, params)


def learned(case: str, reducer: Reducer, *, interrupted: bool = False) -> dict[str, Any]:
    """Of one rank: metrics of every update, observations of every minibatch, parameters and buffers after the last.

    `interrupted`: another learner, of another seed, takes over the state after some updates.
    """
    side = make(case, reducer, 0)
    acting = copy.deepcopy(side.network)
    metrics, minibatches = [], []
    for update in range(UPDATES):
        if interrupted and update == INTERRUPTED_AFTER:
            state = side.state()
            side.learner.core.close()
            side = make(case, reducer, 1)
            side.learner.load_state_dict(state["learner"])
            side.params.load_state_dict(state["params"])
        made, observations = side.step(share(batch(acting, case, update), reducer))
        metrics.append(made)
        minibatches += observations
    side.learner.core.close()
    tensors = [tensor.detach() for tensor in [*side.network.parameters(), *side.network.buffers()]]
    return {"metrics": metrics, "minibatches": minibatches, "tensors": tensors}


def run(rank: int, port: int, directory: Path) -> None:
    """All cases on one rank, with and without an interruption; what they learned goes to `<rank>.pt`."""
    torch.set_num_threads(1)
    reducer = DistributedReducer(TCPStore("127.0.0.1", port, is_master=False), rank, RANKS, torch.device("cpu"))
    results = {(case, late): learned(case, reducer, interrupted=late) for case in CASES for late in (False, True)}
    torch.save(results, directory / f"{rank}.pt")
    reducer.close()
