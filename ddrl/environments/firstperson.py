"""First-person tasks that run anywhere, a stand-in for DMLab-30: `firstperson/vizdoom_basic`, ... (30 of them).

DMLab's levels need Quake's engine built from source. These 30 come from two packages of wheels: ViZDoom
(`vizdoom_world`) and MiniWorld (`miniworld_world`); each says there how the actions map, and `firstperson_tasks` what
is paid. They are other tasks than DMLab's, so scores on them are never compared with published ones of DMLab-30.

As in DMLab-30, one agent can play all, and nothing tells it which one it plays:

- Observations are an image of 72x96 in colour and an instruction (`ddrl.system.instruction_words`), which is empty in
  all tasks but `miniworld_sign`.
- The nine actions are those of IMPALA's Table D.2, in its order; a step repeats one for four frames.
- An episode is truncated after the task's limit of frames, or after `max_frames` where that is not 0, and terminates
  where the task ends it. MiniWorld's rewards depend on the limit. Seeds and states: see `replayed`.
- Rewards are the simulators' own, times the task's `reward_scale`: six tasks pay for every frame or unit of distance,
  up to 2,100 in an episode, where others pay 1. One agent's gradient would be theirs alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.replayed import Replayable, ReplayedEnvs
from ddrl.environments.tools.camera import Camera, image_camera
from ddrl.environments.worlds import miniworld_world, vizdoom_world
from ddrl.environments.worlds.firstperson_tasks import ACTIONS, ALL, Family, Group, Task
from ddrl.errors import UserError
from ddrl.system.instruction_words import packed_shape
from ddrl.types import EnvSpec

IMAGE_SHAPE = (3, 72, 96)
FRAME_SKIP = 4
FRAMES_PER_SECOND = 35.0
"""Doom's tics."""
PACKAGES: dict[Family, tuple[str, ...]] = {"vizdoom": ("vizdoom",), "miniworld": ("miniworld", "pyglet")}
"""The packages that each family's tasks need."""
EXTRAS = {
    "firstperson/vizdoom_...": (("vizdoom",), ()),
    "firstperson/miniworld_...": (("miniworld",), ("EGL", "GL", "GLU")),
}
_BY_NAME = {task.name: task for task in ALL}
_SHORT: dict[str, dict[str, Any]] = {
    "vizdoom_basic": {},
    "vizdoom_predict_position": {"max_frames": 120},
    "miniworld_sign": {"max_frames": 160},
}


def missing_packages(family: Family) -> tuple[str, ...]:
    """Return those of a family's packages that are not installed."""
    return tuple(package for package in PACKAGES[family] if importlib.util.find_spec(package) is None)


TASKS = tuple(_BY_NAME)
SUITES: dict[str, tuple[str, ...]] = {
    "all30": TASKS,
    **{group: tuple(task.name for task in ALL if task.group == group) for group in get_args(Group)},
}
"""Tasks that one agent may learn together, by name; every task is in `all30` and in one other."""
EXAMPLES: dict[str, dict[str, Any]] = {
    name: options for name, options in _SHORT.items() if not missing_packages(_BY_NAME[name].family)
}
OPTIONS = {task: {"max_frames": Option(0, 0, 1_000_000)} for task in TASKS}


def spec(task: str, max_frames: int) -> EnvSpec:
    """Return the spec of one task; all differ in name and protocol only.

    Raise UserError for a limit that is no multiple of the frame skip, or a package that is not installed.
    """
    chosen = _BY_NAME[task]
    limit = _limit(chosen, max_frames)
    module = vizdoom_world if chosen.family == "vizdoom" else miniworld_world
    channels, height, width = IMAGE_SHAPE
    scale = chosen.reward_scale
    paid = ["raw-rewards" if scale == 1.0 else f"rewards-times-{scale:g}"]
    paid += [f"{name}{value:+g}" for name, value in chosen.rewards.items()]
    parts = (
        f"{'+'.join(_versions(chosen))}/{chosen.source}",
        f"skip{FRAME_SKIP},rgb{width}x{height},{module.PICTURE_PROTOCOL}",
        f"instruction{packed_shape(IMAGE_SHAPE)[0] - channels * height * width}bytes",
        f"impala-nine-actions,{module.ACTION_PROTOCOL}",
        f"cap{limit}",
        "autoreset-next-step",
        ",".join(paid),
    )
    return EnvSpec(
        name=f"firstperson/{task}",
        observation_shape=packed_shape(IMAGE_SHAPE),
        observation_dtype="uint8",
        num_actions=len(ACTIONS),
        frame_skip=FRAME_SKIP,
        protocol=";".join(parts),
        image_shape=IMAGE_SHAPE,
    )


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, max_frames: int) -> ReplayedEnvs[Replayable]:
    """Make `num_envs` environments, stepped one after the other; `num_threads` is ignored.

    Raise UserError as `spec`, or where a graphics library is missing.
    """
    chosen = _BY_NAME[task]
    limit = _limit(chosen, max_frames)
    world: Any = vizdoom_world.DoomWorld if chosen.family == "vizdoom" else miniworld_world.MiniWorld
    build: Callable[[], Replayable] = partial(world, chosen, limit, FRAME_SKIP, IMAGE_SHAPE[1:])
    return ReplayedEnvs(spec(task, max_frames), build, num_envs, seed, max_steps=limit // FRAME_SKIP)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that shows what the agent sees."""
    return image_camera(spec(task, **options), FRAMES_PER_SECOND / FRAME_SKIP, ACTIONS)


def recipe(task: str, max_frames: int) -> Mapping[str, Any]:
    """Return how the drivers of other libraries make a task: they have those of ViZDoom, without the empty instruction.

    Raise UserError for a task of MiniWorld, and for a limit that is no multiple of the frame skip.
    """
    chosen = _BY_NAME[task]
    if chosen.family != "vizdoom":
        raise UserError(f"environment 'firstperson/{task}': drivers of other libraries make those of ViZDoom alone")
    return {
        "kind": "vizdoom",
        "packages": ["vizdoom", "PIL"],
        "source": chosen.source,
        "engine": vizdoom_world.ENGINE,
        "rewards": chosen.rewards,
        "reward_scale": chosen.reward_scale,
        "max_steps": _limit(chosen, max_frames) // FRAME_SKIP,
        "size": IMAGE_SHAPE[1:],
        "actions": [sorted(buttons) for buttons in vizdoom_world.PRESSED],
    }


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    suites=SUITES,
    reference_scores="firstperson.csv",
    extras=EXTRAS,
    camera=camera,
    recipe=recipe,
)


def _limit(task: Task, max_frames: int) -> int:
    if max_frames % FRAME_SKIP:
        raise UserError(
            f"environment.max_frames: {max_frames} is not allowed for firstperson/{task.name}; "
            f"allowed: multiples of {FRAME_SKIP}"
        )
    return max_frames or task.limit


def _versions(task: Task) -> list[str]:
    try:
        return [f"{package}-{version(package)}" for package in PACKAGES[task.family]]
    except PackageNotFoundError as error:
        raise UserError(
            f"environment 'firstperson/{task.name}': the package '{error.name}' is not installed"
        ) from error
