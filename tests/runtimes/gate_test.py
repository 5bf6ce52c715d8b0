"""The gate's rule bounds the lag, and lets every schedule move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddrl.coordinator.gate import Gate
from ddrl.coordinator.parameters import ParameterServer
from ddrl.networks.torsos import linear
from ddrl.seeding import torch_generator


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 4), st.integers(0, 20))
def test_no_column_is_learned_from_more_than_max_lag_updates_after_its_version(
    columns_per_round: int, columns_per_update: int, max_lag: int, index: int
) -> None:
    gate = Gate(max_lag, columns_per_round, columns_per_update)
    last_column = (index + 1) * columns_per_round - 1
    learned_in_update = last_column // columns_per_update
    assert learned_in_update - gate.needed_version(index) <= max_lag


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 30))
def test_an_actor_waits_for_no_more_updates_than_earlier_rounds_can_feed(
    columns_per_round: int, columns_per_update: int, index: int
) -> None:
    smallest = -(-columns_per_round // columns_per_update) - 1  # what the configuration asks for
    gate = Gate(max(smallest, 1), columns_per_round, columns_per_update)
    assert gate.needed_version(index) * columns_per_update <= index * columns_per_round + columns_per_update - 1


def test_the_asynchronous_schedule_never_waits() -> None:
    assert {Gate(None, 64, 32).needed_version(index) for index in range(50)} == {0}


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_actors_pull_parameters_exactly_delay_updates_old(delay: int) -> None:
    network = linear(2, 2, torch_generator(0, "network"))
    copy = linear(2, 2, torch_generator(1, "network"))
    params = ParameterServer(network, Gate(None, 1, 1), delay=delay)
    for version in range(1, 6):
        network.weight.data.fill_(version)
        assert params.publish(network) == version
        pulled = params.pull(copy, 0)
        assert pulled == max(0, version - delay)
        if pulled:
            assert copy.weight[0, 0] == pulled
        assert params.pull_newest(copy) == version


def test_after_a_restart_of_rounds_unroll_0_needs_only_the_present_version() -> None:
    network = linear(2, 2, torch_generator(0, "network"))
    params = ParameterServer(network, Gate(0, 1, 1))
    for _ in range(5):
        params.publish(network)
    params.restart_rounds()
    assert params.can_pull(0)
    assert not params.can_pull(1)
