"""RMSProp as TensorFlow or as PyTorch defines it, Adam, and the linear learning-rate schedule."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar, cast, overload

import torch
from pydantic import Discriminator, NonNegativeFloat, PositiveFloat, PositiveInt, Tag
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.optim import Optimizer

from ddrl.system.config_types import STRICT, Fraction


@dataclass(frozen=True, config=STRICT)
class RMSPropConfig:
    """RMSProp of Espeholt et al. 2018; values of Table G.1 (Atari) unless another source is named."""

    name: Literal["rmsprop"] = "rmsprop"
    learning_rate: PositiveFloat = 6e-4
    decay: Fraction = 0.99
    """Of the mean square; not in the tables, from the authors' code (scalable_agent, experiment.py)."""
    epsilon: PositiveFloat = 0.01
    epsilon_inside_sqrt: bool = False
    """TensorFlow, and so the authors' code: True. PyTorch: False; it damps less for the same epsilon (0.01 inside is
    about 0.1 outside)."""
    initial_mean_square: NonNegativeFloat = 0.0
    """TensorFlow, and so the authors' code: 1. PyTorch: 0."""
    momentum: Fraction = 0.0
    centered: bool = False
    """Divides by a running standard deviation: the squared running mean of the gradient is taken off the mean square.
    Not in Table G.1; Horgan et al. 2018 (Ape-X) centre."""
    decay_frames: PositiveInt | None = 200_000_000
    """The learning rate falls linearly to 0 over these environment frames; None keeps it constant."""


@dataclass(frozen=True, config=STRICT)
class AdamConfig:
    """Adam (Kingma and Ba 2015); what else is no default of theirs names its source."""

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
    """Tells the two apart by their key `name`; a mapping without it describes `default`."""

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

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        learning_rate: float,
        decay: float = 0.99,
        epsilon: float = 0.01,
        epsilon_inside_sqrt: bool = False,
        initial_mean_square: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        defaults = {
            "lr": learning_rate,
            "decay": decay,
            "epsilon": epsilon,
            "epsilon_inside_sqrt": epsilon_inside_sqrt,
            "initial_mean_square": initial_mean_square,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(parameters, defaults)
        # Made now, not at the first step, so that a checkpoint before it is complete too.
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["mean_square"] = torch.full_like(parameter, group["initial_mean_square"])
                if group["momentum"] > 0:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
                if group["centered"]:
                    self.state[parameter]["mean"] = torch.zeros_like(parameter)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As torch loads a state: keys of a group that have come since it was saved are at their own values.

        Raises ValueError where a parameter's part is missing or has another shape: the next update would fail.
        """
        own = {key: value for key, value in self.defaults.items() if key in self.param_groups[0]}  # torch adds others
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in own.items():
                group.setdefault(key, value)
            wanted = ["mean_square", *["momentum"] * (group["momentum"] > 0), *["mean"] * bool(group["centered"])]
            for parameter, name in itertools.product(group["params"], wanted):
                if (saved := self.state[parameter].get(name)) is None or saved.shape != parameter.shape:
                    raise ValueError(f"RMSProp's {name} is missing, or not of its parameter's shape")

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update from the parameters' `.grad`; calls `closure` first, if given, and returns its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, [cast(Tensor, parameter.grad) for parameter in parameters], group)
        return loss

    @torch.no_grad()
    def apply(self, gradients: list[Tensor], learning_rate: float) -> None:
        """One update from `gradients`, one for each parameter; several threads may be at it with their own."""
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
        """Mean squares less squared means; rounding may take a difference below 0."""
        means = [self.state[parameter]["mean"] for parameter in parameters]
        torch._foreach_mul_(means, decay)
        torch._foreach_add_(means, gradients, alpha=1.0 - decay)
        variances = torch._foreach_addcmul(mean_squares, means, means, value=-1.0)
        torch._foreach_clamp_min_(variances, 0.0)
        return list(variances)


def _uncompiled(kind: type[_Kind]) -> type[_Kind]:
    """`kind` without what torch puts around an optimizer's methods for the sake of `torch.compile`.

    The first call of these imports the compiler: 800 modules, 70 MB and over a second in every process that learns.
    """
    guarded = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in guarded}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return cast("type[_Kind]", type(kind.__name__, (kind,), methods))


def make_optimizer(parameters: Iterable[Tensor], config: RMSPropConfig | AdamConfig) -> Optimizer:
    """The optimizer that `config` describes, at its initial learning rate."""
    if isinstance(config, AdamConfig):
        betas = (config.beta1, config.beta2)
        adam = _uncompiled(torch.optim.Adam)
        return adam(parameters, lr=config.learning_rate, betas=betas, eps=config.epsilon, foreach=True)
    return make_rmsprop(parameters, config)


def make_rmsprop(parameters: Iterable[Tensor], config: RMSPropConfig) -> RMSProp:
    """RMSProp as `config` describes it, at its initial learning rate."""
    return _uncompiled(RMSProp)(
        parameters,
        learning_rate=config.learning_rate,
        decay=config.decay,
        epsilon=config.epsilon,
        epsilon_inside_sqrt=config.epsilon_inside_sqrt,
        initial_mean_square=config.initial_mean_square,
        momentum=config.momentum,
        centered=config.centered,
    )


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """The learning rate of the next steps, for every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def linear_decay(initial: float, env_frames: int, decay_frames: int | None) -> float:
    """`initial` falling linearly to 0 at `decay_frames` environment frames, 0 after (Table G.1); None: constant."""
    if decay_frames is None:
        return initial
    return initial * max(0.0, 1.0 - env_frames / decay_frames)
