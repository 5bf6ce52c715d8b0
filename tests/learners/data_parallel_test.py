"""Threads share a batch: their parts add up to the whole; a learner's share may be empty, its gradient is then 0."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ddrl.algorithms import ppo
from ddrl.learners.data_parallel import PIECE_COLUMNS, ColumnParallel, split
from ddrl.networks.torsos import NETWORKS
from ddrl.system.seeding import torch_generator
from ddrl.types import EnvSpec, Metrics, Unroll
from tests.unrolls import make_unroll, tags

PIXELS = EnvSpec("test/pixels", (4, 42, 42), "uint8", num_actions=3, frame_skip=4, protocol="test")
NUMBERS = EnvSpec("test/numbers", (4,), "float32", num_actions=0, frame_skip=1, protocol="test", action_size=2)
SPECS = {"tanh_mlp": NUMBERS, "two_stream": replace(NUMBERS, body_size=3)}


class Watched:
    """A loss that writes down which network was given which columns, by their tags, and in which thread."""

    def __init__(self) -> None:
        self.pieces: dict[nn.Module, list[list[int]]] = {}
        self.torch_threads: dict[int, int] = {}

    def __call__(self, network: nn.Module, part: Unroll) -> tuple[Tensor, Metrics]:
        self.pieces.setdefault(network, []).append(tags(part))
        self.torch_threads[threading.get_ident()] = torch.get_num_threads()
        loss = (network(part.observation[:-1]).squeeze(-1) - part.reward).square().sum()
        return loss, {"loss": float(loss.detach()), "columns": float(part.batch_size)}

    @property
    def sizes(self) -> list[list[int]]:
        """Columns of each piece, of one list a network, in the order of the columns."""
        return [[len(piece) for piece in pieces] for pieces in sorted(self.pieces.values())]


def linear() -> nn.Linear:
    """A small network, the same each time."""
    layer = nn.Linear(4, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -1.0, 2.0, 0.25]]))
        layer.bias.fill_(0.125)
    return layer


@pytest.mark.parametrize(
    ("num_threads", "piece_columns", "columns", "sizes"),
    [
        (1, 4, 9, [[3, 3, 3]]),
        (1, 3, 9, [[3, 3, 3]]),
        (1, 9, 9, [[9]]),
        (2, 4, 12, [[3, 3], [3, 3]]),
        (2, 100, 12, [[6], [6]]),
        (3, 2, 12, [[2, 2], [2, 2], [2, 2]]),
        (3, 2, 2, [[1], [1]]),
        (3, 2, 1, [[1]]),
    ],
)
def test_each_thread_takes_its_columns_in_pieces_and_together_they_are_the_whole(
    num_threads: int, piece_columns: int, columns: int, sizes: list[list[int]]
) -> None:
    batch, whole, network, watched = make_unroll(columns=columns), linear(), linear(), Watched()
    expected, metrics = Watched()(whole, batch)
    expected.backward()
    parallel = ColumnParallel(network, num_threads, piece_columns)
    found = parallel.backward(watched, batch)
    parallel.close()
    assert found == pytest.approx(metrics)
    torch.testing.assert_close([one.grad for one in network.parameters()], [one.grad for one in whole.parameters()])
    assert sorted(tag for pieces in watched.pieces.values() for piece in pieces for tag in piece) == tags(batch)
    assert watched.sizes == sizes
    assert watched.pieces[network][0][0] == 0, "the caller takes the first columns"
    for other in watched.pieces:
        for mine, its in zip(network.parameters(), other.parameters(), strict=True):
            assert mine.data_ptr() == its.data_ptr()


@pytest.mark.parametrize(("num_threads", "piece_columns"), [(1, 100), (1, 2), (2, 2), (3, 100)])
def test_what_was_kept_of_each_piece_gives_the_same_gradient_without_a_second_pass(
    num_threads: int, piece_columns: int
) -> None:
    batch, once, twice = make_unroll(columns=7), linear(), linear()
    passes: list[int] = []

    def outputs(network: nn.Module, part: Unroll) -> Tensor:
        passes.append(part.batch_size)
        return network(part.observation[:-1]).squeeze(-1)

    def loss(network: nn.Module, part: Unroll, kept: Tensor | None = None) -> tuple[Tensor, Metrics]:
        values = outputs(network, part) if kept is None else kept
        found = (values - part.reward).square().sum()
        return found, {"loss": float(found.detach())}

    gradients, metrics = [], []
    for network, keeps in ((once, True), (twice, False)):
        parallel = ColumnParallel(network, num_threads, piece_columns)
        kept = parallel.forward(outputs, batch) if keeps else None
        metrics.append(parallel.backward(loss, batch, kept))
        parallel.close()
        gradients.append([one.grad for one in network.parameters()])
        assert sum(passes) == 7, "each column goes through the network once"
        passes.clear()
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert metrics[0] == metrics[1]


def test_a_gradient_does_not_add_to_the_one_before() -> None:
    network, batch = linear(), make_unroll(columns=4)
    parallel = ColumnParallel(network, 2)
    gradients = []
    for _ in range(2):
        parallel.backward(Watched(), batch)
        gradients.append([one.grad.clone() for one in network.parameters() if one.grad is not None])
    parallel.close()
    torch.testing.assert_close(*gradients)


def test_a_thread_computes_without_others_of_torchs_own() -> None:
    """They would compete with the actors for cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        watched, parallel = Watched(), ColumnParallel(linear(), 2)
        parallel.backward(watched, make_unroll(columns=4))
        parallel.close()
        own = threading.get_ident()
        assert [number for thread, number in watched.torch_threads.items() if thread != own] == [1]
    finally:
        torch.set_num_threads(before)


