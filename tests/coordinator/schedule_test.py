"""The schedule's rule bounds the lag, and lets every schedule move."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.networks.initialisation import linear
from ddrl.replay.circular_buffer import CircularStore, first_use
from ddrl.system.seeding import torch_generator
from ddrl.training.config.topology_checks import _smallest_lag
from tests.unrolls import make_unroll


def every_batch_once(batch: int) -> int:
    return batch


def circular(num_slots: int, num_traversals: int) -> Callable[[int], int]:
    """IMPACT's ring: `num_slots` batches are gone through `num_traversals` times before the next ones come in."""
    return lambda batch: (batch // num_slots) * num_slots * num_traversals + batch % num_slots


orders = st.one_of(st.just(every_batch_once), st.builds(circular, st.integers(1, 4), st.integers(1, 4)))


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 4), st.integers(0, 20), orders)
def test_no_column_is_first_learned_from_more_than_max_lag_updates_after_its_version(
    columns_per_round: int, columns_per_batch: int, max_lag: int, index: int, first_update: Callable[[int], int]
) -> None:
    rule = ScheduleRule(max_lag, columns_per_round, columns_per_batch, first_update)
    last_column = (index + 1) * columns_per_round - 1
    learned_in_update = first_update(last_column // columns_per_batch)
    assert learned_in_update - rule.needed_version(index) <= max_lag


@given(st.integers(1, 9), st.integers(1, 12), orders)
def test_the_smallest_lag_that_a_configuration_may_ask_for_is_the_smallest_that_moves(
    columns_per_round: int, columns_per_batch: int, first_update: Callable[[int], int]
) -> None:
    smallest = _smallest_lag(columns_per_round, columns_per_batch, first_update)

    def moves(max_lag: int) -> bool:
        """Whether no actor waits for ever, whichever batch (`begun`) the rounds begin with."""
        rule = ScheduleRule(max_lag, columns_per_round, columns_per_batch, first_update)
        for begun in range(20):
            since = first_update(begun)
            batches = (index * columns_per_round // columns_per_batch for index in range(100))
            there = (first_update(begun + batch) for batch in batches)
            if not all(rule.needed_version(index, since) <= version for index, version in enumerate(there)):
                return False
        return True

    assert moves(smallest)
    assert smallest == 0 or not moves(smallest - 1)


def test_the_asynchronous_schedule_never_waits() -> None:
    assert {ScheduleRule(None, 64, 32, every_batch_once).needed_version(index) for index in range(50)} == {0}


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_actors_pull_parameters_exactly_delay_updates_old(delay: int) -> None:
    network = linear(2, 2, torch_generator(0, "network"))
    copy = linear(2, 2, torch_generator(1, "network"))
    params = ParameterServer(network, ScheduleRule(None, 1, 1, every_batch_once), delay=delay)
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
    params = ParameterServer(network, ScheduleRule(0, 1, 1, every_batch_once))
    for _ in range(5):
        params.publish(network)
    params.restart_rounds()
    assert params.can_pull(0)
    assert not params.can_pull(1)


@pytest.mark.parametrize(("num_slots", "num_traversals"), [(1, 1), (2, 2), (4, 8), (3, 1)])
def test_a_resumed_run_keeps_its_bound_wherever_the_ring_of_batches_stands(num_slots: int, num_traversals: int) -> None:
    network = linear(2, 2, torch_generator(0, "network"))
    for resumed_at in range(3 * num_slots * num_traversals):
        store, taken = CircularStore(num_slots, num_traversals), 0
        rule = ScheduleRule(0, 1, 1, lambda batch: first_use(batch, num_slots, num_traversals))
        params = ParameterServer(network, rule)
        acted: list[int] = []
        for update in range(resumed_at + 3 * num_slots * num_traversals):
            if update == resumed_at:
                params.restart_rounds()
                acted, taken = [], 0
            while params.can_pull(len(acted)):
                acted.append(params.version)
            if store.needs_batch:
                assert acted[taken] == update, "a synchronous batch is learned from by the version that acted"
                store.insert(make_unroll())
                taken += 1
            store.sample()
            params.publish(network)


def test_buffers_travel_with_the_parameters() -> None:
    network, copy = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    params = ParameterServer(network, ScheduleRule(None, 1, 1, every_batch_once))
    assert network.running_mean is not None and copy.running_mean is not None
    network.running_mean.fill_(5.0)
    params.publish(network)
    params.pull(copy, 0)
    assert copy.running_mean.tolist() == [5.0, 5.0, 5.0]
