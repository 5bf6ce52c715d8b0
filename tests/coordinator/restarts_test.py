"""When a process that died is replaced, and when its run gives up."""

from __future__ import annotations

from ddrl.coordinator.restarts import MAX_DEATHS, RestartPolicy, gives_up


def test_deaths_without_progress_add_up_until_the_role_is_given_up() -> None:
    policy = RestartPolicy()
    deaths = [policy.died(("actor", 0), 7) for _ in range(MAX_DEATHS)]
    assert deaths == list(range(1, MAX_DEATHS + 1))
    assert [gives_up(number) for number in deaths] == [False] * (MAX_DEATHS - 1) + [True]


def test_progress_between_two_deaths_begins_the_count_anew() -> None:
    policy = RestartPolicy()
    assert [policy.died("learner", updates) for updates in (-1, -1, 5, 5, 6)] == [1, 2, 1, 2, 1]


def test_roles_are_counted_apart() -> None:
    policy = RestartPolicy()
    assert [policy.died(("actor", number), 0) for number in (0, 1, 0, 1)] == [1, 1, 2, 2]
