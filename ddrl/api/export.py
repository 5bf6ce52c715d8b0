"""The export of a trained agent to `policy.safetensors` (`ddrl export`, `ddrl.export`)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ddrl import algorithms
from ddrl.api import policy_file
from ddrl.api.trained import Trained, load_trained, new_network
from ddrl.training.config.run_config import fingerprint_of, read_mapping_of
from ddrl.training.records.identity import read_mapping

STEPS, NUM_ENVS = 250, 4
"""Agent steps, of each environment, on which both precisions are compared."""
LEAST_EQUAL = 0.99
"""Share of the steps of a discrete task whose best action must be the same."""
MOST_APART = 0.01
"""Largest mean distance of continuous actions, which are within [-1, 1]."""


@dataclass(frozen=True)
class Exported:
    """A policy that was written."""

    path: Path
    half: bool
    """Whether parameters have 16 bits."""
    agreement: float
    """Of 16 with 32 bits: the share of equal best actions, or one minus the mean distance of continuous ones."""
    env_frames: int

    def describe(self) -> str:
        """Return one line."""
        bits = 16 if self.half else 32
        size = self.path.stat().st_size / 1e6
        return (
            f"{self.path}: {size:.2f} MB, parameters of {bits} bits (best actions with 16 agree with those of 32 to "
            f"{100 * self.agreement:.1f} % over {STEPS * NUM_ENVS:,} steps), after {self.env_frames:,} frames"
        )


def export(run: Path) -> Exported:
    """Write the newest parameters of a run to `policy.safetensors` in its directory.

    Parameters get 16 bits where that hardly changes the best actions, as it is measured on the run's task; otherwise
    they keep 32. Raise UserError where the run has no checkpoint, or its environment cannot be made.
    """
    trained = load_trained(run)
    found = agreement(trained, rounded_copy(trained))
    half = found >= (1 - MOST_APART if trained.spec.action_size else LEAST_EQUAL)
    path = run / policy_file.NAME
    policy_file.write(path, trained.network, about(trained, run), half=half)
    return Exported(path, half, found, trained.env_frames)


def about(trained: Trained, run: Path) -> policy_file.About:
    """Return the metadata of a run's policy."""
    commit = read_mapping(run / "run.json").get("git_sha")
    return policy_file.About(
        trained.config,
        fingerprint_of(read_mapping_of(run / "config.json")),
        algorithms.load(trained.config.algorithm).VERSION,
        trained.env_frames,
        f"{run.name} of {run.parent}, commit {commit or 'unknown'}",
    )


def rounded_copy(trained: Trained) -> nn.Module:
    """Return a network whose parameters are those of `trained`, rounded to 16 bits."""
    network = new_network(trained.config)
    network.load_state_dict(trained.network.state_dict())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(policy_file.rounded(parameter))
    return network


def agreement(trained: Trained, other: nn.Module) -> float:
    """Return how alike two networks act on the same steps, which the best actions of `trained` lead to."""
    ours = trained.policy(NUM_ENVS, 0, "export-policy", greedy=True)
    theirs = Trained(trained.config, other, 0).policy(NUM_ENVS, 0, "export-policy", greedy=True)
    total = 0.0
    with closing(trained.environment(NUM_ENVS, 0, what="export")) as env:
        step = env.reset()
        for _ in range(STEPS):
            own, apart = ours.act(step).action, theirs.act(step).action
            theirs.last_action = own  # both have the same history
            if trained.spec.action_size:
                total += 1.0 - float((own.clamp(-1, 1) - apart.clamp(-1, 1)).abs().mean())
            else:
                total += float((own == apart).float().mean())
            step = env.step(own.numpy())
    return total / STEPS
