"""The arguments of Sample Factory for our PPO (its APPO, synchronous, without V-trace) and APPO.

A setting that it cannot be given is noted in `Settings.unmapped`. Nothing of Sample Factory is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from protocol import LIVE, Refused, Settings, installed

TASK = "task"
"""The name under which the task is registered."""
IMAGES = ("atari", "vizdoom")
"""Kinds of tasks whose observations are bytes."""
NEVER = 10**6
"""Seconds between two of what shall not happen."""
UNBOUNDED = 2**31 - 1
"""More steps than any run has."""


def arguments_of(request: Mapping[str, Any], settings: Settings, folder: str) -> dict[str, Any]:
    """Return the arguments of Sample Factory. Raise `Refused` where it cannot do what is asked."""
    length, columns, parts = (settings.take(key) for key in ("unroll_length", "batch_size", "num_minibatches"))
    if columns % parts:  # it counts the unrolls of a minibatch, and is without any where they are longer
        raise Refused(
            f"its minibatches hold whole unrolls, and {columns} unrolls are no {parts} equal minibatches; allowed: "
            "hyperparameters.num_minibatches that divides hyperparameters.batch_size"
        )
    if request["task"]["kind"] == "atari":
        why = "the ROM is the same; newer versions of the emulator may differ"
        settings.differs("environment", "ale-py of the suite", installed("ale-py")["ale-py"], why)
    if request["network"]["instructions"]:
        why = "no task of ViZDoom has an instruction, and of none our encoder gives zeros"
        settings.differs("network.instructions", "an encoder", "zeros in its place", why)
    if (epochs := settings.take("num_epochs")) > 1:
        why = "it leaves out the rest where an epoch changes the loss of the policy by less than 0.000001"
        settings.differs("num_epochs", epochs, f"at most {epochs}", why)
    return {
        **common(request, settings, folder),
        **losses(settings),
        **optimiser(request, settings, length * columns),
        **observations(request, settings),
        "rollout": length,
        "batch_size": length * columns // parts,
        "num_batches_per_epoch": parts,
        "num_epochs": epochs,
        **KINDS[request["algorithm"]](request, settings),
    }


def common(request: Mapping[str, Any], settings: Settings, folder: str) -> dict[str, Any]:
    """Return what is the same for all requests, and what the request's network and budget say."""
    settings.same("precision", "float32", "it computes in float32")
    return {
        "algo": "APPO",
        "env": TASK,
        "experiment": "run",
        "train_dir": folder,
        "restart_behavior": "overwrite",
        "device": "cpu",
        "seed": request["seed"],
        "serial_mode": False,
        "use_rnn": False,
        "shuffle_minibatches": True,
        "policy_initialization": "torch_default",
        "actor_critic_share_weights": not request["network"]["separate"],
        "adaptive_stddev": False,
        "continuous_tanh_scale": 0.0,
        "initial_stddev": float(np.exp(settings.take("initial_log_std", 0.0))),
        "decorrelate_experience_max_seconds": 0,
        "env_frameskip": 1,
        "train_for_env_steps": request["agent_steps"],
        "save_every_sec": NEVER,
        "save_best_every_sec": NEVER,
        "save_best_after": UNBOUNDED,  # a score would stand in the checkpoint as an object of numpy, which is not read
        "log_to_file": False,
        "with_wandb": False,
    }


def losses(settings: Settings) -> dict[str, Any]:
    """Return the arguments of the losses that PPO and APPO share."""
    take = settings.take
    settings.differs("normalise_advantages", "deviation over n", "over n - 1", "one sample of a minibatch")
    why = "it shifts and scales the targets of the value instead, which the driver leaves off"
    settings.same("reward_normalisation", False, why)
    settings.without_effect("normalised_reward_clip")
    if take("time_limits", "bootstrap") == "bootstrap":
        settings.differs("time_limits", "V of the last observation", "V of the one before", "it keeps no other")
    clip = take("value_clip_epsilon")
    return {
        "gamma": take("discount"),
        "gae_lambda": take("gae_lambda"),
        "ppo_clip_ratio": take("clip_epsilon"),
        "ppo_clip_value": 1e9 if clip is None else clip,
        "value_loss_coeff": take("value_cost") / 2,  # of the whole squared error; ours of half of it
        "exploration_loss_coeff": take("entropy_cost"),
        "value_bootstrap": True,
        "normalize_returns": False,
        "reward_clip": 1e9,
    }


def optimiser(request: Mapping[str, Any], settings: Settings, samples: int) -> dict[str, Any]:
    """Return the arguments of Adam; `samples` are those of a batch."""
    take, total = settings.take, request["agent_steps"]
    decay = take("optimizer.decay_frames")
    if decay and abs(decay / request["task"]["frame_skip"] - total) > samples:
        settings.differs("optimizer.decay_frames", decay, total, "its rate falls to 0 at the end, or not at all")
    settings.same("optimizer.name", "adam", "it has Adam and LAMB")
    bound = take("max_grad_norm")
    return {
        "max_grad_norm": 0.0 if bound is None else bound,
        "learning_rate": take("optimizer.learning_rate"),
        "lr_schedule": "linear_decay" if decay else "constant",
        "adam_eps": take("optimizer.epsilon"),
        "adam_beta1": take("optimizer.beta1"),
        "adam_beta2": take("optimizer.beta2"),
    }


