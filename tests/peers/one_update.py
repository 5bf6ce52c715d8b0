"""One batch through our learner and through another library's, from the same parameters."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddrl import algorithms
from ddrl.api.settings import run_config
from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import Setting
from ddrl.learners.minibatches import Order, shared_minibatches
from ddrl.peers.catalogue import Peer
from ddrl.peers.request import request_of
from ddrl.replay.items import Drawn, Transitions
from ddrl.replay.queue import UnrollQueue
from ddrl.system.instruction_words import image_of
from ddrl.system.seeding import numpy_generator
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.types import Unroll
from tests.algorithms.rigs import acted_unroll

LENGTH, COLUMNS = 8, 6
STEPS = ("observation", "action", "reward", "terminated", "truncated", "valid")


def make_batch(network: Any, spec: Any, *, drift: float, seed: int = 5) -> Unroll:
    """Return a batch of valid steps in which some lives are lost; it was acted on by a policy `drift` away."""
    generator = torch.Generator().manual_seed(seed)
    points, steps = (LENGTH + 1, COLUMNS), (LENGTH, COLUMNS)
    if spec.observation_dtype == "uint8":
        observation = torch.randint(256, (*points, *spec.observation_shape), generator=generator).to(torch.uint8)
    else:
        observation = torch.randn((*points, *spec.observation_shape), generator=generator)
    if spec.image_shape:  # an empty instruction
        observation[..., math.prod(spec.image_shape) :] = 0
    terminated = torch.rand(steps, generator=generator) < 0.15
    start = torch.cat([torch.zeros((1, COLUMNS), dtype=torch.bool), terminated])
    if spec.action_size:
        action, last = (
            torch.randn((*steps, spec.action_size), generator=generator),
            torch.zeros((*points, spec.action_size)),
        )
    else:
        action = torch.randint(spec.num_actions, steps, generator=generator)
        last = torch.zeros(points, dtype=torch.int64)
    with torch.no_grad():
        own = network(observation, last, torch.zeros(points), start, ()).distribution[:-1]
    return Unroll(
        observation=observation,
        last_action=last,
        last_reward=torch.zeros(points),
        start=start,
        action=action,
        reward=torch.randn(steps, generator=generator),
        terminated=terminated,
        truncated=torch.zeros(steps, dtype=torch.bool),
        valid=torch.ones(steps, dtype=torch.bool),
        distribution=own + drift * torch.randn(own.shape, generator=generator),
        version=torch.zeros(steps),
        actor=torch.zeros(COLUMNS),
        env=torch.arange(COLUMNS),
        index=torch.zeros(COLUMNS),
        initial_state=(),
    )


def orders_of(batch: Unroll, config: Any, seed: int) -> list[np.ndarray[Any, Any]]:
    """Return the order of samples, or of whole unrolls, in each epoch, drawn as our learner draws it."""
    columns = "whole_unrolls" in dir(config) and config.whole_unrolls
    order = Order.of(batch, batch.valid, columns, SingleLearner())
    generator = numpy_generator(seed, "minibatches")
    parts, epochs = config.num_minibatches, range(config.num_epochs)
    drawn = [list(shared_minibatches(order.numbers, order.total, parts, generator, SingleLearner())) for _ in epochs]
    return [torch.cat(epoch).numpy() for epoch in drawn]


def as_appo_has_it(batch: Unroll, network: Any, drift: float, *, stale: int, ends: bool) -> Unroll:
    """Return a batch with the values that were predicted while acting, `drift` away from those of the network.

    Its first `stale` columns are two updates old. With `ends` an episode ends with the last step of each unroll.
    """
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        now = network(batch.observation, batch.last_action, batch.last_reward, batch.start, ()).value[:-1]
    version, terminated = batch.version.clone(), batch.terminated.clone()
    version[:, :stale] = -2
    terminated[-1] |= ends
    values = now + drift * torch.randn(now.shape, generator=generator)
    return replace(batch, values=(values,), version=version, terminated=terminated)


def learner_of(algorithm: str, config: RunConfig, network: Any) -> Any:
    """Return our learner of one network."""
    hyperparameters: Any = config.hyperparameters
    params = ParameterServer(network, ScheduleRule(None, COLUMNS, COLUMNS, hyperparameters.first_update))
    generator = numpy_generator(config.seed, "minibatches")
    setting = Setting(1, torch.device("cpu"), "float32", 1, generator, SingleLearner())
    module: Any = algorithms.load(algorithm)
    return module.Learner(hyperparameters, network, params, UnrollQueue(capacity=8), setting)


def drift_target(network: Any) -> None:
    """Move a target network away, as the network itself moves away from it by learning."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * parameter.abs().mean() * torch.randn(parameter.shape, generator=generator)


