"""DeepMind Lab's adapter, on a strict stand-in for the simulator, which pip cannot install."""

from __future__ import annotations

import csv
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ddrl.api.launch import train
from ddrl.cli import doctor
from ddrl.environments import dmlab
from ddrl.environments.base import registry
from ddrl.environments.tools import check
from ddrl.environments.tools.camera import camera_for
from ddrl.environments.worlds.dmlab_level_cache import LevelCache, cache_folder
from ddrl.errors import UserError
from ddrl.system.instruction_words import hashed, image_of, pack
from ddrl.system.seeding import seed_for
from ddrl.training.config import run_config
from ddrl.types import EnvStep
from tests.runs import BASE, small

ROOT = Path(__file__).parents[2]
STANDIN = ROOT / "tests" / "standins" / "deepmind_lab"
SPOKEN = "dmlab/language_select_described_object"
SILENT = "dmlab/seekavoid_arena_01"
MAZE = "dmlab/explore_goal_locations_small"
NOOP = np.zeros(7, dtype=np.intc)


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in, as if it were installed."""
    monkeypatch.delitem(sys.modules, "deepmind_lab", raising=False)
    monkeypatch.syspath_prepend(STANDIN)
    monkeypatch.setattr(dmlab, "ADAPTER", replace(dmlab.ADAPTER, examples=dmlab.examples()))
    made = importlib.import_module("deepmind_lab")
    yield made
    monkeypatch.undo()  # what a test has put in its place
    if sys.modules.get("deepmind_lab") is made:
        del sys.modules["deepmind_lab"]


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the simulator."""
    monkeypatch.delitem(sys.modules, "deepmind_lab", raising=False)
    monkeypatch.setattr(dmlab.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dmlab, "ADAPTER", replace(dmlab.ADAPTER, examples=dmlab.examples()))


def published(paper: str, file: str) -> list[str]:
    """The tasks of a published table, in its order."""
    with (ROOT / "replications" / paper / "published" / file).open(newline="") as rows:
        return list(dict.fromkeys(row["task"] for row in csv.DictReader(rows)))


def playing(name: str, seed: int, steps: int, **options: Any) -> list[EnvStep]:
    """One environment with cycling actions."""
    env = registry.make(name, 1, seed, **options)
    trace = [env.reset()]
    for step in range(steps):
        trace.append(env.step(np.array([step % env.spec.num_actions])))
    env.close()
    return trace


# What is known without the simulator.


def test_the_suites_are_the_30_tasks_of_table_b1_in_its_order() -> None:
    test = dmlab.SUITES["dmlab30_test"]
    assert [name for name in published("impala_2018", "table_b1.csv") if name in test] == list(test)
    assert len(set(test)) == len(set(dmlab.SUITES["dmlab30_train"])) == 30
    differing = set(dmlab.SUITES["dmlab30_train"]) - set(test)
    assert differing == {"rooms_collect_good_objects_train", "rooms_exploit_deferred_effects_train"}
    assert {name for suite in dmlab.SUITES.values() for name in suite} == set(dmlab.TASKS)


def test_every_task_that_a_paper_prints_a_score_of_is_there() -> None:
    tables = [("impala_2018", "table_2.csv"), ("impala_2018", "table_b1.csv"), ("r2d2_2019", "table_3.csv")]
    printed = {task for paper, file in tables for task in published(paper, file)}
    assert {task for task in printed if "_" in task and not task.startswith("dmlab")} <= set(dmlab.TASKS)


def test_tasks_share_observations_and_actions_and_differ_in_name_alone() -> None:
    specs = [registry.spec_for(f"dmlab/{task}") for task in dmlab.TASKS]
    assert {(spec.observation_shape, spec.image_shape, spec.num_actions, spec.frame_skip) for spec in specs} == {
        ((20736 + 32,), (3, 72, 96), 9, 4)
    }
    assert len({spec.protocol for spec in specs}) == len({spec.name for spec in specs}) == len(dmlab.TASKS)


