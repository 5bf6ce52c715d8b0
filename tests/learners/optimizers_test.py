"""Clipping; RMSProp and Adam against torch's, RMSProp against TensorFlow's formula in NumPy; the learning rate."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from ddrl.errors import NonFiniteError
from ddrl.learners.optimizers import (
    AdamByDefault,
    AdamConfig,
    RMSProp,
    RMSPropByDefault,
    RMSPropConfig,
    check_finite,
    clip_global_norm,
    linear_decay,
    make_optimizer,
    set_learning_rate,
)

ROOT = Path(__file__).parents[2]
STEPS = 6


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in ((3, 4), (5,), ())]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (5,), ())]


def learn(found: list[nn.Parameter], optimizer: torch.optim.Optimizer, first: int = 0, last: int = STEPS) -> None:
    for step in range(first, last):
        for parameter, gradient in zip(found, gradients(step), strict=True):
            parameter.grad = gradient.clone()
        set_learning_rate(optimizer, 0.1 / (step + 1))
        optimizer.step()


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_epsilon_outside_and_zero_start_is_torchs_rmsprop(momentum: float) -> None:
    ours, theirs = parameters(), parameters()
    learn(ours, RMSProp(ours, learning_rate=0.1, decay=0.9, epsilon=0.01, momentum=momentum))
    learn(theirs, torch.optim.RMSprop(theirs, lr=0.1, alpha=0.9, eps=0.01, momentum=momentum))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("initial", [1.0, 0.0])
def test_epsilon_inside_and_one_start_is_tensorflows_formula(momentum: float, initial: float) -> None:
    found = parameters()
    options = {"epsilon": 0.01, "epsilon_inside_sqrt": True, "initial_mean_square": initial, "momentum": momentum}
    learn(found, RMSProp(found, learning_rate=0.1, decay=0.9, **options))
    for index, start in enumerate(parameters()):
        weight = start.detach().numpy().copy()
        mean_square, buffer = np.full_like(weight, initial), np.zeros_like(weight)
        for step in range(STEPS):
            gradient = gradients(step)[index].numpy()
            mean_square = 0.9 * mean_square + (1 - 0.9) * gradient**2
            buffer = momentum * buffer + 0.1 / (step + 1) * gradient / np.sqrt(mean_square + 0.01)
            weight = weight - buffer
        np.testing.assert_allclose(found[index].detach(), weight)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_centered_with_epsilon_outside_is_torchs_rmsprop(momentum: float) -> None:
    ours, theirs, plain = parameters(), parameters(), parameters()
    options = {"decay": 0.9, "epsilon": 0.01, "momentum": momentum}
    learn(ours, RMSProp(ours, learning_rate=0.1, centered=True, **options))
    learn(theirs, torch.optim.RMSprop(theirs, lr=0.1, alpha=0.9, eps=0.01, momentum=momentum, centered=True))
    learn(plain, RMSProp(plain, learning_rate=0.1, **options))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    assert not any(torch.isclose(mine, other).any() for mine, other in zip(ours, plain, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("initial", [1.0, 0.0])
def test_centered_with_epsilon_inside_is_tensorflows_formula(momentum: float, initial: float) -> None:
    """One number at a time."""
    found = parameters()
    options = {"epsilon": 1e-4, "epsilon_inside_sqrt": True, "initial_mean_square": initial, "momentum": momentum}
    learn(found, RMSProp(found, learning_rate=0.1, decay=0.95, centered=True, **options))
    for index, start in enumerate(parameters()):
        given = [gradients(step)[index].flatten().tolist() for step in range(STEPS)]
        for place, weight in enumerate(start.detach().flatten().tolist()):
            mean, mean_square, buffer = 0.0, initial, 0.0
            for step in range(STEPS):
                gradient = given[step][place]
                mean = 0.95 * mean + 0.05 * gradient
                mean_square = 0.95 * mean_square + 0.05 * gradient**2
                deviation = (mean_square - mean**2 + 1e-4) ** 0.5
                buffer = momentum * buffer + 0.1 / (step + 1) * gradient / deviation
                weight -= buffer
            assert found[index].detach().flatten()[place].item() == pytest.approx(weight, rel=1e-9)


@pytest.mark.parametrize("inside", [False, True])
def test_a_variance_that_rounding_takes_below_0_is_0(inside: bool) -> None:
    """With a gradient that stays the same the mean square comes to the squared mean."""
    weight = nn.Parameter(torch.zeros(100))
    optimizer = RMSProp([weight], learning_rate=1.0, decay=0.5, epsilon=1e-8, epsilon_inside_sqrt=inside, centered=True)
    gradient, below = torch.linspace(0.1, 100.0, 100), False
    for _ in range(60):
        weight.grad = gradient.clone()
        optimizer.step()
        state = optimizer.state[weight]
        below |= bool((state["mean_square"] < state["mean"].square()).any())
    assert below
    assert weight.isfinite().all()


def test_epsilon_inside_damps_small_gradients_more() -> None:
    steps = []
    for inside in (False, True):
        weight = nn.Parameter(torch.zeros(()))
        optimizer = RMSProp([weight], learning_rate=1.0, decay=0.0, epsilon=0.01, epsilon_inside_sqrt=inside)
        weight.grad = torch.tensor(0.001)
        optimizer.step()
        steps.append(-float(weight.detach()))
    assert steps == pytest.approx([0.001 / 0.011, 0.001 / np.sqrt(0.01 + 1e-6)])


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("taken", [0, 3])
def test_a_saved_optimizer_continues_with_the_same_bits(centered: bool, inside: bool, taken: int) -> None:
    config = RMSPropConfig(epsilon_inside_sqrt=inside, initial_mean_square=1.0, momentum=0.5, centered=centered)
    whole = parameters()
    optimizer = make_optimizer(whole, config)
    learn(whole, optimizer, 0, taken)
    file = io.BytesIO()
    torch.save({"parameters": [p.detach().clone() for p in whole], "optimizer": optimizer.state_dict()}, file)
    learn(whole, optimizer, taken, STEPS)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = [nn.Parameter(value) for value in saved["parameters"]]
    other = make_optimizer(resumed, config)
    other.load_state_dict(saved["optimizer"])
    learn(resumed, other, taken, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(resumed, whole, strict=True))


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_an_optimizer_keeps_what_its_settings_need_and_no_more(momentum: float, centered: bool) -> None:
    (weight,) = made = [nn.Parameter(torch.ones(3))]
    optimizer = RMSProp(made, momentum=momentum, centered=centered, initial_mean_square=0.25)
    expected = {"mean_square": [0.25] * 3}
    expected |= {"momentum": [0.0] * 3} if momentum else {}
    expected |= {"mean": [0.0] * 3} if centered else {}
    assert {name: value.tolist() for name, value in optimizer.state[weight].items()} == expected


def test_a_setting_that_a_saved_state_does_not_know_keeps_its_present_value() -> None:
    """Such as one from before RMSProp could be centered."""
    found, options = parameters(), {"epsilon_inside_sqrt": True, "initial_mean_square": 1.0}
    optimizer = RMSProp(found, learning_rate=0.1, **options)
    learn(found, optimizer, 0, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for key in ("epsilon_inside_sqrt", "centered"):
        del saved["param_groups"][0][key]
    resumed = [nn.Parameter(value.detach().clone()) for value in found]
    other = RMSProp(resumed, learning_rate=0.1, **options)
    other.load_state_dict(saved)
    for each, its in ((found, optimizer), (resumed, other)):
        learn(each, its, 2, 4)
    assert all(map(torch.equal, found, resumed))


@pytest.mark.parametrize("name", ["mean_square", "momentum", "mean"])
@pytest.mark.parametrize("harm", ["missing", "of another shape"])
def test_a_saved_state_without_a_part_of_a_parameter_is_refused_at_once(name: str, harm: str) -> None:
    options = {"momentum": 0.5, "centered": True}
    saved = RMSProp(parameters(), **options).state_dict()
    if harm == "missing":
        del saved["state"][1][name]
    else:
        saved["state"][1][name] = torch.zeros(7)
    with pytest.raises(ValueError, match=f"RMSProp's {name} is missing, or not of its parameter's shape"):
        RMSProp(parameters(), **options).load_state_dict(saved)


def test_no_optimizer_imports_torchs_compiler() -> None:
    code = """
