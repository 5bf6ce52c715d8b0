"""The 30 first-person tasks: one interface, what is seen and paid, ends, threads, processes, and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ddrl.environments import firstperson
from ddrl.environments.base import registry
from ddrl.environments.firstperson import ACTIONS, SUITES, TASKS
from ddrl.environments.tools.camera import camera_for
from ddrl.environments.tools.check import check_environment
from ddrl.environments.worlds import miniworld_drawing
from ddrl.environments.worlds.firstperson_tasks import ALL
from ddrl.errors import UserError
from ddrl.papers.published import reference_scores
from ddrl.system.instruction_words import hashed, image_of
from ddrl.types import Array
from tests.environments.firstperson_oracles import returns
from tests.runs import config, local_run

REFERENCES = Path("replications/references/firstperson.csv")
SOME = {"vizdoom_basic", "vizdoom_my_way_home", "vizdoom_take_cover", "vizdoom_freedoom2_map01"} | {
    *("miniworld_sign", "miniworld_pickup_objects", "miniworld_put_next", "miniworld_maze_s3")
}
EVERY_TASK = pytest.mark.parametrize(
    "task", [pytest.param(name, marks=[] if name in SOME else pytest.mark.system) for name in TASKS]
)
FORWARD, BACKWARD, LEFT, RIGHT, FORWARD_LEFT, FIRE = 0, 1, 4, 5, 6, 8


def made(task: str, seed: int = 1, num_envs: int = 1, **options: Any) -> Any:
    """Environments that are closed with the block."""
    return closing(registry.make(f"firstperson/{task}", num_envs, seed, **options))


def seen(task: str, seed: int, actions: list[int]) -> list[bytes]:
    """What one environment shows, and its rewards, from a reset."""
    with made(task, seed) as env:
        steps = [env.reset(), *(env.step(np.array([action])) for action in actions)]
    return [step.observation.tobytes() + step.reward.tobytes() for step in steps]


def words(observation: Array) -> Array:
    """Of a packed observation."""
    return np.ascontiguousarray(observation[-32:]).view("<u2")


def test_thirty_tasks_share_one_interface() -> None:
    specs = [registry.spec_for(f"firstperson/{task}") for task in TASKS]
    assert len(TASKS) == len(set(TASKS)) == 30
    (shared,) = {(s.observation_shape, s.observation_dtype, s.num_actions, s.frame_skip, s.image_shape) for s in specs}
    assert shared == ((3 * 72 * 96 + 32,), "uint8", 9, 4, (3, 72, 96))
    assert len({spec.protocol for spec in specs}) == 30


def test_every_task_is_in_all30_and_in_one_other_suite() -> None:
    assert SUITES["all30"] == TASKS
    others = [task for suite, tasks in SUITES.items() if suite != "all30" for task in tasks]
    assert sorted(others) == sorted(TASKS)
    assert set(SUITES) == {"all30", "navigation", "collection", "memory", "combat", "language"}


def test_the_protocol_id_names_what_changes_scores() -> None:
    doom = registry.spec_for("firstperson/vizdoom_freedoom2_map01", max_frames=400).protocol
    assert doom.startswith(f"vizdoom-{importlib.metadata.version('vizdoom')}/freedoom2:MAP01;skip4,rgb96x72,")
    assert doom.endswith("impala-nine-actions,scenario-buttons;cap400;autoreset-next-step;raw-rewards,kill+1")
    rooms = registry.spec_for("firstperson/miniworld_hallway").protocol
    assert rooms.startswith(f"miniworld-{importlib.metadata.version('miniworld')}+pyglet-")
    assert ";impala-nine-actions,forward0.15m,turn5deg,fire-picks-up-or-drops;cap500;" in rooms


@pytest.mark.parametrize("task", ["vizdoom_predict_position", "miniworld_one_room"])
def test_the_limit_is_the_tasks_own_or_the_option(task: str) -> None:
    with made(task, max_frames=8) as env:
        env.reset()
        steps = [env.step(np.array([2])) for _ in range(2)]
    ends = [(bool(step.terminated[0]), bool(step.truncated[0])) for step in steps]
    assert ends == [(False, False), (False, True)]
    with pytest.raises(UserError, match=r"environment.max_frames: 10 .*; allowed: multiples of 4"):
        registry.spec_for(f"firstperson/{task}", max_frames=10)


def test_death_terminates_and_shows_again_what_was_seen_last() -> None:
    with made("vizdoom_take_cover") as env:
        before = env.reset()
        step = env.step(np.array([2]))
        while not step.ended[0]:
            before, step = step, env.step(np.array([2]))
    assert step.terminated[0] and not step.truncated[0]
    np.testing.assert_array_equal(step.observation, before.observation)


def test_a_button_that_a_scenario_does_not_give_does_nothing() -> None:
    """The basic scenario gives two strafes and the trigger: the other actions are one and the same."""
    ignored = [action for action, name in enumerate(ACTIONS) if "strafe" not in name and name != "fire"]
    assert len({tuple(seen("vizdoom_basic", 3, [action] * 3)) for action in ignored}) == 1
    given = [action for action in range(9) if action not in ignored]
    assert len({tuple(seen("vizdoom_basic", 3, [action] * 3)) for action in [0, *given]}) == 4


def test_miniworlds_looks_turn_by_20_degrees_and_forward_walks_0_6_metres_in_a_step() -> None:
    with made("miniworld_one_room", 4) as env:
        env.reset()
        agent = env.simulations[0].env.agent
        direction, place = agent.dir, agent.pos.copy()
        env.step(np.array([LEFT]))
        assert np.degrees(agent.dir - direction) == pytest.approx(20)
        env.step(np.array([RIGHT]))
        env.step(np.array([BACKWARD]))
        env.step(np.array([FIRE]))
        assert agent.dir == pytest.approx(direction)
        np.testing.assert_allclose(agent.pos, place)  # the task itself has neither backward nor fire
        walked = [np.linalg.norm(agent.pos - place) for _ in range(2) if env.step(np.array([FORWARD])) is not None]
        assert 0.6 - 1e-9 <= walked[-1] <= 1.2 + 1e-9
        env.step(np.array([FORWARD_LEFT]))
        assert np.degrees(agent.dir - direction) == pytest.approx(20)


def test_fire_picks_up_and_then_puts_down_again() -> None:
    with made("miniworld_put_next", 2) as env:
        env.reset()
        world = env.simulations[0].env
        world.agent.pos = world.red_box.pos - np.array([1.2, 0, 0])
        world.agent.dir = 0.0
        env.step(np.array([FIRE]))
        assert world.agent.carrying is world.red_box
        env.step(np.array([FIRE]))
        assert world.agent.carrying is None


def test_the_instruction_is_empty_but_for_sign_whose_goal_and_colour_vary() -> None:
    with made("miniworld_sign", 1, max_frames=4) as env:
        goals, steps = set(), [env.reset()]
        for _ in range(40):
            world = env.simulations[0].env
            goals.add((world._color_index, world._goal))
            np.testing.assert_array_equal(
                words(steps[-1].observation[0]), hashed(f"go to the {('box', 'key')[world._goal]}")
            )
            env.step(np.array([LEFT]))
            steps.append(env.step(np.array([LEFT])))
    assert goals == {(colour, goal) for colour in range(3) for goal in range(2)}
    for task in ("vizdoom_basic", "miniworld_put_next"):
        with made(task) as env:
            assert not words(env.reset().observation[0]).any()


@pytest.mark.parametrize("task", ["miniworld_wall_gap", "miniworld_sign", "miniworld_pickup_objects"])
def test_pictures_are_those_that_miniworld_draws(task: str) -> None:
    """But for edges: its own frame buffer has four samples a pixel here, ours one."""
    from miniworld.opengl import FrameBuffer

    with made(task, 7) as env:
        observation = env.reset()
        world = env.simulations[0].env
        with miniworld_drawing.current() as canvas:
            world.shadow_window = canvas.window
            type(world)._render_static(world)
            theirs = type(world).render_obs(world, FrameBuffer(96, 72, 1))
            theirs = theirs["obs"] if isinstance(theirs, dict) else theirs
    ours = image_of(observation.observation, env.spec)[0].transpose(1, 2, 0)
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    assert ours.std() > 10
    assert np.mean(difference > 16) < 0.05
    assert np.median(difference) == 0


def test_two_environments_of_a_process_show_their_own_walls() -> None:
    """MiniWorld's own would not: they share the display list that holds the walls."""
    alone = seen("miniworld_maze_s3", 5, [LEFT] * 4)
    with made("miniworld_maze_s3", 5) as first, made("miniworld_wall_gap", 6) as second:
        steps = [first.reset(), second.reset()][:1]
        for _ in range(4):
            second.step(np.array([RIGHT]))
            steps.append(first.step(np.array([LEFT])))
    assert [step.observation.tobytes() + step.reward.tobytes() for step in steps] == alone


