"""The request that a driver gets: a configuration of ours as plain data, in our words.

What is sent: the task as a recipe, the layers of our own network, and every hyperparameter under its dotted key. The
driver says which of them it could not map (`workflows/peers/drivers/protocol.py`).
"""

from __future__ import annotations

from typing import Any

import torch

from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.q_network import QNetwork
from ddrl.system.config_differences import flatten
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, to_json

PROTOCOL = 1
"""The version of the protocol, as in `protocol.VERSION` of the drivers."""
_TOPOLOGY = ("num_actors", "envs_per_actor")
"""Keys of a topology that a driver may map; the others say how our own processes are laid out."""
_LAYOUT = ("schedule", "inference", "env_groups", "queue_capacity", "parameter_delay")
"""Keys for libraries whose processes are laid out as ours are. They stand beside the settings: other drivers read none
of them, and list none."""


def request_of(config: RunConfig, *, threads: int) -> dict[str, Any]:
    """Return the request for one configuration; torch gets `threads` threads in the peer.

    Raise `UserError` for a task, a network or a kind of run that drivers do not have.
    """
    if config.population:
        raise UserError("key 'population': a peer trains single runs only; allowed: null")
    builder = Builder(config, torch.device("cpu"))
    network = builder.network()
    if not isinstance(network, ActorCritic | QNetwork):
        raise UserError(
            f"key 'peer': drivers build actor-critic and Q-networks, and {config.algorithm} has another kind"
        )
    values = to_json(config)
    name, options = values["environment"]["name"], dict(values["environment"])
    del options["name"]
    settings = flatten(values["hyperparameters"]) | {"precision": config.precision}
    settings |= {f"topology.{key}": values["topology"][key] for key in _TOPOLOGY}
    task = registry.recipe(name, **options) | {
        "reward_clipping": values["hyperparameters"]["reward_clipping"],
        "time_limits": values["hyperparameters"].get("time_limits", "bootstrap"),
        "frame_skip": builder.spec.frame_skip,
    }
    evaluation = config.evaluation
    if evaluation.environment:
        raise UserError(
            "key 'evaluation.environment': a peer is evaluated on the task that it trains on; allowed: null"
        )
    return {
        "protocol": PROTOCOL,
        "algorithm": config.algorithm,
        "seed": config.seed,
        "agent_steps": -(-config.env_frames // builder.spec.frame_skip),
        "threads": threads,
        "task": task,
        "network": network.describe(),
        "evaluation": {
            "episodes": evaluation.final_episodes,
            "versions": evaluation.final_versions,
            "window_fraction": evaluation.final_window_fraction,
        },
        "settings": settings,
        "topology": {key: vars(config.topology)[key] for key in _LAYOUT},
    }
