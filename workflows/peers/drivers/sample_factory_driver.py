"""Runs Sample Factory 2's APPO, synchronous and without V-trace: PPO (see `protocol`).

Environments are stepped by worker processes, and the learner has a process of its own. It needs gymnasium before 1, so
there are no MuJoCo tasks of version 5.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from environments import Episodes, Logged, evaluate, make
from networks import Torso, initialise
from protocol import DESCRIBED, LIVE, Refused, Reporter, Settings, Versions, installed, run
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.running_mean_std import RunningMeanStdDictInPlace
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic, default_make_actor_critic_func
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner

TASK = "task"
OBSERVATION = "obs"


class TorsoEncoder(Encoder):
    """The torso of the request."""

    def __init__(self, cfg: Any, space: Any, torso: Mapping[str, Any], gain: float | str | None) -> None:
        super().__init__(cfg)
        self.torso = Torso(space[OBSERVATION].shape, torso)
        initialise(self.torso, gain)

    def forward(self, observations: Mapping[str, Any]) -> torch.Tensor:
        """Return the features."""
        return self.torso(observations[OBSERVATION])

    def get_out_size(self) -> int:
        """Return the number of features."""
        return int(self.torso.size)


class Follow(AlgoObserver):
    """Reports progress."""

    def __init__(self, reporter: Reporter, episodes: Episodes, cfg: Any) -> None:
        self._reporter, self._episodes = reporter, episodes
        self._minibatch, self._batch = cfg.batch_size, cfg.batch_size * cfg.num_batches_per_epoch
        self._steps_of_update = cfg.num_epochs * cfg.num_batches_per_epoch
        self.counts: dict[str, float] = {}
        """How far the training was after the last update: its processes take long to end."""

    def on_start(self, runner: Any) -> None:
        """Report that the processes are there."""
        self._reporter.progress(0)

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """Report an update: all epochs over one batch."""
        reporter = self._reporter
        reporter.steps += self._batch
        reporter.gradient_steps += self._steps_of_update
        reporter.trained_samples = reporter.gradient_steps * self._minibatch
        for episode_return, length in self._episodes.new():
            reporter.episode(reporter.steps, episode_return, length)
        reporter.updated()
        self.counts = reporter.counts()


def arguments_of(request: Mapping[str, Any], settings: Settings, folder: str) -> dict[str, Any]:
    """Return the arguments of Sample Factory."""
    take, total = settings.take, request["agent_steps"]
    length, columns, parts = take("unroll_length"), take("batch_size"), take("num_minibatches")
    workers, envs = take("topology.num_actors"), take("topology.num_actors") * take("topology.envs_per_actor")
    if envs != columns or columns % workers:
        workers = next(number for number in range(min(workers, columns), 0, -1) if columns % number == 0)
        settings.differs(
            "topology", envs, columns, f"one environment for each unroll of a batch, in {workers} processes"
        )
    if columns % parts:  # it counts the unrolls of a minibatch, and is without any where they are longer
        raise Refused(
            f"its minibatches hold whole unrolls, and {columns} unrolls are no {parts} equal minibatches; allowed: "
            "hyperparameters.num_minibatches that divides hyperparameters.batch_size"
        )
    decay = take("optimizer.decay_frames")
    if decay and abs(decay / request["task"]["frame_skip"] - total) > length * columns:
        settings.differs("optimizer.decay_frames", decay, total, "its rate falls to 0 at the end, or not at all")
    if request["task"]["kind"] == "atari":
        why = "the ROM is the same; newer versions of the emulator may differ"
        settings.differs("environment", "ale-py of the suite", installed("ale-py")["ale-py"], why)
    settings.same("optimizer.name", "adam", "it has Adam and LAMB")
    settings.same("normalise_advantages", True, "it always does so")
    settings.same("normalise_advantages_over", "minibatch", "it does so in each minibatch")
    settings.differs("normalise_advantages", "deviation over n", "over n - 1", "one sample of a minibatch")
    settings.same("kl_target", None, "its target adapts the learning rate")
    settings.same("precision", "float32", "it computes in float32")
    why = "it shifts and scales the targets of the value instead, which the driver leaves off"
    settings.same("reward_normalisation", False, why)
    settings.same("observation_warm_up", 0, LIVE)
    settings.same("return_scaling", False, why)
    settings.without_effect("normalised_reward_clip")
    if normalises := take("observation_normalisation", False):
        settings.differs("observation_normalisation", "after each update", "before it", "when a batch is taken in")
    if take("time_limits", "bootstrap") == "bootstrap":
        settings.differs("time_limits", "V of the last observation", "V of the one before", "it keeps no other")
    settings.same("recompute_advantages", False, "it computes them once a batch")
    clip, epsilon = take("value_clip_epsilon"), take("clip_epsilon")
    settings.differs("clip_epsilon", f"{1 - epsilon:.3g}", f"{1 / (1 + epsilon):.3g}", "the lower bound of the ratio")
    bound = take("max_grad_norm")
    return {
        "algo": "APPO",
        "env": TASK,
        "experiment": "run",
        "train_dir": folder,
        "restart_behavior": "overwrite",
        "device": "cpu",
        "seed": request["seed"],
        "async_rl": False,
        "serial_mode": False,
        "with_vtrace": False,
        "num_workers": workers,
        "num_envs_per_worker": columns // workers,
        "worker_num_splits": 1,
        "rollout": length,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": length * columns // parts,
        "num_batches_per_epoch": parts,
        "num_epochs": take("num_epochs"),
        "shuffle_minibatches": True,
        "gamma": take("discount"),
        "gae_lambda": take("gae_lambda"),
        "ppo_clip_ratio": epsilon,
        "ppo_clip_value": 1e9 if clip is None else clip,
        "value_loss_coeff": take("value_cost") / 2,  # of the whole squared error; ours of half of it
        "exploration_loss": "entropy",
        "exploration_loss_coeff": take("entropy_cost"),
        "kl_loss_coeff": take("kl_cost"),
        "max_grad_norm": 0.0 if bound is None else bound,
        "learning_rate": take("optimizer.learning_rate"),
        "lr_schedule": "linear_decay" if decay else "constant",
        "adam_eps": take("optimizer.epsilon"),
        "adam_beta1": take("optimizer.beta1"),
        "adam_beta2": take("optimizer.beta2"),
        "value_bootstrap": True,
        "normalize_input": normalises,
        "normalize_returns": False,
        "obs_scale": 255.0 if take("scaled_pixels", True) and request["task"]["kind"] == "atari" else 1.0,
        "reward_clip": 1e9,
        "policy_initialization": "torch_default",
        "actor_critic_share_weights": not request["network"]["separate"],
        "adaptive_stddev": False,
        "continuous_tanh_scale": 0.0,
        "initial_stddev": float(np.exp(take("initial_log_std", 0.0))),
        "decorrelate_experience_max_seconds": 0,
        "env_frameskip": 1,
        "train_for_env_steps": total,
        "save_every_sec": 10**6,
        "save_best_every_sec": 10**6,
        "log_to_file": False,
        "with_wandb": False,
    }


def game(request: Mapping[str, Any], folder: str, name: str, cfg: Any, place: Any, render_mode: Any = None) -> Any:
    """Make one environment; `place` says which of all it is."""
    return Logged(request["task"], request["seed"], 0 if place is None else int(place.env_id), folder)


def encoder(network: Mapping[str, Any], cfg: Any, space: Any) -> TorsoEncoder:
    """Make a torso."""
    return TorsoEncoder(cfg, space, network["torso"], network["gains"][0])


def actor_critic(gains: Any, bound: float | None, cfg: Any, seen: Any, actions: Any) -> Any:
    """Make the network, with the request's first weights and bound of normalised observations."""
    found = default_make_actor_critic_func(cfg, seen, actions)
    initialise(found.critic_linear, gains[2])
    initialise(found.action_parameterization.distribution_linear, gains[1])
    if cfg.normalize_input:
        statistics = RunningMeanStdDictInPlace(seen, clip=float("inf") if bound is None else bound)
        found.obs_normalizer.running_mean_std = statistics
    return found


