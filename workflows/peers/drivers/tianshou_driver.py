"""Runs Tianshou's PPO, A2C and DQN (see `protocol`): its collector and its updates, in this process."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from environments import evaluate, make, seed_of
from networks import Torso, initialise
from protocol import DESCRIBED, LIVE, Refused, Reporter, Settings, Versions, installed, linear_decay, run
from tianshou.algorithm import A2C, PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.utils.torch_utils import policy_within_training_step
from tianshou_optimizers import Decay, optimizer_of
from tianshou_q_learning import one_q_update, train_q
from torch import nn
from torch.distributions import Categorical, Independent, Normal


class Network(nn.Module):
    """The request's network; names of parameters are ours."""

    def __init__(self, env: Any, request: Mapping[str, Any], initial_log_std: float, scale: float) -> None:
        """`scale`: what observations are multiplied by."""
        super().__init__()
        network, shape, actions = request["network"], env.observation_space.shape, env.action_space
        hidden, policy, value = network["gains"]
        self.scale = scale
        self.torso = Torso(shape, network["torso"])
        self.value_torso = Torso(shape, network["torso"]) if network["separate"] else None
        discrete = hasattr(actions, "n")
        self.policy = nn.Linear(self.torso.size, int(actions.n) if discrete else actions.shape[0])
        self.value = nn.Linear(self.torso.size, 1)
        self.log_std = None if discrete else nn.Parameter(torch.full(actions.shape, initial_log_std))
        for module, gain in ((self, hidden), (self.policy, policy), (self.value, value)):
            initialise(module, gain)

    def seen(self, observation: Any) -> torch.Tensor:
        """Return observations as the layers see them."""
        return torch.as_tensor(observation, dtype=torch.float32) * self.scale


