"""A task of `firstperson/vizdoom_...` as `ddrl` has it, as a gymnasium environment; made by `environments.make`.

Nine actions hold down buttons for the tics of a frame skip; a button that the scenario does not give is ignored. The
engine's own limit of time is off, and an episode is cut after `max_steps`. Pictures are the engine's 160x120, each
pixel the mean of those below it. The instruction, which is empty in all of these tasks, is left out.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import vizdoom
from PIL import Image


class VizdoomGame(gymnasium.Env):
    """One game; observations [3, height, width] uint8."""

    def __init__(self, task: Mapping[str, Any], seed: int, folder: str | None = None) -> None:
        """`task` is a recipe of this kind; the engine's files go to a new folder in `folder`, or in the system's."""
        height, width = task["size"]
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, height, width), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(task["actions"]))
        self._size, self._scale, self._max_steps = (width, height), task["reward_scale"], task["max_steps"]
        self._frame_skip = task["frame_skip"]
        self._random = np.random.default_rng(seed)
        self._steps = 0
        self._seen = np.zeros(self.observation_space.shape, np.uint8)
        self._folder = tempfile.TemporaryDirectory(prefix="vizdoom-", dir=folder)
        self._game = game = vizdoom.DoomGame()
        scenario, _, doom_map = task["source"].partition(":")
        game.load_config(str(Path(vizdoom.scenarios_path, f"{scenario}.cfg")))
        if doom_map:
            game.set_doom_map(doom_map)
        for name, value in task["rewards"].items():
            getattr(game, f"set_{name}_reward")(value)
        engine = task["engine"]
        game.set_mode(vizdoom.Mode.__members__[engine["mode"]])
        game.set_screen_format(vizdoom.ScreenFormat.__members__[engine["screen_format"]])
        game.set_screen_resolution(vizdoom.ScreenResolution.__members__[engine["screen_resolution"]])
        for switch in engine["off"]:
            getattr(game, f"set_{switch}")(False)
        game.set_episode_timeout(0)
        game.add_game_args(engine["arguments"])
        game.set_doom_config_path(str(Path(self._folder.name, "settings.ini")))
        game.set_vizdoom_path(starter(Path(self._folder.name), Path(vizdoom.__file__).with_name("vizdoom")))
        game.init()
        given = [button.name for button in game.get_available_buttons()]
        self._buttons = [[float(name in pressed) for name in given] for pressed in task["actions"]]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with a seed from the stream of this environment, or with the one that is given."""
        self._game.set_seed(int(self._random.integers(2**31)) if seed is None else seed)
        self._game.new_episode()
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action; where a game has ended, what was seen last is shown again."""
        reward = self._scale * self._game.make_action(self._buttons[int(action)], self._frame_skip)
        self._steps += 1
        terminated = self._game.is_episode_finished()
        seen = self._seen.copy() if terminated else self._look()
        return seen, float(reward), terminated, not terminated and self._steps >= self._max_steps, {}

    def close(self) -> None:
        """End the game's process."""
        self._game.close()
        self._folder.cleanup()

    def _look(self) -> Any:
        screen = Image.fromarray(self._game.get_state().screen_buffer)
        image = np.asarray(screen.resize(self._size, Image.Resampling.BOX)).transpose(2, 0, 1)
        self._seen = np.ascontiguousarray(image)
        return self._seen.copy()


def starter(folder: Path, engine: Path) -> str:
    """Write a program that starts the engine in `folder`, where it makes folders of its own, and ends it with us."""
    path = folder / "start"
    end_with_us = "setpriv --pdeathsig KILL -- " if shutil.which("setpriv") else ""
    lines = ("#!/bin/sh", 'cd "${0%/*}" || exit 1', f'exec {end_with_us}{shlex.quote(str(engine))} "$@"', "")
    path.write_text("\n".join(lines), encoding="utf-8")
    path.chmod(0o700)
    return str(path)
