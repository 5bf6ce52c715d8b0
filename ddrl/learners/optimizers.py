"""Gradient clipping, RMSProp as TensorFlow or PyTorch defines it, Adam, and the linear learning-rate schedule."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

import torch
from pydantic import Discriminator, NonNegativeFloat, PositiveFloat, PositiveInt, Tag
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.optim import Optimizer

from ddrl.errors import NonFiniteError
from ddrl.learners.adam import Adam
from ddrl.learners.stepping import check_part, stepping
from ddrl.system.config_types import STRICT, Fraction


@dataclass(frozen=True, config=STRICT)
class RMSPropConfig:
    """RMSProp of Espeholt et al. 2018; values of Table G.1 (Atari) unless another source is named."""

    name: Literal["rmsprop"] = "rmsprop"
    learning_rate: PositiveFloat = 6e-4
    decay: Fraction = 0.99
    """Decay of the mean square; not in the tables, from the authors' code (scalable_agent, experiment.py)."""
    epsilon: PositiveFloat = 0.01
    epsilon_inside_sqrt: bool = False
    """True in TensorFlow and so in the authors' code, False in PyTorch. Outside, the same epsilon damps less: 0.01
    inside is about 0.1 outside."""
    initial_mean_square: NonNegativeFloat = 0.0
    """1 in TensorFlow and so in the authors' code, 0 in PyTorch."""
    momentum: Fraction = 0.0
    centered: bool = False
    """Subtract the squared running mean of the gradient from the mean square. Not in Table G.1; Horgan et al. 2018
    (Ape-X) do."""
    decay_frames: PositiveInt | None = 200_000_000
    """The learning rate falls linearly to 0 over these environment frames; None keeps it constant."""


