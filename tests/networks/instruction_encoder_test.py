"""The language channel: against the plain way of encoding, one by one; its place in both networks, and its size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.errors import UserError
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.instruction_encoder import InstructionChannel, as_seen_by_torso
from ddrl.networks.q_network import QNetwork
from ddrl.system.instruction_words import BUCKETS, WORDS, hashed, pack, packed_shape
from ddrl.types import EnvSpec, NetworkOutput

IMAGE = (3, 36, 44)
SMALL = EnvSpec("dmlab/test", packed_shape(IMAGE), "uint8", 3, 4, "test", image_shape=IMAGE)
LAB = (3, 72, 96)
DMLAB = EnvSpec("dmlab/test", packed_shape(LAB), "uint8", 9, 4, "test", image_shape=LAB)
CHANNEL = BUCKETS * 20 + 4 * 64 * (20 + 64 + 1)
"""Embeddings, and an LSTM of 64 with one bias."""
SENTENCES = ("", "go", "pick the red hat", "pick the blue hat", "one two three four five six seven eight nine " * 2)


def channel(seed: int = 0) -> InstructionChannel:
    return InstructionChannel(IMAGE, torch.Generator().manual_seed(seed))


def words_of(*instructions: str) -> torch.Tensor:
    return torch.stack([torch.from_numpy(hashed(text).astype("int64")) for text in instructions])


def observations(*instructions: str, image_shape: tuple[int, int, int] = IMAGE) -> torch.Tensor:
    """One packed observation for each, of random pixels."""
    generator = torch.Generator().manual_seed(1)
    packed = []
    for text in instructions:
        image = torch.randint(0, 256, image_shape, dtype=torch.uint8, generator=generator)
        packed.append(torch.from_numpy(pack(image.numpy(), hashed(text))))
    return torch.stack(packed)


def one_by_one(made: InstructionChannel, instructions: list[str]) -> torch.Tensor:
    """Each instruction alone, word for word; spelled from the equations of an LSTM."""
    rows = []
    for text in instructions:
        hidden, cell = torch.zeros(64), torch.zeros(64)
        for word in [int(word) for word in hashed(text) if word]:
            gates = made.core.input_weight @ made.embedding[word - 1] + made.core.state_weight @ hidden + made.core.bias
            entry, forget, candidate, exit_ = gates.chunk(4)
            cell = forget.sigmoid() * cell + entry.sigmoid() * candidate.tanh()
            hidden = exit_.sigmoid() * cell.tanh()
        rows.append(hidden)
    return torch.stack(rows)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=9))
def test_values_and_gradients_are_those_of_encoding_each_row(instructions: list[str]) -> None:
    made, plain = channel(), channel()
    weights = torch.randn(len(instructions), 64, generator=torch.Generator().manual_seed(2))
    _, found = made(observations(*instructions))
    expected = one_by_one(plain, instructions)
    torch.testing.assert_close(found, expected)
    (found * weights).sum().backward()
    if any(instructions):
        (expected * weights).sum().backward()
    for mine, its in zip(made.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None, "also where every row is empty: reductions over learners count on it"
        torch.testing.assert_close(mine.grad, torch.zeros_like(mine) if its.grad is None else its.grad)


def test_each_distinct_instruction_is_encoded_once_and_none_for_longer_than_its_words() -> None:
    made, seen = channel(), []
    made.core.register_forward_hook(lambda _module, inputs, _output: seen.append(tuple(inputs[0].shape)))
    made(observations(*["pick the red hat", "go", "pick the red hat", ""] * 5))
    made(observations(*[""] * 7))
    assert seen == [(4, 3, 20), (1, 1, 20)]


def test_where_there_is_no_instruction_the_vector_is_zero() -> None:
    _, vectors = channel()(observations("", "go", " "))
    assert not vectors[0].any()
    assert not vectors[2].any()
    assert vectors[1].all()


def test_the_order_of_words_counts_and_the_image_does_not() -> None:
    made = channel()
    red, again, turned = made.encode(words_of("pick red hat", "Pick  RED hat", "hat red pick"))
    assert torch.equal(red, again)
    assert not torch.allclose(red, turned)
    _, vectors = made(observations("pick red hat", "pick red hat"))
    assert torch.equal(vectors[0], vectors[1])


def test_images_come_out_as_they_went_in() -> None:
    packed = observations("go", "")
    image, _ = channel()(packed)
    assert torch.equal(image.flatten(1), packed[:, : -2 * WORDS])
    assert image.shape == (2, *IMAGE)


def test_weights_start_as_in_the_authors_code_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = channel(), channel(), channel(1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.embedding, again.embedding)
    assert not torch.equal(first.embedding, other.embedding)
    assert float(first.embedding.detach().abs().max()) <= 2 / BUCKETS**0.5
    cut_at_two = 0.88  # the deviation that is left
    assert float(first.embedding.detach().std()) == pytest.approx(cut_at_two / BUCKETS**0.5, rel=0.02)
    assert sum(parameter.numel() for parameter in first.parameters()) == CHANNEL


def actor_critic(spec: EnvSpec, network: str = "shallow", lstm_size: int = 0, feed: bool = False) -> ActorCritic:
    generator = torch.Generator().manual_seed(0)
    keys = {"lstm_size": lstm_size, "feed_last_action_and_reward": feed}
    return ActorCritic(spec, network=network, generator=generator, **keys)


def q_network(spec: EnvSpec, network: str = "shallow", lstm_size: int = 0, feed: bool = False) -> QNetwork:
    keys = {"lstm_size": lstm_size, "feed_last_action_and_reward": feed, "dueling": True, "head_size": 16}
    return QNetwork(spec, network=network, generator=torch.Generator().manual_seed(0), **keys)


MAKERS = (actor_critic, q_network)


def inputs(*rows: tuple[str, ...], spec: EnvSpec = SMALL) -> dict[str, torch.Tensor]:
    """[T, B, ...] with these instructions."""
    time, batch = len(rows), len(rows[0])
    generator = torch.Generator().manual_seed(3)
    assert spec.image_shape is not None
    packed = observations(*[text for row in rows for text in row], image_shape=spec.image_shape)
    return {
        "observation": packed.unflatten(0, (time, batch)),
        "last_action": torch.randint(0, spec.num_actions, (time, batch), generator=generator),
        "last_reward": torch.randn(time, batch, generator=generator),
        "start": torch.zeros(time, batch, dtype=torch.bool),
    }


def outputs_of(network: ActorCritic | QNetwork, data: dict[str, torch.Tensor]) -> NetworkOutput:
    output: NetworkOutput = network(**data, state=network.initial_state(data["start"].shape[1]))
    return output


@pytest.mark.parametrize("lstm_size", [0, 8])
@pytest.mark.parametrize("feed", [False, True])
@pytest.mark.parametrize("network", ["shallow", "deep", "mlp"])
@pytest.mark.parametrize("make", MAKERS)
def test_the_instruction_reaches_every_kind_of_network(make: object, network: str, feed: bool, lstm_size: int) -> None:
    model = make(SMALL, network, lstm_size, feed)  # type: ignore[operator]
    data, other = inputs(("go left",), ("",)), inputs(("go right",), ("",))
    found, changed = outputs_of(model, data), outputs_of(model, other)
    assert not torch.equal(found.distribution[0], changed.distribution[0])
    assert torch.equal(found.distribution[1], changed.distribution[1]) == (lstm_size == 0)
    found.distribution.sum().backward()
    assert model.instructions.embedding.grad.any()


@pytest.mark.parametrize("make", MAKERS)
def test_features_are_torso_reward_action_and_instruction_in_this_order(make: object) -> None:
    model, data = make(SMALL, "shallow", 8, True), inputs(("go left", "")) | {"last_action": torch.tensor([[2, 0]])}  # type: ignore[operator]
    seen: list[torch.Tensor] = []
    model.core.register_forward_hook(lambda _module, given, _output: seen.append(given[0]))
    outputs_of(model, data)
    torso, reward, action, vector = seen[0].split([model.torso.size, 1, 3, 64], dim=-1)
    packed = data["observation"].flatten(0, 1)
    torch.testing.assert_close(torso[0], model.torso(model.instructions(packed)[0]))
    raw = data["last_reward"]
    assert torch.equal(reward[..., 0], raw.clamp(-1, 1) if make is actor_critic else raw)
    assert action.tolist() == [[[0, 0, 1], [1, 0, 0]]]
    torch.testing.assert_close(vector[0], one_by_one(model.instructions, ["go left", ""]))


@pytest.mark.parametrize("make", MAKERS)
def test_an_unroll_equals_its_single_steps(make: object) -> None:
    model, data = make(SMALL, "shallow", 8, True), inputs(("go left", ""), ("go left", "go right"), ("", "go right"))  # type: ignore[operator]
    whole, state = outputs_of(model, data), model.initial_state(2)
    for t in range(3):
        step: NetworkOutput = model(**{name: value[t : t + 1] for name, value in data.items()}, state=state)
        state = step.state
        torch.testing.assert_close(step.distribution[0], whole.distribution[t])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("lstm_size", [0, 8])
def test_bfloat16_autocast_returns_float32_close_to_full_precision(make: object, lstm_size: int) -> None:
    model, data = make(SMALL, "shallow", lstm_size, True), inputs(("go left", ""), ("go left", "go right"))  # type: ignore[operator]
    full = outputs_of(model, data)
    with torch.autocast("cpu", torch.bfloat16):
        low = outputs_of(model, data)
        low.distribution.sum().backward()
    assert low.distribution.dtype == torch.float32
    torch.testing.assert_close(low.distribution, full.distribution, rtol=0.05, atol=0.05)
    assert model.instructions.embedding.grad.isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", MAKERS)
def test_the_gpu_agrees_with_the_cpu(make: object) -> None:
    model, data = make(SMALL, "shallow", 8, True), inputs(("go left", ""), ("go left", "go right"))  # type: ignore[operator]
    expected = outputs_of(model, data)
    found = outputs_of(model.cuda(), {name: value.cuda() for name, value in data.items()})
    torch.testing.assert_close(found.distribution.cpu(), expected.distribution, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("network", "own", "published"), [("shallow", 1_230_426, 1.2e6), ("deep", 1_628_010, 1.6e6)])
def test_dmlab_parameter_counts_are_those_of_figure_3(network: str, own: int, published: float) -> None:
    """On 72x96x3 with 9 actions, LSTM 256, last action and reward, instruction."""
    made = actor_critic(DMLAB, network, 256, feed=True)
    assert sum(parameter.numel() for parameter in made.parameters()) == own
    assert round(own, -5) == published


def test_without_an_image_shape_there_is_no_channel_and_the_weights_are_as_ever() -> None:
    plain = replace(SMALL, observation_shape=IMAGE, image_shape=None)
    assert as_seen_by_torso(SMALL) == plain
    assert as_seen_by_torso(plain) is plain
    for make in MAKERS:
        assert make(plain, "shallow", 8, True).instructions is None
    with_channel, without = actor_critic(SMALL).torso.state_dict(), actor_critic(plain).torso.state_dict()
    assert all(torch.equal(value, without[name]) for name, value in with_channel.items())


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"observation_normalisation": True}, "observation_normalisation"),
        ({"separate_value_network": True}, "would not see the instructions"),
        ({"network": "tanh_mlp"}, "needs float32 observations"),
        ({"network": "vision"}, "needs square images"),
    ],
)
def test_keys_that_do_not_fit_are_named(keys: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        ActorCritic(SMALL, **{"network": "shallow", "generator": torch.Generator()} | keys)  # type: ignore[arg-type]
