"""The shared memory that the processes of a run with runtime `ray` may need."""

from __future__ import annotations

import torch

from ddrl.replay.replay_config import with_replay
from ddrl.training.builder import Builder
from ddrl.types import EnvSpec

SPARE_BYTES = 128 * 2**20
BATCHES = 5
"""Batches of a replay in its own process that exist at once: trained on, made ready, drawn ahead, two to be freed."""


def object_store_bytes(builder: Builder) -> int:
    """Return what a run may need: unrolls that wait or are on their way, and parameters, both twice over."""
    config, topology = builder.config, builder.config.topology
    step = step_bytes(builder.spec)
    unroll = (config.hyperparameters.unroll_length + 1) * topology.envs_per_actor * step
    rounds = -(-config.hyperparameters.fresh_columns // (topology.num_actors * topology.envs_per_actor))
    ahead = rounds * (2 + (topology.max_policy_lag or 0))  # of the learner, where the gate bounds what waits
    waiting = topology.num_learners * topology.queue_capacity + topology.num_actors * (2 + ahead)
    network = builder.network()
    parameters = sum(tensor.nbytes for tensor in [*network.parameters(), *network.buffers()])
    versions = topology.num_learners * (4 + topology.num_actors)
    needed = 2 * (waiting * unroll + versions * parameters)
    if topology.replay == "own":
        rule = with_replay(config.hyperparameters).replay
        needed += BATCHES * rule.batch_size * (rule.cut.before + rule.cut.reach + 1) * step
    return needed + SPARE_BYTES


def step_bytes(spec: EnvSpec) -> int:
    """Return about what one step of an unroll takes: its observation, the policy's output and a few numbers."""
    observation = torch.empty(spec.observation_shape, dtype=getattr(torch, spec.observation_dtype)).nbytes
    return observation + 4 * spec.distribution_size + 8 * spec.action_size + 64
