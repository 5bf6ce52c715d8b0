"""Runs RLlib's IMPALA and PPO, on its new API stack with a local learner (see `protocol`).

Environments are stepped by processes of its own (IMPALA) or in this process (PPO). The network is the request's, as a
module of RLlib's kind; the losses, the sampling and the learner are RLlib's.
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

import gymnasium
import numpy as np
import ray
import torch
from environments import Episodes, Logged, evaluate, make
from networks import Torso, initialise
from protocol import Refused, Reporter, Settings, Versions, installed, run
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import nn

ONE_POLICY = "default_policy"


class Network(TorchRLModule, ValueFunctionAPI):
    """The request's network as a module of RLlib."""

    def setup(self) -> None:
        """Build the layers."""
        network = self.model_config["network"]
        shape, actions = self.observation_space.shape, self.action_space
        self.image = len(shape) == 3
        hidden, policy, value = network["gains"]
        self.torso = Torso(shape, network["torso"])
        self.value_torso = Torso(shape, network["torso"]) if network["separate"] else None
        discrete = hasattr(actions, "n")
        self.policy = nn.Linear(self.torso.size, int(actions.n) if discrete else actions.shape[0])
        self.value = nn.Linear(self.torso.size, 1)
        self.log_std = None
        if not discrete:
            first = self.model_config["initial_log_std"]
            self.log_std = nn.Parameter(torch.full((actions.shape[0],), first))
        for module, gain in ((self, hidden), (self.policy, policy), (self.value, value)):
            initialise(module, gain)

    def _seen(self, batch: Mapping[str, Any]) -> torch.Tensor:
        observation = batch[Columns.OBS].float()
        return observation / 255.0 if self.image else observation

    def _forward(self, batch: Mapping[str, Any], **_: Any) -> dict[str, torch.Tensor]:
        features = self.torso(self._seen(batch))
        inputs = self.policy(features)
        if self.log_std is not None:
            inputs = torch.cat([inputs, self.log_std.expand_as(inputs)], dim=-1)
        return {Columns.ACTION_DIST_INPUTS: inputs, Columns.EMBEDDINGS: features}

    def _forward_exploration(self, batch: Mapping[str, Any], **_: Any) -> dict[str, torch.Tensor]:
        return {Columns.ACTION_DIST_INPUTS: self._forward(batch)[Columns.ACTION_DIST_INPUTS]}

    _forward_inference = _forward_exploration

    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> torch.Tensor:
        """Return V(x)."""
        if self.value_torso is not None:
            features = self.value_torso(self._seen(batch))
        else:
            features = self.torso(self._seen(batch)) if embeddings is None else embeddings
        return self.value(features).squeeze(-1)


def with_optimizer(base: type) -> type:
    """Return a learner of RLlib with the request's optimizer, whose loss is a sum where ours is one."""

    class OwnOptimizer(base):  # type: ignore[misc]
        def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
            """Register the optimizer."""
            kind, arguments = config.learner_config_dict["optimizer"]
            parameters = self.get_parameters(self._module[module_id])
            optimizer = getattr(torch.optim, kind)(parameters, lr=1.0, **arguments)
            self.register_optimizer(
                module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
            )

        def compute_loss_for_module(self, **given: Any) -> Any:
            """Return RLlib's loss, times the number of samples where ours is a sum."""
            return super().compute_loss_for_module(**given) * given["config"].learner_config_dict["loss_times"]

    return OwnOptimizer


ImpalaLearner, PpoLearner = with_optimizer(IMPALATorchLearner), with_optimizer(PPOTorchLearner)


class Placed:
    """The request's task at one place of one process."""

    def __new__(cls, context: Any) -> Any:
        """Make it; what RLlib takes for a class is a function here."""
        number = context.worker_index * 1000 + (context.vector_index or 0)
        return Logged(context["task"], context["seed"], number, context["folder"])


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


def common(config: Any, learner: type, request: Mapping[str, Any], settings: Settings, folder: str) -> Any:
    """Set what both algorithms share."""
    take, network = settings.take, request["network"]
    if network["recurrent"] or network["torso"]["kind"] not in ("mlp", "convolutional"):
        raise Refused(f"this network is not built for RLlib: {network['torso']['kind']}, LSTM {network['recurrent']}")
    settings.without_effect("network", "initialisation", "initialisation.name", "separate_value_network", "lstm_size")
    settings.without_effect("reward_clipping")
    settings.same("feed_last_action_and_reward", False, "the module sees observations alone")
    settings.same("precision", "float32", "the learner computes in float32")
    settings.same("observation_normalisation", False, "the driver sets no filter of observations")
    settings.same("reward_normalisation", False, "it has none")
    settings.without_effect("normalised_observation_clip", "normalised_reward_clip")
    rate, decay = take("optimizer.learning_rate"), take("optimizer.decay_frames")
    if decay:
        rate = [[0, rate], [int(decay / request["task"]["frame_skip"]), 0.0]]
    samples = take("unroll_length") * take("batch_size")
    times = samples if take("loss_reduction", "mean") == "sum" else 1
    model = {"network": network, "initial_log_std": take("initial_log_std", 0.0)}
    return (
        config.environment(
            Placed,
            env_config={"task": request["task"], "seed": request["seed"], "folder": folder},
            normalize_actions=False,
            clip_actions=False,
        )
        .framework("torch")
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Network, model_config=model))
        .debugging(seed=request["seed"], log_level="WARN")
        .reporting(min_time_s_per_iteration=0.5)
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
    settings.differs("unroll_length", "traces of T steps", "rows of T steps", "rows begin anywhere in a fragment")
    why = "the step that it appends to a fragment has reward 0 and discount 0, and its error, -V, enters the trace"
    settings.differs("bootstrap", "V after an unroll", "about 0", why)
    return (
        common(IMPALAConfig(), ImpalaLearner, request, settings, folder)
        .training(
            vtrace_clip_rho_threshold=take("rho_bar"),
            vtrace_clip_pg_rho_threshold=take("pg_rho_bar"),
            vf_loss_coeff=take("value_cost"),  # of half the squared error on both sides
        )
        .env_runners(
            num_env_runners=take("topology.num_actors"),
            num_envs_per_env_runner=take("topology.envs_per_actor"),
            rollout_fragment_length=take("unroll_length"),
        )
    )


