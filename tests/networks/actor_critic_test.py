"""The whole network: published parameter counts, determinism, alignment of single steps and unrolls, precision."""

from __future__ import annotations

import pytest
import torch

from ddrl.errors import UserError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.trunk import Fed
from ddrl.types import EnvSpec, NetworkOutput

ATARI = EnvSpec("atari/test", (4, 84, 84), "uint8", 18, 4, "test")
DMLAB = EnvSpec("dmlab/test", (3, 72, 96), "uint8", 9, 4, "test")
SMALL = EnvSpec("toy/test", (2, 36, 44), "uint8", 3, 1, "test")
FLAT = EnvSpec("toy/test", (6,), "float32", 3, 1, "test")


def make(spec: EnvSpec, network: str, lstm_size: int = 0, feed: Fed = False, seed: int = 0) -> ActorCritic:
    generator = torch.Generator().manual_seed(seed)
    return ActorCritic(
        spec, network=network, lstm_size=lstm_size, feed_last_action_and_reward=feed, generator=generator
    )


def count(network: ActorCritic) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def inputs(spec: EnvSpec, time: int, batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (time, batch, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        observation = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    else:
        observation = torch.randn(shape, generator=generator)
    return {
        "observation": observation,
        "last_action": torch.randint(0, spec.num_actions, (time, batch), generator=generator),
        "last_reward": 3.0 * torch.randn(time, batch, generator=generator),
        "start": torch.rand(time, batch, generator=generator) < 0.3,
    }


def outputs_of(network: ActorCritic, data: dict[str, torch.Tensor]) -> NetworkOutput:
    output: NetworkOutput = network(**data, state=network.initial_state(data["start"].shape[1]))
    return output


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_the_last_action_may_be_fed_alone(lstm_size: int) -> None:
    network, data = make(FLAT, "tanh_mlp", lstm_size, feed="action"), inputs(FLAT, 3, 4)
    neither, both = make(FLAT, "tanh_mlp", lstm_size), make(FLAT, "tanh_mlp", lstm_size, feed=True)
    units = 4 * lstm_size or FLAT.num_actions + 1  # that read the inputs: gates, or both heads
    assert count(network) == count(neither) + FLAT.num_actions * units == count(both) - units
    assert not network.sees_steps_alone
    before = outputs_of(network, data)
    other = outputs_of(network, data | {"last_reward": data["last_reward"] + 1.0})
    torch.testing.assert_close(other.distribution, before.distribution, rtol=0, atol=0)
    other = outputs_of(network, data | {"last_action": (data["last_action"] + 1) % FLAT.num_actions})
    assert not torch.equal(other.distribution, before.distribution)


# The language channel, which is not there without instructions: 1000 x 20 embeddings, an LSTM of 64 with one bias, and
# 64 more inputs to the core LSTM's four gates of 256 (`instructions_test.py` counts it in the network).
LANGUAGE = 1000 * 20 + 4 * 64 * (20 + 64 + 1) + 64 * 4 * 256


@pytest.mark.parametrize(
    ("network", "own", "published"),
    [("shallow", 1_123_130, 1.2e6), ("deep", 1_520_714, 1.6e6)],
)
def test_dmlab_parameter_counts_are_those_of_figure_3(network: str, own: int, published: float) -> None:
    """On 72x96x3 with 9 actions, LSTM 256, last action and reward; the language channel is the whole difference."""
    assert count(make(DMLAB, network, lstm_size=256, feed=True)) == own
    assert round(own + LANGUAGE, -5) == published


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        # 16x(4x8x8) + 16, 32x(16x4x4) + 32, 256x(32x9x9) + 256 (Mnih et al. 2016), heads 18 and 1
        ("shallow", 4_112 + 8_224 + 663_808 + 4_883),
        # 32x(4x8x8) + 32, 64x(32x4x4) + 64, 64x(64x3x3) + 64, 512x(64x7x7) + 512 (Mnih et al. 2015), heads 18 and 1
        ("nature", 8_224 + 32_832 + 36_928 + 1_606_144 + 9_747),
        # entries (3x3) 4>16, 16>32, 32>32; four 3x3 convolutions per section; 256x(32x11x11) + 256; heads 18 and 1.
        ("deep", (592 + 4_640 + 9_248) + 4 * (2_320 + 2 * 9_248) + 991_488 + 4_883),
    ],
)
def test_atari_parameter_counts_add_up_from_the_layers(network: str, expected: int) -> None:
    """The paper prints no counts for its feed-forward Atari networks (section 5.3.2)."""
    assert count(make(ATARI, network)) == expected