def observations(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return how observations come to the network."""
    settings.same("observation_warm_up", 0, LIVE)
    if normalises := settings.take("observation_normalisation", False):
        settings.differs("observation_normalisation", "after each update", "before it", "when a batch is taken in")
    scaled = settings.take("scaled_pixels", True) and request["task"]["kind"] in IMAGES
    return {"normalize_input": normalises, "obs_scale": 255.0 if scaled else 1.0}


def ppo(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the arguments of synchronous PPO: one environment for each unroll of a batch."""
    take, columns = settings.take, settings.take("batch_size")
    workers, envs = take("topology.num_actors"), take("topology.num_actors") * take("topology.envs_per_actor")
    if envs != columns or columns % workers:
        workers = next(number for number in range(min(workers, columns), 0, -1) if columns % number == 0)
        settings.differs(
            "topology", envs, columns, f"one environment for each unroll of a batch, in {workers} processes"
        )
    settings.ours_alone()
    settings.same("normalise_advantages", True, "it always does so")
    settings.same("normalise_advantages_over", "minibatch", "it does so in each minibatch")
    settings.same("kl_target", None, "its target adapts the learning rate")
    settings.same("return_scaling", False, "it shifts and scales the targets of the value instead")
    settings.same("recompute_advantages", False, "it computes them once a batch")
    epsilon = take("clip_epsilon")
    settings.differs("clip_epsilon", f"{1 - epsilon:.3g}", f"{1 / (1 + epsilon):.3g}", "the lower bound of the ratio")
    if columns > workers:
        why = "the environments of a process begin training after different numbers of random steps"
        settings.differs("start", "a new episode", "some steps later", why)
    return {
        "async_rl": False,
        "with_vtrace": False,
        "recurrence": 1,
        "num_workers": workers,
        "num_envs_per_worker": columns // workers,
        "worker_num_splits": 1,
        "exploration_loss": "entropy",
        "kl_loss_coeff": take("kl_cost"),
    }


def appo(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the arguments of APPO."""
    take, length = settings.take, settings.take("unroll_length")
    settings.same("feed_last_action_and_reward", False, "the network sees observations alone")
    settings.same("clip_bounds", "reciprocal", "it has these alone")
    settings.same("max_ratio", 20.0, "its bound is fixed")
    vtrace, exploration = take("vtrace"), take("exploration")
    if exploration == "symmetric_kl":
        why = "one certain step takes the gradient of the whole minibatch"
        settings.differs("exploration", "the divergence of each step is bounded", "their mean is", why)
    if vtrace:
        settings.without_effect("gae_lambda")
        if length == 1:
            raise Refused(
                "its V-trace needs unrolls of two steps or more; allowed: hyperparameters.unroll_length above 1"
            )
        why = "the last step's value and reward stand for the value after it, so its error is 0"
        settings.differs("bootstrap", "V after an unroll", "(V - r) / discount of its last step", why)
    else:
        settings.without_effect("rho_bar", "c_bar")
    return {
        "with_vtrace": vtrace,
        "recurrence": length if vtrace else 1,
        "vtrace_rho": take("rho_bar"),
        "vtrace_c": take("c_bar"),
        "exploration_loss": exploration,
        "kl_loss_coeff": 0.0,
        "decorrelate_envs_on_one_worker": False,
        **stale(settings),
        **layout(request, settings),
    }


def stale(settings: Settings) -> dict[str, Any]:
    """Return from which age on steps are left out: below it in gradient steps there, up to it in updates here."""
    lag, steps_of_update = (
        settings.take("max_policy_lag"),
        settings.take("num_epochs") * settings.take("num_minibatches"),
    )
    if lag is None:
        return {"max_policy_lag": UNBOUNDED}
    if not settings.take("vtrace"):
        why = "older steps count in the estimates of the steps before them here; there they end them"
        settings.differs("max_policy_lag", "left out of the loss", "left out of the estimates, too", why)
    return {"max_policy_lag": lag * steps_of_update + 1}


def layout(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return how environments, inference and learner run beside each other."""
    take, topology = settings.take, request["topology"]
    schedule, columns = topology["schedule"], take("batch_size")
    if schedule == "bounded_lag" or topology["parameter_delay"]:
        key = "parameter_delay" if schedule != "bounded_lag" else "schedule"
        raise Refused(
            f"topology.{key}: {topology[key]} does not exist there; allowed: schedule asynchronous or synchronous, "
            "parameter_delay 0"
        )
    envs = take("topology.envs_per_actor")
    found = {
        "async_rl": schedule == "asynchronous",
        "num_workers": take("topology.num_actors"),
        "num_envs_per_worker": envs,
        "worker_num_splits": topology["env_groups"],
    }
    if schedule == "synchronous":
        settings.without_effect("values_at")  # the policy that acts is the one that learns
        return found
    settings.same("values_at", "collection", "it keeps the values that were predicted while acting")
    if take("num_epochs") * take("num_minibatches") > 1:
        why = "its actors get parameters from within an update"
        settings.differs("version", "of an update", "of a gradient step", why)
    if topology["inference"] == "local":
        why = "a process infers for all actors; an actor of ours has a copy of the network"
        settings.differs("topology.inference", "new parameters for each unroll", "for each step", why)
    waiting = topology["queue_capacity"] * envs
    batches = max(1, waiting // columns)
    if waiting != batches * columns:
        why = "it counts whole batches"
        settings.differs("topology.queue_capacity", f"{waiting} unrolls", f"{batches * columns} unrolls", why)
    return {**found, "num_batches_to_accumulate": batches}


KINDS = {"ppo": ppo, "appo": appo}
