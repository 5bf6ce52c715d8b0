"""Where defaults come from: what a class says of each, and what the source that it names for the rest has."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddrl.learners.optimizers import AdamConfig, RMSPropConfig
from ddrl.networks.initialisation import Orthogonal

GENERAL: dict[str, dict[str, Any]] = {
    # Espeholt et al. 2018, Table G.1.
    "impala": {
        "unroll_length": 20,
        "batch_size": 32,
        "discount": 0.99,
        "value_cost": 0.5,
        "entropy_cost": 0.01,
        "reward_clipping": "abs_one",
        "max_grad_norm": 40.0,
        "optimizer": RMSPropConfig(learning_rate=6e-4, epsilon=0.01, momentum=0.0, decay_frames=200_000_000),
    },
    # Luo et al. 2020, as RLlib's HalfCheetah example quotes it (each value: replications/impact_2020/paper.yaml).
    "impact": {
        "unroll_length": 1024,
        "batch_size": 32,
        "discount": 0.995,
        "gae_lambda": 0.995,
        "clip_epsilon": 0.4,
        "num_slots": 16,
        "num_traversals": 20,
        "value_cost": 0.5,
        "entropy_cost": 0.0,
        "kl_cost": 1.0,
        "kl_target": 0.04,
        "max_grad_norm": 0.5,
        "optimizer": AdamConfig(learning_rate=3e-4),
    },
    # Horgan et al. 2018, Atari (each value: replications/apex_2018/published).
    "apex_dqn": {
        "unroll_length": 50,
        "actor_update_period": 100,
        "batch_size": 512,
        "discount": 0.99,
        "n_step": 3,
        "double_q": True,
        "dueling": True,
        "epsilon": 0.4,
        "epsilon_alpha": 7.0,
        "replay_capacity": 2_000_000,
        "min_replay_size": 50_000,
        "priority_exponent": 0.6,
        "importance_exponent": 0.4,
        "target_update_period": 2500,
        "max_grad_norm": 40.0,
        "optimizer": RMSPropConfig(
            learning_rate=0.00025 / 4,
            decay=0.95,
            epsilon=1.5e-7,
            epsilon_inside_sqrt=True,
            centered=True,
            decay_frames=None,
        ),
    },
    # Tassa et al. 2018, "Algorithm and Architecture Details": D4PG, and DDPG where that says nothing else.
    "d4pg": {
        "batch_size": 256,
        "discount": 0.99,
        "n_step": 5,
        "critic": "categorical",
        "v_min": -150.0,
        "v_max": 150.0,
        "action_gradient_clipping": "value",
        "action_gradient_bound": 1.0,
        "prioritized": True,
        "replay_capacity": 1_000_000,
        "priority_exponent": 0.6,
        "target_update_period": 100,
        "network": "mlp",
        "policy_layers": (300, 200),
        "critic_layers": (400, 300),
        "action_input": "second_layer",
        "optimizer": AdamConfig(learning_rate=1e-4, epsilon=1e-8),
        "policy_optimizer": AdamConfig(learning_rate=1e-4, epsilon=1e-8),
    },
    # Kapturowski et al. 2019, Table 2.
    "r2d2": {
        "actor_update_period": 400,
        "sequence_length": 80,
        "burn_in": 40,
        "batch_size": 64,
        "n_step": 5,
        "discount": 0.997,
        "replay_capacity": 4_000_000,
        "priority_exponent": 0.9,
        "importance_exponent": 0.6,
        "target_update_period": 2500,
        "optimizer": AdamConfig(learning_rate=1e-4, epsilon=1e-3),
    },
    # Mnih et al. 2016, section 8.
    "a3c": {"unroll_length": 5, "discount": 0.99, "entropy_cost": 0.01, "network": "shallow"},
    # Babaeizadeh et al. 2017, and NVlabs/GA3C, Config.py and NetworkVP.py.
    "ga3c": {
        "unroll_length": 5,
        "batch_size": 1,
        "discount": 0.99,
        "value_cost": 1.0,
        "entropy_cost": 0.01,
        "log_epsilon": 1e-6,
        "reward_clipping": "abs_one",
        "max_grad_norm": None,
        "network": "shallow",
        "optimizer": RMSPropConfig(
            learning_rate=3e-4, epsilon=0.1, epsilon_inside_sqrt=True, initial_mean_square=1.0, decay_frames=None
        ),
    },
    # Mnih et al. 2015, Extended Data Table 1.
    "gorila": {
        "unroll_length": 4,
        "batch_size": 32,
        "discount": 0.99,
        "target_update_period": 10_000,
        "initial_epsilon": 1.0,
        "final_epsilon": 0.1,
        "exploration_steps": 1_000_000,
        "replay_capacity": 1_000_000,
        "min_replay_size": 50_000,
        "network": "nature",
        "optimizer": RMSPropConfig(
            learning_rate=0.00025,
            decay=0.95,
            epsilon=0.01,
            epsilon_inside_sqrt=True,
            centered=True,
            decay_frames=None,
        ),
    },
    # OpenAI Baselines, a2c.
    "a2c": {
        "unroll_length": 5,
        "discount": 0.99,
        "entropy_cost": 0.01,
        "max_grad_norm": 0.5,
        "network": "nature",
        "lstm_size": 0,
        "reward_clipping": "abs_one",
        "loss_reduction": "mean",
        "separate_value_network": False,
        "initialisation": Orthogonal(),
        "initial_log_std": 0.0,
        "optimizer": RMSPropConfig(
            learning_rate=7e-4,
            epsilon=1e-5,
            epsilon_inside_sqrt=True,
            initial_mean_square=1.0,
            decay_frames=320_000_000,
        ),
    },
    # alex-petrenko/sample-factory 2.1.1, cfg.py.
    "appo": {
        "unroll_length": 32,
        "batch_size": 32,
        "discount": 0.99,
        "vtrace": False,
        "gae_lambda": 0.95,
        "rho_bar": 1.0,
        "c_bar": 1.0,
        "num_epochs": 1,
        "num_minibatches": 1,
        "clip_epsilon": 0.1,
        "value_clip_epsilon": 1.0,
        "exploration": "entropy",
        "entropy_cost": 0.003,
        "max_policy_lag": 1000,
        "max_grad_norm": 4.0,
        "optimizer": AdamConfig(learning_rate=1e-4, epsilon=1e-6),
        "separate_value_network": False,
        "initialisation": Orthogonal(hidden_gain=1.0, policy_gain=1.0, value_gain=1.0),
        "initial_log_std": 0.0,
    },
    # Schulman et al. 2017, Table 3.
    "ppo": {"unroll_length": 2048, "discount": 0.99, "gae_lambda": 0.95, "num_epochs": 10},
}
"""Algorithm -> what the source that its `Config` names for every line that names none has."""

SOURCE = re.compile(
    r"[Ss]ections? \d|Table [A-Z\d]|Figure \d|eq\. \d|[Rr]emark \d|et al\. \d{4}|Huang|RLlib|PFRL|ppo2|authors' code"
    r"|Sample Factory"
)
"""What counts as naming a source."""


def said(path: Path, class_name: str) -> dict[str, str]:
    """Field -> the comment on its line, the text under it, and the comment above its group (up to a blank line)."""
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    lines = text.splitlines()
    owner = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == class_name)
    found = {}
    for node, after in zip(owner.body, [*owner.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        words = [comments.get(number, "") for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            words.append(str(after.value.value))
        above = node.lineno - 1
        while lines[above - 1].strip() and not lines[above - 1].startswith("    #"):
            above -= 1
        while lines[above - 1].startswith("    #"):
            words.append(comments[above])
            above -= 1
        found[node.target.id] = " ".join(words)
    return found


def unsourced(path: Path, class_name: str, defaults: Mapping[str, Any], general: Mapping[str, Any]) -> set[str]:
    """Fields whose default is neither that of the general source nor said to come from another.

    A default that departs from the general source must say what that has.
    """
    found = set()
    for name, words in said(path, class_name).items():
        if name not in general:
            fine = bool(SOURCE.search(words))
        else:
            fine = defaults[name] == general[name] or _names(words, general[name])
        if not fine:
            found.add(name)
    return found


def _names(words: str, value: Any) -> bool:
    """Whether a value stands in a text, and not as a part of another number or name."""
    return re.search(rf"(?<![\w.,]){re.escape(str(value))}(?!\w|[.,]\d)", words) is not None
