"""Runs RLlib's IMPALA, APPO and PPO, on its new API stack with a local learner (see `protocol`).

APPO is RLlib's name of IMPACT. Environments are stepped by processes of its own (IMPALA, APPO) or in this process
(PPO). The network is the request's, as a module of RLlib's kind; losses, sampling and learner are RLlib's.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the home folder

import numpy as np
import ray
import torch
from environments import Episodes, evaluate, make
from protocol import Refused, Reporter, Settings, Versions, installed, run
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.columns import Columns
from rllib_modules import ONE_POLICY, Network
from rllib_settings import KINDS


def train(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    torch.set_num_threads(request["threads"])
    if request["algorithm"] not in KINDS:
        raise Refused(f"RLlib has no algorithm '{request['algorithm']}' here; allowed: {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory() as folder:
        config = KINDS[request["algorithm"]](request, settings, folder)
        ray.init(include_dashboard=False, object_store_memory=300 * 2**20, log_to_driver=True)
        algorithm = config.build_algo()
        reporter.count_optimizer_steps()
        module = algorithm.learner_group._learner.module[ONE_POLICY].unwrapped()
        versions = Versions(request, lambda: (copy.deepcopy(module.state_dict()), filter_of(algorithm)))
        learn(algorithm, config, request, reporter, versions, Episodes(folder))
        counts = reporter.counts()
        parameters = sum(tensor.numel() for tensor in module.parameters())
        algorithm.stop()
        ray.shutdown()
    generator = torch.Generator().manual_seed(request["seed"])
    versions.play(reporter, lambda kept, share, count: play(module, kept, request, share, count, generator))
    return {**counts, "effective": effective(config), "parameters": parameters}


def filter_of(algorithm: Any) -> Any:
    """Return a copy of the filter of observations, merged over all processes; None where there is none."""
    for connector in algorithm.env_runner._env_to_module.connectors:
        if isinstance(connector, MeanStdFilter):
            return connector._filters[None].copy()
    return None


def learn(
    algorithm: Any, config: Any, request: Mapping[str, Any], reporter: Reporter, versions: Versions, episodes: Episodes
) -> None:
    """Train to the budget, and report."""
    reporter.progress(0)
    kind, batch = request["algorithm"], config.train_batch_size_per_learner
    minibatch = config.minibatch_size if kind == "ppo" else batch
    steps_of_update = config.num_epochs * (batch // minibatch) if kind == "ppo" else 1
    queue = algorithm.learner_group._learner._learner_thread_in_queue if kind == "impact" else None
    while reporter.steps < request["agent_steps"]:
        result = algorithm.train()
        learned = result.get("learners", {}).get(ONE_POLICY, {})
        # What the learner has consumed: the processes that act may be ahead of it.
        if queue is not None:  # it is false while it is empty
            reporter.steps = queue._total_puts * batch
        else:
            sampled = int(result["num_env_steps_sampled_lifetime"])
            reporter.steps = sampled if kind == "ppo" else reporter.gradient_steps * batch
        reporter.trained_samples = reporter.gradient_steps * minibatch
        for episode_return, length in episodes.new():
            reporter.episode(reporter.steps, episode_return, length)
        for theirs, ours in METRICS.items():
            if theirs in learned and not (kind == "ppo" and theirs == LAG):  # which counts the epochs of the batch
                reporter.metric(ours, float(learned[theirs]))
        updates = reporter.gradient_steps // steps_of_update
        if updates > reporter.updates:
            reporter.updates = updates - 1
            reporter.updated()
            versions.keep(reporter)
    reporter.progress(force=True)


LAG = "diff_num_grad_updates_vs_sampler_policy"
"""RLlib's name for the number of updates between acting and learning."""
METRICS = {
    "entropy": "entropy",
    "mean_kl_loss": "kl",
    "curr_kl_coeff": "kl_cost",
    "num_target_updates": "target_updates",
    LAG: "policy_lag_mean",
}
"""RLlib's name -> ours."""


def play(
    module: Network,
    kept: tuple[Any, Any],
    request: Mapping[str, Any],
    share: int,
    count: int,
    generator: torch.Generator,
) -> list[list[float]]:
    """Play episodes with sampled actions; `kept`: parameters, and the filter of observations or None."""
    state, normalise = kept
    module.load_state_dict(state)

    @torch.no_grad()
    def act(observation: Any) -> Any:
        if normalise:
            observation = normalise(observation[0], update=False)[None].astype(np.float32)
        inputs = module._forward({Columns.OBS: torch.as_tensor(observation)})[Columns.ACTION_DIST_INPUTS]
        if module.log_std is None:
            return torch.multinomial(torch.softmax(inputs, -1), 1, generator=generator)[:, 0].numpy()
        mean, log_std = inputs.chunk(2, -1)
        return (mean + log_std.exp() * torch.randn(mean.shape, generator=generator)).numpy()

    return evaluate(request["task"], request["seed"], share, count, act)