def test_a_piece_has_eight_columns_unless_it_is_said() -> None:
    watched, parallel = Watched(), ColumnParallel(linear(), 1)
    parallel.backward(watched, make_unroll(columns=16))
    parallel.close()
    assert PIECE_COLUMNS == 8
    assert watched.sizes == [[8, 8]]


def samples(spec: EnvSpec, count: int) -> ppo.Samples:
    """PPO's samples of a task."""
    generator = torch.Generator().manual_seed(0)
    observation: Tensor = torch.randint(0, 255, (count, *spec.observation_shape), generator=generator)
    action = torch.zeros(count, spec.action_size) if spec.action_size else torch.zeros(count, dtype=torch.int64)
    return ppo.Samples(
        observation.to(getattr(torch, spec.observation_dtype)),
        action,
        torch.randn(count, spec.distribution_size, generator=generator),
        *torch.randn(4, count, generator=generator),
    )


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("network", NETWORKS)
def test_no_sample_is_a_gradient_of_zero_wherever_samples_have_one(network: str, num_threads: int) -> None:
    spec = SPECS.get(network, PIXELS)
    normalisation = {"observation_normalisation": spec is not PIXELS, "reward_normalisation": spec is not PIXELS}
    config = ppo.Config(network=network, **normalisation)
    made = ppo.make_network(spec, config, torch_generator(0, "network"))
    parallel = ColumnParallel(made, num_threads, piece_columns=4)
    with_gradient, metrics = [], []
    for count in (9, 0):
        metrics.append(
            parallel.backward(lambda net, part: ppo.ppo_loss(net, part, config, 0.1, 1.0), samples(spec, count))
        )
        with_gradient.append([name for name, parameter in made.named_parameters() if parameter.grad is not None])
    parallel.close()
    assert with_gradient[0] == with_gradient[1] != []
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in made.parameters())
    assert list(metrics[1]) == list(metrics[0])
    assert set(metrics[1].values()) == {0.0}


def test_parts_are_empty_only_where_the_batch_is() -> None:
    whole = samples(NUMBERS, 5)
    assert [part.batch_size for part in split(whole, 8)] == [1] * 5
    assert [part.batch_size for part in split(whole, 2)] == [2, 3]
    assert [part.batch_size for part in split(whole.columns(0, 0), 3)] == [0]
