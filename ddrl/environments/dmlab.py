"""DeepMind Lab's levels (Beattie et al. 2016) as IMPALA and R2D2 play them: `dmlab/rooms_watermaze`.

pip cannot install the simulator; docs/dmlab.md says how to get its Python module. Without it specs can be read, but no
environment can be made.

- Observations are the image [3, 72, 96] in colour (Espeholt et al. 2018, Table D.3), packed with the instruction of the
  level (`ddrl.system.instruction_words`); most levels never give one.
- `action_set`: `impala` has the 9 actions of Table D.2; `r2d2` the 15 of Hessel et al. 2018b (PopArt), which R2D2 takes
  over (Kapturowski et al. 2019). An action is repeated for `frame_skip` frames, of which there are 60 a second.
- Ends. Once an episode is over, the simulator shows nothing more; its final observation is the last one seen. Whatever
  ended it, most often its time, counts as `terminated`: what follows is worth 0, as in the authors' code
  (google-deepmind/scalable_agent, experiment.py: discounts are 0 where an episode is done; seed_rl the same). So the
  final observation is never bootstrapped from, and `truncated` never occurs.
- Tests. `test_seeds` draws episodes from seeds that training never sees and allows levels made for evaluation, as the
  authors' test runs do on all 30 levels (experiment.py, `create_environment`). Levels called `..._test` are always
  allowed.
- Seeds and states: see `replayed`. On one machine the simulator repeats an episode from its seed and actions
  (google-deepmind/lab, python/tests/determinism_test.py); the number of an episode, which no level of these reads, is
  always the same. That earlier episodes leave nothing behind is not tested there, and another machine may draw other
  mazes (docs/users/issues.md): where that is so, continuing a state raises instead of playing on.
- Processes. Every environment loads a copy of the engine of its own (public/dmlab_so_loader.cc), so a process may hold
  several; they are stepped one after the other, and only actors in processes of their own run side by side. Rendered in
  hardware, one may be called only by the thread that made it (docs/users/issues.md), which is checked.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import threading
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.replayed import ReplayedEnvs
from ddrl.environments.tools.camera import Camera, image_camera
from ddrl.environments.worlds.dmlab_level_cache import LevelCache, cache_folder
from ddrl.errors import UserError
from ddrl.system.instruction_words import WORDS, hashed, pack, packed_shape
from ddrl.types import Array, EnvSpec

_SHARED = (
    "rooms_select_nonmatching_object",
    "rooms_watermaze",
    "rooms_keys_doors_puzzle",
    "language_select_described_object",
    "language_select_located_object",
    "language_execute_random_task",
    "language_answer_quantitative_question",
    "lasertag_one_opponent_large",
    "lasertag_three_opponents_large",
    "lasertag_one_opponent_small",
    "lasertag_three_opponents_small",
    "natlab_fixed_large_map",
    "natlab_varying_map_regrowth",
    "natlab_varying_map_randomized",
    "skymaze_irreversible_path_hard",
    "skymaze_irreversible_path_varied",
    "psychlab_arbitrary_visuomotor_mapping",
    "psychlab_continuous_recognition",
    "psychlab_sequential_comparison",
    "psychlab_visual_search",
    "explore_object_locations_small",
    "explore_object_locations_large",
    "explore_obstructed_goals_small",
    "explore_obstructed_goals_large",
    "explore_goal_locations_small",
    "explore_goal_locations_large",
    "explore_object_rewards_few",
    "explore_object_rewards_many",
)
"""Levels of DMLab-30 that serve both training and test."""
_SINGLE = "seekavoid_arena_01"
"""Outside of DMLab-30: the fifth task of Espeholt et al. 2018, Figure 4 and Table 2."""
SUITES: dict[str, tuple[str, ...]] = {
    "dmlab30_train": ("rooms_collect_good_objects_train", "rooms_exploit_deferred_effects_train", *_SHARED),
    "dmlab30_test": ("rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test", *_SHARED),
    "five_levels": (
        "rooms_watermaze",
        "rooms_keys_doors_puzzle",
        "lasertag_three_opponents_small",
        "explore_goal_locations_small",
        _SINGLE,
    ),
}
"""DMLab-30 in the order of Espeholt et al. 2018, Table B.1, test levels with `test_seeds: true`; Figure 4's tasks."""

