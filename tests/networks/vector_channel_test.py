"""Numbers beside an image: where they enter a network, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ddrl.errors import UserError
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.instruction_encoder import as_seen_by_torso
from ddrl.networks.q_network import QNetwork
from ddrl.networks.vector_channel import vector_channel
from ddrl.system.packed_vector import pack, packed_shape
from ddrl.types import EnvSpec

IMAGE = (1, 42, 42)
SPEC = EnvSpec("pointnav/test", packed_shape(IMAGE, 3), "uint8", 4, 1, "test", image_shape=IMAGE, vector_size=3)
KINDS = pytest.mark.parametrize("kind", [ActorCritic, QNetwork])


def made(
    kind: type, lstm_size: int = 8, *, spec: EnvSpec = SPEC, network: str = "shallow", feed: bool = False
) -> object:
    heads = {"head_size": 8} if kind is QNetwork else {}
    keys = {"network": network, "lstm_size": lstm_size, "feed_last_action_and_reward": feed}
    return kind(spec, generator=torch.Generator().manual_seed(1), **keys, **heads)


def observations(vectors: np.ndarray) -> torch.Tensor:
    """[1, B, n]: the same random picture with each of the vectors."""
    image = np.random.default_rng(1).integers(0, 256, IMAGE, dtype=np.uint8)
    return torch.from_numpy(np.stack([pack(image, vector) for vector in vectors]))[None]


def outputs(model: object, vectors: np.ndarray) -> torch.Tensor:
    seen, zeros = observations(vectors), torch.zeros(1, len(vectors))
    state = model.initial_state(len(vectors))  # type: ignore[attr-defined]
    return model(seen, zeros.long(), zeros, zeros.bool(), state).distribution[0]  # type: ignore[operator]


@KINDS
@pytest.mark.parametrize("network", ["shallow", "deep", "vision", "mlp"])
@pytest.mark.parametrize("lstm_size", [0, 8])
def test_numbers_reach_every_kind_of_network(kind: type, network: str, lstm_size: int) -> None:
    model = made(kind, lstm_size, network=network)
    found = outputs(model, np.array([[0.1, 0.2, 0.3], [0.1, 0.2, -0.3], [0.1, 0.2, 0.3]]))
    assert not torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


@KINDS
def test_features_are_the_torsos_the_last_reward_and_action_and_the_numbers_as_they_are(kind: type) -> None:
    model = made(kind, feed=True)
    seen: list[torch.Tensor] = []
    model.core.register_forward_hook(lambda _module, given, _output: seen.append(given[0]))  # type: ignore[attr-defined]
    vectors = np.array([[0.5, -1.0, 1234.5], [0.0, 1.0, 0.25]], dtype=np.float32)
    outputs(model, vectors)
    torso, _, _, numbers = seen[0][0].split([model.torso.size, 1, 4, 3], dim=-1)  # type: ignore[attr-defined]
    assert np.array_equal(numbers.detach().numpy(), vectors)
    images = observations(vectors)[0, :, : 42 * 42].view(2, *IMAGE)
    torch.testing.assert_close(torso, model.torso(images))  # type: ignore[attr-defined]


@KINDS
def test_the_channel_has_no_weights_and_the_torso_begins_as_without_it(kind: type) -> None:
    plain = replace(SPEC, observation_shape=IMAGE, image_shape=None, vector_size=0)
    assert as_seen_by_torso(SPEC) == plain
    with_numbers, without = made(kind), made(kind, spec=plain)
    assert without.vector is None and without.instructions is None and with_numbers.instructions is None  # type: ignore[attr-defined]
    names = [name for name, _ in with_numbers.named_parameters()]  # type: ignore[attr-defined]
    assert names == [name for name, _ in without.named_parameters()]  # type: ignore[attr-defined]
    same = zip(with_numbers.torso.parameters(), without.torso.parameters(), strict=True)  # type: ignore[attr-defined]
    assert all(torch.equal(one, other) for one, other in same)


def test_only_numbers_beside_an_image_are_unpacked() -> None:
    assert vector_channel(EnvSpec("a/b", (7,), "float32", 4, 1, "x")) is None
    assert vector_channel(replace(SPEC, vector_size=0)) is None


def test_a_separate_value_network_would_not_see_the_numbers() -> None:
    with pytest.raises(UserError, match=r"would not see the numbers of 'pointnav/test'; allowed: false"):
        ActorCritic(SPEC, network="shallow", separate_value_network=True, generator=torch.Generator().manual_seed(1))
