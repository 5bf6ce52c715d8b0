"""Any environment of gymnasium: ids, the user's own modules, spaces, images, limits, resumes and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from ddrl.api.launch import train
from ddrl.environments import gymnasium as adapter
from ddrl.environments.base import registry
from ddrl.environments.tools.camera import camera_for
from ddrl.environments.tools.check import check_environment
from ddrl.errors import UserError
from ddrl.training.run import Run
from tests.runs import config, curves

OWN = """
import gymnasium, numpy as np
from gymnasium import spaces

class Count(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = spaces.Dict(count=spaces.Discrete(9), noise=spaces.Box(-1, 1, (2,)))
    action_space = spaces.MultiDiscrete([2, 3])
    def __init__(self, render_mode=None, own_limit=5, forgets=False):
        self.render_mode, self.own_limit, self.forgets = render_mode, own_limit, forgets
    def _seen(self):
        noise = np.random.uniform(-1, 1, 2) if self.forgets else self.np_random.uniform(-1, 1, 2)
        return {"count": self.count, "noise": noise.astype(np.float32)}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}
    def step(self, action):
        self.count += 1
        return self._seen(), float(action[1]), bool(action[0]) and self.count > 2, self.count >= self.own_limit, {}
    def render(self):
        return np.full((16, 24, 3), 10 * self.count, dtype=np.uint8)