_WALKING: dict[str, tuple[int, ...]] = {
    "forward": (0, 0, 0, 1, 0, 0, 0),
    "backward": (0, 0, 0, -1, 0, 0, 0),
    "strafe left": (0, 0, -1, 0, 0, 0, 0),
    "strafe right": (0, 0, 1, 0, 0, 0, 0),
}
ACTION_SETS: dict[str, dict[str, tuple[int, ...]]] = {
    # Espeholt et al. 2018, Table D.2; in the order of google-deepmind/scalable_agent, environments.py
    "impala": _WALKING
    | {
        "look left": (-20, 0, 0, 0, 0, 0, 0),
        "look right": (20, 0, 0, 0, 0, 0, 0),
        "forward, look left": (-20, 0, 0, 1, 0, 0, 0),
        "forward, look right": (20, 0, 0, 1, 0, 0, 0),
        "fire": (0, 0, 0, 0, 1, 0, 0),
    },
    # Hessel et al. 2018b (PopArt), as alex-petrenko/sample-factory has it (sf_examples/dmlab/dmlab_gym.py)
    "r2d2": _WALKING
    | {
        "look left": (-10, 0, 0, 0, 0, 0, 0),
        "look right": (10, 0, 0, 0, 0, 0, 0),
        "look far left": (-60, 0, 0, 0, 0, 0, 0),
        "look far right": (60, 0, 0, 0, 0, 0, 0),
        "look down": (0, 10, 0, 0, 0, 0, 0),
        "look up": (0, -10, 0, 0, 0, 0, 0),
        "forward, look left": (-10, 0, 0, 1, 0, 0, 0),
        "forward, look right": (10, 0, 0, 1, 0, 0, 0),
        "forward, look far left": (-60, 0, 0, 1, 0, 0, 0),
        "forward, look far right": (60, 0, 0, 1, 0, 0, 0),
        "fire": (0, 0, 0, 0, 1, 0, 0),
    },
}
"""Name -> actions: what each is to the simulator (turn, tilt, strafe, walk, fire, jump, crouch)."""

IMAGE_SHAPE = (3, 72, 96)
TEST_MIXER_SEED = 0x600D5EED
"""Combined with every seed of a test (scalable_agent, experiment.py); 0 in training."""
DATASET_VARIABLE = "DDRL_DMLAB_DATASET"
"""Environment variable: folder of the pictures that two levels show."""
_SHOW_PICTURES = frozenset({"psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition"})
_FRAMES_PER_SECOND = 60

TASKS = tuple(sorted({*SUITES["dmlab30_train"], *SUITES["dmlab30_test"], _SINGLE}))
OPTIONS = {
    task: {
        "action_set": Option("impala", choices=tuple(ACTION_SETS)),
        "frame_skip": Option(4, 1, _FRAMES_PER_SECOND),
        "test_seeds": Option(False),
        "level_cache": Option(False),
        "renderer": Option("software", choices=("software", "hardware")),
    }
    for task in TASKS
}


def missing() -> str:
    """Return why nothing can be made here; empty where the simulator is installed."""
    if importlib.util.find_spec("deepmind_lab") is not None:
        return ""
    return "environment 'dmlab': DeepMind Lab's Python module deepmind_lab is not installed, see docs/dmlab.md"


def examples() -> dict[str, dict[str, Any]]:
    """Return what the conformance check runs on, if anything can be made. A step is a second: episodes are long."""
    if missing():
        return {}
    return {
        "seekavoid_arena_01": {"frame_skip": 60},
        "language_select_described_object": {"frame_skip": 60, "action_set": "r2d2"},
    }


EXAMPLES = examples()


