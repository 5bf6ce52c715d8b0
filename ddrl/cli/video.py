"""`ddrl watch`: films episodes of a trained agent as an MP4 file (H.264, yuv420p, which browsers play).

The pictures come in the order and at the speed of the emulator; a strip below them shows episode, step, action and
score. The same run, seed and machine give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddrl.cli.inspection import Trained, chosen_tasks, load_trained
from ddrl.environments.tools.camera import Camera, camera_for
from ddrl.environments.tools.named import make_env
from ddrl.errors import UserError
from ddrl.system.files import replacing
from ddrl.system.seeding import seed_for
from ddrl.types import Array

SUFFIX = ".mp4"
MIN_WIDTH, MAX_WIDTH, MAX_HEIGHT = 320, 960, 640
"""Size in pixels that a picture is scaled up to (by a whole number), without the strip."""
STRIP_HEIGHT, FONT_SIZE, WORD_COLOUR = 28, 15, (230, 230, 230)
# No look-ahead: with it, one film in twenty had other bytes than others of the same pictures (31 of 490).
_PARAMETERS = "colormatrix=smpte170m:transfer=smpte170m:mbtree=0:rc-lookahead=0"
ENCODER = {"crf": "20", "preset": "veryfast", "x264-params": _PARAMETERS}


class PlayedEpisode(NamedTuple):
    """One episode: raw return, agent steps, and whether it was cut at the limit of steps."""

    episode_return: float
    length: int
    cut: bool


@dataclass(frozen=True)
class Film:
    """A video: its episodes, the kind of its pictures, their number, speed and size in pixels."""

    episodes: tuple[PlayedEpisode, ...]
    shows: str
    frames: int
    frames_per_second: float
    size: tuple[int, int]
    """Width and height."""
    env_frames: int
    """The frames that the parameters were trained for."""

    def describe(self) -> str:
        """Return all of it in one line."""
        episodes = f"{len(self.episodes)} episode{'s' if len(self.episodes) > 1 else ''}"
        returns = ", ".join(f"{episode.episode_return:g}" for episode in self.episodes)
        num_cut = sum(episode.cut for episode in self.episodes)
        cut = f" ({num_cut} cut at the limit of steps)" if num_cut else ""
        width, height = self.size
        return (
            f"{episodes}{cut}, raw return {returns}, after {self.env_frames:,} frames of training; {self.shows}: "
            f"{self.frames:,} pictures of {width}x{height} at {self.frames_per_second:g} per second"
        )


def watch(
    run: Path,
    output: Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    task: str | None = None,
    max_steps: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Film:
    """Film `episodes` episodes with a run's newest parameters, each of at most `max_steps` agent steps, into `output`.

    On a suite the episodes take its tasks in turn, or all play `task`. Raise UserError for a suffix other than .mp4, a
    folder that does not exist, a run without a valid checkpoint, an unknown task, or without the encoder.
    """
    if output.suffix != SUFFIX:
        raise UserError(f"{output}: a video's name ends with {SUFFIX}")
    if not output.absolute().parent.is_dir():
        raise UserError(f"{output.parent}: no such folder")
    _encoder()
    trained = load_trained(run)
    played: list[PlayedEpisode] = []
    tasks = chosen_tasks(trained.config.environment["name"], task)
    plan = [tasks[index % len(tasks)] for index in range(episodes)]
    shots = _shots(trained, played, plan, seed, max_steps, progress)
    first = next(shots)
    rate = first.camera.frames_per_second
    size, frames = _encode(output, first, shots, rate)
    return Film(tuple(played), first.camera.shows, frames, rate, size, trained.env_frames)


@dataclass(frozen=True)
class _Shot:
    """The pictures [n, height, width, 3] of one agent step, the words below them, and the camera that took them."""

    pictures: Array
    words: tuple[str, ...]
    camera: Camera


def _shots(
    trained: Trained,
    played: list[PlayedEpisode],
    tasks: Sequence[str],
    seed: int,
    max_steps: int | None,
    progress: Callable[[str], None],
) -> Iterator[_Shot]:
    """Play an episode of each task; append each to `played`."""
    episodes = len(tasks)
    for index, name in enumerate(tasks):
        settings = {key: value for key, value in trained.config.environment.items() if key != "name"}
        env_seed = seed_for(seed, "watch-environment", index)
        described = f"film of episode {index + 1}, environment {name}, environment seed {env_seed}"
        env = make_env({**settings, "name": name}, 1, env_seed, num_threads=1, name=described)
        camera = camera_for(name, env_seed, settings)
        policy = trained.policy(1, seed, "watch-policy", index)
        step, total, length = env.reset(), 0.0, 0
        yield _Shot(camera.reset(step), _words(index, episodes, 0, "", 0.0), camera)
        while not step.ended[0] and length != max_steps:
            chosen = policy.act(step).action.numpy()
            step, action = env.step(chosen), chosen[0]
            total, length = total + float(step.reward[0]), length + 1
            if action.ndim:  # continuous actions [A] have no names
                name_of_action = ""
            else:
                name_of_action = camera.actions[int(action)] if camera.actions else f"action {action}"
            words = _words(index, episodes, length, name_of_action, total)
            progress("   ".join(words))
            yield _Shot(camera.step(action, step), words, camera)
        played.append(PlayedEpisode(total, length, cut=not step.ended[0]))
        camera.close()
        env.close()


def _words(index: int, episodes: int, length: int, action: str, score: float) -> tuple[str, ...]:
    which = (f"episode {index + 1} of {episodes}",) if episodes > 1 else ()
    return (*which, f"step {length:,}", f"score {score:g}", action)


def _encode(output: Path, first: _Shot, rest: Iterator[_Shot], rate: float) -> tuple[tuple[int, int], int]:
    """Write a file beside `output` and rename it; return width and height, and the number of pictures."""
    av = _encoder()
    draw = _Canvas(*first.pictures.shape[1:3])
    frames = 0
    try:
        with (
            replacing(output) as temporary,
            av.open(str(temporary), "w", format="mp4", options={"movflags": "faststart"}) as container,
        ):
            stream = container.add_stream("libx264", rate=Fraction(rate).limit_denominator(1001), options=ENCODER)
            stream.width, stream.height, stream.pix_fmt = *draw.size, "yuv420p"
            stream.codec_context.thread_count = 1  # the bytes depend on the number of threads
            for shot in chain([first], rest):
                for picture in draw(shot.pictures, shot.words):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
                    frames += 1
            container.mux(stream.encode())
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror})") from error
    return draw.size, frames


class _Canvas:
    """Scales pictures up by a whole number and centres them above a strip of words; sides are even, for yuv420p."""

    def __init__(self, height: int, width: int) -> None:
        from PIL import ImageFont

        self._scale = max(1, min(MAX_HEIGHT // height, MAX_WIDTH // width))
        self._height, self._width = height * self._scale, width * self._scale
        width, height = max(self._width, MIN_WIDTH), self._height + STRIP_HEIGHT
        self.size = (width + width % 2, height + height % 2)
        self._font = ImageFont.load_default(FONT_SIZE)

    def __call__(self, pictures: Array, words: Sequence[str]) -> Iterator[Array]:
        """Return a canvas [height, width, 3] for each picture."""
        from PIL import Image, ImageDraw

        width, height = self.size
        image = Image.new("RGB", (width, height))
        strip, middle = ImageDraw.Draw(image), height - STRIP_HEIGHT / 2
        for column, word in enumerate(words):
            place = (8 + column * width / len(words), middle)
            strip.text(place, word, font=self._font, fill=WORD_COLOUR, anchor="lm")
        canvas = np.array(image)
        left = (width - self._width) // 2
        for picture in pictures:
            large = picture.repeat(self._scale, axis=0).repeat(self._scale, axis=1)
            canvas[: self._height, left : left + self._width] = large
            yield canvas


def _encoder() -> Any:
    try:
        import av
    except ImportError:
        command = f"{sys.executable} -m pip install av"
        raise UserError(f"videos need the package 'av' (PyAV), which is not installed: {command}") from None
    return av
