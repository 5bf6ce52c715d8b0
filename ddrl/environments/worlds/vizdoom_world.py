"""ViZDoom's scenarios (Wydmuch et al. 2019; Kempka et al. 2016), with the nine actions of `firstperson`.

An agent step is four tics with the same buttons held down.

- Buttons: MOVE_FORWARD, MOVE_BACKWARD, MOVE_LEFT, MOVE_RIGHT, TURN_LEFT, TURN_RIGHT and ATTACK; with ATTACK also USE,
  which opens doors, in the maps of Freedoom, the only ones that have it. A button that a scenario's file does not give
  is ignored, so no scenario is changed: in the basic one, forward does nothing.
- Ends: the engine's own time limit is switched off, since no picture comes with it; `replayed` cuts episodes, which is
  a truncation. All else that ends one (death, an exit, the scenario's script) is a termination; what is seen last is
  then shown again, since a finished game has no picture.
- Pictures: 160x120 as the engine draws, each pixel of the observation the mean of those below it. Whether health is
  shown is the scenario's choice: only Freedoom's maps do. View and weapon do not bob as the player walks: the engine
  keeps how far across episodes, so pictures would depend on the episode before.
- Every game is a process. Its files (settings, saved games) go to a temporary folder that `close` removes. It ends
  with this process, however that ends, where the program `setpriv` is there.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ddrl.environments.worlds.firstperson_tasks import ACTIONS, Task
from ddrl.system import instruction_words
from ddrl.system.temporary import claim, remove_left
from ddrl.types import Array

PICTURE_PROTOCOL = "rgb160x120-box-mean,no-bobbing"
ACTION_PROTOCOL = "scenario-buttons"
_BUTTONS = {
    "forward": {"MOVE_FORWARD"},
    "backward": {"MOVE_BACKWARD"},
    "strafe left": {"MOVE_LEFT"},
    "strafe right": {"MOVE_RIGHT"},
    "look left": {"TURN_LEFT"},
    "look right": {"TURN_RIGHT"},
    "fire": {"ATTACK", "USE"},
}
PRESSED: tuple[frozenset[str], ...] = tuple(
    frozenset().union(*(_BUTTONS[part] for part in action.split(" + "))) for action in ACTIONS
)
"""The buttons that each action holds down."""
ENGINE: Mapping[str, Any] = {
    "mode": "PLAYER",
    "screen_format": "RGB24",
    "screen_resolution": "RES_160X120",
    "off": ("window_visible", "sound_enabled", "audio_buffer_enabled", "automap_buffer_enabled"),
    "arguments": "+movebob 0",
}
"""How every game is set up, as plain data that drivers of other libraries get as well."""
_NO_WORDS = instruction_words.hashed("")


class DoomWorld:
    """One game, as a `replayed.Replayable`."""

    def __init__(self, task: Task, limit: int, frame_skip: int, size: tuple[int, int]) -> None:
        """Start the game. `size` is height and width of observations; `limit` is ignored, as the module says.

        Raise ModuleNotFoundError without the package.
        """
        import vizdoom

        scenario, _, doom_map = task.source.partition(":")
        self._skip, self._scale, self._size = frame_skip, task.reward_scale, (size[1], size[0])
        self._folder = tempfile.TemporaryDirectory(prefix="ddrl-vizdoom-")
        remove_left(Path(self._folder.name).parent, "ddrl-vizdoom-")
        self._claim = claim(Path(self._folder.name))
        self.game = game = vizdoom.DoomGame()
        game.load_config(str(Path(vizdoom.scenarios_path) / f"{scenario}.cfg"))
        if doom_map:
            game.set_doom_map(doom_map)
        for name, value in task.rewards.items():
            getattr(game, f"set_{name}_reward")(value)
        game.set_mode(vizdoom.Mode.__members__[ENGINE["mode"]])
        game.set_screen_format(vizdoom.ScreenFormat.__members__[ENGINE["screen_format"]])
        game.set_screen_resolution(vizdoom.ScreenResolution.__members__[ENGINE["screen_resolution"]])
        for switch in ENGINE["off"]:
            getattr(game, f"set_{switch}")(False)
        game.set_episode_timeout(0)
        game.add_game_args(ENGINE["arguments"])
        game.set_doom_config_path(str(Path(self._folder.name) / "settings.ini"))
        game.set_vizdoom_path(str(_starter(Path(self._folder.name), Path(vizdoom.__file__).with_name("vizdoom"))))
        game.init()
        given = [button.name for button in game.get_available_buttons()]
        self._actions = [[float(name in buttons) for name in given] for buttons in PRESSED]
        self._seen = np.empty(0, dtype=np.uint8)

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation."""
        self.game.set_seed(seed)
        self.game.new_episode()
        return self._observation()

    def step(self, action: Any) -> tuple[Array, float, bool, bool]:
        """Return observation, reward (the sum over the tics), terminated and truncated (never)."""
        reward = self._scale * self.game.make_action(self._actions[int(action)], self._skip)
        if self.game.is_episode_finished():
            return self._seen.copy(), float(reward), True, False
        return self._observation(), float(reward), False, False

    def close(self) -> None:
        """End the game's process and remove its folder."""
        self.game.close()
        self._claim.close()
        self._folder.cleanup()

    def _observation(self) -> Array:
        screen = Image.fromarray(self.game.get_state().screen_buffer)
        image = np.asarray(screen.resize(self._size, Image.Resampling.BOX)).transpose(2, 0, 1)
        self._seen = instruction_words.pack(np.ascontiguousarray(image), _NO_WORDS)
        return self._seen


def _starter(folder: Path, engine: Path) -> Path:
    """Write a program to `folder` that starts the engine there, and asks the kernel to end it with this process."""
    starter = folder / "start"
    setpriv = "setpriv --pdeathsig KILL -- " if shutil.which("setpriv") else ""
    # The engine makes a folder where it is started; $0 lies in the game's own.
    lines = ("#!/bin/sh", 'cd "${0%/*}" || exit 1', f'exec {setpriv}{shlex.quote(str(engine))} "$@"', "")
    starter.write_text("\n".join(lines), encoding="utf-8")
    starter.chmod(0o700)
    return starter