class Actor(nn.Module):
    """The policy of the network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.torso, self.policy, self.log_std = network.torso, network.policy, network.log_std
        self._seen = network.seen

    def forward(self, observation: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        """Return the inputs of the distribution, and the state."""
        inputs = self.policy(self.torso(self._seen(observation)))
        if self.log_std is not None:
            inputs = torch.cat([inputs, self.log_std.expand_as(inputs)], -1)
        return inputs, state


class Critic(nn.Module):
    """The value of the network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.torso, self.value = network.value_torso or network.torso, network.value
        self._seen = network.seen

    def forward(self, observation: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Return V(x) [N, 1]."""
        return self.value(self.torso(self._seen(observation)))


def gaussian(inputs: torch.Tensor) -> Independent:
    """Return the distribution of continuous actions."""
    mean, log_std = inputs.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


def categorical(inputs: torch.Tensor) -> Categorical:
    """Return the distribution of discrete actions."""
    return Categorical(logits=inputs)


class Setup:
    """What one request is carried out with."""

    def __init__(self, request: Mapping[str, Any], settings: Settings) -> None:
        take, network = settings.take, request["network"]
        if network["recurrent"] or network["torso"]["kind"] not in ("mlp", "convolutional"):
            raise Refused(f"this network is not built for Tianshou: {network['torso']['kind']}")
        self.length, self.columns = take("unroll_length"), take("batch_size")
        envs = take("topology.num_actors") * take("topology.envs_per_actor")
        if envs != self.columns:
            settings.differs("topology", envs, self.columns, "one environment for each unroll of a batch")
        torch.manual_seed(request["seed"])
        seeds = [seed_of(request["seed"], "actor", number) for number in range(self.columns)]
        self.games = [make(request["task"], seed) for seed in seeds]
        scaled = take("scaled_pixels", True)
        scale = 1 / 255 if scaled and request["task"]["kind"] == "atari" else 1.0
        self.network = Network(self.games[0], request, take("initial_log_std", 0.0), scale)
        self.parts, self.repeats = take("num_minibatches", 1), take("num_epochs", 1)
        if self.batch % self.parts:
            raise Refused(f"{self.length} x {self.columns} steps are no {self.parts} equal minibatches")
        self.algorithm = self._algorithm(request, settings)
        self.env: Any = DummyVectorEnv([lambda game=game: game for game in self.games])
        if take("observation_normalisation", False):
            why = "when the statistics take in what was seen"
            settings.differs("observation_normalisation", "after each update", "at each step", why)
            settings.same("normalised_observation_clip", 10.0, "its bound is fixed")
            self.env = VectorEnvNormObs(self.env)

    @property
    def batch(self) -> int:
        """Steps of a batch."""
        return self.length * self.columns

    def statistics(self) -> Any:
        """Return a copy of what normalises observations, None where nothing does."""
        return copy.deepcopy(self.env.get_obs_rms()) if isinstance(self.env, VectorEnvNormObs) else None

    def _algorithm(self, request: Mapping[str, Any], settings: Settings) -> Any:
        take, total = settings.take, request["agent_steps"]
        settings.without_effect(*DESCRIBED, "normalised_observation_clip", "normalised_reward_clip")
        settings.same("precision", "float32", "it computes in float32")
        settings.same("observation_warm_up", 0, LIVE)
        settings.same("feed_last_action_and_reward", False, "the network sees observations alone")
        settings.same("reward_normalisation", False, "it has none; return_scaling is its way")
        decay = take("optimizer.decay_frames")
        share = linear_decay(decay and decay / request["task"]["frame_skip"], total)
        discrete = self.network.log_std is None
        policy = ProbabilisticActorPolicy(
            actor=Actor(self.network),
            dist_fn=categorical if discrete else gaussian,
            action_space=self.games[0].action_space,
            action_scaling=False,
            action_bound_method=None,
        )
        found = {
            "policy": policy,
            "critic": Critic(self.network),
            "optim": optimizer_of(settings).with_lr_scheduler_factory(Decay(share, self.batch, total)),
            "vf_coef": take("value_cost") / 2,  # of the whole squared error; ours of half of it
            "ent_coef": take("entropy_cost"),
            "max_grad_norm": take("max_grad_norm"),
            "gae_lambda": take("gae_lambda", 1.0),
            "gamma": take("discount"),
        }
        if request["algorithm"] == "a2c":
            settings.same("loss_reduction", "mean", "its losses are means")
            return A2C(**found, return_scaling=take("return_scaling", False))
        settings.ours_alone()
        clip, epsilon, normalises = take("value_clip_epsilon"), take("clip_epsilon"), take("normalise_advantages")
        if clip not in (None, epsilon):
            settings.differs("value_clip_epsilon", clip, epsilon, "it is that of the ratio")
        settings.same("kl_cost", 0.0, "it has no penalty")
        settings.same("kl_target", None, "it has no penalty")
        settings.without_effect("normalise_advantages_over")
        if normalises:
            settings.same("normalise_advantages_over", "minibatch", "it does so in each minibatch")
            settings.differs("normalise_advantages", "deviation over n", "over n - 1", "one sample of a minibatch")
        return PPO(
            **found,
            eps_clip=epsilon,
            value_clip=clip is not None,
            advantage_normalization=normalises,
            return_scaling=take("return_scaling", False),
            recompute_advantage=take("recompute_advantages", False),
        )

    def update(self, buffer: Any) -> Any:
        """Learn from all that a buffer holds; return the library's statistics."""
        with policy_within_training_step(self.algorithm.policy):
            return self.algorithm.update(buffer, self.batch // self.parts, self.repeats)


def train_policy_gradient(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    setup = Setup(request, settings)
    collector = Collector(setup.algorithm.policy, setup.env, VectorReplayBuffer(setup.batch, setup.columns))
    collector.reset()
    versions = Versions(request, lambda: (copy.deepcopy(setup.network.state_dict()), setup.statistics()))
    reporter.progress(0)
    while reporter.steps < request["agent_steps"]:
        with policy_within_training_step(setup.algorithm.policy):
            collector.collect(n_step=setup.batch)
        reporter.steps += setup.batch
        for game in setup.games:
            for episode_return, length in game.episodes_over():
                reporter.episode(reporter.steps, episode_return, length)
        learned = setup.update(collector.buffer)
        collector.reset_buffer(keep_statistics=True)
        reporter.metric("entropy", learned.ent_loss.mean)
        reporter.trained_samples = reporter.gradient_steps * (setup.batch // setup.parts)
        reporter.updated()
        versions.keep(reporter)
    reporter.progress(force=True)
    counts = reporter.counts()

    def play(kept: tuple[Any, Any], share: int, count: int) -> list[list[float]]:
        state, statistics = kept
        setup.network.load_state_dict(state)

        @torch.no_grad()
        def act(observation: Any) -> Any:
            seen = statistics.norm(observation).astype(np.float32) if statistics else observation
            return setup.algorithm.policy(Batch(obs=seen, info=Batch())).act.numpy()

        return evaluate(request["task"], request["seed"], share, count, act)

    versions.play(reporter, play)
    parameters = sum(tensor.numel() for tensor in setup.network.parameters())
    return {**counts, "effective": effective(setup), "parameters": parameters}


KINDS = {"ppo": train_policy_gradient, "a2c": train_policy_gradient, "apex_dqn": train_q}


def train(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    if request["algorithm"] not in KINDS:
        raise Refused(f"Tianshou has no algorithm '{request['algorithm']}' here; allowed: {', '.join(KINDS)}")
    torch.set_num_threads(request["threads"])
    np.random.seed(request["seed"])  # noqa: NPY002 - it shuffles, draws and explores by this generator
    reporter.count_optimizer_steps()
    return KINDS[request["algorithm"]](request, settings, reporter)


def effective(setup: Setup) -> dict[str, Any]:
    """Return the settings as the library has resolved them."""
    names = ("eps_clip", "value_clip", "advantage_normalization", "recompute_adv", "vf_coef", "ent_coef")
    found = {name: getattr(setup.algorithm, name, None) for name in (*names, "max_grad_norm", "gae_lambda", "gamma")}
    found |= {"minibatch": setup.batch // setup.parts, "repeat": setup.repeats, "vector_environment": str(setup.env)}
    return {key: value if isinstance(value, (bool, int, float)) else str(value) for key, value in found.items()}


def filled(batch: Mapping[str, Any]) -> Any:
    """Return a buffer with the steps [T, B] of a batch; those that are not `valid` are left out."""
    shape = batch["reward"].shape
    buffer = VectorReplayBuffer(int(np.prod(shape)), shape[1])
    valid, truncated = batch.get("valid", np.ones(shape, bool)), batch.get("truncated", np.zeros(shape, bool))
    for t in range(shape[0]):
        there = np.flatnonzero(valid[t])
        if not len(there):
            continue
        step = Batch(
            obs=batch["observation"][t][there],
            act=batch["action"][t][there],
            rew=batch["reward"][t][there],
            terminated=batch["terminated"][t][there],
            truncated=truncated[t][there],
            obs_next=batch["observation"][t + 1][there],
            info=Batch(),
        )
        buffer.add(step, buffer_ids=there)
    return buffer


def given_setup(arrays: Mapping[str, Any]) -> tuple[Setup, set[str]]:
    """Return the set-up of a request with the parameters that are given, and their names."""
    request = json.loads(str(arrays["request"]))
    setup = Setup(request, Settings(request["settings"]))
    names = {name.removeprefix("parameter/") for name in arrays if name.startswith("parameter/")}
    setup.network.load_state_dict({name: torch.from_numpy(arrays[f"parameter/{name}"]) for name in names})
    return setup, names


def updates(given: str, result: str) -> None:
    """Make one update after another, from batches [N, T, B] that hold ends of episodes; write parameters and scale."""
    with np.load(given) as file:
        arrays = dict(file)
    setup, names = given_setup(arrays)
    steps = ("observation", "action", "reward", "terminated", "truncated", "valid")
    for number in range(len(arrays["reward"])):
        setup.update(filled({name: arrays[name][number] for name in steps}))
    state = setup.network.state_dict()
    np.savez(result, **{name: state[name].numpy() for name in names}, return_variance=setup.algorithm.ret_rms.var)


def one_update(given: str, result: str) -> None:
    """Make one whole update from a batch with given parameters, as `stable_baselines3_driver.one_update`."""
    with np.load(given) as file:
        arrays = dict(file)
    if json.loads(str(arrays["request"]))["algorithm"] == "apex_dqn":
        one_q_update(arrays, result)
        return
    setup, names = given_setup(arrays)
    if "return_variance" in arrays:
        setup.algorithm.ret_rms.var = float(arrays["return_variance"])
    length, columns = arrays["reward"].shape
    orders = iter(arrays.get("orders", ()))

    def permuted(number: int) -> Any:
        """Return our order of samples, in [T, B], as numbers in the buffer's [B, T]."""
        order = next(orders, np.arange(number))
        return order % columns * length + order // columns

    np.random.permutation = permuted  # type: ignore[assignment]
    setup.update(filled(arrays))
    state = setup.network.state_dict()
    scale = {"return_variance": setup.algorithm.ret_rms.var} if "return_variance" in arrays else {}
    np.savez(result, **{name: state[name].numpy() for name in names}, **scale)


if __name__ == "__main__":
    run(
        train,
        lambda: installed("tianshou", "torch", "numpy", "gymnasium", "ale-py", "mujoco"),
        {"--one-update": one_update, "--updates": updates},
    )
