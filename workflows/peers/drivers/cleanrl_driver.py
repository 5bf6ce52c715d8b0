"""Runs CleanRL's scripts for PPO: ppo.py, ppo_continuous_action.py and ppo_atari.py of its package (see `protocol`).

A script is carried out as it is, with its own arguments. It asks for gym of 2022, wrappers and a writer; in their place
it gets what is here: the request's task without further wrappers, and a writer that reports. Its network has fixed
layers. Where the request's differ, the results say so.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from environments import evaluate, make, seed_of
from protocol import DESCRIBED, LIVE, Refused, Reporter, Settings, Versions, installed, run

FOLDER = Path(
    (importlib.util.find_spec("cleanrl") or sys.exit("cleanrl is not installed")).submodule_search_locations[0]
)
HIDDEN = 64
"""Units of each hidden layer in its scripts for vectors."""
ATARI = {"convolutions": [[32, 8, 4], [64, 4, 2], [64, 3, 1]], "hidden": 512}
GAINS = (2**0.5, 0.01, 1.0)


class Vector:
    """Environments one after the other, with the interface of gym before 0.26, or of gymnasium before 1.0."""

    def __init__(self, games: Sequence[Any], reporter: Reporter, *, old: bool) -> None:
        self._games, self._reporter, self._old = games, reporter, old
        self.single_observation_space = games[0].observation_space
        self.single_action_space = games[0].action_space

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode everywhere."""
        self._reporter.progress(0)
        observations = np.stack([game.reset()[0] for game in self._games])
        return observations if self._old else (observations, {})

    def step(self, actions: Any) -> Any:
        """Apply the actions; an environment whose episode has ended begins another in the same step."""
        found = []
        for game, action in zip(self._games, actions):  # noqa: B905
            observation, reward, terminated, truncated, _ = game.step(action)
            if terminated or truncated:
                observation, _ = game.reset()
            found.append((observation, reward, terminated, truncated))
        self._report()
        observations, rewards, terminated, truncated = (np.array(each) for each in zip(*found))  # noqa: B905
        if self._old:
            return observations, rewards, terminated | truncated, [{} for _ in found]
        return observations, rewards, terminated, truncated, {}

    def _report(self) -> None:
        reporter = self._reporter
        reporter.steps += len(self._games)
        for game in self._games:
            for episode_return, length in game.get_wrapper_attr("episodes_over")():
                reporter.episode(reporter.steps, episode_return, length)
        reporter.progress()

    def close(self) -> None:
        """Free all environments."""
        for game in self._games:
            game.close()


class Each(gymnasium.Wrapper):
    """A function of observations or rewards, as the script's `Transform...` wrappers take one."""

    def __init__(self, env: Any, *, seen: Any = None, given: Any = None) -> None:
        super().__init__(env)
        self._seen, self._given = seen or (lambda x: x), given or (lambda x: x)

    def reset(self, **arguments: Any) -> Any:
        """Begin an episode."""
        observation, info = self.env.reset(**arguments)
        return self._seen(observation), info

    def step(self, action: Any) -> Any:
        """Apply one action."""
        observation, reward, *rest = self.env.step(action)
        return self._seen(observation), self._given(reward), *rest


def module(name: str, **content: Any) -> ModuleType:
    """Return a module with this content."""
    made = ModuleType(name)
    vars(made).update(content)
    return made