def ppo(request: Mapping[str, Any], settings: Settings, folder: str) -> Any:
    """Return the configuration of PPO."""
    take = settings.take
    length, columns = take("unroll_length"), take("batch_size")
    envs = take("topology.num_actors") * take("topology.envs_per_actor")
    if envs != columns:
        settings.differs("topology", envs, columns, "one environment for each unroll of a batch, in one process")
    if take("normalise_advantages"):
        settings.differs("normalise_advantages", "of a minibatch", "of a batch", "its connector does so once a batch")
    else:
        settings.differs("normalise_advantages", False, True, "its connector always does so")
    settings.same("value_clip_epsilon", None, "it bounds the squared error instead")
    cost, target = take("kl_cost"), take("kl_target")
    if cost and target is None:
        settings.differs("kl_target", None, 1e9, "its penalty always adapts, here by halves")
    return (
        common(PPOConfig(), PpoLearner, request, settings, folder)
        .training(
            lambda_=take("gae_lambda"),
            clip_param=take("clip_epsilon"),
            vf_loss_coeff=take("value_cost") / 2,  # of the whole squared error; ours of half of it
            vf_clip_param=float("inf"),
            use_kl_loss=bool(cost),
            kl_coeff=cost,
            kl_target=1e9 if target is None else target,
            num_epochs=take("num_epochs"),
            minibatch_size=length * columns // take("num_minibatches"),
        )
        .env_runners(num_env_runners=0, num_envs_per_env_runner=columns, rollout_fragment_length=length)
    )


KINDS = {"impala": impala, "ppo": ppo}


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
        versions = Versions(request, lambda: copy.deepcopy(module.state_dict()))
        learn(algorithm, config, request, reporter, versions, Episodes(folder))
        counts = reporter.counts()
        parameters = sum(tensor.numel() for tensor in module.parameters())
        algorithm.stop()
        ray.shutdown()
    generator = torch.Generator().manual_seed(request["seed"])
    versions.play(reporter, lambda state, share, count: play(module, state, request, share, count, generator))
    return {**counts, "effective": effective(config), "parameters": parameters}


def learn(
    algorithm: Any, config: Any, request: Mapping[str, Any], reporter: Reporter, versions: Versions, episodes: Episodes
) -> None:
    """Train to the budget, and report."""
    reporter.progress(0)
    is_ppo, batch = request["algorithm"] == "ppo", config.train_batch_size_per_learner
    minibatch = config.minibatch_size if is_ppo else batch
    steps_of_update = config.num_epochs * (batch // minibatch) if is_ppo else 1
    while reporter.steps < request["agent_steps"]:
        result = algorithm.train()
        learned = result.get("learners", {}).get(ONE_POLICY, {})
        sampled = int(result["num_env_steps_sampled_lifetime"])
        # What the learner has consumed: the runners of IMPALA may be ahead of it.
        reporter.steps = sampled if is_ppo else reporter.gradient_steps * batch
        reporter.trained_samples = reporter.gradient_steps * minibatch
        for episode_return, length in episodes.new():
            reporter.episode(reporter.steps, episode_return, length)
        for theirs, ours in METRICS.items():
            if theirs in learned and not (is_ppo and theirs == LAG):  # which counts the epochs of the batch itself
                reporter.metric(ours, float(learned[theirs]))
        updates = reporter.gradient_steps // steps_of_update
        if updates > reporter.updates:
            reporter.updates = updates - 1
            reporter.updated()
            versions.keep(reporter)
    reporter.progress(force=True)


LAG = "diff_num_grad_updates_vs_sampler_policy"
"""RLlib's name for the number of updates between acting and learning."""
METRICS = {"entropy": "entropy", "mean_kl_loss": "kl", LAG: "policy_lag_mean"}
"""RLlib's name -> ours."""


def play(
    module: Network, state: Any, request: Mapping[str, Any], share: int, count: int, generator: torch.Generator
) -> list[list[float]]:
    """Play episodes with sampled actions."""
    module.load_state_dict(state)

    @torch.no_grad()
    def act(observation: Any) -> Any:
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
        "learner_config_dict",
    )
    return {name: str(getattr(config, name)) for name in names if hasattr(config, name)}


def one_update(given: str, result: str) -> None:
    """Make one update of IMPALA from a batch with given parameters; write the parameters after it.

    The form of `stable_baselines3_driver.one_update`, with `behaviour_log_probability` [T, B]. Each row of the batch
    is one unroll with the observation after it, so RLlib's rows and ours begin at the same steps. With `bootstrapped`
    the appended step gets its own value as its reward, which undoes that RLlib leaves out the value after an unroll.
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
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    learner = config.build_learner(env=None, spaces=spaces)
    module = learner.module[ONE_POLICY].unwrapped()
    names = {name.removeprefix("parameter/") for name in arrays if name.startswith("parameter/")}
    module.load_state_dict({name: torch.from_numpy(arrays[f"parameter/{name}"]) for name in names})

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
