"""A2C: A3C with a batch in place of threads (OpenAI Baselines, Wu et al. 2017; "batched A2C" of Espeholt et al. 2018).

Actors collect an unroll with the newest parameters and wait (`UnrollActor`, lines 1 to 3) while the learner makes one
step from all of them: no lag, nothing to correct. The three forms of Table 1 of Espeholt et al. 2018 are topologies:

- synchronous steps: one actor with all environments, which waits for the slowest of them at every step;
- synchronous trajectories: several actors, each with its own environments and network, which wait once an unroll;
- dynamic batching: the same with `inference: central`, which batches the requests that have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from ddrl.actors.policy import from_distribution
from ddrl.actors.unroll import UnrollActor
from ddrl.algorithms.a3c import advantage_loss, returns_of
from ddrl.interfaces import Parameters, Queue, System, TaskKind
from ddrl.learners.batch_values import TimeLimits, evaluate
from ddrl.learners.core import LearnerCore, Setting, each_batch_once
from ddrl.learners.normalisation import RewardClipping
from ddrl.learners.optimizers import RMSPropByDefault, RMSPropConfig
from ddrl.networks.actor_critic import ActorCritic, make_actor_critic, unread_keys
from ddrl.networks.initialisation import Initialisation, Orthogonal
from ddrl.system.config_types import STRICT, Probability, check_read
from ddrl.types import EnvSpec, Metrics, Unroll

VERSION = 1

SYSTEM = System(
    name="A2C",
    moves="unrolls",
    store="queue",
    schedules=("synchronous",),  # on policy: nothing corrects for a lag
)
TASK_DEFAULTS: Mapping[TaskKind, Mapping[str, Any]] = {
    "vectors": {"network": "mlp", "optimizer": {"learning_rate": 2e-3, "initial_mean_square": 0.0}},
    "continuous actions": {
        "network": "tanh_mlp",
        "separate_value_network": True,
        "observation_normalisation": True,
        "reward_clipping": "none",
    },
}
"""Ours. Continuous actions: as PPO's authors have them. Vectors: small tasks take a thousand updates, and mean squares
that begin at 1 would keep most of these small."""


@dataclass(frozen=True, config=STRICT)
class Config:
    """Defaults: OpenAI Baselines (Dhariwal et al. 2017), a2c, unless a line says otherwise."""

    unroll_length: PositiveInt = 5  # T, agent steps
    batch_size: PositiveInt = (
        16  # B, unrolls, one an environment; Mnih et al. 2016 have 16 threads, the authors' code cores
    )
    discount: Probability = 0.99
    value_cost: float = 1.0  # of half the squared error; the authors' code has 0.5 of the whole
    entropy_cost: float = 0.01
    loss_reduction: Literal["sum", "mean"] = "mean"  # over T and B; Espeholt et al. 2018 sum
    reward_clipping: RewardClipping = "abs_one"
    max_grad_norm: PositiveFloat | None = 0.5
    network: Literal["shallow", "nature", "vision", "deep", "mlp", "tanh_mlp"] = "nature"
    scaled_pixels: bool = True  # as the authors' code (common/models.py); false: 0 to 255, as RLlib's networks see them
    mlp_size: PositiveInt | None = None  # not in the authors' code; null: 64 of `mlp`, 256 of `tanh_mlp`, ours
    lstm_size: NonNegativeInt = 0
    feed_last_action_and_reward: bool = False  # not there; Espeholt et al. 2018, Figure 3
    optimizer: RMSPropByDefault = RMSPropConfig(  # TensorFlow's, decay 0.99, to 0 over 80M agent steps
        learning_rate=7e-4,
        epsilon=1e-5,
        epsilon_inside_sqrt=True,
        initial_mean_square=1.0,
        decay_frames=320_000_000,
    )
    separate_value_network: bool = False
    initialisation: Initialisation | None = Orthogonal()  # null: that of Espeholt et al. 2018's code
    initial_log_std: float = 0.0
    # Not in the authors' code; as PPO's.
    observation_normalisation: bool = False
    normalised_observation_clip: PositiveFloat | None = 10.0  # Huang et al. 2022, as PPO's
    observation_warm_up: NonNegativeInt = 0  # as PPO's
    reward_normalisation: bool = False
    normalised_reward_clip: PositiveFloat | None = 10.0  # Huang et al. 2022, as PPO's
    # Not in the authors' code. True: Weng et al. 2022's code; values are in the running deviation of returns.
    return_scaling: bool = False
    time_limits: TimeLimits = "bootstrap"  # Pardo et al. 2018; the authors' code has "terminal"
    gae_lambda: Probability = 1.0  # 1: n-step returns, as in the authors' code

    @property
    def fresh_columns(self) -> int:
        """Columns of a batch that come from the queue: all of them."""
        return self.batch_size

    stored_columns = 0
    first_update = each_batch_once


def check(config: Config, spec: EnvSpec, num_learners: int) -> None:
    """Raise `UserError` if a key would have no effect; A2C learns discrete and continuous tasks."""
    check_read(config, unread_keys(spec, config))


Actor = UnrollActor
make_network = make_actor_critic
make_sampler = from_distribution


class Learner:
    """One call of `step` makes one update from `batch_size` unrolls."""

    def __init__(
        self, config: Config, network: ActorCritic, params: Parameters, queue: Queue, setting: Setting
    ) -> None:
        self.config = config
        self.core = LearnerCore(config, network, params, queue, setting, warm_up=config.observation_warm_up)
        self.ready = self.core.can_take
        self.state_dict, self.load_state_dict = self.core.state_dict, self.core.load_state_dict

    def step(self) -> Metrics:
        """Make one update. Raises `NonFiniteError` if a loss or the gradient is NaN or infinite."""
        return self.core.step(self.update)  # 4, 6  B unrolls; a new version, for which all actors wait

    def update(self, batch: Unroll) -> Metrics:
        """Make one gradient step on a batch, then add its returns to the scale of the values, if there is one."""
        network, config, setting = self.core.network, self.config, self.core.setting
        if network.return_scale is None:
            return self._descend(batch)
        batch = batch.to(setting.device)
        values = evaluate(network, batch, setting.precision).value
        returns = returns_of(network, values, batch, config, config.time_limits, config.gae_lambda)
        metrics = self._descend(batch)
        network.return_scale.update(returns[batch.valid], setting.reducer)
        return metrics

    def _descend(self, batch: Unroll) -> Metrics:
        return self.core.update(  # 5  the loss of A3C
            lambda network, part, weight: advantage_loss(
                network, part, self.config, weight, self.config.time_limits, self.config.gae_lambda
            ),
            batch,
            mean=self.config.loss_reduction == "mean",
        )
