"""A strict stand-in for DeepMind Lab's Python module, which pip cannot install: its API, and a tiny game behind it.

What is accepted, refused and returned was read in google-deepmind/lab at b1db91af5b4d2f3a24466f4632a3e5e1b0829cca:

- methods, names and types of arguments, the order of checks, messages: python/dmlab_module.c;
- settings of the engine, names of observations and actions, bounds: engine/code/deepmind/dmlab_connect.c;
- settings that levels know, levels for evaluation alone, data sets: game_scripts/decorators/setting_overrides.lua and
  test_only.lua, game_scripts/datasets/brady_konkle_oliva2008.lua;
- when compiled maps are fetched and written, and their keys: deepmind/level_generation/compile_map.cc;
- threads: docs/users/issues.md.

Where the real module's behaviour is undefined (an action out of bounds, an array that is not contiguous, a seed of more
than 31 bits, a reset after `close`), this one raises. `Lab.fps`, which docs/users/python_api.md mentions, is not in
dmlab_module.c, so it is not here.

The game. A direction to go (or to shoot) is drawn anew every 24 frames. A frame whose action has it pays 1, shooting
when it is not to shoot costs 1. Levels called `language_*` say it in `INSTR`, the others in the colour of the image.
An episode lasts 40 to 200 frames; everything follows from level, seed, mixer seed and actions.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import zlib

import numpy as np

_VERSION = "1.0"
_RUNFILES = "."
_DMLAB30 = "contributed/dmlab30/"
_GROUPS = {
    "explore": (
        "goal_locations_large",
        "goal_locations_small",
        "object_locations_large",
        "object_locations_small",
        "object_rewards_few",
        "object_rewards_many",
        "obstructed_goals_large",
        "obstructed_goals_small",
    ),
    "language": (
        "answer_quantitative_question",
        "execute_random_task",
        "select_described_object",
        "select_located_object",
    ),
    "lasertag": (
        "one_opponent_large",
        "one_opponent_small",
        "three_opponents_large",
        "three_opponents_small",
    ),
    "natlab": (
        "fixed_large_map",
        "varying_map_randomized",
        "varying_map_regrowth",
    ),
    "psychlab": (
        "arbitrary_visuomotor_mapping",
        "continuous_recognition",
        "sequential_comparison",
        "visual_search",
    ),
    "rooms": (
        "collect_good_objects_test",
        "collect_good_objects_train",
        "exploit_deferred_effects_test",
        "exploit_deferred_effects_train",
        "keys_doors_puzzle",
        "select_nonmatching_object",
        "watermaze",
    ),
    "skymaze": (
        "irreversible_path_hard",
        "irreversible_path_varied",
    ),
}
"""Files of game_scripts/levels/contributed/dmlab30, by what their names begin with."""
_OTHERS = ("lt_chasm", "nav_maze_random_goal_01", "nav_maze_static_01", "seekavoid_arena_01", "stairway_to_melon")
_LEVELS = {f"{_DMLAB30}{group}_{name}" for group, names in _GROUPS.items() for name in names} | set(_OTHERS)
_ENGINE_SETTINGS = {"width", "height", "fps", "mixerSeed", "levelDirectory", "appendCommand", "gpuDeviceIndex"}
_LEVEL_SETTINGS = {"episodeLengthSeconds", "allowHoldOutLevels", "datasetPath", "logLevel", "randomSeed"}
_NEED_A_DATA_SET = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
_ACTIONS = (
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -512, 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", -512, 512),
    ("STRAFE_LEFT_RIGHT", -1, 1),
    ("MOVE_BACK_FORWARD", -1, 1),
    ("FIRE", 0, 1),
    ("JUMP", 0, 1),
    ("CROUCH", 0, 1),
)
_FIRE = 4
_TARGETS = (
    ("walk forward", (3, 1)),
    ("walk backward", (3, -1)),
    ("turn to the left", (0, -1)),
    ("turn to the right", (0, 1)),
    ("shoot", (_FIRE, 1)),
)
"""Instruction -> (part of the action, its sign)."""
_TARGET_FRAMES = 24
_CLOSED, _UNINITIALIZED, _INITIALIZED, _RUNNING, _TERMINATED = "closed", "new", "initialized", "running", "terminated"


def version() -> str:
    return _VERSION


def runfiles_path() -> str:
    return _RUNFILES


def set_runfiles_path(path: str) -> bool:
    global _RUNFILES
    _RUNFILES = _text(path)
    return True


class Lab:
    """One environment. The order of arguments is that of `kwlist` in `Lab_init`."""

    def __init__(self, level, observations, config=None, renderer="", level_cache=None, temp_folder=""):
        self._status = _CLOSED
        self._level, self._renderer = _text(level), _text(renderer)
        if not isinstance(observations, list):
            raise TypeError(f"argument 2 must be list, not {type(observations).__name__}")
        if config is not None and not isinstance(config, dict):
            raise TypeError(f"argument 3 must be dict, not {type(config).__name__}")
        if self._renderer not in ("", "hardware", "software"):
            raise RuntimeError('Failed to set renderer must be "hardware" or "software"')
        self._cache, self._temp_folder = level_cache, _text(temp_folder) or tempfile.gettempdir()
        self._thread = threading.get_ident()
        self._status, self._episode, self._num_steps = _UNINITIALIZED, 0, 0
        self._apply(config or {})
        self._init()
        names = [spec["name"] for spec in self.observation_spec()]
        for name in observations:
            if _text(name) not in names:
                raise ValueError(f"Unknown observation '{name}'.")
        self._names = list(observations)

    def _apply(self, config):
        """`dmlab_setting`: the engine's own settings are parsed, all others are kept for the level."""
        self._width, self._height, self._mixer_seed, self._settings = 320, 240, 0, {}
        for key, value in config.items():
            key, value = _text(key), _text(value)
            if key in ("width", "height"):
                pixels = _integer(key, value)
                if pixels < 4 or pixels % 4:
                    raise RuntimeError(f"Failed to apply setting - \"'{key}' must be a positive multiple of 4\"")
                setattr(self, f"_{key}", pixels)
            elif key == "mixerSeed":
                self._mixer_seed = _integer(key, value)
                if not 0 <= self._mixer_seed <= 2**32 - 1:
                    raise RuntimeError('Failed to apply setting - "Invalid mixerSeed value"')
            elif key not in _ENGINE_SETTINGS:
                self._settings[key] = value

    def _init(self):
        """The level's script, and its `init`."""
        if self._level not in _LEVELS:
            raise RuntimeError(f'Failed to init environment - "Level not found: {self._level}"')
        for key, value in self._settings.items():
            if key not in _LEVEL_SETTINGS:
                raise RuntimeError(f'Failed to init environment - "Invalid setting: "{key}" = "{value}""')
        level = self._settings.get("logLevel", "INFO")
        if level not in ("NEVER", "ERROR", "WARN", "INFO") and not level.isdigit():
            raise RuntimeError(f'Failed to init environment - "Invalid log level {level}"')
        if self._level.endswith("_test") and self._settings.get("allowHoldOutLevels") != "true":
            raise RuntimeError('Failed to init environment - "This level must only be used during evaluation."')

    def reset(self, episode=-1, seed=None):
        self._check_thread()
        if self._status == _CLOSED:
            raise RuntimeError("reset after close: undefined in the real module")
        if not isinstance(episode, int):
            raise TypeError(f"an integer is required, not {type(episode).__name__}")
        if seed is None:
            raise RuntimeError("reset without a seed draws one from rand(): nothing of ours may")
        if not isinstance(seed, int):
            raise ValueError(f"'seed' must be int or None, was '{type(seed).__name__}'.")
        if not 0 <= seed < 2**31:
            raise OverflowError("the seed becomes a C int")
        if self._level.removeprefix(_DMLAB30) in _NEED_A_DATA_SET and not self._settings.get("datasetPath"):
            raise RuntimeError('Failed to start environment - "Follow instructions to download datasets"')
        self._episode = (episode if episode >= 0 else self._episode) + 1
        self._start(seed)
        self._status, self._num_steps = _INITIALIZED, 0
        return True

    def _start(self, seed):
        mixed = seed ^ (self._mixer_seed << 32)
        generator = np.random.default_rng([mixed, zlib.crc32(self._level.encode())])
        self._length = int(generator.integers(40, 201))
        self._targets = generator.integers(0, len(_TARGETS), 200 // _TARGET_FRAMES + 1)
        self._walls = generator.integers(0, 256, (self._height, self._width, 3), dtype=np.uint8)
        self._frame, self._position = 0, np.zeros(2, dtype=np.int64)
        self._compile(hashlib.md5(self._walls.tobytes()).hexdigest())

    def _compile(self, digest):
        """`RunMapCompileFor`: from the cache, or made and then offered to it."""
        if not self._level.startswith(f"{_DMLAB30}explore_") or self._cache is None:
            return
        key, content = f"maze_noaas_{digest}", f"map {digest}".encode()
        with tempfile.TemporaryDirectory(dir=self._temp_folder) as folder:
            pk3 = os.path.join(folder, "maze.pk3")
            if self._cache.fetch(key, pk3):
                with open(pk3, "rb") as file:
                    if file.read() != content:
                        raise RuntimeError(f"the level cache returned another map than that of {key}")
                return
            with open(pk3, "wb") as file:
                file.write(content)
            self._cache.write(key, pk3)

    def num_steps(self):
        return self._num_steps

    def is_running(self):
        return self._status in (_INITIALIZED, _RUNNING)

    def step(self, action, num_steps=1):
        self._check_thread()
        if not isinstance(action, np.ndarray):
            raise TypeError(f"argument 1 must be numpy.ndarray, not {type(action).__name__}")
        if not isinstance(num_steps, int) or num_steps < 1:
            raise TypeError(f"num_steps: {num_steps!r}")
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (len(_ACTIONS),):
            raise ValueError(f"action must have shape ({len(_ACTIONS)})")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        if not action.flags.c_contiguous:
            raise ValueError("the action's memory is read as it lies: it must be contiguous")
        for value, (name, low, high) in zip(action.tolist(), _ACTIONS, strict=True):
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, outside of {low}..{high}: undefined in the real module")
        reward = 0.0
        self._status = _RUNNING
        for _ in range(num_steps):
            if self._status == _RUNNING:
                reward += self._advance(action)
        self._num_steps += num_steps
        return reward

    def _advance(self, action):
        """One frame; its reward."""
        target = int(self._targets[self._frame // _TARGET_FRAMES])
        part, sign = _TARGETS[target][1]
        reward = float(np.sign(action[part]) == sign) - float(action[_FIRE] == 1 and part != _FIRE)
        self._position += action[2:4]
        self._frame += 1
        if self._frame == self._length:
            self._status = _TERMINATED
        return reward

    def observations(self):
        self._check_thread()
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        return {name: self._observation(name) for name in self._names}

    def _observation(self, name):
        target = int(self._targets[self._frame // _TARGET_FRAMES])
        speaks = self._level.startswith(f"{_DMLAB30}language_")
        if name == "INSTR":
            return _TARGETS[target][0] if speaks else ""
        if name == "DEBUG.POS.TRANS":
            return np.array([*self._position, 0.0])
        image = np.roll(self._walls, tuple(self._position), axis=(0, 1))
        if not speaks:
            image[:8] = 50 * target
        return image if name == "RGB_INTERLEAVED" else np.ascontiguousarray(image.transpose(2, 0, 1))

    def observation_spec(self):
        size = (self._height, self._width)
        return [
            {"name": "RGB_INTERLEAVED", "shape": (*size, 3), "dtype": np.uint8},
            {"name": "RGB", "shape": (3, *size), "dtype": np.uint8},
            {"name": "INSTR", "shape": (), "dtype": str},
            {"name": "DEBUG.POS.TRANS", "shape": (3,), "dtype": np.float64},
        ]

    def action_spec(self):
        return [{"min": low, "max": high, "name": name} for name, low, high in _ACTIONS]

    def events(self):
        if self._status in (_CLOSED, _UNINITIALIZED):
            raise RuntimeError("Environment in wrong status for call to events()")
        return []

    def close(self):
        was_open = self._status != _CLOSED
        self._status = _CLOSED
        return was_open

    def _check_thread(self):
        if self._renderer == "hardware" and threading.get_ident() != self._thread:
            raise RuntimeError("rendered in hardware, an environment is called from the thread that made it")


def _text(value):
    """`PyUnicode_AsUTF8`, and the format `s`."""
    if not isinstance(value, str):
        raise TypeError(f"bad argument type for built-in operation: must be str, not {type(value).__name__}")
    return value


def _integer(key, value):
    try:
        return int(value)
    except ValueError:
        raise RuntimeError(f"Failed to apply setting '{key} = {value}' - \"Invalid int setting\"") from None
