"""Runs Stable-Baselines3's PPO and A2C (see `protocol`)."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import stable_baselines3
import torch
from environments import evaluate, make, seed_of
from networks import Torso, initialise
from protocol import DESCRIBED, LIVE, Refused, Reporter, Settings, Versions, installed, linear_decay, run
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

KINDS = {"ppo": stable_baselines3.PPO, "a2c": stable_baselines3.A2C}


class Extractor(BaseFeaturesExtractor):
    """The torso of the request."""

    def __init__(self, observation_space: Any, torso: Mapping[str, Any]) -> None:
        made = Torso(observation_space.shape, torso)
        super().__init__(observation_space, made.size)
        self.torso = made

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return self.torso(observations)


def optimizer_of(settings: Settings) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Return the class and the arguments of the optimizer, without the learning rate."""
    take = settings.take
    if take("optimizer.name") == "adam":
        betas = (take("optimizer.beta1"), take("optimizer.beta2"))
        return torch.optim.Adam, {"betas": betas, "eps": take("optimizer.epsilon")}
    arguments = {
        "alpha": take("optimizer.decay"),
        "eps": take("optimizer.epsilon"),
        "momentum": take("optimizer.momentum"),
        "centered": take("optimizer.centered"),
    }
    inside, initial = take("optimizer.epsilon_inside_sqrt"), take("optimizer.initial_mean_square")
    if inside:
        settings.same("optimizer.initial_mean_square", 1.0, "its RMSProp of TensorFlow's kind starts at 1")
        return RMSpropTFLike, arguments
    if initial != 0.0:
        settings.differs("optimizer.initial_mean_square", initial, 0.0, "torch's RMSProp starts at 0")
    return torch.optim.RMSprop, arguments


