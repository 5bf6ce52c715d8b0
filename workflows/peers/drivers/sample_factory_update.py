"""One batch through Sample Factory's own learner, from given parameters: to be compared with an update of ours."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from environments import make
from protocol import Settings
from sample_factory.algo.utils.env_info import EnvInfo
from sample_factory.algo.utils.model_sharing import ParameterServer
from sample_factory.algo.utils.shared_buffers import alloc_trajectory_tensors
from sample_factory.model.model_utils import get_rnn_size
from sample_factory_model import OBSERVATION, LearnerWithVTrace, build

HEADS = {
    "policy.": "action_parameterization.distribution_linear.",
    "value.": "critic_linear.",
    "log_std": "action_parameterization.learned_stddev",
}
TORSOS = {
    False: {"torso.": "encoder.torso."},
    True: {"torso.": "actor_encoder.torso.", "value_torso.": "critic_encoder.torso."},
}
"""Beginnings of our parameters' names -> theirs, without and with a network of its own for the value."""


def one_update(given: str, result: str) -> None:
    """Make one update of APPO from a batch with given parameters; write the parameters after it.

    The form of `stable_baselines3_driver.one_update`, with `behaviour_log_probability`, `values` and `version` [T, B]
    and `orders`. Two of our definitions can take the place of theirs: with `population_deviation` advantages are
    divided by a deviation over n, and with `bootstrapped` V-trace takes the value after an unroll from the network.
    """
    with np.load(given) as file:
        arrays = dict(file)
    request = json.loads(str(arrays["request"]))
    length, columns = arrays["reward"].shape
    if "population_deviation" in arrays:
        torch.std_mean = partial(torch.std_mean, unbiased=False)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        cfg = build(request, Settings(request["settings"]), folder)
        cfg.serial_mode = True
        env = make(request["task"], 1)
        spaces = gymnasium.spaces.Dict({OBSERVATION: env.observation_space}), env.action_space
        info = EnvInfo(
            *spaces, 1, gpu_actions=False, gpu_observations=False, action_splits=None, all_discrete=None, frameskip=1
        )
        versions = torch.zeros(1, dtype=torch.int32)
        learner = LearnerWithVTrace(cfg, info, versions, 0, ParameterServer(0, versions, True))
        learner.init()
    begins = {**HEADS, **TORSOS[request["network"]["separate"]]}
    names = {ours.removeprefix("parameter/"): ours for ours in arrays if ours.startswith("parameter/")}
    theirs = {
        name: next(begins[one] + name.removeprefix(one) for one in begins if name.startswith(one)) for name in names
    }
    state = {theirs[name]: torch.from_numpy(arrays[names[name]]) for name in names}
    learner.actor_critic.load_state_dict(state)
    batch = alloc_trajectory_tensors(info, columns, length, get_rnn_size(cfg), torch.device("cpu"), False)
    fill(batch, arrays, cfg.num_epochs * cfg.num_batches_per_epoch)
    if "bootstrapped" in arrays:
        bootstrap(batch, learner.actor_critic, cfg.gamma)
    orders = iter(arrays.get("orders", ()))
    np.random.permutation = partial(starts_of, orders, length, columns, cfg.recurrence)  # type: ignore[assignment]
    learner.train(batch)
    after = learner.actor_critic.state_dict()
    np.savez(result, **{name: after[theirs[name]].numpy() for name in names})


def fill(batch: Any, arrays: Mapping[str, Any], steps_of_update: int) -> None:
    """Write steps [T, B] into a batch [B, T]. Versions count gradient steps there, updates in `arrays`."""

    def swapped(name: str) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(np.swapaxes(arrays[name], 0, 1)))

    batch["obs"][OBSERVATION][:] = swapped("observation")
    actions = swapped("action")
    batch["actions"][:] = actions.view(batch["actions"].shape)
    batch["log_prob_actions"][:] = swapped("behaviour_log_probability")
    batch["action_logits"].zero_()  # of a divergence that is only reported
    batch["values"][:, :-1] = swapped("values")
    batch["policy_version"][:] = swapped("version") * steps_of_update
    batch["rewards"][:] = swapped("reward")
    batch["dones"][:] = swapped("terminated")
    batch["time_outs"].fill_(False)
    batch["policy_id"].zero_()
    batch["rnn_states"].zero_()


@torch.no_grad()
def bootstrap(batch: Any, model: Any, discount: float) -> None:
    """Let every unroll end with its last step, whose reward has the discounted value of what follows."""
    seen = model.normalize_obs({OBSERVATION: batch["obs"][OBSERVATION][:, -1]})
    value = model(seen, batch["rnn_states"][:, -1], values_only=True)["values"]
    batch["rewards"][:, -1] += discount * value * ~batch["dones"][:, -1]
    batch["dones"][:, -1] = True


def starts_of(orders: Iterator[Any], length: int, columns: int, recurrence: int, starts: Any) -> Any:
    """Return our order of steps [T, B], or of columns, as numbers of first steps in the buffer's [B, T]."""
    order = next(orders, None)
    if order is None:
        return starts
    return order * length if recurrence == length else order % columns * length + order // columns