import sys, torch
from ddrl.learners.optimizers import AdamConfig, RMSPropConfig, make_optimizer
for config in (RMSPropConfig(), AdamConfig()):
    layer = torch.nn.Linear(2, 2)
    optimizer = make_optimizer(layer.parameters(), config)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    assert "torch._dynamo" not in sys.modules, config
torch.optim.Adam(layer.parameters())
assert "torch._dynamo" in sys.modules, "torch itself does so no longer: make_optimizer need not care"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("options", [{}, {"epsilon_inside_sqrt": True, "initial_mean_square": 1.0, "momentum": 0.9}])
def test_gradients_may_be_brought_along_instead_of_lying_in_the_parameters(options: dict[str, Any]) -> None:
    (one, other), rates = (parameters(), parameters()), [0.01, 0.005, 0.002]
    stepped, applied = (RMSProp(each, learning_rate=0.01, **options) for each in (one, other))
    for step, rate in enumerate(rates):
        for parameter, gradient in zip(one, gradients(step), strict=True):
            parameter.grad = gradient
        set_learning_rate(stepped, rate)
        stepped.step()
        applied.apply(gradients(step), rate)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(parameter.grad is None for parameter in other)


def test_a_parameter_without_a_gradient_stays() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = RMSProp([first, second], learning_rate=0.1)
    first.grad = torch.ones(2)
    optimizer.step()
    assert not torch.equal(first, torch.ones(2))
    assert torch.equal(second, torch.ones(2))


def test_a_closure_is_evaluated_with_gradients() -> None:
    weight = nn.Parameter(torch.tensor(2.0))
    optimizer = RMSProp([weight], learning_rate=0.1)

    def closure() -> float:
        loss = weight.square()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 4.0
    assert float(weight.detach()) < 2.0