def policy_arguments(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return `policy_kwargs`: network, optimizer and first standard deviation."""
    network = request["network"]
    if network["recurrent"]:
        raise Refused("Stable-Baselines3 has no recurrent network (hyperparameters.lstm_size)")
    if network["torso"]["kind"] not in ("mlp", "convolutional"):
        raise Refused(f"no network of kind {network['torso']['kind']} is built for Stable-Baselines3")
    settings.without_effect(*DESCRIBED)
    settings.same("precision", "float32", "its learner computes in float32")
    settings.same("feed_last_action_and_reward", False, "its policies see observations alone")
    kind, arguments = optimizer_of(settings)
    return {
        "features_extractor_class": Extractor,
        "features_extractor_kwargs": {"torso": network["torso"]},
        "share_features_extractor": not network["separate"],
        "net_arch": {"pi": [], "vf": []},
        "normalize_images": settings.take("scaled_pixels", True),
        "ortho_init": False,  # `initialise` follows
        "log_std_init": settings.take("initial_log_std", 0.0),
        "optimizer_class": kind,
        "optimizer_kwargs": arguments,
    }


def arguments_of(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the arguments of the algorithm's class."""
    take, steps = settings.take, take_steps(settings)
    length, envs = steps
    total, decay = request["agent_steps"], take("optimizer.decay_frames")
    share = linear_decay(decay and decay / request["task"]["frame_skip"], total)
    rate, fresh = take("optimizer.learning_rate"), length * envs / total
    bound = take("max_grad_norm")
    found = {
        "n_steps": length,
        "gamma": take("discount"),
        "learning_rate": lambda left: rate * share(min(1.0, left + fresh)),  # ours: that before the batch
        "vf_coef": take("value_cost") / 2,  # of the whole squared error; ours of half of it
        "ent_coef": take("entropy_cost"),
        "max_grad_norm": float("inf") if bound is None else bound,
        "seed": request["seed"],
        "device": "cpu",
        "policy_kwargs": policy_arguments(request, settings),
    }
    if request["algorithm"] == "a2c":
        settings.same("loss_reduction", "mean", "its losses are means")
        return {**found, "gae_lambda": take("gae_lambda"), "normalize_advantage": False, "use_rms_prop": False}
    settings.ours_alone()
    minibatches, clip = take("num_minibatches"), take("value_clip_epsilon")
    if length * envs % minibatches:
        raise Refused(f"{length} x {envs} steps are no {minibatches} equal minibatches")
    if clip is not None:
        settings.differs("value_clip_epsilon", clip, clip, "it takes the clipped error alone, ours the larger of two")
    settings.without_effect("normalise_advantages_over")
    settings.same("recompute_advantages", False, "it computes them once a batch")
    settings.same("kl_cost", 0.0, "its PPO has no penalty")
    settings.same("kl_target", None, "its target ends the epochs of a batch, ours adapts the penalty")
    if take("normalise_advantages"):
        settings.same("normalise_advantages_over", "minibatch", "it does so in each minibatch")
        settings.differs("normalise_advantages", "deviation over n", "over n - 1", "one sample of a minibatch")
    return {
        **found,
        "gae_lambda": take("gae_lambda"),
        "batch_size": length * envs // minibatches,
        "n_epochs": take("num_epochs"),
        "clip_range": take("clip_epsilon"),
        "clip_range_vf": clip,
        "normalize_advantage": take("normalise_advantages"),
    }


def take_steps(settings: Settings) -> tuple[int, int]:
    """Return steps of an unroll and number of environments: as many as unrolls in a batch."""
    length, columns = settings.take("unroll_length"), settings.take("batch_size")
    envs = settings.take("topology.num_actors") * settings.take("topology.envs_per_actor")
    if envs != columns:
        settings.differs("topology", envs, columns, "one environment for each unroll of a batch")
    return length, columns


def normalised(env: Any, request: Mapping[str, Any], settings: Settings) -> Any:
    """Return the environments with normalised observations and rewards, where the request says so."""
    take = settings.take
    settings.same("observation_warm_up", 0, LIVE)
    settings.same("return_scaling", False, "it divides rewards alone")
    observations, rewards = take("observation_normalisation", False), take("reward_normalisation", False)
    bounds = [take("normalised_observation_clip"), take("normalised_reward_clip")]
    if not (observations or rewards):
        return env
    settings.differs("normalisation", "after each update", "at each step", "when the statistics take in what was seen")
    clips = [float("inf") if bound is None else bound for bound in bounds]
    return VecNormalize(
        env,
        norm_obs=observations,
        norm_reward=rewards,
        clip_obs=clips[0],
        clip_reward=clips[1],
        gamma=settings.take("discount"),
    )


def build(request: Mapping[str, Any], settings: Settings) -> tuple[Any, list[Any]]:
    """Return the model with its first parameters, and the environments that it steps."""
    _, columns = take_steps(settings)
    task = request["task"]
    games = [make(task, seed_of(request["seed"], "actor", index)) for index in range(columns)]
    env = normalised(DummyVecEnv([lambda game=game: game for game in games]), request, settings)
    arguments = arguments_of(request, settings)
    image = task["kind"] == "atari"
    model = KINDS[request["algorithm"]]("CnnPolicy" if image else "MlpPolicy", env, **arguments)
    hidden, policy, value = request["network"]["gains"]
    for module, gain in ((model.policy, hidden), (model.policy.action_net, policy), (model.policy.value_net, value)):
        initialise(module, gain)
    return model, games


class Follow(BaseCallback):
    """Reports progress."""

    def __init__(self, reporter: Reporter, games: list[Any], samples: int, versions: Versions) -> None:
        super().__init__()
        self._reporter, self._games, self._samples, self._versions = reporter, games, samples, versions

    def _on_training_start(self) -> None:
        self._reporter.progress(0)

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.updated()

    def updated(self) -> None:
        """Report what was learned from the last batch."""
        reporter = self._reporter
        reporter.trained_samples = reporter.gradient_steps * self._samples
        for key, name in METRICS.items():
            if key in self.model.logger.name_to_value:
                reporter.metric(name, abs(self.model.logger.name_to_value[key]))
        reporter.updated()
        self._versions.keep(reporter)

    def _on_step(self) -> bool:
        reporter = self._reporter
        reporter.steps = self.num_timesteps
        for game in self._games:
            for episode_return, length in game.episodes_over():
                reporter.episode(self.num_timesteps, episode_return, length)
        reporter.progress()
        return True


METRICS = {
    "train/entropy_loss": "entropy",
    "train/clip_fraction": "clip_fraction",
    "train/approx_kl": "kl",
    "train/value_loss": "value_loss",
}
"""Logged name -> ours."""


def train(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    torch.set_num_threads(request["threads"])
    if request["algorithm"] not in KINDS:
        raise Refused(f"Stable-Baselines3 has no algorithm '{request['algorithm']}' here; allowed: {', '.join(KINDS)}")
    model, games = build(request, settings)
    reporter.count_optimizer_steps()
    batch = model.n_steps * model.n_envs
    versions = Versions(request, lambda: copy.deepcopy(model.policy.state_dict()))
    follow = Follow(reporter, games, getattr(model, "batch_size", batch), versions)
    model.learn(request["agent_steps"], callback=follow)
    follow.updated()
    reporter.progress(force=True)
    counts = reporter.counts()
    statistics = model.get_vec_normalize_env()

    def act(observation: Any) -> Any:
        seen = statistics.normalize_obs(observation) if statistics else observation
        return model.predict(seen, deterministic=False)[0]

    def play(parameters: Any, share: int, episodes: int) -> list[list[float]]:
        model.policy.load_state_dict(parameters)
        return evaluate(request["task"], request["seed"], share, episodes, act)

    versions.play(reporter, play)
    return {
        **counts,
        "effective": effective(model),
        "parameters": sum(tensor.numel() for tensor in model.policy.parameters()),
    }


def effective(model: Any) -> dict[str, Any]:
    """Return the settings as the library has resolved them."""
    names = ("n_steps", "n_envs", "batch_size", "n_epochs", "gamma", "gae_lambda", "vf_coef", "ent_coef")
    found = {
        name: getattr(model, name) for name in (*names, "max_grad_norm", "normalize_advantage") if hasattr(model, name)
    }
    found["learning_rate"] = model.lr_schedule(1.0)
    found["optimizer"] = f"{type(model.policy.optimizer).__name__} {model.policy.optimizer.defaults}"
    found["vector_environment"] = type(model.env).__name__
    if hasattr(model, "clip_range"):
        found["clip_range"] = model.clip_range(1.0)
    return {key: value if isinstance(value, (bool, int, str)) else str(value) for key, value in found.items()}


PARTS = {"torso": "features_extractor.torso", "policy": "action_net", "value": "value_net"}
SEPARATE = {"torso": "pi_features_extractor.torso", "value_torso": "vf_features_extractor.torso"}


def theirs(name: str, separate: bool) -> str:
    """Return the library's name of one of our parameters."""
    head, dot, rest = name.partition(".")
    return (PARTS | (SEPARATE if separate else {})).get(head, head) + dot + rest


def one_update(given: str, result: str) -> None:
    """Make one whole update from a batch with given parameters; write the parameters after it.

    `given` (.npz): `request` (JSON), `parameter/<name>`, and of the batch `observation` [T+1, B, ...], `action`
    [T, B, ...], `reward`, `terminated` [T, B], and `orders` [epochs, T x B], our order of samples in each epoch.
    """
    with np.load(given) as file:
        arrays = dict(file)
    request = json.loads(str(arrays["request"]))
    model, _ = build(request, Settings(request["settings"]))
    separate = request["network"]["separate"]
    names = {name.removeprefix("parameter/") for name in arrays if name.startswith("parameter/")}
    state = {theirs(name, separate): torch.from_numpy(arrays[f"parameter/{name}"]) for name in names}
    loaded = model.policy.load_state_dict(state, strict=False)
    twice = ("features_extractor",) if separate else ("pi_features_extractor", "vf_features_extractor")
    missing = [name for name in loaded.missing_keys if not name.startswith(twice)]  # other names of the same layers
    assert not missing and not loaded.unexpected_keys, (missing, loaded.unexpected_keys)
    model._setup_learn(request["agent_steps"])
    length, columns = arrays["reward"].shape
    buffer = model.rollout_buffer
    buffer.reset()
    started = np.ones(columns, bool)
    with torch.no_grad():
        for t in range(length):
            observation = torch.from_numpy(arrays["observation"][t])
            action = torch.from_numpy(arrays["action"][t])
            values, log_probability, _ = model.policy.evaluate_actions(observation, action)
            buffer.add(
                arrays["observation"][t], arrays["action"][t], arrays["reward"][t], started, values, log_probability
            )
            started = arrays["terminated"][t]
        last = model.policy.predict_values(torch.from_numpy(arrays["observation"][length]))
    buffer.compute_returns_and_advantage(last_values=last, dones=started)
    orders = iter(arrays.get("orders", ()))
    np.random.permutation = lambda number: ours_as_theirs(next(orders), length, columns)  # type: ignore[assignment]
    if "orders" not in arrays:
        np.random.permutation = np.arange  # type: ignore[assignment]
    model._current_progress_remaining = 1.0 - length * columns / request["agent_steps"]
    model.train()
    after = model.policy.state_dict()
    np.savez(result, **{name: after[theirs(name, separate)].numpy() for name in names})


def ours_as_theirs(order: Any, length: int, columns: int) -> Any:
    """Return numbers of samples in [T, B] order as those in the [B, T] order of the library's buffer."""
    return order % columns * length + order // columns


if __name__ == "__main__":
    run(
        train,
        lambda: installed("stable-baselines3", "torch", "numpy", "gymnasium", "ale-py", "mujoco"),
        {"--one-update": one_update},
    )
