"""The learner side of algorithms that apply several gradients at the same time."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

from torch import Tensor, nn
from torch.nn import Parameter

from ddrl.interfaces import Service, SharedParameters
from ddrl.learners.core import Network, Setting
from ddrl.learners.optimizers import RMSPropConfig, check_finite, clip_global_norm, linear_decay, make_rmsprop
from ddrl.types import Begun, Gradients, Metrics


def gradient_of(
    loss: Callable[[Network], tuple[Tensor, Metrics]],
    network: Network,
    autocast: AbstractContextManager[Any],
    max_grad_norm: float | None,
    *,
    version: int,
    items: int,
    steps: int | None = None,
) -> Gradients:
    """Compute the clipped gradient of a loss over `items`, in tensors that nothing else writes to.

    `loss` returns the loss of the network, and metrics.
    `version` is that of the network's parameters, `steps` the fresh steps to count with the gradient (None: `items`).
    Raises `NonFiniteError` if a metric or the gradient is NaN or infinite.
    """
    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.grad = None
    with autocast:
        value, metrics = loss(network)
    value.backward()  # type: ignore[no-untyped-call]
    norm = float(clip_global_norm(parameters, max_grad_norm))
    check_finite(metrics | {"gradient_norm": norm}, where=f"update {version + 1} or after")
    gradients = tuple(cast(Tensor, parameter.grad) for parameter in parameters)
    return Gradients(gradients, norm, items if steps is None else steps, version, version, metrics, items)


class SharedConfig(Protocol):
    """The hyperparameters that `SharedUpdates` reads."""

    @property
    def optimizer(self) -> RMSPropConfig:
        """The optimizer whose statistics are shared."""


def shards(parameters: list[Parameter], number: int) -> list[tuple[slice, list[Parameter]]]:
    """Divide parameters into at most `number` shards of about the same size; return each with its slice of the list.

    A single parameter is never divided.
    """
    ends = list(itertools.accumulate(parameter.numel() for parameter in parameters))
    edges = [bisect_left(ends, ends[-1] * i / number) + 1 for i in range(1, number)]
    places = sorted({0, *edges, len(parameters)})
    return [(slice(start, stop), parameters[start:stop]) for start, stop in itertools.pairwise(places)]


class SharedUpdates:
    """Applies gradients in the threads that bring them.

    Without shards there is no lock (Mnih et al. 2016, section 4, "shared RMSProp"): parameters and mean squares are
    changed in place, and one of two threads may undo a part of the other's update, as in Hogwild (Recht et al. 2011).
    Each shard of a parameter server (Nair et al. 2015) applies one gradient at a time, at the same time as other
    shards. Counters are always exact. If the shards are in processes of their own, they have already applied what is
    brought here; it is only counted, which also keeps the schedule of the learning rate.
    """

    def __init__(self, config: SharedConfig, network: nn.Module, params: SharedParameters, setting: Setting) -> None:
        self.network = network
        self.env_frames = 0
        self.agent_steps = 0
        self.updates = 0
        self.helpers: Sequence[Service] = ()
        """Services that learn beside the learner's own steps."""
        self.setting = setting
        self._config = config.optimizer
        self._elsewhere = setting.shards
        parts = [] if self._elsewhere else shards(list(network.parameters()), setting.parameter_shards or 1)
        self._shards = [(part, make_rmsprop(parameters, config.optimizer)) for part, parameters in parts]
        self._locks: list[AbstractContextManager[Any]] = [
            threading.Lock() if setting.parameter_shards else nullcontext() for _ in self._shards
        ]
        self._params = params
        self._counting = threading.Lock()
        params.serve(self.apply, self.begin)

    def begin(self) -> Begun:
        """Return the present version and the learning rate with which shards apply the next update."""
        learning_rate = linear_decay(self._config.learning_rate, self.env_frames, self._config.decay_frames)
        return Begun(self._params.version, learning_rate)

    def apply(self, gradients: Gradients, begun: Begun | None = None) -> Metrics:
        """Make one update; return the gradient's metrics per step, its lag in updates and the learning rate.

        `begun` describes an update that shards in processes of their own have already applied.
        """
        version, learning_rate = begun or self.begin()
        for (part, optimizer), lock in zip(self._shards, self._locks, strict=True):
            with lock:
                optimizer.apply(list(gradients.tensors[part]), learning_rate)
        with self._counting:
            self.updates += 1
            self.agent_steps += gradients.steps
            self.env_frames += gradients.steps * self.setting.frame_skip
            self._params.publish(self.network)
        metrics = {name: value / max(1, gradients.items) for name, value in gradients.metrics.items()}
        return metrics | {
            "gradient_norm": gradients.norm,
            "learning_rate": learning_rate,
            "policy_lag_mean": version - gradients.version,
            "policy_lag_max": float(version - gradients.oldest_version),
        }

    def close(self) -> None:
        """Do nothing: the threads belong to the actors."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of network, shared statistics and counters."""
        own = [optimizer.state_dict() for _, optimizer in self._shards]
        optimizers = self._elsewhere.collect(self.network) if self._elsewhere else own
        return {
            "network": self.network.state_dict(),
            "optimizers": optimizers,
            "counters": [self.env_frames, self.agent_steps, self.updates],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.network.load_state_dict(state["network"])
        if self._elsewhere:
            self._elsewhere.restore(self.network, state["optimizers"])
        else:
            for (_, optimizer), saved in zip(self._shards, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        self.env_frames, self.agent_steps, self.updates = state["counters"]


class GradientLearner:
    """A learner whose gradients are applied in the actors' threads; `step` reports what was applied."""

    def __init__(
        self, config: SharedConfig, network: nn.Module, params: SharedParameters, _: object, setting: Setting
    ) -> None:
        self.core = SharedUpdates(config, network, params, setting)
        self.state_dict, self.load_state_dict = self.core.state_dict, self.core.load_state_dict
        self.ready, self.step = params.can_take, params.take