@dataclass(frozen=True, config=STRICT)
class AdamConfig:
    """Adam (Kingma and Ba 2015); defaults that are not theirs name their source."""

    name: Literal["adam"] = "adam"
    learning_rate: PositiveFloat = 3e-4
    """Luo et al. 2020, continuous control, as RLlib's maintainers quote it; also Schulman et al. 2017, Table 3."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: PositiveFloat = 1e-5
    """OpenAI Baselines, ppo2 (Huang et al. 2022, core detail 3); Kingma and Ba, and torch, have 1e-8."""
    decay_frames: PositiveInt | None = None
    """The learning rate falls linearly to 0 over these environment frames; None keeps it constant."""


def _name_or(default: str) -> Discriminator:
    """Return what selects one of the two by their key `name`; a mapping without it is of the kind `default`."""

    def name(value: Any) -> str:
        return str(value.get("name", default)) if isinstance(value, dict) else str(getattr(value, "name", default))

    return Discriminator(name)


_Either = Annotated[RMSPropConfig, Tag("rmsprop")] | Annotated[AdamConfig, Tag("adam")]
RMSPropByDefault = Annotated[_Either, _name_or("rmsprop")]
AdamByDefault = Annotated[_Either, _name_or("adam")]

_Kind = TypeVar("_Kind", bound=Optimizer)


class RMSProp(Optimizer):
    """Divides the gradient g by a running root mean square. With m the momentum buffer, started at 0:

    - `epsilon_inside_sqrt` (TensorFlow): m = momentum m + learning_rate g / sqrt(ms + epsilon); w -= m.
    - otherwise (`torch.optim.RMSprop`):  m = momentum m + g / (sqrt(ms) + epsilon); w -= learning_rate m.

    Both: ms = decay ms + (1 - decay) g^2 first, started at `initial_mean_square`. They place the learning rate
    differently, which shows only when both momentum and a schedule are used. Parameters without a gradient stay.
    `centered`: ms - mean^2 takes the place of ms, with mean = decay mean + (1 - decay) g, started at 0.
    """

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        """`settings` are those of `RMSPropConfig`; `decay_frames` has no effect here."""
        config = RMSPropConfig(**settings)
        keys = ("decay", "epsilon", "epsilon_inside_sqrt", "initial_mean_square", "momentum", "centered")
        defaults = {"lr": config.learning_rate} | {key: getattr(config, key) for key in keys}
        super().__init__(parameters, defaults)
        # Created now, not at the first step, so that a checkpoint before it is complete too.
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["mean_square"] = torch.full_like(parameter, group["initial_mean_square"])
                if group["momentum"] > 0:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
                if group["centered"]:
                    self.state[parameter]["mean"] = torch.zeros_like(parameter)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a state as torch does, but keep the present values of keys that the state does not have.

        Raises ValueError if the part of a parameter is missing or has another shape; the next update would fail.
        """
        own = {key: value for key, value in self.defaults.items() if key in self.param_groups[0]}  # torch adds others
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in own.items():
                group.setdefault(key, value)
            wanted = ["mean_square", *["momentum"] * (group["momentum"] > 0), *["mean"] * bool(group["centered"])]
            for parameter, name in itertools.product(group["params"], wanted):
                check_part("RMSProp", name, self.state[parameter], parameter)

    def _step(self) -> None:
        """Make one update from the parameters' `.grad`."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, [cast(Tensor, parameter.grad) for parameter in parameters], group)

    step = stepping(_step)

    @torch.no_grad()
    def apply(self, gradients: list[Tensor], learning_rate: float) -> None:
        """Make one update from `gradients`, one for each parameter; several threads may call this at once."""
        (group,) = self.param_groups
        self._update(group["params"], gradients, group | {"lr": learning_rate})

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        mean_squares = [self.state[parameter]["mean_square"] for parameter in parameters]
        torch._foreach_mul_(mean_squares, group["decay"])
        torch._foreach_addcmul_(mean_squares, gradients, gradients, value=1.0 - group["decay"])
        variances = self._variances(parameters, gradients, mean_squares, group["decay"]) if group["centered"] else None
        if group["epsilon_inside_sqrt"]:
            roots = torch._foreach_add(variances or mean_squares, group["epsilon"])
            torch._foreach_sqrt_(roots)
        else:
            roots = torch._foreach_sqrt(variances or mean_squares)
            torch._foreach_add_(roots, group["epsilon"])
        if group["momentum"] == 0:
            torch._foreach_addcdiv_(parameters, gradients, roots, value=-group["lr"])
            return
        inner, outer = (group["lr"], 1.0) if group["epsilon_inside_sqrt"] else (1.0, group["lr"])
        buffers = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_addcdiv_(buffers, gradients, roots, value=inner)
        torch._foreach_add_(parameters, buffers, alpha=-outer)

    def _variances(
        self, parameters: list[Tensor], gradients: list[Tensor], mean_squares: list[Tensor], decay: float
    ) -> list[Tensor]:
        """Return mean squares minus squared means; negative differences, due to rounding, become 0."""
        means = [self.state[parameter]["mean"] for parameter in parameters]
        torch._foreach_mul_(means, decay)
        torch._foreach_add_(means, gradients, alpha=1.0 - decay)
        variances = torch._foreach_addcmul(mean_squares, means, means, value=-1.0)
        torch._foreach_clamp_min_(variances, 0.0)
        return list(variances)


def _uncompiled(kind: type[_Kind]) -> type[_Kind]:
    """Return `kind` without the wrappers that torch puts around an optimizer's methods.

    Those for `torch.compile` import the compiler at their first call: 800 modules, 70 MB and over a second in every
    process that learns. That of the profiler takes as long as several operations of a small network's step.
    """
    guarded = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in guarded}
    methods["step"] = step = torch.no_grad()(inspect.unwrap(kind.step))
    step.hooked = True  # torch wraps what does not say so
    return cast("type[_Kind]", type(kind.__name__, (kind,), methods))


def make_optimizer(parameters: Iterable[Tensor], config: RMSPropConfig | AdamConfig) -> Optimizer:
    """Return the optimizer that `config` describes, at its initial learning rate."""
    if isinstance(config, AdamConfig):
        betas = (config.beta1, config.beta2)
        return _uncompiled(Adam)(parameters, lr=config.learning_rate, betas=betas, eps=config.epsilon)
    return make_rmsprop(parameters, config)


def make_rmsprop(parameters: Iterable[Tensor], config: RMSPropConfig) -> RMSProp:
    """Return RMSProp as `config` describes it, at its initial learning rate."""
    return _uncompiled(RMSProp)(parameters, **dataclasses.asdict(config))


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the learning rate of the next steps, for every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def linear_decay(initial: float, env_frames: int, decay_frames: int | None) -> float:
    """Return `initial` decayed linearly to 0 at `decay_frames` environment frames (Table G.1); None: constant."""
    if decay_frames is None:
        return initial
    return initial * max(0.0, 1.0 - env_frames / decay_frames)


@torch.no_grad()
def clip_global_norm(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients in place so that their joint L2 norm is at most `max_norm`; return the norm before.

    g <- g max_norm / max(norm, max_norm), exactly g below the bound (Table G.1: 40); None only measures. The norm is a
    scalar, 0 if no parameter has a gradient, and not finite if a gradient is not: pass it to `check_finite`.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm is not None:
        torch._foreach_mul_(gradients, max_norm / norm.clamp(min=max_norm))
    return norm


def check_finite(quantities: Mapping[str, float | Tensor], *, where: str = "") -> None:
    """Raise `NonFiniteError` naming every quantity (a number or a tensor) that holds a NaN or an infinity.

    `where` starts the message, for example "update 120".
    """
    broken = [f"{name} is {bad}" for name, value in quantities.items() if (bad := _first_non_finite(value)) is not None]
    if broken:
        raise NonFiniteError(f"{where + ': ' if where else ''}training diverged: {', '.join(broken)}")


def _first_non_finite(value: float | Tensor) -> float | None:
    if isinstance(value, Tensor):
        finite = torch.isfinite(value)
        return None if bool(finite.all()) else float(value[~finite].flatten()[0])
    return None if math.isfinite(value) else value