gymnasium.register("Count-v0", Count)
gymnasium.register("Count-v1", Count, max_episode_steps=3)
gymnasium.register("Forgets-v0", Count, kwargs={"forgets": True})
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's own, which registers environments."""
    (tmp_path / "counting_games.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "counting_games"
    for name in ("Count-v0", "Count-v1", "Forgets-v0"):
        gymnasium.registry.pop(name, None)
    sys.modules.pop("counting_games", None)
    adapter._entry.cache_clear()
    adapter._facts.cache_clear()


def made(task: str, num_envs: int = 1, seed: int = 1, **options: Any) -> Any:
    return closing(registry.make(f"gymnasium/{task}", num_envs, seed, **options))


def test_tasks_are_the_newest_versions_that_are_registered() -> None:
    assert {"CartPole-v1", "Pendulum-v1", "ALE/Pong-v5", "HalfCheetah-v5", "Taxi-v4"} <= set(adapter.TASKS)
    assert not {"CartPole-v0", "HalfCheetah-v4", "Pong-v0"} & set(adapter.TASKS)
    assert registry.spec_for("gymnasium/CartPole-v0").num_actions == 2  # an older one can be named all the same


@pytest.mark.parametrize(
    ("task", "actions"),
    [("LunarLander-v3", (4, 0)), ("LunarLanderContinuous-v3", (0, 2)), ("BipedalWalker-v3", (0, 4))],
)
def test_tasks_of_box2d_are_there(task: str, actions: tuple[int, int]) -> None:
    spec = registry.spec_for(f"gymnasium/{task}")
    assert (spec.num_actions, spec.action_size) == actions
    with made(task, num_envs=2) as env:
        env.reset()
        step = env.step(np.zeros((2, actions[1]), dtype=np.float32) if actions[1] else np.zeros(2, dtype=np.int64))
        assert step.observation.shape == (2, *spec.observation_shape)


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown task of gymnasium 'CartPol-v1' \(did you mean 'CartPole-v1'\?\)"):
        registry.spec_for("gymnasium/CartPol-v1")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("no_such_module:Task-v0", "there is no module 'no_such_module' in Python's path; install its package"),
        ("LunarLander-v3", "cannot be made here: Box2D is not installed"),
        ("phys2d/CartPole-v1", "cannot be made here: No module named 'jax'"),
    ],
)
def test_what_cannot_be_made_is_one_line(task: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    adapter._facts.cache_clear()
    with pytest.raises(UserError, match=f"^environment 'gymnasium/{task}': {says}"):
        registry.spec_for(f"gymnasium/{task}")


BROKEN = """
import gymnasium
from gymnasium import spaces

class Level(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)
    def __init__(self, level, render_mode=None):
        pass

class NoFile(gymnasium.Env):
    def __init__(self, render_mode=None):
        open("/no/such/map.txt")

class Spaceless(gymnasium.Env):
    pass

for one in (Level, NoFile, Spaceless):
    gymnasium.register(f"{one.__name__}-v0", one)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module of the user's own and return its name."""
    name, known = f"own_{tmp_path.name}", set(gymnasium.registry)

    def write(source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        return name

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for registered in set(gymnasium.registry) - known:
        gymnasium.registry.pop(registered)
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def broken(:\n", "the module '{}' cannot be imported: SyntaxError: invalid syntax"),
        ("1 / 0\n", "the module '{}' cannot be imported: ZeroDivisionError: division by zero"),
        ("import not_there\n", "the module '{}' cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit('no display')\n", "the module '{}' cannot be imported: SystemExit: no display"),
        (
            "",
            "the module '{}' was imported but registers no 'Task-v0' (it registers nothing); allowed: an id for which",
        ),
        (
            BROKEN,
            "the module '{}' was imported but registers no 'Task-v0' (its ids: Level-v0, NoFile-v0, Spaceless-v0)",
        ),
    ],
)
def test_a_faulty_module_of_the_users_own_is_one_line(source: str, says: str, module: Callable[[str], str]) -> None:
    name = module(source)
    with pytest.raises(UserError) as raised:
        registry.spec_for(f"gymnasium/{name}:Task-v0")
    said = str(raised.value)
    assert said.startswith(f"environment 'gymnasium/{name}:Task-v0': {says.format(name)}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (
            "Level-v0",
            "cannot be made here: TypeError: Level.__init__() missing 1 required positional argument: 'level'",
        ),
        (
            "NoFile-v0",
            "cannot be made here: FileNotFoundError: [Errno 2] No such file or directory: '/no/such/map.txt'",
        ),
        ("Spaceless-v0", "has no observation_space or no action_space"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_line(task: str, says: str, module: Callable[[str], str]) -> None:
    name = module(BROKEN)
    with pytest.raises(UserError) as raised:
        registry.spec_for(f"gymnasium/{name}:{task}")
    assert f"environment 'gymnasium/{name}:{task}': {says}" in str(raised.value)


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("spaces.Box(0, 1, (40, 50, 3))", "images ((40, 50, 3) float32); they are flattened to 6,000 numbers"),
        ("spaces.Box(0, 255, (4, 40, 50, 3), np.uint8)", "images ((4, 40, 50, 3) uint8); they are flattened to 24,000"),
        ("spaces.Dict(a=spaces.Box(0, 1, (20, 20)))", "images ((20, 20) float32); they are flattened to 400 numbers"),
        ("spaces.Box(0, 255, (40, 50, 3), np.uint8)", ""),
        ("spaces.Box(0, 1, (100,))", ""),
    ],
)
def test_images_that_are_flattened_are_told_once(
    space: str, says: str, module: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    source = "import gymnasium, numpy as np\nfrom gymnasium import spaces\nclass Seen(gymnasium.Env):\n"
    source += f"    observation_space, action_space = {space}, spaces.Discrete(2)\n"
    name = module(source + "gymnasium.register('Seen-v0', Seen)\n")
    for _ in range(2):
        registry.spec_for(f"gymnasium/{name}:Seen-v0")
    said = capsys.readouterr().err
    assert said.count("Convolutions take images of uint8") == bool(says)
    assert says in said


def test_a_task_of_another_prefix_is_named_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gymnasium.registry, "MiniGrid-Empty-5x5-v0", raising=False)  # other tests import minigrid
    with pytest.raises(UserError, match=r"did you mean 'minigrid/Empty-5x5-v0'\?"):
        registry.spec_for("gymnasium/MiniGrid-Empty-5x5-v0")


def test_a_module_of_the_users_own_is_imported_for_its_id(own: str) -> None:
    spec = registry.spec_for(f"gymnasium/{own}:Count-v0")
    assert (spec.observation_shape, spec.num_actions, spec.action_size) == ((11,), 6, 0)
    version = gymnasium.__version__
    assert spec.protocol.startswith(
        f"gymnasium-{version}/{own}:Count-v0;counting_games;float32-observations,flattened;"
    )
    assert "discrete-actions,all-combinations;cap-none;" in spec.protocol
    check_environment(f"gymnasium/{own}:Count-v0", steps=60, max_steps=4)