@pytest.mark.parametrize("network", ["shallow", "nature", "deep"])
def test_the_same_generator_gives_the_same_weights_and_the_global_one_is_left_alone(network: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (make(ATARI, network, 8, True, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, other[name]) == (not value.any() or name == "core.bias")


@pytest.mark.parametrize("lstm_size", [0, 8])
@pytest.mark.parametrize(("spec", "network"), [(SMALL, "shallow"), (SMALL, "deep"), (FLAT, "mlp")])
def test_an_unroll_equals_its_single_steps(spec: EnvSpec, network: str, lstm_size: int) -> None:
    model, data = make(spec, network, lstm_size, feed=True), inputs(spec, 5, 3)
    whole = outputs_of(model, data)
    assert whole.distribution.shape == (5, 3, spec.num_actions)
    assert whole.value.shape == (5, 3)
    state = model.initial_state(3)
    for t in range(5):
        step: NetworkOutput = model(**{name: value[t : t + 1] for name, value in data.items()}, state=state)
        state = step.state
        torch.testing.assert_close(step.distribution[0], whole.distribution[t])
        torch.testing.assert_close(step.value[0], whole.value[t])
    torch.testing.assert_close(state, whole.state)


def test_a_feed_forward_network_ignores_state_start_action_and_reward() -> None:
    model, data = make(FLAT, "mlp"), inputs(FLAT, 4, 2)
    other = data | {name: torch.zeros_like(data[name]) for name in ("start", "last_action", "last_reward")}
    assert model.initial_state(2) == ()
    assert torch.equal(outputs_of(model, data).distribution, outputs_of(model, other).distribution)


def test_last_reward_is_clipped_and_last_action_matters() -> None:
    model, data = make(FLAT, "mlp", feed=True), inputs(FLAT, 4, 2)
    found = outputs_of(model, data).distribution
    clipped = data | {"last_reward": data["last_reward"].clamp(-1, 1)}
    assert not torch.equal(data["last_reward"], clipped["last_reward"])
    assert torch.equal(found, outputs_of(model, clipped).distribution)
    assert not torch.equal(found, outputs_of(model, data | {"last_reward": torch.zeros(4, 2)}).distribution)
    changed = data | {"last_action": (data["last_action"] + 1) % 3}
    assert not torch.equal(found, outputs_of(model, changed).distribution)


@pytest.mark.parametrize("lstm_size", [0, 8])
@pytest.mark.parametrize(("spec", "network"), [(SMALL, "shallow"), (SMALL, "deep"), (FLAT, "mlp")])
def test_bfloat16_autocast_returns_float32_close_to_full_precision(spec: EnvSpec, network: str, lstm_size: int) -> None:
    model, data = make(spec, network, lstm_size, feed=True), inputs(spec, 4, 2)
    full = outputs_of(model, data)
    with torch.autocast("cpu", torch.bfloat16):
        low = outputs_of(model, data)
        (low.distribution.sum() + low.value.sum()).backward()
    assert {low.distribution.dtype, low.value.dtype, *(part.dtype for part in low.state)} == {torch.float32}
    torch.testing.assert_close(low.distribution, full.distribution, rtol=0.05, atol=0.05)
    torch.testing.assert_close(low.value, full.value, rtol=0.05, atol=0.05)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("network", ["shallow", "deep"])
def test_the_gpu_agrees_with_the_cpu(network: str) -> None:
    model, data = make(SMALL, network, 8, feed=True), inputs(SMALL, 4, 2)
    expected = outputs_of(model, data)
    found = outputs_of(model.cuda(), {name: value.cuda() for name, value in data.items()})
    torch.testing.assert_close(found.distribution.cpu(), expected.distribution, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found.value.cpu(), expected.value, rtol=1e-2, atol=1e-2)


def test_a_negative_lstm_size_is_refused() -> None:
    with pytest.raises(UserError, match="lstm_size is -1; allowed: 0"):
        make(FLAT, "mlp", lstm_size=-1)


CONTINUOUS = EnvSpec("mujoco/test", (5,), "float32", 0, 1, "test", action_size=2)


def make_continuous(**keys: object) -> ActorCritic:
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(CONTINUOUS, network="tanh_mlp", generator=generator, **keys)  # type: ignore[arg-type]


def continuous_inputs(time: int, batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "observation": torch.randn(time, batch, 5, generator=generator),
        "last_action": torch.randn(time, batch, 2, generator=generator),
        "last_reward": torch.zeros(time, batch),
        "start": torch.zeros(time, batch, dtype=torch.bool),
    }


def test_a_continuous_policy_puts_out_means_and_a_deviation_that_no_observation_changes() -> None:
    output = outputs_of(make_continuous(initial_log_std=-0.5), continuous_inputs(3, 4))
    assert output.distribution.shape == (3, 4, 4)
    assert torch.equal(output.distribution[..., 2:], torch.full((3, 4, 2), -0.5))
    assert float(output.distribution[..., :2].detach().abs().max()) < 0.1, "the gain of the policy's head is 0.01"


def test_separate_networks_share_no_gradient() -> None:
    network = make_continuous(separate_value_network=True)
    outputs_of(network, continuous_inputs(3, 4)).value.sum().backward()
    assert all(parameter.grad is None for parameter in network.torso.parameters())
    shared = make_continuous()
    outputs_of(shared, continuous_inputs(3, 4)).value.sum().backward()
    assert all(parameter.grad is not None for parameter in shared.torso.parameters())


def test_normalised_observations_reach_both_torsos() -> None:
    network = make_continuous(separate_value_network=True, observation_normalisation=True)
    data = continuous_inputs(3, 4)
    before = outputs_of(network, data)
    assert network.observation_normaliser is not None
    network.observation_normaliser.update(data["observation"].flatten(0, 1) * 3 + 7, SingleLearner())
    after = outputs_of(network, data)
    assert not torch.allclose(before.distribution, after.distribution)
    assert not torch.allclose(before.value, after.value)


def test_the_last_action_of_a_continuous_task_is_an_input_as_it_is() -> None:
    network, data = make_continuous(lstm_size=8, feed_last_action_and_reward=True), continuous_inputs(3, 4)
    changed = data | {"last_action": data["last_action"] + 1}
    assert not torch.equal(outputs_of(network, data).value, outputs_of(network, changed).value)
    assert network.no_action(4).shape == (4, 2)


@pytest.mark.parametrize(
    ("spec", "keys", "named"),
    [
        (CONTINUOUS, {"separate_value_network": True, "lstm_size": 8}, "separate_value_network"),
        (ATARI, {"network": "shallow", "observation_normalisation": True}, "observation_normalisation"),
        (ATARI, {"network": "tanh_mlp"}, "tanh_mlp"),
        (DMLAB, {"network": "vision"}, "vision"),
    ],
)
def test_keys_that_do_not_fit_are_named(spec: EnvSpec, keys: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        ActorCritic(spec, **{"network": "tanh_mlp", "generator": torch.Generator()} | keys)  # type: ignore[arg-type]


def test_the_vision_network_ends_in_one_cell_of_256_channels() -> None:
    """RLlib's filters: 42x42 -> 21 -> 11 -> 1, with 4 frames and 6 actions."""
    spec = EnvSpec("atari/test", (4, 42, 42), "uint8", 6, 4, "test")
    convolutions = (16 * 4 * 16 + 16) + (32 * 16 * 16 + 32) + (256 * 32 * 121 + 256)
    assert count(make(spec, "vision")) == convolutions + 256 * (6 + 1) + 7
    assert outputs_of(make(spec, "vision"), inputs(spec, 2, 3)).distribution.shape == (2, 3, 6)


def test_steps_seen_alone_give_the_bits_of_a_batch() -> None:
    network, data = make(FLAT, "mlp"), inputs(FLAT, 3, 2)
    output = outputs_of(network, data)
    distribution, value = network.of_steps(data["observation"].flatten(0, 1))
    assert torch.equal(distribution, output.distribution.flatten(0, 1))
    assert torch.equal(value, output.value.flatten())


def test_values_that_nobody_reads_are_left_out_and_change_no_distribution() -> None:
    network, data = make(FLAT, "mlp"), inputs(FLAT, 3, 2)
    complete = outputs_of(network, data)
    network.predicts_values = False
    partial = outputs_of(network, data)
    assert torch.equal(partial.distribution, complete.distribution)
    assert partial.value.shape == complete.value.shape
    assert partial.value.isnan().all()
    assert network.of_steps(data["observation"][0])[1].isnan().all()


@pytest.mark.parametrize(("lstm_size", "feed"), [(0, False), (0, True), (4, False)])
def test_a_network_with_memory_or_last_actions_sees_no_step_alone(lstm_size: int, feed: bool) -> None:
    assert make(FLAT, "mlp", lstm_size, feed).sees_steps_alone == (not lstm_size and not feed)


def test_observations_may_be_normalised_beforehand() -> None:
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(FLAT, network="mlp", generator=generator, observation_normalisation=True)
    observation = 3.0 + torch.randn((50, 6), generator=generator)
    assert network.observation_normaliser is not None
    network.observation_normaliser.update(observation, SingleLearner())
    seen = network.normalised_observation(observation)
    assert float(seen.mean().abs()) < 1e-5
    for beforehand, at_once in zip(network.of_normalised_steps(seen), network.of_steps(observation), strict=True):
        assert torch.equal(beforehand, at_once)