def test_the_protocol_id_has_the_parts_that_the_papers_print_and_every_option_that_changes_scores() -> None:
    protocol = registry.spec_for("dmlab/rooms_watermaze").protocol
    version, rest = protocol.split("/")
    assert version.startswith("dmlab-")
    assert rest == (
        "rooms_watermaze;skip4,rgb96x72,words16;impala-actions;train-seeds;software-rendering;"
        "autoreset-next-step;raw-rewards"
    )
    changed = {"action_set": "r2d2", "frame_skip": 2, "test_seeds": True, "renderer": "hardware"}
    others = {registry.spec_for("dmlab/rooms_watermaze", **{key: value}).protocol for key, value in changed.items()}
    assert len(others | {protocol}) == 1 + len(changed)
    assert registry.spec_for("dmlab/rooms_watermaze", level_cache=True).protocol == protocol
    assert set(changed) | {"level_cache"} == set(registry.resolve_options("dmlab/rooms_watermaze", {}))


def test_the_nine_actions_are_those_of_table_d2() -> None:
    assert list(dmlab.ACTION_SETS["impala"].values()) == [
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-20, 0, 0, 0, 0, 0, 0),
        (20, 0, 0, 0, 0, 0, 0),
        (-20, 0, 0, 1, 0, 0, 0),
        (20, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ]


def test_the_larger_action_set_turns_by_10_and_by_60_and_tilts() -> None:
    actions = list(dmlab.ACTION_SETS["r2d2"].values())
    assert len(set(actions)) == len(actions) == 15
    assert sorted(turn for turn, _, _, walk, *_ in actions if not walk and turn) == [-60, -10, 10, 60]
    assert sorted(turn for turn, _, _, walk, *_ in actions if walk and turn) == [-60, -10, 10, 60]
    assert sorted(tilt for _, tilt, *_ in actions if tilt) == [-10, 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_set": "popart"}, "'popart' is not allowed for dmlab/seekavoid_arena_01; allowed: impala, r2d2"),
        ({"renderer": "egl"}, "allowed: software, hardware"),
        ({"frame_skip": 0}, "allowed: integers from 1 to 60"),
        ({"width": 96}, "unknown option of dmlab/seekavoid_arena_01 'width'"),
    ],
)
def test_an_option_that_is_not_allowed_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        registry.spec_for(SILENT, **options)
    assert message in str(error.value)


def test_without_the_simulator_all_is_known_and_making_one_says_what_to_read(nothing: None) -> None:
    assert registry.spec_for(SPOKEN).num_actions == 9
    assert len(registry.tasks("dmlab")) == 33
    assert not any(name.startswith("dmlab/") for name in registry.examples())
    with pytest.raises(UserError) as error:
        registry.make(SPOKEN, 1, 1)
    message = "environment 'dmlab': DeepMind Lab's Python module deepmind_lab is not installed, see docs/dmlab.md"
    assert str(error.value) == message
    assert (ROOT / "docs" / "dmlab.md").exists()


def test_the_doctor_says_that_it_is_absent_and_what_to_read(nothing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "prefixes", lambda: ("dmlab",))
    (found,) = doctor._environments(False)
    assert (found.fine, found.required) == (False, False)
    assert found.describe().startswith("absent   environment 'dmlab': DeepMind Lab's Python module deepmind_lab is not")
    assert found.describe().endswith("see docs/dmlab.md")


# What is made with it.


@pytest.mark.parametrize("name", [SILENT, SPOKEN])
def test_the_example_conforms(simulator: ModuleType, name: str) -> None:
    assert name in registry.examples()
    assert check.check_environment(name).terminated > 0


@pytest.mark.parametrize("options", [{"frame_skip": 4}, {"action_set": "r2d2"}, {"test_seeds": True}])
def test_it_conforms_with_every_kind_of_option(simulator: ModuleType, options: dict[str, Any]) -> None:
    found = check.check_environment(SPOKEN, **options)
    assert found.terminated > 0
    assert found.truncated == 0