def spec(task: str, action_set: str, frame_skip: int, test_seeds: bool, level_cache: bool, renderer: str) -> EnvSpec:
    """Return the spec of one task; the level cache changes nothing but the time that a reset takes."""
    seeds = "test-seeds" if test_seeds else "train-seeds"
    return EnvSpec(
        name=f"dmlab/{task}",
        observation_shape=packed_shape(IMAGE_SHAPE),
        observation_dtype="uint8",
        num_actions=len(ACTION_SETS[action_set]),
        frame_skip=frame_skip,
        protocol=f"dmlab-{_version()}/{task};skip{frame_skip},rgb{IMAGE_SHAPE[2]}x{IMAGE_SHAPE[1]},words{WORDS};"
        f"{action_set}-actions;{seeds};{renderer}-rendering;autoreset-next-step;raw-rewards",
        image_shape=IMAGE_SHAPE,
    )


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> ReplayedEnvs[Level]:
    """Make `num_envs` environments; `num_threads` is ignored, since the simulator holds Python's lock.

    Raise UserError where the simulator, or what a level shows, is not installed.
    """
    if why := missing():
        raise UserError(why)
    return ReplayedEnvs(spec(task, **options), partial(Level, task, **options), num_envs, seed, max_steps=None)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that shows the image that the agent sees."""
    actions = tuple(ACTION_SETS[options["action_set"]])
    rate = _FRAMES_PER_SECOND / options["frame_skip"]
    return image_camera(spec(task, **options), rate, actions, shows="what the agent sees", scale=1)


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    suites=SUITES,
    reference_scores="dmlab30.csv",
    missing=missing,
    camera=camera,
)


@cache
def _version() -> str:
    try:
        return importlib.metadata.version("deepmind-lab")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _settings(task: str, test_seeds: bool) -> dict[str, str]:
    """Return the simulator's settings, all of them texts.

    Raise UserError where a level shows pictures and their folder is not set or not there.
    """
    told = {"width": str(IMAGE_SHAPE[2]), "height": str(IMAGE_SHAPE[1]), "logLevel": "WARN"}
    if test_seeds:
        told["mixerSeed"] = str(TEST_MIXER_SEED)
    if test_seeds or task.endswith("_test"):
        told["allowHoldOutLevels"] = "true"
    if task in _SHOW_PICTURES:
        told["datasetPath"] = os.environ.get(DATASET_VARIABLE, "")
        if not Path(told["datasetPath"] or "/nowhere").is_dir():
            found = f"no folder '{told['datasetPath']}'" if told["datasetPath"] else f"{DATASET_VARIABLE} is not set"
            raise UserError(f"environment 'dmlab/{task}' shows pictures of a data set: {found}, see docs/dmlab.md")
    return told


class Level:
    """One environment of the simulator, as a `replayed.Replayable`."""

    def __init__(
        self, task: str, action_set: str, frame_skip: int, test_seeds: bool, level_cache: bool, renderer: str
    ) -> None:
        """Raise UserError as `make`, or if the simulator cannot be imported."""
        settings = _settings(task, test_seeds)
        try:
            import deepmind_lab  # loads native libraries
        except (ImportError, OSError) as error:
            why = " ".join(str(error).split())
            raise UserError(
                f"environment 'dmlab': deepmind_lab cannot be imported ({why}), see docs/dmlab.md"
            ) from error
        self._lab = deepmind_lab.Lab(
            task if task == _SINGLE else f"contributed/dmlab30/{task}",
            ["RGB_INTERLEAVED", "INSTR"],
            config=settings,
            renderer=renderer,
            level_cache=LevelCache(cache_folder()) if level_cache else None,
        )
        self._actions = np.array(list(ACTION_SETS[action_set].values()), dtype=np.intc)
        self._frame_skip = frame_skip
        self._thread = threading.get_ident() if renderer == "hardware" else None
        self._last: Array = np.zeros(0, dtype=np.uint8)

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation."""
        self._check_thread()
        self._lab.reset(episode=0, seed=seed)
        self._last = self._observe()
        return self._last

    def step(self, action: Any) -> tuple[Array, float, bool, bool]:
        """Return observation, the sum of the repeated frames' rewards, terminated and truncated (never)."""
        self._check_thread()
        reward = float(self._lab.step(self._actions[int(action)], num_steps=self._frame_skip))
        running = bool(self._lab.is_running())
        if running:
            self._last = self._observe()
        return self._last, reward, not running, False

    def close(self) -> None:
        self._lab.close()

    def _observe(self) -> Array:
        seen = self._lab.observations()
        return pack(seen["RGB_INTERLEAVED"].transpose(2, 0, 1), hashed(seen["INSTR"]))

    def _check_thread(self) -> None:
        if self._thread not in (None, threading.get_ident()):
            raise UserError(
                "environment.renderer: hardware is not allowed where another thread steps an environment than made it; "
                "allowed: software, or actors in processes of their own"
            )
