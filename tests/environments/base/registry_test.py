"""Names, options and their errors."""

import csv
from pathlib import Path

import pytest

from ddrl.environments.atari import TASKS
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.training.records import task_scores


def test_every_adapter_of_the_package_is_found():
    files = Path(registry.__file__).parents[1].glob("[a-z]*.py")
    assert registry.prefixes() == tuple(sorted(path.stem for path in files)) != ()
    assert {"atari", "dm_control", "dmlab", "firstperson", "minigrid", "mujoco", "toy"} <= set(registry.prefixes())


def test_every_adapter_has_examples_among_its_tasks():
    for prefix in registry.prefixes():
        adapter = registry.adapter(prefix)
        assert adapter.examples or adapter.missing()
        assert set(adapter.examples) <= set(adapter.tasks)
        assert all(task in adapter.options for task in adapter.tasks)


def test_the_literature_has_57_games_and_all_can_be_made():
    with (task_scores.FOLDER / "atari57.csv").open(newline="") as file:
        games = {row["task"] for row in csv.DictReader(file)}
    assert len(games) == 57
    assert games <= set(TASKS)


def test_the_defaults_are_the_protocol_of_impala():
    assert registry.resolve_options("atari/pong", {}) == {
        "frame_skip": 4,
        "frame_stack": 4,
        "sticky_actions": 0.0,
        "full_action_space": False,
        "noop_max": 30,
        "life_loss_terminates": True,
        "life_loss_resets": True,
        "max_frames": 108_000,
        "fire_reset": False,
        "image_size": 84,
    }


def test_the_spec_is_known_without_making_the_environment():
    env = registry.make("toy/catch", 1, 1, rows=6)
    assert registry.spec_for("toy/catch", rows=6) == env.spec
    assert env.spec != registry.spec_for("toy/catch")


def test_the_protocol_id_tells_every_option():
    assert registry.spec_for("atari/pong").protocol.endswith(
        "/pong;skip4,max2,gray84x84,stack4;noop1-30;sticky0;minimal-actions;life-loss-terminal;cap108k;"
        "autoreset-next-step;raw-rewards"
    )
    changed = {
        "frame_skip": 2,
        "frame_stack": 3,
        "sticky_actions": 0.25,
        "full_action_space": True,
        "noop_max": 0,
        "life_loss_terminates": False,
        "life_loss_resets": False,
        "max_frames": 1234,
        "fire_reset": True,
        "image_size": 42,
    }
    protocols = {registry.spec_for("atari/pong", **{key: value}).protocol for key, value in changed.items()}
    assert set(changed) == set(registry.resolve_options("atari/pong", {}))
    assert len(protocols | {registry.spec_for("atari/pong").protocol}) == 1 + len(changed)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pong", {}, "environment.name: 'pong' is not of the form prefix/task; allowed prefixes: atari"),
        ("atary/pong", {}, "unknown environment prefix 'atary' (did you mean 'atari'?); allowed: atari, "),
        ("registry/pong", {}, "unknown environment prefix 'registry'"),
        ("atari/pongg", {}, "unknown task of atari 'pongg' (did you mean 'pong'?); allowed: adventure, "),
        ("atari/combat", {}, "unknown task of atari 'combat'"),
        ("atari/pong", {"frameskip": 4}, "unknown option of atari/pong 'frameskip' (did you mean 'frame_skip'?)"),
        ("atari/pong", {"frame_skip": 0}, "environment.frame_skip: 0 is not allowed for atari/pong; allowed: integers"),
        ("atari/pong", {"frame_skip": 4.0}, "environment.frame_skip: 4.0 is not allowed"),
        ("atari/pong", {"frame_skip": True}, "environment.frame_skip: True is not allowed"),
        ("atari/pong", {"image_size": 96}, "environment.image_size: 96 is not allowed"),
        ("mujoco/HalfCheetah-v4", {}, "unknown task of mujoco 'HalfCheetah-v4' (did you mean 'HalfCheetah-v5'?)"),
        ("dm_control/cheetah", {}, "unknown task of dm_control 'cheetah'"),
        ("mujoco/Hopper-v5", {"max_steps": 0}, "environment.max_steps: 0 is not allowed for mujoco/Hopper-v5"),
        ("mujoco/Reacher-v5", {"contact_forces": True}, "unknown option of mujoco/Reacher-v5 'contact_forces'"),
        ("atari/pong", {"sticky_actions": 1.5}, "allowed: numbers from 0.0 to 1.0"),
        ("atari/pong", {"sticky_actions": float("nan")}, "environment.sticky_actions: nan is not allowed"),
        ("atari/pong", {"fire_reset": 1}, "allowed: true, false"),
        ("toy/chain", {"rows": 3}, "unknown option of toy/chain 'rows'; allowed: length, limit"),
    ],
)
def test_a_wrong_name_or_option_is_one_line_with_what_is_allowed(name, options, message):
    with pytest.raises(UserError) as error:
        registry.make(name, 1, 1, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_whole_number_is_a_number():
    assert registry.resolve_options("atari/pong", {"sticky_actions": 0})["sticky_actions"] == 0.0


@pytest.mark.parametrize(
    ("name", "options", "given", "refused"),
    [
        (
            "pointnav/small",
            {"step_spread": 0.5},
            {"step_spread": 0.5},
            "step_spread: 0.5 would not be read with step_ms: 0.0",
        ),
        ("pointnav/small", {"step_spread": 0.5, "step_ms": 0.0}, {"step_ms": 0.0}, None),
        ("pointnav/small", {"step_spread": 0.5, "step_ms": 1}, {"step_spread": 0.5}, None),
        ("pointnav/small", {"step_spread": 0.0}, {"step_spread": 0.0}, None),
        (
            "terrain/gaps",
            {"obstacles": False, "difficulty": 0.5},
            {"difficulty": 0.5},
            "difficulty: 0.5 would not be read with obstacles: false",
        ),
        ("terrain/gaps", {"difficulty": 0.5}, {"difficulty": 0.5}, None),
    ],
)
def test_an_option_that_another_one_makes_idle_is_refused_where_it_is_given(name, options, given, refused):
    if refused is None:
        registry.check_read(name, options, given=given)
        return
    with pytest.raises(UserError, match=f"^evaluation.environment.{refused}; allowed otherwise: [01].0$"):
        registry.check_read(name, options, given=given, where="evaluation.environment")