def after_one_update(
    peer: Peer,
    algorithm: str,
    task: str,
    folder: Path,
    *,
    drift: float = 0.0,
    stale: int = 0,
    ends: bool = False,
    extra: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the parameters before, after our update, and after theirs; `extra` is for the driver alone.

    `stale` and `ends` are read for APPO (`as_appo_has_it`).
    """
    common = {"unroll_length": LENGTH, "batch_size": COLUMNS}
    config = run_config("test", {"hyperparameters": common | settings}, algorithm=algorithm, environment=task)
    config = replace(config, env_frames=10_000)
    builder = Builder(config, torch.device("cpu"))
    network = builder.network()
    batch = make_batch(network, builder.spec, drift=drift)
    if algorithm == "appo":
        batch = as_appo_has_it(batch, network, drift, stale=stale, ends=ends)
    learner = learner_of(algorithm, config, network)
    if hasattr(learner, "target_network"):
        drift_target(learner.target_network)
    scale = getattr(network, "return_scale", None)
    if scale is not None:  # as after many batches
        scale.moments.count.fill_(1e-9)  # so that the next batch alone counts
        scale.moments.variance.fill_(9.0)
        scale.deviation.fill_(3.0)
        extra = {"return_variance": 9.0} | dict(extra or {})
    before = _parameters(network)
    family = network.family
    arrays: dict[str, Any] = {
        "request": json.dumps(request_of(config, threads=1)),
        "observation": image_of(batch.observation.numpy(), builder.spec),
        "action": batch.action.numpy(),
        "reward": batch.reward.numpy(),
        "terminated": batch.terminated.numpy(),
        "behaviour_log_probability": family.log_probability(batch.distribution, batch.action).numpy(),
    }
    arrays |= {f"parameter/{name}": value for name, value in before.items()} | dict(extra or {})
    if algorithm == "appo":
        arrays |= {"values": batch.values[0].numpy(), "version": batch.version.numpy()}
    if hasattr(learner, "target_network"):
        state = learner.target_network.state_dict()
        arrays |= {f"target/{name}": tensor.numpy() for name, tensor in state.items()}
    hyperparameters: Any = config.hyperparameters
    if "num_epochs" in vars(hyperparameters):
        arrays["orders"] = np.stack(orders_of(batch, hyperparameters, config.seed))
    theirs = _answer(peer, folder, arrays)
    learner.update(batch)
    ours = _parameters(network)
    if scale is not None:
        before["return_variance"], ours["return_variance"] = np.array(9.0), scale.moments.variance.numpy()
    return before, ours, theirs


def _parameters(network: Any) -> dict[str, Any]:
    """Return parameters and statistics, without the scale of returns, which a library keeps elsewhere.

    Nor those of the encoder of instructions, which no library has.
    """
    state, elsewhere = network.state_dict().items(), ("return_scale", "instructions")
    return {name: tensor.detach().clone().numpy() for name, tensor in state if not name.startswith(elsewhere)}


ITEMS = 12


def make_items(spec: Any, n_step: int, *, seed: int = 5) -> Transitions:
    """Return drawn items of up to `n_step` steps, with weights; some end sooner, terminated or cut off."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, n_step + 1, (ITEMS,), generator=generator)
    shorter = steps < n_step
    terminated = (torch.rand(ITEMS, generator=generator) < 0.4) & (shorter | (torch.arange(ITEMS) % 2 == 0))
    within = torch.arange(n_step)[:, None] < steps

    def seen() -> torch.Tensor:
        if spec.observation_dtype == "uint8":
            return torch.randint(256, (ITEMS, *spec.observation_shape), generator=generator).to(torch.uint8)
        return torch.randn((ITEMS, *spec.observation_shape), generator=generator)

    return Transitions(
        observation=seen(),
        action=torch.randint(spec.num_actions, (ITEMS,), generator=generator),
        reward=torch.randn((n_step, ITEMS), generator=generator) * within,
        steps=steps,
        terminated=terminated,
        ended=terminated | shorter,
        next_observation=seen(),
        version=torch.zeros((1, ITEMS), dtype=torch.int64),
        td_error=torch.zeros(ITEMS),
        drawn=Drawn(torch.rand(ITEMS, generator=generator), torch.zeros(ITEMS), torch.zeros(ITEMS), 0),
    )


def after_one_q_update(
    peer: Peer, task: str, folder: Path, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return parameters and absolute errors before, after our update, and after theirs."""
    common = {"batch_size": ITEMS, "samples_per_insert": 2.0, "min_replay_size": 2000}
    config = run_config("test", {"hyperparameters": common | settings}, algorithm="apex_dqn", environment=task)
    config = replace(config, env_frames=10_000)
    builder = Builder(config, torch.device("cpu"))
    network: Any = builder.network()
    hyperparameters: Any = config.hyperparameters
    batch = make_items(builder.spec, hyperparameters.n_step)
    learner = learner_of("apex_dqn", config, network)
    learner.core.count_to(2000)  # learning begins here, and so does the decay of the rate
    drift_target(learner.target_network)
    before = {name: tensor.detach().clone().numpy() for name, tensor in network.state_dict().items()}
    arrays: dict[str, Any] = {
        "request": json.dumps(request_of(config, threads=1)),
        "weight": batch.drawn.weight.numpy(),
    }
    names = ("observation", "action", "reward", "steps", "terminated", "next_observation")
    arrays |= {name: getattr(batch, name).numpy() for name in names}
    arrays |= {f"parameter/{name}": value for name, value in before.items()}
    arrays |= {f"target/{name}": tensor.numpy() for name, tensor in learner.target_network.state_dict().items()}
    theirs = _answer(peer, folder, arrays)
    learner.update(batch)
    ours = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    zero = {"td_error": np.zeros(ITEMS, np.float32)}
    return before | zero, ours | {"td_error": batch.td_error.abs().numpy()}, theirs


def after_updates(
    peer: Peer, task: str, folder: Path, count: int, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return parameters and variance of returns before, after `count` updates of our A2C in a row, and after theirs.

    Each batch is acted on by our network as it then is; in it episodes end, are cut off, and dead steps follow.
    """
    common = {"unroll_length": LENGTH, "batch_size": COLUMNS, "return_scaling": True}
    config = run_config("test", {"hyperparameters": common | settings}, algorithm="a2c", environment=task)
    builder = Builder(config, torch.device("cpu"))
    network: Any = builder.network()
    learner = learner_of("a2c", config, network)
    before = _parameters(network)
    batches = []
    for number in range(count):
        batch = acted_unroll(network, builder.spec, LENGTH, COLUMNS, seed=number)
        batches.append({name: getattr(batch, name).numpy() for name in STEPS})
        learner.update(batch)
    arrays: dict[str, Any] = {name: np.stack([batch[name] for batch in batches]) for name in STEPS}
    assert arrays["truncated"].any() and arrays["terminated"].any() and not arrays["valid"].all()
    arrays |= {f"parameter/{name}": value for name, value in before.items()}
    arrays["request"] = json.dumps(request_of(config, threads=1))
    theirs = _answer(peer, folder, arrays, "--updates")
    variance = {"return_variance": network.return_scale.moments.variance.numpy()}
    return before | {"return_variance": np.array(1.0)}, _parameters(network) | variance, theirs


def _answer(peer: Peer, folder: Path, arrays: dict[str, Any], mode: str = "--one-update") -> dict[str, Any]:
    """Return what a driver makes of a batch, or of batches."""
    np.savez(folder / "given.npz", **arrays)
    command = [peer.python, peer.driver, mode, folder / "given.npz", folder / "result.npz"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    with np.load(folder / "result.npz") as file:
        return dict(file)


def largest_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return the largest difference of any parameter."""
    assert ours.keys() == theirs.keys()
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