def test_a_cut_by_the_environment_by_its_registration_or_by_the_option_is_a_truncation(own: str) -> None:
    for task, options, length in (("Count-v0", {}, 5), ("Count-v1", {}, 3), ("Count-v1", {"max_steps": 2}, 2)):
        with made(f"{own}:{task}", **options) as env:
            env.reset()
            steps = [env.step(np.array([2])) for _ in range(length)]
        assert [bool(step.truncated[0]) for step in steps] == [False] * (length - 1) + [True]
        assert not any(step.terminated[0] for step in steps)
        assert [float(step.reward[0]) for step in steps] == [2.0] * length


def test_an_end_of_its_own_is_none(own: str) -> None:
    with made(f"{own}:Count-v0") as env:
        env.reset()
        steps = [env.step(np.array([3])) for _ in range(3)]  # the first of two choices is 1
    assert [bool(step.terminated[0]) for step in steps] == [False, False, True]
    assert not any(step.truncated[0] for step in steps)


def test_an_episode_that_does_not_repeat_itself_is_abandoned_on_a_resume(
    own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with made(f"{own}:Forgets-v0", 2) as first, made(f"{own}:Forgets-v0", 2) as second:
        first.reset()
        first.step(np.array([0, 0]))
        second.load_state_dict(first.state_dict())
        assert "2 of 2 running episodes did not repeat themselves" in capsys.readouterr().err
        step = second.step(np.array([0, 0]))
    assert step.start.all() and not step.valid.any() and not step.reward.any()


def test_a_killed_run_on_an_environment_that_does_not_repeat_itself_goes_on(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(self: Run) -> None:
        if self.learner.core.updates > 20:
            raise RuntimeError("killed")
        learn(self)

    chosen, learn = config(environment={"name": f"gymnasium/{own}:Forgets-v0"}), Run._learn
    monkeypatch.setattr(Run, "_learn", cut)
    with pytest.raises(RuntimeError, match="killed"):
        train(chosen, tmp_path, quiet=True)
    monkeypatch.setattr(Run, "_learn", learn)
    train(chosen, tmp_path, quiet=True)
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1
    assert curves(tmp_path).env_frames.max() >= chosen.env_frames
    assert "running episodes did not repeat themselves" in capsys.readouterr().err


@pytest.mark.parametrize("task", sorted(adapter.EXAMPLES))
def test_images_are_made_grey_scaled_and_stacked_as_asked(task: str) -> None:
    options = adapter.OPTIONS[task]
    image = "image_size" in options
    assert image == task.startswith("ALE/")
    if not image:
        return
    with made(task, grey=True, image_size=84, frame_stack=4) as env:
        step = env.reset()
        assert step.observation.shape == (1, 4, 84, 84)
        assert (env.spec.frame_stack, env.spec.frame_skip) == (4, 4)
        first = step.observation[0]
        assert all((first[0] == frame).all() for frame in first)
        second = env.step(np.array([1])).observation[0]
        np.testing.assert_array_equal(second[:3], first[1:])
    with made(task) as env:
        colour = env.reset().observation[0]
    assert colour.shape == (3, 210, 160)
    luminance = np.tensordot((0.299, 0.587, 0.114), colour, 1)
    assert abs(luminance.mean() - first[-1].mean()) < 1


def test_the_camera_of_a_task_with_a_window_prints_nothing_where_there_is_no_screen(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pygame = pytest.importorskip("pygame")
    pygame.display.quit()
    for name in ("SDL_VIDEODRIVER", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    camera = camera_for("gymnasium/CartPole-v1", 7, {})
    with made("CartPole-v1", seed=7) as env:
        picture = camera.reset(env.reset())
        assert picture.max() == 255
        assert capfd.readouterr().err == ""
        pygame.display.init()  # as environments of which pygame draws in a window do
    assert capfd.readouterr().err == ""
    camera.close()


def test_the_camera_films_what_the_environment_renders(own: str) -> None:
    camera = camera_for(f"gymnasium/{own}:Count-v0", 7, {})
    with made(f"{own}:Count-v0", seed=7) as env:
        assert camera.reset(env.reset()).max() == 0
        picture = camera.step(2, env.step(np.array([2])))
    camera.close()
    assert picture.shape == (1, 16, 24, 3)
    assert (picture == 10).all()
    assert camera.frames_per_second == 5


def test_an_older_version_of_a_task_is_made_without_a_notice_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """MuJoCo would warn of Humanoid's model in a file in the current folder."""
    monkeypatch.chdir(tmp_path)
    adapter._made("Humanoid-v4").close()
    assert not recwarn.list
    assert not list(tmp_path.iterdir())