def test_every_task_can_be_made(simulator: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(dmlab.DATASET_VARIABLE, str(tmp_path))
    for task in dmlab.TASKS:
        first = playing(f"dmlab/{task}", 1, 1)[0]
        assert first.observation.any()


def test_what_is_seen_and_paid_is_the_simulators_own(simulator: ModuleType) -> None:
    lab = simulator.Lab(
        "contributed/dmlab30/language_select_described_object",
        ["RGB", "INSTR"],
        config={"width": "96", "height": "72"},
    )
    actions = [np.array(action, dtype=np.intc) for action in dmlab.ACTION_SETS["impala"].values()]
    spec = registry.spec_for(SPOKEN)
    trace, episode, seen, said = playing(SPOKEN, 7, 150), -1, None, set()
    for index, step in enumerate(trace):
        if step.start[0]:
            episode += 1
            lab.reset(seed=seed_for(7, f"{SPOKEN}/0", episode))
            reward = 0.0
        else:
            reward = lab.step(actions[(index - 1) % 9], num_steps=4)
        if lab.is_running():
            seen = lab.observations()
        assert step.reward[0] == reward
        assert step.terminated[0] == step.ended[0] == (not lab.is_running())
        assert seen is not None
        np.testing.assert_array_equal(step.observation[0], pack(seen["RGB"], hashed(seen["INSTR"])))
        np.testing.assert_array_equal(image_of(step.observation, spec)[0], seen["RGB"])
        said.add(seen["INSTR"])
    assert episode > 2
    assert len(said) > 2, "the instruction changes within the episodes"


def test_the_final_observation_is_the_last_that_could_be_seen(simulator: ModuleType) -> None:
    trace = playing(SILENT, 3, 60)
    (end, *_) = [index for index, step in enumerate(trace) if step.ended[0]]
    np.testing.assert_array_equal(trace[end].observation, trace[end - 1].observation)
    assert trace[end].terminated[0]
    assert not trace[end].truncated[0]
    assert trace[end + 1].start[0]
    assert not np.array_equal(trace[end + 1].observation, trace[end].observation)


def test_levels_that_say_nothing_have_no_words(simulator: ModuleType) -> None:
    spoken, silent = playing(SPOKEN, 1, 3)[-1].observation[0], playing(SILENT, 1, 3)[-1].observation[0]
    assert spoken[-32:].any()
    assert not silent[-32:].any()


def test_an_action_is_repeated_for_as_many_frames_as_the_option_says(simulator: ModuleType) -> None:
    def frames(skip: int) -> int:
        return next(index for index, step in enumerate(playing(SILENT, 5, 210, frame_skip=skip)) if step.ended[0])

    once = frames(1)
    assert frames(4) == -(-once // 4)
    assert frames(60) == -(-once // 60)


def test_an_episode_of_any_length_can_be_saved(simulator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit is known beforehand: the record of actions grows."""
    start = simulator.Lab._start

    def endless(lab: Any, seed: int) -> None:
        start(lab, seed)
        lab._length, lab._targets = 10**6, np.zeros(10**5, dtype=np.int64)

    monkeypatch.setattr(simulator.Lab, "_start", endless)
    env, other = registry.make(SILENT, 1, 1, frame_skip=1), registry.make(SILENT, 1, 1, frame_skip=1)
    env.reset()
    for step in range(1500):
        assert not env.step(np.array([step % 9])).ended[0]
    other.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(env.step(np.array([1])).observation, other.step(np.array([1])).observation)


# What the simulator is told.


@pytest.fixture
def told(simulator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of each `Lab` that is made."""
    seen: list[dict[str, Any]] = []
    own = simulator.Lab.__init__

    def init(lab: Any, level: str, observations: list[str], **keys: Any) -> None:
        seen.append({"level": level, "observations": observations} | keys)
        own(lab, level, observations, **keys)

    monkeypatch.setattr(simulator.Lab, "__init__", init)
    return seen


SIZE = {"width": "96", "height": "72", "logLevel": "WARN"}


@pytest.mark.parametrize(
    ("task", "test_seeds", "level", "settings"),
    [
        ("rooms_watermaze", False, "contributed/dmlab30/rooms_watermaze", {}),
        ("seekavoid_arena_01", False, "seekavoid_arena_01", {}),
        (
            "rooms_watermaze",
            True,
            "contributed/dmlab30/rooms_watermaze",
            {"allowHoldOutLevels": "true", "mixerSeed": str(0x600D5EED)},
        ),
        (
            "rooms_collect_good_objects_test",
            False,
            "contributed/dmlab30/rooms_collect_good_objects_test",
            {"allowHoldOutLevels": "true"},
        ),
    ],
)
def test_levels_and_tests_are_told_as_in_the_authors_code(
    told: list[dict[str, Any]], task: str, test_seeds: bool, level: str, settings: dict[str, str]
) -> None:
    registry.make(f"dmlab/{task}", 2, 1, test_seeds=test_seeds).close()
    assert told == 2 * [
        {
            "level": level,
            "observations": ["RGB_INTERLEAVED", "INSTR"],
            "config": SIZE | settings,
            "renderer": "software",
            "level_cache": None,
        }
    ]


def test_a_test_plays_other_episodes_than_training(simulator: ModuleType) -> None:
    train_step, test_step = playing(SILENT, 1, 0)[0], playing(SILENT, 1, 0, test_seeds=True)[0]
    assert not np.array_equal(train_step.observation, test_step.observation)


@pytest.mark.parametrize("task", ["psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition"])
def test_levels_that_show_pictures_say_where_they_are_looked_for(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str
) -> None:
    monkeypatch.delenv(dmlab.DATASET_VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"shows pictures of a data set: DDRL_DMLAB_DATASET is not set, see docs/dmlab"):
        registry.make(f"dmlab/{task}", 1, 1)
    monkeypatch.setenv(dmlab.DATASET_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"no folder '.*nowhere', see docs/dmlab\.md"):
        registry.make(f"dmlab/{task}", 1, 1)
    monkeypatch.setenv(dmlab.DATASET_VARIABLE, str(tmp_path))
    registry.make(f"dmlab/{task}", 1, 1).reset()
    assert told[-1]["config"] == SIZE | {"datasetPath": str(tmp_path)}


def test_a_module_that_cannot_be_imported_says_why(simulator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    monkeypatch.setattr(dmlab, "missing", lambda: "")
    with pytest.raises(UserError, match=r"cannot be imported \(import of deepmind_lab .*\), see docs/dmlab"):
        registry.make(SILENT, 1, 1)


def in_another_thread(function: Any) -> list[BaseException]:
    """What `function` raises there."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except UserError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def test_rendered_in_hardware_it_stays_with_its_thread(simulator: ModuleType) -> None:
    hardware, software = (registry.make(SILENT, 1, 1, renderer=name) for name in ("hardware", "software"))
    for env in (hardware, software):
        env.reset()
    (error,) = in_another_thread(lambda: hardware.step(np.array([0])))
    assert "renderer: hardware is not allowed where another thread" in str(error)
    assert in_another_thread(lambda: software.step(np.array([0]))) == []


def test_the_stand_in_is_gone_where_no_test_asks_for_it() -> None:
    assert "standins" not in str(sys.modules.get("deepmind_lab"))
    assert str(STANDIN) not in sys.path


# The level cache.


def test_a_map_is_compiled_once(
    simulator: ModuleType, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DDRL_DMLAB_CACHE", str(tmp_path / "cache"))
    plain = playing(MAZE, 1, 80)
    maps = []
    for _ in range(2):
        cached = playing(MAZE, 1, 80, level_cache=True)
        maps.append({path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*") if path.is_file()})
        for mine, its in zip(cached, plain, strict=True):
            np.testing.assert_array_equal(mine.observation, its.observation)
    episodes = sum(bool(step.start[0]) for step in plain)
    assert len(maps[0]) == episodes > 1
    assert maps[0] == maps[1], "the second time all were fetched, and nothing was written"
    assert isinstance(told[-1]["level_cache"], LevelCache)


def test_the_cache_is_where_the_variable_or_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("DDRL_DMLAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/somebody/.cache/ddrl/dmlab")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert cache_folder() == Path("/scratch/ddrl/dmlab")
    monkeypatch.setenv("DDRL_DMLAB_CACHE", "/fast/maps")
    assert cache_folder() == Path("/fast/maps")


def test_a_key_is_no_path(tmp_path: Path) -> None:
    cache, source = LevelCache(tmp_path / "cache"), tmp_path / "map"
    source.write_bytes(b"map")
    cache.write("../../outside/é", str(source))
    target = tmp_path / "target"
    assert cache.fetch("../../outside/é", str(target))
    assert target.read_bytes() == b"map"
    assert not cache.fetch("another", str(target))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "map", "target"]


def test_a_map_that_cannot_be_kept_costs_a_warning_and_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = LevelCache(tmp_path / "cache")
    with caplog.at_level(logging.WARNING):
        cache.write("key", str(tmp_path / "no such map"))
    assert "could not keep a map" in caplog.text
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert not cache.fetch("key", str(tmp_path / "target"))


# Pictures and learning.


def test_the_camera_shows_the_image_in_colour(simulator: ModuleType) -> None:
    options = registry.resolve_options(SILENT, {})
    camera = camera_for(SILENT, 1, options)
    (seen,) = playing(SILENT, 1, 0)
    picture = camera.reset(seen)
    assert picture.shape == (1, 72, 96, 3)
    np.testing.assert_array_equal(picture[0].transpose(2, 0, 1).reshape(-1), seen.observation[0, :-32])
    assert camera.frames_per_second == 15
    assert len(camera.actions) == 9


@pytest.mark.parametrize("algorithm", ["impala", "r2d2"])
def test_agents_with_a_language_channel_learn_from_it(simulator: ModuleType, algorithm: str, tmp_path: Path) -> None:
    keys = small(algorithm) | {"network": "shallow", "lstm_size": 8, "feed_last_action_and_reward": True}
    keys |= {"batch_size": 4, "reward_clipping": "optimistic_asymmetric"}
    topology = BASE["topology"] | {"envs_per_actor": 2}
    changes = {"algorithm": algorithm, "environment": {"name": SPOKEN}, "env_frames": 800, "topology": topology}
    if algorithm == "impala":
        keys["optimizer"] = BASE["hyperparameters"]["optimizer"]
    evaluation = {"episodes": 1, "final_episodes": 1}
    parsed = run_config.parse_run_config(BASE | changes | {"hyperparameters": keys, "evaluation": evaluation})
    train(parsed, tmp_path, quiet=True)
    assert (tmp_path / "curves.parquet").exists()


# The stand-in is as strict as the simulator.


def lab(simulator: ModuleType, level: str = "seekavoid_arena_01", **keys: Any) -> Any:
    return simulator.Lab(level, ["RGB_INTERLEAVED"], **keys)


@pytest.mark.parametrize(
    ("error", "misuse"),
    [
        (TypeError, lambda module: module.Lab("lt_chasm", ("RGB_INTERLEAVED",))),
        (TypeError, lambda module: module.Lab("lt_chasm", None)),
        (TypeError, lambda module: lab(module, config=["width"])),
        (TypeError, lambda module: lab(module, config={"width": 96})),
        (TypeError, lambda module: lab(module, renderer=None)),
        (ValueError, lambda module: module.Lab("lt_chasm", ["PIXELS"])),
        (RuntimeError, lambda module: lab(module, "no_such_level")),
        (RuntimeError, lambda module: lab(module, "contributed/dmlab30/rooms_collect_good_objects_test")),
        (RuntimeError, lambda module: lab(module, config={"width": "97"})),
        (RuntimeError, lambda module: lab(module, config={"mixerSeed": str(2**32)})),
        (RuntimeError, lambda module: lab(module, config={"colour": "red"})),
        (RuntimeError, lambda module: lab(module, renderer="egl")),
        (RuntimeError, lambda module: lab(module).observations()),
        (RuntimeError, lambda module: lab(module).step(NOOP)),
        (RuntimeError, lambda module: lab(module).events()),
        (ValueError, lambda module: lab(module).reset(seed=np.int64(3))),
        (OverflowError, lambda module: lab(module).reset(seed=2**31)),
        (AttributeError, lambda module: lab(module).fps()),
    ],
)
def test_the_stand_in_refuses_what_the_simulator_does(
    simulator: ModuleType, error: type[Exception], misuse: Any
) -> None:
    with pytest.raises(error):
        misuse(simulator)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (TypeError, [0] * 7),
        (ValueError, np.zeros(7, dtype=np.int64)),
        (ValueError, np.zeros(7, dtype=np.float32)),
        (ValueError, np.zeros(6, dtype=np.intc)),
        (ValueError, np.zeros((1, 7), dtype=np.intc)),
        (ValueError, np.zeros(14, dtype=np.intc)[::2]),
        (ValueError, np.array([513, 0, 0, 0, 0, 0, 0], dtype=np.intc)),
    ],
)
def test_the_stand_in_refuses_actions_as_the_simulator_does(
    simulator: ModuleType, error: type[Exception], action: Any
) -> None:
    made = lab(simulator)
    made.reset(seed=1)
    with pytest.raises(error):
        made.step(action)


def test_the_stand_in_shows_nothing_once_an_episode_is_over_or_it_is_closed(simulator: ModuleType) -> None:
    made = lab(simulator)
    made.reset(seed=1)
    while made.is_running():
        made.step(NOOP, num_steps=4)
    for wrong in (made.observations, lambda: made.step(NOOP)):
        with pytest.raises(RuntimeError, match="wrong status"):
            wrong()
    made.reset(seed=1)
    assert (made.num_steps(), made.is_running()) == (0, True)
    assert made.close()
    assert not made.close()
    assert not made.is_running()
    with pytest.raises(RuntimeError, match="wrong status"):
        made.observations()
