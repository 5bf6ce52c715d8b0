"""Every planted fault still applies: what it stands in for is there, is called as it expects, and matters.

Faults of games and of runs on Ray are planted by `make system`. `faults_test.py` has the long part, whether the
regression checks find them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from ddrl import algorithms
from ddrl.algorithms import impact
from ddrl.regression import golden
from ddrl.replay.queue import UnrollQueue
from tests.regression import planted, planted_evidence
from tests.regression.planted import OF_LEARNING, Fault
from tests.regression.used import used_by_papers
from tests.runs import DISCRETE
from tests.unrolls import make_unroll

ROOT = Path(__file__).parents[2]
RUN = ROOT / "results/reference/impala_2018/off_policy_correction/v_trace/toy-catch/seed11"
SLOW = {"v_trace_ray", *(curve for curve in OF_LEARNING if curve.endswith("_assault"))}
"""A run on Ray starts processes that each import torch; a game takes seconds."""
FAULTS = [
    pytest.param(curve, name, marks=pytest.mark.system if curve in SLOW else ())
    for curve, faults in OF_LEARNING.items()
    for name in faults
]


def start_of(curve: str) -> list[dict[str, float]]:
    """The first few updates of a golden curve, made anew, each recorded."""
    path = ROOT / golden.FOLDER / f"{curve}.json"
    config = golden.read(path)["config"]
    game = config["environment"]["name"].startswith("atari/")
    short = {
        "env_frames": 1800 if game else 900,  # by then each algorithm has learned from a reward and clipped a gradient
        "recording": {"period_frames": 1, "tensorboard": False},
        "evaluation": {"period_frames": 10_000, "episodes": 1, "final_episodes": 1},
    }
    return golden.run(config | short, str(path))


@pytest.fixture(scope="module")
def healthy() -> Callable[[str], list[dict[str, float]]]:
    """`start_of` without a fault, once for each curve."""
    made: dict[str, list[dict[str, float]]] = {}

    def start(curve: str) -> list[dict[str, float]]:
        if curve not in made:
            made[curve] = start_of(curve)
        return made[curve]

    return start


@pytest.mark.parametrize(("curve", "name"), FAULTS)
def test_a_fault_still_applies_and_changes_the_first_updates(
    curve: str, name: str, healthy: Callable[[str], list[dict[str, float]]]
) -> None:
    before = healthy(curve)
    with OF_LEARNING[curve][name].planted():
        faulty = start_of(curve)
    changed = list(golden.differences(before, faulty, tolerance=golden.TOLERANCE))
    assert changed, "the fault stands in for something that the run does not use"


def test_every_algorithm_of_a_paper_has_a_fault() -> None:
    configs = [golden.read(ROOT / golden.FOLDER / f"{curve}.json")["config"] for curve in OF_LEARNING]
    assert {config["algorithm"] for config in configs} >= used_by_papers()


def test_clipping_is_left_out_for_every_algorithm_that_clips() -> None:
    for name in used_by_papers():
        faults = {
            fault
            for curve, of_curve in OF_LEARNING.items()
            if golden.read(ROOT / golden.FOLDER / f"{curve}.json")["config"]["algorithm"] == name
            for fault in of_curve
        }
        if name in DISCRETE:
            assert "rewards not clipped" in faults, f"{name}: rewards above 1 are in games alone"
        if algorithms.load(name).Config().max_grad_norm is not None:
            assert "gradients not clipped" in faults, name


def test_a_fault_is_gone_after_its_block() -> None:
    for faults in OF_LEARNING.values():
        for fault in faults.values():
            right = getattr(fault.owner, fault.name)
            with fault.planted():
                assert getattr(fault.owner, fault.name) is not right
            assert getattr(fault.owner, fault.name) is right


def test_a_fault_whose_function_is_gone_is_an_error() -> None:
    with (
        pytest.raises(AttributeError, match="set_learning_rate"),
        Fault(impact, "set_learning_rate", planted.halved_learning_rate).planted(),
    ):
        pass


def test_the_slowed_queue_holds_every_hand_over() -> None:
    seconds = 0.02
    with planted.slowed_queue(seconds).planted():
        queue = UnrollQueue(capacity=4)
        start = time.perf_counter()
        queue.insert(make_unroll())
        queue.sample(2)
        assert time.perf_counter() - start >= 2 * seconds


def test_only_the_last_step_of_an_unroll_is_dropped() -> None:
    whole, shorter = make_unroll(length=4, columns=7), make_unroll(length=3, columns=7)
    dropped = planted.without_last_step(whole).as_dict()
    for name, expected in shorter.as_dict().items():
        if name == "initial_state":
            assert dropped[name] is whole.initial_state
        elif isinstance(expected, tuple):
            assert [part.shape for part in dropped[name]] == [part.shape for part in expected]
        else:
            assert dropped[name].shape == expected.shape, name


def test_returns_are_turned_over_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / RUN.parent.name / RUN.name
    target.mkdir(parents=True)
    shutil.copy(RUN / "curves.parquet", target)
    before = pd.read_parquet(target / "curves.parquet")
    turned = planted_evidence.turn_over_returns(tmp_path)
    after = pd.read_parquet(target / "curves.parquet")
    assert turned > 100
    assert (before["value"].fillna(0) == -after["value"].fillna(0)).sum() >= turned
    same = before["metric"].isin(["episode_return", "evaluation_return"])
    pd.testing.assert_frame_equal(before[~same], after[~same])
