"""How much shared memory the processes of a run with runtime `ray` may need."""

from __future__ import annotations

import torch

from ddrl.replay.replay_config import ReplayRule
from ddrl.training.builder import Builder
from ddrl.types import EnvSpec

SPARE_BYTES = 128 * 2**20
BATCHES = 5
"""Of a replay in a process of its own, at once: being trained on, made ready, drawn ahead, and two to be freed."""


def object_store_bytes(builder: Builder) -> int:
    """Shared memory that a run may need: unrolls that wait or are on their way, and parameters, both twice over."""
    config, topology = builder.config, builder.config.topology
    unroll: int = (config.hyperparameters.unroll_length + 1) * topology.envs_per_actor * step_bytes(builder.spec)
    rounds = -(-config.hyperparameters.fresh_columns // (topology.num_actors * topology.envs_per_actor))
    ahead = rounds * (2 + (topology.max_policy_lag or 0))  # of the learner, where the gate bounds what waits
    waiting = topology.num_learners * topology.queue_capacity + topology.num_actors * (2 + ahead)
    network = builder.network()
    parameters: int = sum(_bytes(tensor) for tensor in [*network.parameters(), *network.buffers()])
    versions = topology.num_learners * (4 + topology.num_actors)
    needed: int = 2 * (waiting * unroll + versions * parameters)
    if topology.replay == "own":
        needed += BATCHES * batch_bytes(builder)
    return needed + SPARE_BYTES


def step_bytes(spec: EnvSpec) -> int:
    """About what one step of an unroll takes: its observation, what was acted with, and a few numbers."""
    observation = _bytes(torch.empty(spec.observation_shape, dtype=getattr(torch, spec.observation_dtype)))
    return observation + 4 * spec.distribution_size + 8 * spec.action_size + 64


def batch_bytes(builder: Builder) -> int:
    """At most what a batch of a replay takes."""
    rule: ReplayRule = builder.config.hyperparameters.replay
    return rule.batch_size * (rule.cut.before + rule.cut.reach + 1) * step_bytes(builder.spec)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
