"""Adam (Kingma and Ba 2015) on all parameters at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ddrl.learners.stepping import check_part, stepping


class Adam(Optimizer):
    """Computes the same bits as `torch.optim.Adam`, and has the same state.

    A parameter without a gradient stays, with its moments. All parameters count the same steps, also those it misses.

    The moments of all parameters are one vector, so that an update takes ten operations and not ten a parameter: with
    small networks that was a tenth of the training.
    """

    def __init__(self, parameters: Iterable[Tensor], *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})
        (group,) = self.param_groups
        self._parameters: list[Tensor] = group["params"]
        self._sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]
        self._steps = torch.zeros(())
        vectors = torch.zeros((4, sum(self._sizes)), dtype=first.dtype, device=first.device)
        self._mean, self._mean_square, self._gradient, self._update = vectors.unbind()
        self._updates = self._parts(self._update)
        self._show_state()

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector that have the shapes of the parameters."""
        pairs = zip(torch.split(vector, self._sizes), self._parameters, strict=True)
        return [part.view(parameter.shape) for part, parameter in pairs]

    def _moments(self, numbers: Sequence[int]) -> list[Tensor]:
        """Return views of both moments of some parameters."""
        return [self._parts(vector)[number] for number in numbers for vector in (self._mean, self._mean_square)]

    def _show_state(self) -> None:
        """Make the moments the state, as torch lays it out: by parameter."""
        moments = zip(self._parts(self._mean), self._parts(self._mean_square), strict=True)
        for parameter, (mean, mean_square) in zip(self._parameters, moments, strict=True):
            self.state[parameter] = {"step": self._steps, "exp_avg": mean, "exp_avg_sq": mean_square}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a state as torch does. Raise ValueError if the part of a parameter is missing or has another shape.

        A state without any part is that of torch's Adam before its first step.
        """
        super().__setstate__(state)
        saved = [self.state.get(parameter, {}) for parameter in self._parameters]
        for name, vector in (("exp_avg", self._mean), ("exp_avg_sq", self._mean_square)):
            for part, own in zip(saved, self._parts(vector), strict=True):
                if any(saved):
                    check_part("Adam", name, part, own)
                own.copy_(part.get(name, torch.zeros_like(own)))
        self._steps = torch.tensor(max(float(part.get("step", 0.0)) for part in saved))
        self._show_state()

    def _step(self) -> None:
        """Make one update from the parameters' `.grad`."""
        (group,) = self.param_groups
        (beta1, beta2), gradient, update = group["betas"], self._gradient, self._update
        resting = [number for number, one in enumerate(self._parameters) if one.grad is None]
        before = [(part, part.clone()) for part in self._moments(resting)]
        found = (torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters)
        torch.cat([one.reshape(-1) for one in found], out=gradient)
        steps = int(self._steps.add_(1.0))
        self._mean.lerp_(gradient, 1 - beta1)
        self._mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        roots = torch.sqrt(self._mean_square, out=gradient).div_((1 - beta2**steps) ** 0.5).add_(group["eps"])
        torch.mul(self._mean, -group["lr"] / (1 - beta1**steps), out=update).div_(roots)
        for part, moment in before:
            part.copy_(moment)
        for number in resting:
            self._updates[number].zero_()
        torch._foreach_add_(self._parameters, self._updates)

    step = stepping(_step)
