"""Films: pictures above a strip of words, as an MP4 file (H.264, yuv420p, which browsers play) or as a GIF.

A GIF is for a page that shows it small: fewer pictures a second, fewer colours, and smaller ones.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddrl.cli import outputs
from ddrl.environments.tools.camera import Camera
from ddrl.errors import UserError
from ddrl.system.files import replacing
from ddrl.types import Array

MIN_WIDTH, STRIP_HEIGHT, FONT_SIZE, WORD_COLOUR = 320, 28, 15, (230, 230, 230)
# No look-ahead: with it, one film in twenty had other bytes than others of the same pictures (31 of 490).
_PARAMETERS = "colormatrix=smpte170m:transfer=smpte170m:mbtree=0:rc-lookahead=0"
ENCODER = {"crf": "20", "preset": "veryfast", "x264-params": _PARAMETERS}
GIF_RATE = 20.0
"""Most pictures a second of a GIF."""
GIF_COLOURS = 64


@dataclass(frozen=True)
class Shot:
    """The pictures [n, height, width, 3] of one agent step, the words below them, and the camera that took them."""

    pictures: Array
    words: tuple[str, ...]
    camera: Camera


class Written(NamedTuple):
    """A film that was written: width and height, number of pictures, and how many are shown a second."""

    size: tuple[int, int]
    frames: int
    frames_per_second: float


def check_output(output: Path) -> None:
    """Raise UserError for a name of another kind, a folder that does not exist, or without the encoder."""
    if output.suffix.lower() not in WRITERS:
        raise UserError(f"{output}: a film's name ends with {' or '.join(WRITERS)}")
    outputs.check_output(output)
    if output.suffix.lower() == ".mp4":
        _encoder()


def write_film(output: Path, first: Shot, rest: Iterator[Shot]) -> Written:
    """Write a film as its suffix says, beside `output`, and rename it. Raise UserError where it cannot be written."""
    try:
        with replacing(output) as temporary:
            return WRITERS[output.suffix.lower()](temporary, first, rest)
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror})") from error


def _write_mp4(path: Path, first: Shot, rest: Iterator[Shot]) -> Written:
    av = _encoder()
    draw, rate = _Canvas(*first.pictures.shape[1:3], most=(960, 640)), first.camera.frames_per_second
    frames = 0
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(rate).limit_denominator(1001), options=ENCODER)
        stream.width, stream.height, stream.pix_fmt = *draw.size, "yuv420p"
        stream.codec_context.thread_count = 1  # the bytes depend on the number of threads
        for picture in draw.all([first], rest):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            frames += 1
        container.mux(stream.encode())
    return Written(draw.size, frames, rate)


def _write_gif(path: Path, first: Shot, rest: Iterator[Shot]) -> Written:
    from PIL import Image

    draw, rate = _Canvas(*first.pictures.shape[1:3], most=(400, 300), shrink=True), first.camera.frames_per_second
    every = math.ceil(rate / GIF_RATE)
    thinned = islice(draw.all([first], rest), 0, None, every)
    none = Image.Dither.NONE  # dithered dots flicker, and take room
    pictures = [Image.fromarray(picture).quantize(GIF_COLOURS, dither=none) for picture in thinned]
    milliseconds = round(1000 * every / rate)
    pictures[0].save(path, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return Written(draw.size, len(pictures), 1000 / milliseconds)


WRITERS = {".mp4": _write_mp4, ".gif": _write_gif}
"""Suffix -> the function that writes such a file."""


class _Canvas:
    """Scales pictures up by a whole number, within `most`, and centres them above a strip of words.

    With `shrink`, larger ones are scaled down. Sides are even, for yuv420p.
    """

    def __init__(self, height: int, width: int, *, most: tuple[int, int], shrink: bool = False) -> None:
        from PIL import ImageFont

        self._scale = max(1, min(most[1] // height, most[0] // width))
        self._shrink = math.ceil(max(1.0, height / most[1], width / most[0])) if shrink else 1
        self._width = math.ceil(width / self._shrink) * self._scale
        self._height = math.ceil(height / self._shrink) * self._scale
        width, height = max(self._width, MIN_WIDTH), self._height + STRIP_HEIGHT
        self.size = (width + width % 2, height + height % 2)
        self._font = ImageFont.load_default(FONT_SIZE)

    def all(self, first: Sequence[Shot], rest: Iterator[Shot]) -> Iterator[Array]:
        """Return a canvas [height, width, 3] for each picture of all shots."""
        for shot in chain(first, rest):
            yield from self(shot.pictures, shot.words)

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
            if self._shrink > 1:
                picture = np.asarray(Image.fromarray(picture).reduce(self._shrink))
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
