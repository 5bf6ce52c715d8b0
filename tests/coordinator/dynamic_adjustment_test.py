"""Numbers of actors, predictors and trainers that are adjusted while a run trains."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl.api.launch import train
from ddrl.coordinator.dynamic_adjustment import DynamicAdjustment, Limit, Limited
from ddrl.errors import Closed, UserError
from ddrl.system.seeding import numpy_generator
from ddrl.training.config.run_config import parse_run_config
from tests.runs import BASE, local_run, merged, small

KINDS = ("actors", "predictors", "trainers")
TOPOLOGY: dict[str, Any] = {
    "runtime": "threads",
    "num_actors": 4,
    "envs_per_actor": 2,
    "inference": "central",
    "central": {"num_threads": 2},
    "num_trainers": 2,
    "queue_capacity": 8,
    "adjustment": {"initial_wait_s": 0.0, "step_wait_s": 0.1},
}


def ga3c(**topology: Any) -> Any:
    values = merged(BASE, {"algorithm": "ga3c", "topology": merged(TOPOLOGY, topology)})
    return parse_run_config(values | {"hyperparameters": small("ga3c")})


class Machine:
    """Where each number has a best one, and time passes when somebody waits."""

    def __init__(self, best: dict[str, int]) -> None:
        self.limits = {kind: Limit(1, 6) for kind in KINDS}
        self.best = best
        self.now, self.updates = 0.0, 0.0
        self.adjustment = DynamicAdjustment(
            self.limits,
            lambda: int(self.updates),
            numpy_generator(0, "adjustment"),
            initial_wait=10.0,
            step_wait=60.0,
            clock=lambda: self.now,
            wait=self.wait,
        )

    @property
    def speed(self) -> float:
        """Updates a second: fewer by a tenth for each step away from the best numbers."""
        return 100 * 0.9 ** sum(abs(limit.working - self.best[kind]) for kind, limit in self.limits.items())

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.updates += seconds * self.speed
        return False


def test_it_climbs_to_the_fastest_numbers_and_never_keeps_a_slower_one() -> None:
    best = {"actors": 5, "predictors": 2, "trainers": 1}
    machine, speeds = Machine(best), []
    for _ in range(60):
        machine.adjustment.step()
        speeds.append(machine.speed)
    assert speeds == sorted(speeds)
    assert {kind: limit.working for kind, limit in machine.limits.items()} == best
    assert machine.adjustment.gauge() == {"working_actors": 5.0, "working_predictors": 2.0, "working_trainers": 1.0}
    assert machine.now == 10 + 61 * 60, "a trial takes a measurement, the first one two and the wait"


def test_one_number_changes_by_one_at_a_time_within_its_bounds() -> None:
    machine = Machine({"actors": 1, "predictors": 1, "trainers": 1})
    before = [limit.working for limit in machine.limits.values()]
    tried = []
    for limit in machine.limits.values():
        limit.set = lambda number, limit=limit, right=limit.set: (tried.append(number), right(number))  # type: ignore
    for _ in range(20):
        machine.adjustment.step()
    assert tried == [2, 1] * 20, "up by one and back: there is no fewer"
    assert [limit.working for limit in machine.limits.values()] == before


def test_who_is_one_too_many_waits_until_there_is_room_or_the_run_is_over() -> None:
    worked: list[int] = []

    class Work:
        def __init__(self, index: int) -> None:
            self.index = index

        def ready(self) -> bool:
            return True

        def step(self) -> None:
            worked.append(self.index)

    limit = Limit(1, 3)
    roles = [Limited(Work(index), limit, index) for index in range(3)]
    roles[0].step()
    threads = [threading.Thread(target=role.step) for role in roles[1:2]]
    for thread in threads:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    limit.set(2)
    threads[0].join(10)
    assert worked == [0, 1]
    limit.close()
    with pytest.raises(Closed):
        roles[2].step()


def test_a_run_adjusts_itself_records_it_and_goes_on_where_it_was(tmp_path: Path) -> None:
    chosen = ga3c()
    assert train(chosen, tmp_path, quiet=True) == "budget_reached"
    table = pd.read_parquet(tmp_path / "curves.parquet")
    numbers = table[table.metric.str.startswith("working_")]
    assert set(numbers.metric) == {f"working_{kind}" for kind in KINDS}
    assert numbers.value.nunique() > 1
    assert numbers.value.between(1, 4).all()
    run = local_run(chosen, tmp_path / "cut", quiet=True)
    assert run.node.adjustment is not None
    run.node.adjustment.load_state_dict({"actors": 3, "predictors": 2, "trainers": 1})
    run._save()
    again = local_run(chosen, tmp_path / "cut", quiet=True)
    again.resume()
    assert again.node.adjustment is not None
    assert again.node.adjustment.state_dict() == {"actors": 3, "predictors": 2, "trainers": 1}
    for one in (run, again):
        one.recorder.close()


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ({"runtime": "serial", "num_trainers": 1}, r"topology\.adjustment' goes with 'topology\.runtime: threads'"),
        ({"inference": "local", "central": {"num_threads": 1}}, r"topology\.adjustment' goes with"),
        ({"adjustment": {"actors": 5}}, r"topology\.adjustment\.actors' must be at most 4"),
        ({"adjustment": {"predictors": 3}}, r"topology\.adjustment\.predictors' must be at most 2"),
        ({"adjustment": {"trainers": 3}}, r"topology\.adjustment\.trainers' must be at most 2"),
        ({"adjustment": {"agents": 3}}, r"unknown key 'topology\.adjustment\.agents'"),
    ],
)
def test_what_cannot_be_adjusted_is_refused(topology: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ga3c(**topology)