def test_the_learning_rate_falls_linearly_to_zero_and_stays() -> None:
    found = [linear_decay(6e-4, frames, 200_000_000) for frames in (0, 50_000_000, 200_000_000, 300_000_000)]
    assert found == pytest.approx([6e-4, 4.5e-4, 0.0, 0.0])
    assert linear_decay(6e-4, 10**12, None) == 6e-4


def test_defaults_are_table_g_1() -> None:
    config = RMSPropConfig()
    assert (config.learning_rate, config.epsilon, config.momentum, config.decay) == (6e-4, 0.01, 0.0, 0.99)
    assert config.decay_frames == 200_000_000


def test_adams_defaults_are_those_of_the_sources_it_names() -> None:
    config = AdamConfig()
    assert (config.learning_rate, config.beta1, config.beta2, config.epsilon) == (3e-4, 0.9, 0.999, 1e-5)
    assert config.decay_frames is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"decay": 1.0},
        {"epsilon": float("nan")},
        {"decay_frames": 0},
        {"name": "adam"},
        {"eps": 0.1},
        {"momentum": -0.1},
    ],
)
def test_a_wrong_option_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        RMSPropConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (RMSPropByDefault, {"learning_rate": 0.1}, RMSPropConfig(learning_rate=0.1)),
        (RMSPropByDefault, {"name": "adam", "epsilon": 0.1}, AdamConfig(epsilon=0.1)),
        (AdamByDefault, {"learning_rate": 0.1}, AdamConfig(learning_rate=0.1)),
        (AdamByDefault, {"name": "rmsprop", "momentum": 0.5}, RMSPropConfig(momentum=0.5)),
        (AdamByDefault, AdamConfig(beta1=0.5), AdamConfig(beta1=0.5)),
    ],
)
def test_a_mapping_names_its_optimizer_or_means_the_default(kind: Any, given: Any, expected: Any) -> None:
    assert TypeAdapter(kind).validate_python(given) == expected


def test_a_key_of_the_other_optimizer_is_refused() -> None:
    with pytest.raises(ValidationError, match="momentum"):
        TypeAdapter(AdamByDefault).validate_python({"momentum": 0.5})


def test_adam_is_torchs_with_the_values_given() -> None:
    ours, theirs = parameters(), parameters()
    learn(ours, make_optimizer(ours, AdamConfig(beta1=0.8, beta2=0.99, epsilon=1e-3)))
    learn(theirs, torch.optim.Adam(theirs, betas=(0.8, 0.99), eps=1e-3))
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected)


def with_gradients(*gradients: list[float] | None) -> list[nn.Parameter]:
    made = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        made.append(parameter)
    return made


def gradients_of(made: list[nn.Parameter]) -> list[list[float]]:
    return [parameter.grad.tolist() for parameter in made if parameter.grad is not None]


def test_all_gradients_shrink_together_to_the_bound() -> None:
    made = with_gradients([3.0, 0.0], None, [0.0, 4.0])
    assert float(clip_global_norm(made, 2.5)) == 5.0
    assert gradients_of(made) == [[1.5, 0.0], [0.0, 2.0]]


@pytest.mark.parametrize("bound", [5.0, 40.0, None])
def test_gradients_within_the_bound_keep_their_bits(bound: float | None) -> None:
    made = with_gradients([3.0, 0.0], [0.1 + 0.2, 4.0])
    before = gradients_of(made)
    norm = clip_global_norm(made, bound if bound != 5.0 else 5.1)
    assert float(norm) == pytest.approx((9.0 + 0.09 + 16.0) ** 0.5)
    assert gradients_of(made) == before


def test_the_norm_of_no_gradient_is_zero() -> None:
    assert float(clip_global_norm(with_gradients(None), 1.0)) == 0.0
    assert float(clip_global_norm(with_gradients([0.0, 0.0]), 1.0)) == 0.0


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    norm = clip_global_norm(with_gradients([1.0, float("nan")], [1.0, 1.0]), 40.0)
    with pytest.raises(NonFiniteError, match=r"update 7: training diverged: gradient_norm is nan$"):
        check_finite({"gradient_norm": norm, "policy_loss": 1.0}, where="update 7")


def test_every_broken_quantity_is_named() -> None:
    values = torch.tensor([[1.0, float("inf")], [2.0, 3.0]])
    with pytest.raises(NonFiniteError, match=r"^training diverged: values is inf, value_loss is -inf$"):
        check_finite({"values": values, "entropy": torch.tensor(0.3), "value_loss": float("-inf")})


def test_finite_quantities_pass() -> None:
    check_finite({"policy_loss": -1e30, "value_loss": torch.zeros(2), "empty": torch.zeros(0)})


@pytest.mark.parametrize("config", [RMSPropConfig(), AdamConfig()])
def test_torch_puts_no_profiler_around_a_step(config: RMSPropConfig | AdamConfig) -> None:
    step = type(make_optimizer(parameters(), config)).step
    assert "profile" not in step.__code__.co_qualname
