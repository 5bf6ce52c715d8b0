"""Maps a request to a configuration of RLlib (see `protocol`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol import DESCRIBED, LIVE, Refused, Settings
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from rllib_modules import AppoLearner, ImpactNetwork, ImpalaLearner, Network, Placed, PpoLearner

ROWS = "rows begin anywhere in a fragment"
BOOTSTRAP = "the step that it appends to a fragment has reward 0 and discount 0, and its error, -V, enters the trace"
REPORT_SECONDS = 0.05
"""Least time between two looks at its counts: the training ends at the first one that finds the budget used up."""
FIXED = float("nan")
"""A target of the divergence that no divergence is above or below, so that the cost of the penalty stays."""


def optimizer_of(settings: Settings) -> tuple[str, dict[str, Any]]:
    """Return the name of a torch optimizer and its arguments, without the learning rate."""
    take = settings.take
    if take("optimizer.name") == "adam":
        betas = [take("optimizer.beta1"), take("optimizer.beta2")]
        return "Adam", {"betas": betas, "eps": take("optimizer.epsilon")}
    settings.same("optimizer.epsilon_inside_sqrt", False, "torch's RMSProp has it outside of the root")
    settings.same("optimizer.initial_mean_square", 0.0, "torch's RMSProp starts at 0")
    names = {"alpha": "decay", "eps": "epsilon", "momentum": "momentum", "centered": "centered"}
    return "RMSprop", {theirs: take(f"optimizer.{ours}") for theirs, ours in names.items()}


def observation_filter(settings: Settings) -> Any:
    """Return what makes the filter of observations, None where there is none."""
    bound = settings.take("normalised_observation_clip", 10.0)
    if not settings.take("observation_normalisation", False):
        return None
    why = "each process has statistics of its own, which are merged with each new version of the parameters"
    settings.differs("observation_normalisation", "after each update", "at each step", why)
    return lambda env, spaces, device: MeanStdFilter(clip_by_value=float("inf") if bound is None else bound)


def common(config: Any, learner: type, request: Mapping[str, Any], settings: Settings, folder: str) -> Any:
    """Set what all algorithms share."""
    take, network = settings.take, request["network"]
    if network["recurrent"] or network["torso"]["kind"] not in ("mlp", "convolutional"):
        raise Refused(f"this network is not built for RLlib: {network['torso']['kind']}, LSTM {network['recurrent']}")
    settings.without_effect(*DESCRIBED)
    settings.same("feed_last_action_and_reward", False, "the module sees observations alone")
    settings.same("precision", "float32", "the learner computes in float32")
    settings.same("observation_warm_up", 0, LIVE)
    settings.same("reward_normalisation", False, "it has none")
    settings.same("return_scaling", False, "it has none")
    settings.without_effect("normalised_reward_clip")
    rate, decay = take("optimizer.learning_rate"), take("optimizer.decay_frames")
    if decay:
        rate = [[0, rate], [int(decay / request["task"]["frame_skip"]), 0.0]]
    samples = take("unroll_length") * take("batch_size")
    times = samples if take("loss_reduction", "mean") == "sum" else 1
    model = {
        "network": network,
        "initial_log_std": take("initial_log_std", 0.0),
        "scaled_pixels": take("scaled_pixels", True),
    }
    module = ImpactNetwork if request["algorithm"] == "impact" else Network
    return (
        config.environment(
            Placed,
            env_config={"task": request["task"], "seed": request["seed"], "folder": folder},
            normalize_actions=False,
            clip_actions=False,
        )
        .env_runners(env_to_module_connector=observation_filter(settings))
        .framework("torch")
        .rl_module(rl_module_spec=RLModuleSpec(module_class=module, model_config=model))
        .debugging(seed=request["seed"], log_level="WARN")
        .reporting(min_time_s_per_iteration=REPORT_SECONDS)
        .learners(
            num_learners=0,
            learner_class=learner,
            learner_config_dict={"optimizer": optimizer_of(settings), "loss_times": times},
        )
        .training(
            gamma=take("discount"),
            lr=rate,
            grad_clip=take("max_grad_norm"),
            grad_clip_by="global_norm",
            entropy_coeff=take("entropy_cost"),
            train_batch_size_per_learner=samples,
        )
    )


def impala(request: Mapping[str, Any], settings: Settings, folder: str) -> Any:
    """Return the configuration of IMPALA."""
    take = settings.take
    settings.same("correction", "v_trace", "it has V-trace alone")
    settings.same("c_bar", 1.0, "its V-trace cuts traces at 1")
    settings.same("lambda_", 1.0, "its V-trace has no lambda")
    settings.same("replay_fraction", 0.0, "its new API stack has no replay")
    settings.without_effect("replay_capacity", "correction_epsilon")
    settings.differs("unroll_length", "traces of T steps", "rows of T steps", ROWS)
    settings.differs("bootstrap", "V after an unroll", "about 0", BOOTSTRAP)
    return asynchronous(
        common(IMPALAConfig(), ImpalaLearner, request, settings, folder).training(
            vtrace_clip_rho_threshold=take("rho_bar"),
            vtrace_clip_pg_rho_threshold=take("pg_rho_bar"),
            vf_loss_coeff=take("value_cost"),  # of half the squared error on both sides
        ),
        settings,
    )


def impact(request: Mapping[str, Any], settings: Settings, folder: str) -> Any:
    """Return the configuration of APPO."""
    take = settings.take
    slots, traversals = take("num_slots"), take("num_traversals")
    settings.same("ratio", "target_worker_clipping", "it has this ratio alone")
    settings.same("rho", 2.0, "the bound of its ratio is fixed")
    settings.same("gae_lambda", 1.0, "its V-trace has no lambda")
    settings.same("rho_bar", 1.0, "with other bounds its advantages are not the errors of its V-trace")
    settings.same("c_bar", 1.0, "its V-trace cuts traces at 1")
    settings.same("normalise_advantages", False, "it never does so")
    if slots * traversals > 1:
        why = "a new batch takes the place of the oldest one, however often that was traversed"
        settings.differs("num_traversals", traversals, f"at most {traversals}, drawn at random", why)
    cost, target = take("kl_cost"), take("kl_target")
    if cost and target is not None:
        settings.differs("kl_target", "at each target update", "at each update", "when its penalty adapts")
    period = take("target_update_period")
    settings.differs("unroll_length", "traces of T steps", "rows of T steps", ROWS)
    settings.differs("bootstrap", "V after an unroll", "about 0", BOOTSTRAP)
    return asynchronous(
        common(APPOConfig(), AppoLearner, request, settings, folder).training(
            vtrace_clip_rho_threshold=1.0,
            vtrace_clip_pg_rho_threshold=1.0,
            clip_param=take("clip_epsilon"),
            use_kl_loss=bool(cost),
            kl_coeff=cost,
            kl_target=FIXED if target is None else target,
            vf_loss_coeff=take("value_cost"),  # of half the squared error on both sides
            use_circular_buffer=True,
            circular_buffer_num_batches=slots,
            circular_buffer_iterations_per_batch=traversals,
            target_network_update_freq=1 if period is None else period / (slots * traversals),  # in units of N x K
            tau=1.0,
        ),
        settings,
    )


def asynchronous(config: Any, settings: Settings) -> Any:
    """Return a configuration whose environments are stepped by processes of their own."""
    take = settings.take
    return config.env_runners(
        num_env_runners=take("topology.num_actors"),
        num_envs_per_env_runner=take("topology.envs_per_actor"),
        rollout_fragment_length=take("unroll_length"),
    )


def ppo(request: Mapping[str, Any], settings: Settings, folder: str) -> Any:
    """Return the configuration of PPO."""
    take = settings.take
    settings.ours_alone()
    length, columns = take("unroll_length"), take("batch_size")
    envs = take("topology.num_actors") * take("topology.envs_per_actor")
    if envs != columns:
        settings.differs("topology", envs, columns, "one environment for each unroll of a batch, in one process")
    if take("normalise_advantages"):
        settings.same("normalise_advantages_over", "batch", "its connector does so once a batch")
    else:
        settings.differs("normalise_advantages", False, True, "its connector always does so")
    settings.without_effect("normalise_advantages_over")
    settings.same("value_clip_epsilon", None, "it bounds the squared error instead")
    settings.same("recompute_advantages", False, "it computes them once a batch")
    cost, target = take("kl_cost"), take("kl_target")
    return (
        common(PPOConfig(), PpoLearner, request, settings, folder)
        .training(
            lambda_=take("gae_lambda"),
            clip_param=take("clip_epsilon"),
            vf_loss_coeff=take("value_cost") / 2,  # of the whole squared error; ours of half of it
            vf_clip_param=float("inf"),
            use_kl_loss=bool(cost),
            kl_coeff=cost,
            kl_target=FIXED if target is None else target,
            num_epochs=take("num_epochs"),
            minibatch_size=length * columns // take("num_minibatches"),
        )
        .env_runners(num_env_runners=0, num_envs_per_env_runner=columns, rollout_fragment_length=length)
    )


KINDS = {"impala": impala, "impact": impact, "ppo": ppo}