def effective(config: Any) -> dict[str, Any]:
    """Return the settings as the library has resolved them."""
    names = (
        *("gamma", "lr", "grad_clip", "grad_clip_by", "entropy_coeff", "vf_loss_coeff", "train_batch_size_per_learner"),
        *("num_env_runners", "num_envs_per_env_runner", "rollout_fragment_length", "num_learners", "num_epochs"),
        *("minibatch_size", "clip_param", "vf_clip_param", "kl_coeff", "kl_target", "use_kl_loss", "lambda_"),
        *("vtrace_clip_rho_threshold", "vtrace_clip_pg_rho_threshold", "broadcast_interval", "learner_queue_size"),
        *("use_circular_buffer", "circular_buffer_num_batches", "circular_buffer_iterations_per_batch"),
        *("target_network_update_freq", "tau", "learner_config_dict"),
    )
    return {name: str(getattr(config, name)) for name in names if hasattr(config, name)}


def load(module: torch.nn.Module, arrays: Mapping[str, Any], prefix: str) -> None:
    """Set the parameters of a module to those that are given under a prefix; it may lack some, and has a target."""
    given = {name.removeprefix(prefix): torch.from_numpy(arrays[name]) for name in arrays if name.startswith(prefix)}
    own = [name for name in module.state_dict() if not name.startswith("target.")]
    module.load_state_dict({name: given[name] for name in own}, strict=False)


def one_update(given: str, result: str) -> None:
    """Make one update of IMPALA or APPO from a batch with given parameters; write the parameters after it.

    The form of `stable_baselines3_driver.one_update`, with `behaviour_log_probability` [T, B], and for APPO
    `target/<name>`, the parameters of the target network. Each row of the batch is one unroll with the observation
    after it, so RLlib's rows and ours begin at the same steps. With `bootstrapped` the appended step gets its own value
    as its reward, which undoes that RLlib leaves out the value after an unroll.
    """
    with np.load(given) as file:
        arrays = dict(file)
    request = json.loads(str(arrays["request"]))
    length, columns = arrays["reward"].shape
    settings = Settings(request["settings"])
    with tempfile.TemporaryDirectory() as folder:
        config = KINDS[request["algorithm"]](request, settings, folder)
    config = config.env_runners(rollout_fragment_length=length + 1)
    env = make(request["task"], 1)
    spaces = {ONE_POLICY: (env.observation_space, env.action_space)}
    learner = config.build_learner(env=None, spaces=spaces)
    module = learner.module[ONE_POLICY].unwrapped()
    names = {name.removeprefix("parameter/") for name in arrays if name.startswith("parameter/")}
    load(module, arrays, "parameter/")
    if request["algorithm"] == "impact":
        load(module.target, arrays, "target/")

    def rows(values: Any, last: Any) -> torch.Tensor:
        whole = np.concatenate([values, np.full((1, *values.shape[1:]), last, values.dtype)])
        return torch.from_numpy(np.swapaxes(whole, 0, 1).reshape(-1, *whole.shape[2:]).copy())

    observation = arrays["observation"]
    batch = {
        Columns.OBS: torch.from_numpy(np.swapaxes(observation, 0, 1).reshape(-1, *observation.shape[2:]).copy()),
        Columns.ACTIONS: rows(arrays["action"], 0),
        Columns.REWARDS: rows(arrays["reward"], 0),
        Columns.TERMINATEDS: rows(arrays["terminated"], False),
        Columns.ACTION_LOGP: rows(arrays["behaviour_log_probability"], 0),
        Columns.LOSS_MASK: rows(np.ones((length, columns), bool), False),
    }
    if "bootstrapped" in arrays:  # with this reward the error of the appended step is 0
        with torch.no_grad():
            values = module.compute_values(batch).view(columns, length + 1)
        batch[Columns.REWARDS].view(columns, length + 1)[:, -1] = values[:, -1]
    output = learner.module[ONE_POLICY].forward_train(batch)
    own = config.get_config_for_module(ONE_POLICY)
    loss = learner.compute_loss_for_module(module_id=ONE_POLICY, config=own, batch=batch, fwd_out=output)
    gradients = learner.compute_gradients({ONE_POLICY: loss})
    learner.apply_gradients(learner.postprocess_gradients(gradients))
    state = module.state_dict()
    np.savez(result, **{name: state[name].numpy() for name in names})


if __name__ == "__main__":
    run(
        train,
        lambda: installed("ray", "torch", "numpy", "gymnasium", "ale-py", "mujoco"),
        {"--one-update": one_update},
    )
