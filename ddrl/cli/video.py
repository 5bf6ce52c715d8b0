"""`ddrl watch`: episodes of a trained agent as an MP4 file (H.264, yuv420p: what browsers play).

Every picture belongs to the episode that is played, in the order and at the speed of the emulator; a strip below it
names episode, step, action and score. The same run, seed and machine give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

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
"""Pixels that a picture is scaled up to (by a whole number), without the strip."""
STRIP_HEIGHT, FONT_SIZE, WORD_COLOUR = 28, 15, (230, 230, 230)
# Without looking ahead: with it, one film in twenty differed in bytes from others of the same pictures (31 of 490).
_PARAMETERS = "colormatrix=smpte170m:transfer=smpte170m:mbtree=0:rc-lookahead=0"
ENCODER = {"crf": "20", "preset": "veryfast", "x264-params": _PARAMETERS}


@dataclass(frozen=True)
class Film:
    """What a video shows."""

    returns: tuple[float, ...]
    """Raw return of each episode."""
    lengths: tuple[int, ...]
    """Agent steps of each."""
    cut: int
    """How many of them were cut at the limit of steps."""
    frames: int
    frames_per_second: float
    size: tuple[int, int]
    """Width and height in pixels."""
    shows: str
    env_frames: int
    """Training frames behind the parameters."""

    def describe(self) -> str:
        """One line."""
        episodes = f"{len(self.returns)} episode{'s' if len(self.returns) > 1 else ''}"
        returns = ", ".join(f"{value:g}" for value in self.returns)
        cut = f" ({self.cut} cut at the limit of steps)" if self.cut else ""
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
    """Plays `episodes` episodes with a run's newest parameters, each at most `max_steps` agent steps, into `output`.

    Of a suite each episode is of the next task, or all are of `task`.
    Raises: UserError for a suffix other than .mp4, a folder that does not exist, a run without a valid checkpoint, an
    unknown task, or where the encoder is not installed.
    """
    if output.suffix != SUFFIX:
        raise UserError(f"{output}: a video's name ends with {SUFFIX}")
    if not output.absolute().parent.is_dir():
        raise UserError(f"{output.parent}: no such folder")
    _encoder()
    trained = load_trained(run)
    played: list[_Episode] = []
    tasks = chosen_tasks(trained.config.environment["name"], task)
    plan = [tasks[index % len(tasks)] for index in range(episodes)]
    shots = _shots(trained, played, plan, seed, max_steps, progress)
    first = next(shots)
    rate = first.camera.frames_per_second
    size, frames = _encode(output, first, shots, rate)
    return Film(
        returns=tuple(episode.episode_return for episode in played),
        lengths=tuple(episode.length for episode in played),
        cut=sum(not episode.whole for episode in played),
        frames=frames,
        frames_per_second=rate,
        size=size,
        shows=first.camera.shows,
        env_frames=trained.env_frames,
    )


@dataclass(frozen=True)
class _Episode:
    episode_return: float
    length: int
    whole: bool


@dataclass(frozen=True)
class _Shot:
    """The pictures [n, height, width, 3] of one agent step, and the words below them."""

    pictures: Array
    words: tuple[str, ...]
    camera: Camera


def _shots(
    trained: Trained,
    played: list[_Episode],
    tasks: Sequence[str],
    seed: int,
    max_steps: int | None,
    progress: Callable[[str], None],
) -> Iterator[_Shot]:
    """Plays an episode of each task; appends to `played` what it came to."""
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
            name_of_action = _name(action, camera.actions)
            words = _words(index, episodes, length, name_of_action, total)
            progress("   ".join(words))
            yield _Shot(camera.step(action, step), words, camera)
        played.append(_Episode(total, length, whole=bool(step.ended[0])))
        camera.close()
        env.close()


def _name(action: Array, names: Sequence[str]) -> str:
    """Of a discrete action; a continuous one [A] has none."""
    if action.ndim:
        return ""
    return names[int(action)] if names else f"action {action}"


def _words(index: int, episodes: int, length: int, action: str, score: float) -> tuple[str, ...]:
    which = (f"episode {index + 1} of {episodes}",) if episodes > 1 else ()
    return (*which, f"step {length:,}", f"score {score:g}", action)


def _encode(output: Path, first: _Shot, rest: Iterator[_Shot], rate: float) -> tuple[tuple[int, int], int]:
    """Writes beside `output` and renames; returns width and height, and the number of pictures."""
    av = _encoder()
    draw = _Canvas(*first.pictures.shape[1:3])
    options = {"movflags": "faststart"}
    frames = 0
    try:
        with (
            replacing(output) as temporary,
            av.open(str(temporary), "w", format="mp4", options=options) as container,
        ):
            stream = container.add_stream("libx264", rate=Fraction(rate).limit_denominator(1001), options=ENCODER)
            stream.width, stream.height, stream.pix_fmt = *draw.size, "yuv420p"
            stream.codec_context.thread_count = 1  # the bytes depend on the number of threads
            shot: _Shot | None = first
            while shot is not None:
                for picture in draw(shot.pictures, shot.words):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
                    frames += 1
                shot = next(rest, None)
            container.mux(stream.encode())
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror})") from error
    return draw.size, frames


class _Canvas:
    """Pictures scaled up by a whole number, centred above a strip of words; even sides, as yuv420p needs."""

    def __init__(self, height: int, width: int) -> None:
        from PIL import ImageFont

        self._scale = max(1, min(MAX_HEIGHT // height, MAX_WIDTH // width))
        self._height, self._width = height * self._scale, width * self._scale
        self.size = (_even(max(self._width, MIN_WIDTH)), _even(self._height + STRIP_HEIGHT))
        self._font = ImageFont.load_default(FONT_SIZE)

    def __call__(self, pictures: Array, words: Sequence[str]) -> Iterator[Array]:
        """Canvases [height, width, 3]."""
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


def _even(length: int) -> int:
    return length + length % 2


def _encoder() -> Any:
    try:
        import av
    except ImportError:
        command = f"{sys.executable} -m pip install av"
        raise UserError(f"videos need the package 'av' (PyAV), which is not installed: {command}") from None
    return av
