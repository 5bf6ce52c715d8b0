"""The task and the network of a request as Sample Factory takes them, with the configuration that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from environments import Logged
from networks import Torso, initialise
from protocol import DESCRIBED, Refused, Settings
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.runners.runner_parallel import ParallelRunner
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.running_mean_std import RunningMeanStdDictInPlace
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import default_make_actor_critic_func
from sample_factory.model.encoder import Encoder
from sample_factory_settings import TASK, arguments_of

OBSERVATION = "obs"


class TorsoEncoder(Encoder):
    """The torso of the request; zeros follow its features where our network encodes instructions, which are empty."""

    def __init__(self, cfg: Any, space: Any, network: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.torso = Torso(space[OBSERVATION].shape, network["torso"])
        self._zeros = int(network["instructions"])
        initialise(self.torso, network["gains"][0])

    def forward(self, observations: Mapping[str, Any]) -> torch.Tensor:
        """Return the features."""
        found: torch.Tensor = self.torso(observations[OBSERVATION])
        return F.pad(found, (0, self._zeros)) if self._zeros else found

    def get_out_size(self) -> int:
        """Return the number of features."""
        return int(self.torso.size) + self._zeros


class LearnerWithVTrace(Learner):
    """Its learner, which with V-trace ends in version 2.1.1 (alex-petrenko/sample-factory, pull request 278).

    Its summary of an update looks for advantages of the whole batch, which V-trace does not compute. It gets those of
    the minibatch instead.
    """

    def _record_summaries(self, seen: Any) -> Any:
        if "advantages" not in seen["mb"]:
            seen["mb"]["advantages"] = seen["adv"]
        return super()._record_summaries(seen)


class LearnerRunner(ParallelRunner):
    """Its runner, with that learner."""

    def _make_learner(self, event_loop: Any, policy_id: int, batcher: Any) -> Any:
        worker = super()._make_learner(event_loop, policy_id, batcher)
        versions = self.buffer_mgr.policy_versions
        worker.learner = LearnerWithVTrace(self.cfg, self.env_info, versions, policy_id, worker.param_server)
        return worker


def game(request: Mapping[str, Any], folder: str, name: str, cfg: Any, place: Any, render_mode: Any = None) -> Any:
    """Make one environment; `place` says which of all it is."""
    return Logged(request["task"], request["seed"], 0 if place is None else int(place.env_id), folder)


def encoder(network: Mapping[str, Any], cfg: Any, space: Any) -> TorsoEncoder:
    """Make a torso."""
    return TorsoEncoder(cfg, space, network)


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
    if network["recurrent"]:
        raise Refused("hyperparameters.lstm_size: recurrent networks are not built for Sample Factory; allowed: 0")
    if network["torso"]["kind"] not in ("mlp", "convolutional"):
        raise Refused(f"this network is not built for Sample Factory: {network['torso']['kind']}")
    settings.without_effect(*DESCRIBED)
    register_env(TASK, partial(game, request, folder))
    global_model_factory().register_encoder_factory(partial(encoder, network))
    bound = settings.take("normalised_observation_clip", None)
    global_model_factory().register_actor_critic_factory(partial(actor_critic, network["gains"], bound))
    arguments = arguments_of(request, settings, folder)
    schedule = arguments.pop("lr_schedule")
    words = [f"--{key}={value}" for key, value in arguments.items()]
    parser, _ = parse_sf_args(words)
    cfg = parse_full_cfg(parser, words)
    cfg.lr_schedule = schedule  # its learner knows a linear decay, its command line does not
    return cfg
