"""Flags: each appears for what it is about and for nothing else, decided from manifests and from what is printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl.analysis.runs.flags import HARD_FLAGS, changed_settings, flags, hard, version_flag
from ddrl.analysis.runs.run_data import RunData
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import FLAGS, CellRule, load_paper
from ddrl.papers.protocols import parse_protocol, version_gap

IMPALA = Path(__file__).parents[3] / "replications" / "impala_2018"
EXPERIMENTS = load_experiments(IMPALA)
PROTOCOLS = load_paper(IMPALA).protocols
# As if the paper had printed the version that is installed here.
PRINTED = replace(PROTOCOLS["atari_noop"], version="0.12.1", era_before=None)
PARTS = "skip4,max2,gray84x84,stack4;noop1-30;sticky0;minimal-actions;life-loss-terminal;cap108k;raw-rewards"
RULE = CellRule({}, "atari", "shallow", "atari/{task}", "final_return", None, None)
ROW = {"statistic": "final", "seeds": 1, "digitised": False, "budget_frames": 200_000_000, "budget_hours": float("nan")}


def atari_run(
    frames: int = 200_000_000,
    protocol: str = f"ale-0.12.1/pong;{PARTS}",
    environment: str = "atari/pong",
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> RunData:
    config = EXPERIMENTS["atari"].paper_setting("shallow", environment) | {"seed": 1}
    config["hyperparameters"] = config["hyperparameters"] | changes
    config["environment"] = config["environment"] | (options or {})
    manifest = {"config": config, "env_frames": frames, "protocol": protocol}
    return RunData("run", "impala_2018", "atari", "shallow", environment, 1, manifest, pd.DataFrame())


def found(runs: list[RunData], *, rule: CellRule = RULE, protocol: Any = PRINTED, **row: Any) -> list[str]:
    return flags(rule, ROW | row, runs, EXPERIMENTS["atari"], 0.99, protocol)


def test_a_run_with_the_papers_setting_version_and_budget_has_no_flag() -> None:
    assert found([atari_run()]) == []


def test_another_printed_version_is_a_gap_and_the_same_is_none() -> None:
    older = replace(PRINTED, version="0.6.0")
    assert found([atari_run()], protocol=older) == ["env_version_gap(ale-0.12.1 for ale-0.6.0)"]
    assert found([atari_run(protocol=f"ale-0.6.0/pong;{PARTS}")], protocol=older) == []


@pytest.mark.parametrize(
    ("version", "era_before", "gap"),
    [
        ("0.12.1", "0.6.1", True),
        ("0.6.1", "0.6.1", True),
        ("0.6.0", "0.6.1", False),
        ("0.5.2", "0.6.1", False),
        ("0.6.0", None, True),
        ("", "0.6.1", True),
    ],
)
def test_an_unprinted_version_is_a_gap_unless_ours_is_of_its_era(
    version: str, era_before: str | None, gap: bool
) -> None:
    unprinted = replace(PRINTED, version=None, era_before=era_before)
    said = version_gap(parse_protocol(f"ale-{version}/pong"), unprinted)
    assert bool(said) is gap
    assert not gap or "for a version not printed" in said


def test_a_run_has_a_version_gap_where_it_is_of_no_version_that_the_paper_states_of_its_environment() -> None:
    mujoco = replace(PRINTED, environment="mujoco", version=None, era_before="3", task_version="v2")
    stated = [mujoco, PRINTED]
    assert version_flag(["mujoco-2.1/Hopper-v2;cap1000", f"ale-0.12.1/pong;{PARTS}"], stated) == ""
    found = version_flag(["mujoco-3.1/Humanoid-v5;cap1000", "mujoco-3.1/Hopper-v5;cap1000"], stated)
    assert found == "env_version_gap(Hopper-v5 for v2, Humanoid-v5 for v2)"
    assert version_flag(["toy-1/catch", "odd", ""], stated) == ""
    assert version_flag(["ale-0.12.1/pong"], [replace(PRINTED, version="0.6.0"), PRINTED]) == ""
    assert version_flag(["ale-0.12.1/pong"], []) == ""


def test_a_version_gap_is_hard_only_where_the_protocol_says_never() -> None:
    gap = ["env_version_gap(ale-0.12.1 for ale-0.6.0)", "published_n_unknown"]
    assert hard(gap, PRINTED) == []
    assert hard(gap, replace(PRINTED, other_versions="never")) == gap[:1]


@pytest.mark.parametrize(
    ("ours", "part"),
    [
        (PARTS.replace("life-loss-terminal", "game-over-terminal"), "life_loss_terminates"),
        (PARTS.replace("minimal-actions", "full-actions"), "full_action_space"),
        (PARTS.replace("noop1-30", "noop0"), "noop_max"),
        (PARTS.replace("stack4", "stack1"), "frame_stack"),
        (PARTS.replace("max2,", ""), "max_pooling"),
    ],
)
def test_a_changed_part_of_the_protocol_is_named(ours: str, part: str) -> None:
    assert found([atari_run(protocol=f"ale-0.12.1/pong;{ours}")]) == [f"changed_protocol({part})"]


def test_what_the_paper_does_not_print_counts_as_changed_against_the_stated_base_alone() -> None:
    sticky = PARTS.replace("sticky0", "sticky0.25")
    assert found([atari_run(protocol=f"ale-0.12.1/pong;{sticky}")]) == []
    run = atari_run(protocol=f"ale-0.12.1/pong;{sticky}", options={"sticky_actions": 0.25, "max_frames": 18_000})
    assert found([run]) == ["changed_protocol(max_frames,sticky_actions)"]
    stated = replace(PRINTED, parts={**PRINTED.parts, "sticky_actions": "sticky0"})
    assert found([atari_run(protocol=f"ale-0.12.1/pong;{sticky}")], protocol=stated) == [
        "changed_protocol(sticky_actions)"
    ]


def test_a_part_that_differs_in_option_and_protocol_id_is_named_once() -> None:
    ours = PARTS.replace("minimal-actions", "full-actions")
    run = atari_run(protocol=f"ale-0.12.1/pong;{ours}", options={"full_action_space": True})
    assert found([run]) == ["changed_protocol(full_action_space)"]


def test_another_environment_is_a_proxy_and_its_parts_are_not_compared() -> None:
    assert found([atari_run(protocol="toy-1/catch;rows10,columns5")], protocol=PROTOCOLS["dmlab"]) == ["proxy_env"]
    planned = EXPERIMENTS["off_policy_correction"]
    assert flags(RULE, ROW, [], planned, 0.99, PROTOCOLS["dmlab"]) == ["proxy_env"]
    assert flags(RULE, ROW, [], EXPERIMENTS["atari"], 0.99, PROTOCOLS["dmlab"]) == []


def test_where_others_stand_for_a_task_runs_on_the_task_itself_are_none_of_them() -> None:
    planned, rule = EXPERIMENTS["dmlab30"], replace(RULE, environment="dmlab/{task}")
    own = atari_run(protocol="dmlab-1.0/rooms_watermaze;skip4,rgb96x72")
    assert planned.proxy
    assert "proxy_env" not in flags(rule, ROW, [own], planned, 0.99, PROTOCOLS["dmlab"])
    assert "proxy_env" in flags(replace(RULE, environment=None), ROW, [own], planned, 0.99, PROTOCOLS["dmlab"])
    stand_in = atari_run(protocol="vizdoom-1.3.2/basic;skip4,rgb96x72")
    assert "proxy_env" in flags(rule, ROW, [stand_in], planned, 0.99, PROTOCOLS["dmlab"])


def test_a_smaller_budget_is_flagged_with_its_part_and_a_hundredth_less_is_not() -> None:
    assert found([atari_run(frames=400_000)]) == ["reduced_budget(0.002)"]
    assert found([atari_run(frames=198_000_000)]) == []
    assert found([atari_run(frames=400_000)], budget_frames=pd.NA) == []


def test_a_larger_budget_is_flagged_too_except_on_a_curve_and_of_what_frames_take() -> None:
    longer = [atari_run(), atari_run(frames=400_000_000)]
    assert found(longer) == ["larger_budget(2)"]
    assert hard(["larger_budget(2)"], PRINTED) == ["larger_budget(2)"]
    assert found([atari_run(frames=201_000_000)]) == []
    assert found(longer, budget_frames=pd.NA) == []
    assert found(longer, rule=replace(RULE, metric="return_at_frames")) == []
    assert found([atari_run(frames=1_000), *longer]) == ["reduced_budget(5e-06)", "larger_budget(2)"]


def test_a_number_that_hours_on_other_hardware_gave_is_flagged() -> None:
    assert found([atari_run()], budget_frames=pd.NA, budget_hours=1.5) == ["wall_clock_budget(1.5 h)"]
    assert found([atari_run()], budget_hours=1.5) == []


def test_the_smallest_budget_of_several_runs_counts() -> None:
    assert found([atari_run(), atari_run(frames=20_000_000)]) == ["reduced_budget(0.1)"]


def test_changed_settings_are_named_and_budget_and_bookkeeping_are_none() -> None:
    assert found([atari_run(batch_size=8)]) == ["changed_hyperparameters(batch_size)"]
    stated = {"env_frames": 10, "evaluation": {"episodes": 1}, "hyperparameters": {"a": 1.0, "b": {"c": None}}}
    ours = {"env_frames": 5, "evaluation": {"episodes": 9}, "hyperparameters": {"a": 1, "b": {"c": 2}}}
    assert changed_settings(ours, stated) == ["hyperparameters.b.c"]


def test_missing_tasks_of_an_aggregate_are_counted() -> None:
    rule = replace(RULE, environment=None, metric="mean_human_normalised_score", environments=2)
    assert found([atari_run()], rule=rule) == ["reduced_suite(1/2)"]
    assert found([atari_run(), atari_run(environment="atari/breakout")], rule=rule) == []


def test_fewer_actors_are_flagged_where_the_paper_states_their_number() -> None:
    assert found([atari_run()], rule=replace(RULE, paper_envs=100)) == ["fewer_actors(64/100)"]
    assert found([atari_run()], rule=replace(RULE, paper_envs=64)) == []


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ({"statistic": "mean_of_best_3_of_24"}, "published_best_of_k"),
        ({"statistic": "best_per_architecture"}, "published_best_of_k"),
        ({"statistic": "population_of_24"}, "published_best_of_k"),
        ({"seeds": pd.NA}, "published_n_unknown"),
        ({"digitised": True}, "digitised"),
    ],
)
def test_what_a_published_number_is_flags_its_cell(row: dict[str, Any], flag: str) -> None:
    assert found([atari_run()], **row) == [flag]
    assert found([], **row) == [flag]


def test_every_flag_has_a_meaning_and_hard_ones_are_recognised_with_their_argument() -> None:
    assert set(HARD_FLAGS) <= set(FLAGS)
    assert hard([f"{name}(1)" for name in FLAGS], None) == [f"{name}(1)" for name in FLAGS if name in HARD_FLAGS]


def test_a_protocol_id_is_taken_apart_and_nothing_makes_it_fail() -> None:
    found = parse_protocol("dm_control-1.0.50/walker_walk;a,b;c")
    assert (found.environment, found.version, found.task) == ("dm_control", "1.0.50", "walker_walk")
    assert found.parts == {"a", "b", "c"}
    assert parse_protocol("").version == parse_protocol("odd").version == ""