class Unwrapped(ModuleType):
    """A module of wrappers that leave an environment as it is, but for those that it is given."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda env, *_, **__: env


def wrappers(request: Mapping[str, Any], settings: Settings) -> Unwrapped:
    """Return the wrappers that the script finds: those of normalisation where the request has it."""
    made = Unwrapped("gym.wrappers")
    settings.same("observation_warm_up", 0, LIVE)
    settings.same("return_scaling", False, "it divides rewards alone")
    observations, rewards = (settings.take(key, False) for key in ("observation_normalisation", "reward_normalisation"))
    clips = [settings.take(key, 10.0) for key in ("normalised_observation_clip", "normalised_reward_clip")]
    if observations:
        made.NormalizeObservation = gymnasium.wrappers.NormalizeObservation  # type: ignore[attr-defined]
        made.TransformObservation = lambda env, seen: Each(env, seen=seen)  # type: ignore[attr-defined]
    if rewards:
        made.NormalizeReward = gymnasium.wrappers.NormalizeReward  # type: ignore[attr-defined]
        made.TransformReward = lambda env, given: Each(env, given=given)  # type: ignore[attr-defined]
    if observations or rewards:
        why = "statistics of its own for each environment, which take in every step"
        settings.differs("normalisation", "after each update, of all environments", "at each step", why)
        if any(clip != 10.0 for clip, used in zip(clips, (observations, rewards)) if used):  # noqa: B905
            settings.differs("normalised_observation_clip", clips, 10.0, "its script has 10")
    return made


class Writer:
    """The writer of TensorBoard that the script finds; it reports."""

    NAMES: ClassVar = {"losses/entropy": "entropy", "losses/approx_kl": "kl", "losses/clipfrac": "clip_fraction"}
    reporter: Reporter
    updated: Callable[[], None]

    def __init__(self, *_: Any) -> None:
        """Take a folder, in which nothing is written."""

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """Keep a metric; the last one of an update says that it is over."""
        if name in self.NAMES:
            self.reporter.metric(self.NAMES[name], value)
        if name == "charts/SPS":
            self.updated()

    def add_text(self, *_: Any) -> None:
        """Leave out the arguments."""

    def close(self) -> None:
        """Do nothing."""


def script_of(request: Mapping[str, Any], settings: Settings, discrete: bool) -> str:
    """Return the name of the script."""
    network = request["network"]
    settings.without_effect(*DESCRIBED)
    settings.same("scaled_pixels", True, "its script divides by 255")
    if network["recurrent"]:
        raise Refused("CleanRL's scripts here have no recurrent network")
    torso, gains = network["torso"], network["gains"]
    if any(not isinstance(ours, float) or abs(ours - theirs) > 1e-6 for ours, theirs in zip(gains, GAINS)):  # noqa: B905
        settings.differs("initialisation", str(gains), f"orthogonal {GAINS}", "its scripts have it fixed")
    if request["task"]["kind"] == "atari":
        if {key: torso.get(key) for key in ATARI} != ATARI or network["separate"]:
            settings.differs("network", str(torso), str(ATARI), "its script has it fixed")
        return "ppo_atari.py"
    name = "ppo.py" if discrete else "ppo_continuous_action.py"
    if torso["kind"] != "mlp" or torso["activation"] != "tanh" or not network["separate"]:
        settings.differs(
            "network", str(network), "tanh, a network for the policy and one for V", "its script has it fixed"
        )
    if (sizes := torso.get("hidden", [])) != [HIDDEN, HIDDEN]:
        settings.differs("network", str(sizes), [HIDDEN, HIDDEN], "its script has it fixed")
    return name


def arguments_of(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the arguments of the script."""
    take, total = settings.take, request["agent_steps"]
    length, columns = take("unroll_length"), take("batch_size")
    envs = take("topology.num_actors") * take("topology.envs_per_actor")
    if envs != columns:
        settings.differs("topology", envs, columns, "one environment for each unroll of a batch")
    updates = -(-total // (length * columns))
    decay = take("optimizer.decay_frames")
    if decay and abs(decay / request["task"]["frame_skip"] - total) > length * columns:
        settings.differs("optimizer.decay_frames", decay, total, "its rate falls to 0 at the end, or not at all")
    settings.ours_alone()
    settings.same("optimizer.name", "adam", "its scripts have it fixed")
    for key, value in (("beta1", 0.9), ("beta2", 0.999), ("epsilon", 1e-5)):
        settings.same(f"optimizer.{key}", value, "its scripts have it fixed")
    clip, bound = take("value_clip_epsilon"), take("max_grad_norm")
    if clip not in (None, take("clip_epsilon")):
        settings.differs("value_clip_epsilon", clip, take("clip_epsilon"), "it is that of the ratio")
    settings.same("kl_cost", 0.0, "it has no penalty")
    settings.same("kl_target", None, "its target ends the epochs of a batch")
    settings.same("precision", "float32", "its scripts compute in float32")
    settings.same("time_limits", "terminal", "its `done` does not tell a limit from an end")
    settings.without_effect("normalise_advantages_over")
    settings.same("recompute_advantages", False, "its scripts compute them once a batch")
    if take("normalise_advantages"):
        settings.same("normalise_advantages_over", "minibatch", "it does so in each minibatch")
        settings.differs("normalise_advantages", "deviation over n", "over n - 1", "one sample of a minibatch")
    return {
        "seed": request["seed"],
        "cuda": False,
        "total-timesteps": updates * length * columns,
        "learning-rate": take("optimizer.learning_rate"),
        "num-envs": columns,
        "num-steps": length,
        "anneal-lr": bool(decay),
        "gamma": take("discount"),
        "gae-lambda": take("gae_lambda"),
        "num-minibatches": take("num_minibatches"),
        "update-epochs": take("num_epochs"),
        "norm-adv": take("normalise_advantages"),
        "clip-coef": take("clip_epsilon"),
        "clip-vloss": clip is not None,
        "ent-coef": take("entropy_cost"),
        "vf-coef": take("value_cost"),  # of half the squared error on both sides
        "max-grad-norm": 1e9 if bound is None else bound,
    }


def prepare(request: Mapping[str, Any], settings: Settings, reporter: Reporter, discrete: bool, old: bool) -> list[Any]:
    """Put what the script imports in place; return the list that will hold its environments."""
    games: list[Any] = []

    def made(*_: Any, **__: Any) -> Any:
        games.append(make(request["task"], seed_of(request["seed"], "actor", len(games))))
        return Seedable(games[-1])

    def vector(thunks: Sequence[Callable[[], Any]]) -> Vector:
        return Vector([thunk() for thunk in thunks], reporter, old=old)

    found = module(
        "gym",
        make=made,
        spaces=gymnasium.spaces,
        wrappers=wrappers(request, settings),
        vector=module("gym.vector", SyncVectorEnv=vector),
    )
    atari = Unwrapped("stable_baselines3.common.atari_wrappers")
    sys.modules |= {
        ("gym" if old else "gymnasium"): found,
        "stable_baselines3.common.atari_wrappers": atari,
        "torch.utils.tensorboard": module("torch.utils.tensorboard", SummaryWriter=Writer),
        "distutils.util": module("distutils.util", strtobool=lambda text: text.lower() in ("true", "1")),
    }
    return games


class Seedable(gymnasium.Wrapper):
    """An environment with the methods that a script of 2022 calls."""

    def seed(self, seed: int) -> None:
        """Leave the task's own seed."""

    @property
    def unwrapped(self) -> Any:
        """This environment, whose actions have no names: FIRE is not pressed at starts."""
        return self

    def get_action_meanings(self) -> list[str]:
        """Return no names."""
        return []


def train(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    torch.set_num_threads(request["threads"])
    if request["algorithm"] != "ppo":
        raise Refused(f"CleanRL has no algorithm '{request['algorithm']}' here; allowed: ppo")
    probe = make(request["task"], 1)
    discrete = isinstance(probe.action_space, gymnasium.spaces.Discrete)
    name = script_of(request, settings, discrete)
    if not discrete:
        settings.same("initial_log_std", 0.0, "its script starts there")
    settings.without_effect("initial_log_std")
    arguments = arguments_of(request, settings)
    prepare(request, settings, reporter, discrete, old=discrete)
    reporter.count_optimizer_steps()
    loader = SourceFileLoader("__main__", str(FOLDER / name))
    script = module_from_spec(spec_from_loader("__main__", loader))
    space = vars(script)
    batch = arguments["num-envs"] * arguments["num-steps"]
    versions = Versions(request, lambda: copy.deepcopy(space["agent"].state_dict()))

    def updated() -> None:
        reporter.trained_samples = reporter.gradient_steps * (batch // arguments["num-minibatches"])
        reporter.updated()
        versions.keep(reporter)

    Writer.reporter, Writer.updated = reporter, staticmethod(updated)  # type: ignore[assignment]
    sys.argv = [name, *(word for key, value in arguments.items() for word in (f"--{key}", str(value)))]
    loader.exec_module(script)
    reporter.progress(force=True)
    counts, agent = reporter.counts(), space["agent"]
    statistics = statistics_of(space["envs"])

    @torch.no_grad()
    def act(observation: Any) -> Any:
        return agent.get_action_and_value(torch.as_tensor(statistics(observation), dtype=torch.float32))[0].numpy()

    def play(parameters: Any, share: int, episodes: int) -> list[list[float]]:
        agent.load_state_dict(parameters)
        return evaluate(request["task"], request["seed"], share, episodes, act)

    versions.play(reporter, play)
    parameters = sum(tensor.numel() for tensor in agent.parameters())
    effective = {key: value if isinstance(value, (int, float)) else str(value) for key, value in arguments.items()}
    effective |= {"script": name}
    return {**counts, "effective": effective, "parameters": parameters}


def statistics_of(vector: Vector) -> Callable[[Any], Any]:
    """Return what normalises an observation as the first environment does, without taking it in."""
    env = vector._games[0]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.NormalizeObservation):
            found = env.obs_rms
            return lambda seen: np.clip((seen - found.mean) / np.sqrt(found.var + env.epsilon), -10, 10)
        env = env.env
    return lambda seen: seen


if __name__ == "__main__":
    run(train, lambda: installed("cleanrl", "torch", "numpy", "gymnasium", "ale-py", "mujoco"), {})
