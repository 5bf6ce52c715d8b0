"""Runs Sample Factory 2's APPO (see `protocol`): as APPO, and, synchronous and without V-trace, as PPO.

Environments are stepped by worker processes; another process infers for all of them, and the learner has one, too. It
needs gymnasium before 1, so there are no MuJoCo tasks of version 5.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import torch
from environments import Episodes, evaluate, make
from protocol import Refused, Reporter, Settings, Versions, installed, run
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import TRAIN_STATS
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory_model import OBSERVATION, LearnerRunner, build
from sample_factory_settings import KINDS
from sample_factory_update import one_update


class Follow(AlgoObserver):
    """Reports progress."""

    def __init__(self, reporter: Reporter, episodes: Episodes, cfg: Any) -> None:
        self._reporter, self._episodes = reporter, episodes
        self._minibatch, self._batch = cfg.batch_size, cfg.batch_size * cfg.num_batches_per_epoch
        self._steps_of_update = cfg.num_epochs * cfg.num_batches_per_epoch
        self.counts: dict[str, float] = {}
        """How far the training was after the last update: its processes take long to end."""

    def on_init(self, runner: Any) -> None:
        """Ask for what an asynchronous learner says of some batches."""
        if runner.cfg.async_rl:
            runner.policy_msg_handlers[TRAIN_STATS].append(self._lag)

    def _lag(self, runner: Any, message: Mapping[str, Any], policy: int) -> None:
        """Keep the policy lag of a batch: in updates, of which each has several versions there."""
        stats = message[TRAIN_STATS]
        for ours, theirs in (("policy_lag_mean", "version_diff_avg"), ("policy_lag_max", "version_diff_max")):
            self._reporter.metric(ours, stats[theirs] / self._steps_of_update)

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


def train(request: Mapping[str, Any], settings: Settings, reporter: Reporter) -> Mapping[str, Any]:
    """Train and evaluate."""
    if request["algorithm"] not in KINDS:
        raise Refused(f"Sample Factory has no algorithm '{request['algorithm']}' here; allowed: {', '.join(KINDS)}")
    if request["evaluation"]["versions"] > 1:
        settings.differs("evaluation.final_versions", request["evaluation"]["versions"], 1, "it keeps its last one")
    with tempfile.TemporaryDirectory() as folder:
        try:
            cfg = build(request, settings, folder)
            env = make(request["task"], 1)
            spaces = env.observation_space, env.action_space
            env.close()
        except gymnasium.error.Error as error:
            raise Refused(f"gymnasium {gymnasium.__version__} cannot make the task: {error}") from None
        runner = LearnerRunner(cfg)
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
    seen, actions = spaces
    model = create_actor_critic(cfg, gymnasium.spaces.Dict({OBSERVATION: seen}), actions)
    model.load_state_dict(saved["model"])
    model.eval()  # statistics of observations stay
    setting = {**request, "evaluation": {**request["evaluation"], "versions": 1}}

    @torch.no_grad()
    def act(observation: Any) -> Any:
        seen = model.normalize_obs({OBSERVATION: torch.as_tensor(observation)})
        chosen = model(seen, torch.zeros(1, 1))["actions"].numpy()
        return chosen.reshape(1, *actions.shape)

    versions = Versions(setting, lambda: None)
    versions.play(reporter, lambda _, share, count: evaluate(request["task"], request["seed"], share, count, act))
    # What its learner had done when it ended: an asynchronous one may have taken one batch more.
    counts = follow.counts | {"steps": int(saved["env_steps"]), "gradient_steps": int(saved["train_step"])}
    counts["trained_samples"] = counts["gradient_steps"] * cfg.batch_size
    effective = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in vars(cfg).items()}
    return {**counts, "effective": effective, "parameters": sum(one.numel() for one in model.parameters())}


if __name__ == "__main__":
    names = ("sample-factory", "torch", "numpy", "gymnasium", "ale-py", "vizdoom")
    run(train, lambda: installed(*names), {"--check": lambda: sys.exit(0), "--one-update": one_update})
