"""Tianshou's DQN with its prioritized buffer, for our Ape-X DQN: one process, which acts and learns in turns."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from environments import evaluate, make, seed_of
from networks import Torso, initialise
from protocol import DESCRIBED, Refused, Reporter, Settings, Versions, linear_decay
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.data import Batch, Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.torch_utils import policy_within_training_step
from tianshou_optimizers import Decay, optimizer_of
from torch import nn

LOSS_SCALE = 2.0
"""Their loss is a mean of squared errors, ours of half of them."""


class Head(nn.Module):
    """A rectified hidden layer, then a linear one."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the outputs [N, outputs]."""
        return self.output(F.relu(self.hidden(features)))


class Network(nn.Module):
    """The request's Q-network; names of parameters are ours."""

    def __init__(self, env: Any, network: Mapping[str, Any], scale: float) -> None:
        """`scale`: what observations are multiplied by."""
        super().__init__()
        self.scale = scale
        self.torso = Torso(env.observation_space.shape, network["torso"])
        hidden, actions = network["heads"]["hidden"], int(env.action_space.n)
        self.advantage = Head(self.torso.size, hidden, actions)
        self.value = Head(self.torso.size, hidden, 1) if network["heads"]["dueling"] else None
        hidden_gain, _, value_gain = network["gains"]
        initialise(self, hidden_gain)
        for head in (self.advantage, self.value):
            if head is not None:
                initialise(head.output, value_gain)

    def forward(self, observation: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        """Return the values of all actions [N, A], and the state."""
        features = self.torso(torch.as_tensor(np.asarray(observation), dtype=torch.float32) * self.scale)
        q = self.advantage(features)
        if self.value is not None:
            q = self.value(features) + q - q.mean(dim=-1, keepdim=True)
        return q, state


class LadderPolicy(DiscreteQLearningPolicy):
    """The library's policy, with an epsilon for each environment; an evaluation has one of its own."""

    def __init__(self, ladder: Any, evaluation: float, **given: Any) -> None:
        super().__init__(**given)
        self._ladder, self._evaluation = np.asarray(ladder), evaluation

    def add_exploration_noise(self, act: Any, batch: Any) -> Any:
        """Replace actions by uniformly drawn ones."""
        epsilon = self._ladder if self.is_within_training_step else self._evaluation
        explores = np.random.rand(len(act)) < epsilon  # noqa: NPY002 - the generator that the library uses
        act[explores] = np.random.randint(int(self.action_space.n), size=int(explores.sum()))  # noqa: NPY002
        return act


class Clipping(DQN):
    """The library's DQN with a bound on the gradient's norm, which its other algorithms have as an argument."""

    def __init__(self, max_grad_norm: float | None, **given: Any) -> None:
        self._bound = max_grad_norm
        super().__init__(**given)

    def _create_policy_optimizer(self, optim: Any) -> Any:
        return self._create_optimizer(self.policy, optim, max_grad_norm=self._bound)


class Setup:
    """What one request is carried out with."""

    def __init__(self, request: Mapping[str, Any], settings: Settings) -> None:
        take, network, task = settings.take, request["network"], request["task"]
        if network["recurrent"] or network["torso"]["kind"] not in ("mlp", "convolutional"):
            raise Refused(f"this network is not built for Tianshou: {network['torso']['kind']}")
        self.envs = take("topology.num_actors") * take("topology.envs_per_actor")
        self.chunk = take("unroll_length") * self.envs
        self.batch_size, self.least = take("batch_size"), take("min_replay_size")
        torch.manual_seed(request["seed"])
        self.games = [make(task, seed_of(request["seed"], "actor", number)) for number in range(self.envs)]
        scale = 1 / 255 if take("scaled_pixels", True) and task["kind"] == "atari" else 1.0
        self.network = Network(self.games[0], network, scale)
        self.ratio = take("samples_per_insert")
        if self.ratio is None:
            raise Refused("key 'samples_per_insert': it learns and acts in turns; allowed: a number")
        settings.without_effect(*DESCRIBED, "head_size", "dueling")
        if take("initial_epsilon") is not None:
            raise Refused("key 'initial_epsilon': each environment keeps its epsilon; allowed: null")
        settings.without_effect("exploration_steps")
        if take("error_clipping") is not None:
            raise Refused("key 'error_clipping': its Huber loss is scaled otherwise than its square; allowed: null")
        settings.same("precision", "float32", "it computes in float32")
        settings.differs("error_buffer", take("error_buffer"), None, "it learns after each unroll, at the ratio itself")
        settings.same("actor_update_period", take("unroll_length"), "its parameters are the newest at each unroll")
        settings.differs("target_update_period", "before the next batch", "one batch later", "targets come first there")
        settings.differs("beginning", "as many items as min_replay_size", "as many steps", "it counts what is stored")
        settings.differs("least priority", 1e-6, 1.2e-7, "it adds float32's epsilon to every error")
        why = "an actor of ours has errors of its own for new steps, and theirs has none"
        settings.differs("priority of a new step", "its error", "the largest so far", why)
        settings.differs("newest steps", "not drawn yet", "with fewer steps", "its buffer has no incomplete items")
        self.algorithm = self._algorithm(request, settings)
        self.buffer = self._buffer(take("replay_capacity"), take("priority_exponent"), take("importance_exponent"))
        self._owed = 0.0

    def _algorithm(self, request: Mapping[str, Any], settings: Settings) -> Clipping:
        take, total, envs = settings.take, request["agent_steps"], self.envs
        epsilon, alpha = take("epsilon"), take("epsilon_alpha")
        decay, bound = take("optimizer.decay_frames"), take("max_grad_norm")
        share = linear_decay(decay and decay / request["task"]["frame_skip"], total)
        falling = Decay(share, self.batch_size / self.ratio, total, self.least)
        self.policy = LadderPolicy(
            [epsilon ** (1 + alpha * number / max(1, envs - 1)) for number in range(envs)],
            take("evaluation_epsilon"),
            model=self.network,
            action_space=self.games[0].action_space,
        )
        return Clipping(
            None if bound is None else LOSS_SCALE * bound,
            policy=self.policy,
            optim=optimizer_of(settings, LOSS_SCALE).with_lr_scheduler_factory(falling),
            gamma=take("discount"),
            n_step_return_horizon=take("n_step"),
            target_update_freq=take("target_update_period"),
            is_double=take("double_q"),
        )

    def _buffer(self, capacity: int, alpha: float, beta: float) -> Any:
        if not alpha:
            return VectorReplayBuffer(capacity, self.envs)
        return PrioritizedVectorReplayBuffer(capacity, self.envs, alpha=alpha, beta=beta, weight_norm=True)

    def due(self, steps: int) -> int:
        """Return how many updates are due after as many more steps."""
        if len(self.buffer) < self.least:
            return 0
        self._owed += steps * self.ratio / self.batch_size
        updates = int(self._owed)
        self._owed -= updates
        return updates

    def update(self) -> None:
        """Learn from a drawn batch, and give it new priorities."""
        with policy_within_training_step(self.policy):
            self.algorithm.update(self.buffer, self.batch_size)


def train_q(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    setup = Setup(request, settings)
    games: Any = DummyVectorEnv([lambda game=game: game for game in setup.games])
    collector = Collector(setup.policy, games, setup.buffer, exploration_noise=True)
    collector.reset()
    versions = Versions(request, lambda: copy.deepcopy(setup.network.state_dict()))
    reporter.progress(0)
    while reporter.steps < request["agent_steps"]:
        with policy_within_training_step(setup.policy):
            collector.collect(n_step=setup.chunk)
        reporter.steps += setup.chunk
        for game in setup.games:
            for episode_return, length in game.episodes_over():
                reporter.episode(reporter.steps, episode_return, length)
        for _ in range(setup.due(setup.chunk)):
            setup.update()
            reporter.trained_samples = reporter.gradient_steps * setup.batch_size
            reporter.updated()
        reporter.progress()
        versions.keep(reporter)
    reporter.progress(force=True)
    counts = reporter.counts()

    def play(state: Mapping[str, Any], share: int, count: int) -> list[list[float]]:
        setup.network.load_state_dict(state)

        @torch.no_grad()
        def act(observation: Any) -> Any:
            chosen = setup.policy(Batch(obs=observation, info=Batch()))
            return setup.policy.add_exploration_noise(chosen.act, chosen)

        return evaluate(request["task"], request["seed"], share, count, act)

    versions.play(reporter, play)
    parameters = sum(tensor.numel() for tensor in setup.network.parameters())
    return {**counts, "effective": effective(setup), "parameters": parameters}


def effective(setup: Setup) -> dict[str, Any]:
    """Return the settings as the library has resolved them."""
    found = {name: getattr(setup.algorithm, name) for name in ("gamma", "n_step", "target_update_freq", "is_double")}
    found |= {"huber_loss_delta": setup.algorithm.huber_loss_delta, "buffer": f"{type(setup.buffer).__name__}"}
    found |= {"buffer_size": setup.buffer.maxsize, "samples_per_insert": setup.ratio, "batch_size": setup.batch_size}
    return {key: value if isinstance(value, (bool, int, float)) else str(value) for key, value in found.items()}


def one_q_update(arrays: Mapping[str, Any], result: str) -> None:
    """Make one whole update from given items, parameters and target parameters; write parameters and errors."""
    request = json.loads(str(arrays["request"]))
    setup = Setup(request, Settings(request["settings"]))
    for name, module in (("parameter", setup.network), ("target", setup.algorithm.model_old.module)):
        state = {key: torch.from_numpy(arrays[f"{name}/{key}"]) for key in setup.network.state_dict()}
        module.load_state_dict(state)
    setup.algorithm._iter = 1  # else the target network would be renewed first
    steps, items = arrays["reward"].shape
    buffer = PrioritizedVectorReplayBuffer(steps * items, items, alpha=1.0, beta=1.0)  # an item fills one part
    for t in range(steps):
        there = np.flatnonzero(t < arrays["steps"])
        last = t == arrays["steps"][there] - 1
        step = Batch(
            obs=arrays["observation"][there] if t == 0 else arrays["next_observation"][there],
            act=arrays["action"][there],
            rew=arrays["reward"][t][there],
            terminated=arrays["terminated"][there] & last,
            truncated=~arrays["terminated"][there] & last & (arrays["steps"][there] < steps),
            obs_next=arrays["next_observation"][there],
            info=Batch(),
        )
        buffer.add(step, buffer_ids=there)
    indices = np.arange(items) * steps

    def drawn(_: int) -> tuple[Any, Any]:
        batch = buffer[indices]
        batch.weight = arrays["weight"]
        return batch, indices

    buffer.sample = drawn  # type: ignore[method-assign]
    setup.buffer = buffer
    setup.update()
    state = setup.network.state_dict()
    errors = np.asarray(buffer.weight[indices])
    np.savez(result, **{name: tensor.numpy() for name, tensor in state.items()}, td_error=errors)
