"""A video shows the episode that is played: its frames, its length, its speed; and nothing is left half-written."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from ddrl import cli
from ddrl.cli import video
from ddrl.environments import atari
from ddrl.environments.base import registry
from ddrl.environments.tools.camera import camera_for
from ddrl.errors import UserError
from ddrl.system.seeding import numpy_generator
from ddrl.types import Array, EnvStep
from tests.runs import BASE, merged

GAMES = [
    ("atari/pong", {"max_frames": 600}),
    ("atari/breakout", {"sticky_actions": 0.25}),
    ("atari/space_invaders", {"fire_reset": True, "max_frames": 801}),
    ("atari/qbert", {"noop_max": 0, "frame_skip": 3, "full_action_space": True}),
]


def trained(directory: Path, **overrides: object) -> Path:
    """A short run with a checkpoint."""
    config = directory.parent / f"{directory.name}.yaml"
    config.write_text(json.dumps(merged(BASE, {"env_frames": 320, **overrides})))
    assert cli.main(["train", str(config), "--directory", str(directory), "--quiet"]) == 0
    return directory


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on toy/catch."""
    return trained(tmp_path_factory.mktemp("video") / "catch")


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on atari/breakout."""
    return trained(
        tmp_path_factory.mktemp("video") / "breakout",
        environment={"name": "atari/breakout"},
        hyperparameters={"network": "shallow"},
        topology={"num_actors": 1, "envs_per_actor": 2},
        evaluation={"period_frames": 10_000, "episodes": 1, "final_episodes": 1},
    )


def pictures(path: Path) -> list[Array]:
    """Every decoded picture [height, width, 3]."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def played(name: str, options: dict[str, object], seed: int) -> tuple[list[tuple[int, EnvStep]], list[Array], str]:
    """One filmed episode of random actions: the steps, the pictures of each, what they show."""
    env, camera = registry.make(name, 1, seed, **options), camera_for(name, seed, options)
    generator = numpy_generator(seed, "test")
    step = env.reset()
    steps, shots = [(0, step)], [camera.reset(step)]
    while not step.ended[0] and len(steps) < 1500:
        action = int(generator.integers(env.spec.num_actions))
        step = env.step(np.array([action]))
        steps.append((action, step))
        shots.append(camera.step(action, step))
    camera.close()
    env.close()
    return steps, shots, camera.shows


@pytest.mark.parametrize(("name", "options"), GAMES)
def test_the_filmed_game_is_the_one_that_the_agent_sees(name: str, options: dict[str, object]) -> None:
    steps, shots, shows = played(name, options, seed=11)
    assert shows == "all emulator frames in colour"
    assert steps[-1][1].ended[0]
    skip = options.get("frame_skip", 4)
    assert {len(shot) for shot in shots[1:-1]} == {skip}
    for (_, step), shot in list(zip(steps, shots, strict=True))[1:-1:7]:
        newest = np.maximum(*(_grey(picture) for picture in shot[-2:]))
        assert np.abs(_smaller(newest) - step.observation[0, -1]).max() < 2.5  # both round


def _grey(picture: Array) -> Array:
    """Luminance [height, width]."""
    return picture @ np.array([0.299, 0.587, 0.114])


def _smaller(frame: Array) -> Array:
    """Means over the areas of an 84 x 84 grid."""
    for axis in (0, 1):
        edges = np.linspace(0, frame.shape[axis], 85)
        sums = np.concatenate([np.zeros_like(frame.take([0], axis)), frame.cumsum(axis)], axis)
        low = np.floor(edges).astype(int)
        between = sums.take(low, axis) + np.expand_dims(edges - low, 1 - axis) * (
            sums.take(np.minimum(low + 1, frame.shape[axis]), axis) - sums.take(low, axis)
        )
        frame = np.diff(between, axis=axis) / (frame.shape[axis] / 84)
    return frame


def test_a_camera_refuses_to_film_another_episode() -> None:
    env, camera = registry.make("atari/pong", 1, 1), camera_for("atari/pong", 2, {})
    step = env.reset()
    camera.reset(step)

    def film() -> None:
        for _ in range(500):
            camera.step(3, env.step(np.array([2])))

    with pytest.raises(RuntimeError, match="another episode"):
        film()
    camera.close()
    env.close()


def test_catch_is_drawn_as_its_board() -> None:
    steps, shots, _ = played("toy/catch", {}, seed=3)
    board = shots[0][0][8::16, 8::16, 0].reshape(-1) / 255
    np.testing.assert_array_equal(board, steps[0][1].observation[0])
    assert {shot.shape for shot in shots} == {(1, 160, 80, 3)}


def test_an_environment_without_a_camera_is_shown_as_the_agent_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "ADAPTER", replace(atari.ADAPTER, camera=None))
    steps, shots, shows = played("atari/pong", {"max_frames": 200}, seed=3)
    assert shows == "the newest frame that the agent sees"
    np.testing.assert_array_equal(shots[-1][0, :, :, 0], steps[-1][1].observation[0, -1])


def test_a_video_of_atari_has_every_frame_at_sixty_per_second(breakout: Path, tmp_path: Path) -> None:
    output = tmp_path / "film.mp4"
    film = video.watch(breakout, output, seed=1, max_steps=40)
    with av.open(str(output)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 60
        assert container.duration / 1e6 == pytest.approx(161 / 60, abs=0.01)
    decoded = pictures(output)
    assert len(decoded) == film.frames == 1 + 4 * 40
    assert decoded[0].shape[:2] == film.size[::-1]
    assert all(side % 2 == 0 for side in film.size)
    assert [(episode.cut, episode.length) for episode in film.episodes] == [(True, 40)]


def test_pictures_are_those_of_the_emulator(breakout: Path, tmp_path: Path) -> None:
    video.watch(breakout, tmp_path / "film.mp4", max_steps=10)
    first = pictures(tmp_path / "film.mp4")[0]
    wall = first[3 * 60 : 3 * 62, 100:380].reshape(-1, 3).mean(axis=0)
    np.testing.assert_allclose(wall, (200, 72, 72), atol=6)  # the top row of Breakout's wall is red


def test_the_same_seed_gives_the_same_file_and_another_seed_another(catch: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        video.watch(catch, tmp_path / f"{name}.mp4", episodes=3, seed=seed)
    content = {name: (tmp_path / f"{name}.mp4").read_bytes() for name in "abc"}
    assert content["a"] == content["b"] != content["c"]


def test_an_episode_does_not_depend_on_those_before_it(catch: Path, tmp_path: Path) -> None:
    one = video.watch(catch, tmp_path / "one.mp4", seed=4)
    three = video.watch(catch, tmp_path / "three.mp4", seed=4, episodes=3)
    assert three.episodes[0] == one.episodes[0]
    assert three.frames == 3 * one.frames


def test_an_interrupted_video_leaves_the_old_one_and_nothing_else(catch: Path, tmp_path: Path) -> None:
    output = tmp_path / "film.mp4"
    output.write_bytes(b"old")

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        video.watch(catch, output, progress=stop)
    assert output.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [output]


def test_a_missing_encoder_is_one_line_with_what_to_type(
    catch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match="pip install av"):
        video.watch(catch, tmp_path / "film.mp4")


def test_a_run_without_a_checkpoint_is_named(catch: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((catch / "config.json").read_bytes())
    with pytest.raises(UserError, match="no valid checkpoint"):
        video.watch(tmp_path, tmp_path / "film.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