@pytest.mark.parametrize("task", ["miniworld_pickup_objects", "vizdoom_my_way_home"])
def test_threads_may_step_what_the_main_thread_made(task: str) -> None:
    actions = np.random.default_rng(1).integers(0, 9, 60).tolist()
    alone = [seen(task, seed, actions) for seed in (1, 2)]
    together: dict[int, list[bytes]] = {}
    with made(task, 1) as first, made(task, 2) as second:

        def play(env: Any, seed: int) -> None:
            steps = [env.reset(), *(env.step(np.array([action])) for action in actions)]
            together[seed] = [step.observation.tobytes() + step.reward.tobytes() for step in steps]

        threads = [threading.Thread(target=play, args=pair) for pair in ((first, 1), (second, 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [together[1], together[2]] == alone


@pytest.mark.parametrize("task", ["vizdoom_deadly_corridor", "vizdoom_freedoom2_map02", "miniworld_pickup_objects"])
def test_an_episode_does_not_depend_on_those_before_it(task: str) -> None:
    """ViZDoom's weapon would: the engine keeps how far it bobs."""
    generator = np.random.default_rng(1)
    with made(task) as fresh, made(task) as used:
        for seed in range(12):
            for _ in range(1 + seed % 3):
                used.simulations[0].reset(seed + 50)
                ended = False
                for action in generator.integers(0, 9, 12):
                    ended = ended or used.simulations[0].step(action)[2]
            pairs = [(fresh.simulations[0].reset(seed), used.simulations[0].reset(seed))]
            over = False
            for action in generator.integers(0, 9, 20):
                if not over:
                    steps = [env.simulations[0].step(action) for env in (fresh, used)]
                    assert steps[0][1:] == steps[1][1:]
                    pairs.append((steps[0][0], steps[1][0]))
                    over = steps[0][2]
            assert all((first == second).all() for first, second in pairs)


PLAY_ON = """
import sys, torch, numpy as np
from ddrl.environments.base import registry
env = registry.make(sys.argv[1], 2, 5)
env.load_state_dict(torch.load(sys.argv[2], weights_only=True))
for action in range(9):
    step = env.step(np.array([action, action]))
    sys.stdout.write(step.observation.tobytes().hex()[:4000] + step.reward.tobytes().hex() + "\\n")
env.close()
"""


@pytest.mark.parametrize("task", ["miniworld_sign", "vizdoom_freedoom1_e1m1"])
def test_a_fresh_process_continues_a_state_with_the_same_bits(task: str, tmp_path: Path) -> None:
    import torch

    with made(task, 5, 2) as env:
        env.reset()
        for action in (0, 4, 8, 6, 0, 8):
            env.step(np.array([action, action]))
        torch.save(env.state_dict(), tmp_path / "state.pt")
        steps = [env.step(np.array([action, action])) for action in range(9)]
    expected = [step.observation.tobytes().hex()[:4000] + step.reward.tobytes().hex() for step in steps]
    command = [sys.executable, "-c", PLAY_ON, f"firstperson/{task}", str(tmp_path / "state.pt")]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=os.environ | {"PYTHONPATH": "."}
    )
    assert run.stdout.split() == expected


def engines() -> set[int]:
    """Processes of ViZDoom that this one started."""
    return {child.pid for child in psutil.Process().children(recursive=True) if child.name() == "vizdoom"}


def test_closing_ends_the_games_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = engines()
    with made("vizdoom_basic", 1, 3) as env:
        env.reset()
        env.step(np.array([8, 8, 8]))
        assert len(engines() - before) == 3
        folders = [Path(world._folder.name) for world in env.simulations]
        assert all(folder.exists() for folder in folders)
    assert engines() == before
    assert not any(folder.exists() for folder in folders)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_over_has_no_games_left(tmp_path: Path) -> None:
    """Else they would go on through the final evaluation, and complain at the end of a folder that is gone."""
    before = engines()
    over = local_run(config(environment={"name": "firstperson/vizdoom_basic"}, env_frames=400), tmp_path, quiet=True)
    assert len(engines() - before) == 8
    assert over.train() == "budget_reached"
    assert engines() == before


KILLED = """
import os, signal, psutil
from ddrl.environments.base import registry
env = registry.make("firstperson/vizdoom_basic", 1, 5)
(game,) = psutil.Process().children()
os.write(1, f"{game.pid}\\n".encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_game_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with open(tmp_path / "pid", "wb") as file:  # a pipe would stay open as long as the game
        subprocess.run(
            [sys.executable, "-c", KILLED],
            stdout=file,
            timeout=60,
            env=os.environ | {"PYTHONPATH": ".", "TMPDIR": str(tmp_path)},
        )
    pid = int((tmp_path / "pid").read_text())
    with suppress(psutil.NoSuchProcess):
        psutil.wait_procs([psutil.Process(pid)], timeout=10)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("package", "lost", "kept"),
    [("vizdoom", "vizdoom_basic", "miniworld_hallway"), ("miniworld", "miniworld_hallway", "vizdoom_basic")],
)
def test_a_missing_package_is_one_line_and_the_other_family_still_works(
    package: str, lost: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_version, real_spec = importlib.metadata.version, importlib.util.find_spec

    def hidden(name: str) -> str:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return real_version(name)

    monkeypatch.setattr(firstperson, "version", hidden)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real_spec(name))
    for ask in (registry.spec_for, lambda name: registry.make(name, 1, 1)):
        with pytest.raises(
            UserError, match=f"^environment 'firstperson/{lost}': the package '{package}' is not installed$"
        ):
            ask(f"firstperson/{lost}")
    assert firstperson.missing_packages(package) == (package,)  # type: ignore[arg-type]
    with made(kept) as env:
        assert env.reset().start.all()


NO_LIBRARY = """
import ctypes, ctypes.util
real = ctypes.CDLL.__init__
def load(self, name, *arguments, **options):
    if name and "EGL" in str(name):
        raise OSError(f"{name}: cannot open shared object file")
    real(self, name, *arguments, **options)
ctypes.CDLL.__init__ = load
find = ctypes.util.find_library
ctypes.util.find_library = lambda name: None if name == "EGL" else find(name)
from ddrl.environments.base import registry
from ddrl.errors import UserError
try:
    registry.make("firstperson/miniworld_hallway", 1, 1)
except UserError as error:
    print(error)
"""


def test_a_missing_graphics_library_is_one_line_that_names_debians_packages() -> None:
    command = [sys.executable, "-c", NO_LIBRARY]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=os.environ | {"PYTHONPATH": "."}
    )
    (line,) = run.stdout.splitlines()
    assert "EGL" in line
    assert line.endswith("apt install libegl1 libgl1 libglu1-mesa libgl1-mesa-dri")


def test_the_camera_shows_the_image_in_colour() -> None:
    camera = camera_for("firstperson/miniworld_wall_gap", 3, {})
    with made("miniworld_wall_gap", 3) as env:
        step = env.reset()
        picture = camera.reset(step)
        image = image_of(step.observation, env.spec)[0]
    scale = picture.shape[1] // 72
    assert picture.shape == (1, 72 * scale, 96 * scale, 3)
    np.testing.assert_array_equal(picture[0, ::scale, ::scale], image.transpose(1, 2, 0))


def test_what_is_paid_for_every_frame_is_scaled_and_the_protocol_says_so() -> None:
    scaled = {task.name for task in ALL if task.reward_scale != 1.0}
    protocols = {name: registry.spec_for(f"firstperson/{name}").protocol for name in TASKS}
    assert scaled == {name for name, protocol in protocols.items() if protocol.endswith("rewards-times-0.01")}
    assert len(scaled) == 6
    with made("vizdoom_take_cover", 1) as env:
        env.reset()
        assert env.step(np.array([1])).reward[0] == pytest.approx(0.04)  # +1 for each of four frames


def test_every_task_has_a_reference_score_above_random_play() -> None:
    table = reference_scores(REFERENCES, ["oracle_best"]).set_index("task")
    assert set(table.index) == set(TASKS)
    assert (table["human"] > table["random"]).all()
    assert set(table["made_by"]) == {"best_of_40_oracle_episodes"}


@pytest.mark.slow
@EVERY_TASK
def test_every_task_conforms(task: str) -> None:
    check_environment(f"firstperson/{task}", steps=40, max_frames=80)


@pytest.mark.slow
@EVERY_TASK
def test_every_tasks_reward_can_be_had_with_the_nine_actions(task: str) -> None:
    random = reference_scores(REFERENCES, ["oracle_best"]).set_index("task")["random"]
    with closing(returns(f"firstperson/{task}")) as episodes:
        assert any(found > random[task] for found in itertools.islice(episodes, 40))