def build(request: Mapping[str, Any], settings: Settings, folder: str) -> Any:
    """Register task and network; return the configuration."""
    network = request["network"]
    if network["recurrent"] or network["torso"]["kind"] not in ("mlp", "convolutional"):
        raise Refused(f"this network is not built for Sample Factory: {network['torso']['kind']}")
    settings.without_effect(*DESCRIBED)
    register_env(TASK, partial(game, request, folder))
    global_model_factory().register_encoder_factory(partial(encoder, network))
    bound = settings.take("normalised_observation_clip", None)
    global_model_factory().register_actor_critic_factory(partial(actor_critic, network["gains"], bound))
    arguments = arguments_of(request, settings, folder)
    words = [f"--{key}={value}" for key, value in arguments.items()]
    parser, _ = parse_sf_args(words)
    return parse_full_cfg(parser, words)


def train(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    if request["algorithm"] != "ppo":
        raise Refused(f"Sample Factory has no algorithm '{request['algorithm']}' here; allowed: ppo")
    if request["evaluation"]["versions"] > 1:
        settings.differs("evaluation.final_versions", request["evaluation"]["versions"], 1, "it keeps its last one")
    with tempfile.TemporaryDirectory() as folder:
        try:
            cfg = build(request, settings, folder)
            env = make(request["task"], 1)
        except gymnasium.error.Error as error:
            raise Refused(f"gymnasium {gymnasium.__version__} cannot make the task: {error}") from None
        cfg, runner = make_runner(cfg)
        follow = Follow(reporter, Episodes(folder), cfg)
        runner.register_observer(follow)
        runner.init()
        runner.run()
        reporter.progress(force=True)
        newest = max(
            Path(folder, "run", "checkpoint_p0").glob("checkpoint_*.pth"), key=lambda path: path.stat().st_mtime
        )
        saved = torch.load(newest, weights_only=True)
    torch.set_num_threads(request["threads"])
    space = gymnasium.spaces.Dict({OBSERVATION: env.observation_space})
    model = create_actor_critic(cfg, space, env.action_space)
    model.load_state_dict(saved["model"])
    model.eval()  # statistics of observations stay
    setting = {**request, "evaluation": {**request["evaluation"], "versions": 1}}

    @torch.no_grad()
    def act(observation: Any) -> Any:
        seen = model.normalize_obs({OBSERVATION: torch.as_tensor(observation)})
        chosen = model(seen, torch.zeros(1, 1))["actions"].numpy()
        return chosen.reshape(1, *env.action_space.shape)

    versions = Versions(setting, lambda: None)
    versions.play(reporter, lambda _, share, count: evaluate(request["task"], request["seed"], share, count, act))
    counts = follow.counts | {"gradient_steps": int(saved["train_step"])}
    effective = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in vars(cfg).items()}
    return {**counts, "effective": effective, "parameters": sum(one.numel() for one in model.parameters())}


if __name__ == "__main__":
    names = ("sample-factory", "torch", "numpy", "gymnasium", "ale-py")
    run(train, lambda: installed(*names), {"--check": lambda: sys.exit(0)})
