"""Every environment that gymnasium knows: `gymnasium/CartPole-v1`, `gymnasium/ALE/Pong-v5`, `gymnasium/module:Task-v0`.

`module:id` imports the user's own module first, which registers the id. Spaces are those of `worlds.spaces`: what they
do not support is refused with one line. What is particular here:

- One agent step is one step of the environment, whatever that repeats within; a spec's `frame_skip` is the registered
  `frameskip` where there is one (Atari's), otherwise 1.
- Limits: the registered `max_episode_steps`, or `max_steps` where that is not 0. A cut by either, or by the environment
  itself, is a truncation.
- Images may be made grey, scaled to a square of `image_size` pixels (their mean over areas) and stacked.
- Seeds and states: see `replayed`. Where an environment does not repeat itself from `reset(seed=...)` and the same
  actions, a resumed run abandons the running episodes, says so, and begins new ones.

Paper replications use the adapters of their own simulators, such as `atari`, whose protocols are the papers'.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib.metadata import packages_distributions, version
from typing import Any

import ale_py  # noqa: F401  registers ALE/...
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Entry
from PIL import Image

from ddrl.environments.base.adapter import Adapter, Option, OwnTerms
from ddrl.environments.base.replayed import ReplayedEnvs, Stepped
from ddrl.environments.tools.camera import CELLS_PER_SECOND, Camera, observed_camera, twin_camera
from ddrl.environments.worlds.spaces import IMAGES, Acted, Observed, acted, observed
from ddrl.errors import UserError
from ddrl.system.notes import say
from ddrl.types import Array, EnvSpec

EXAMPLES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "FrozenLake-v1": {},
    "LunarLander-v3": {"max_steps": 60},
    "Pendulum-v1": {"max_steps": 40},
    "ALE/Breakout-v5": {"max_steps": 40, "grey": True, "image_size": 84, "frame_stack": 4},
}
_SEEDS = 2**31
"""Gymnasium takes any integer; emulators take 31 bits."""


def _newest() -> Iterator[str]:
    """Yield the newest version of every registered id, those of the package's own adapters among them."""
    families: dict[tuple[str | None, str], list[Any]] = {}
    for entry in gymnasium.registry.values():
        families.setdefault((entry.namespace, entry.name), []).append(entry)
    for entries in families.values():
        yield max(entries, key=lambda entry: -1 if entry.version is None else entry.version).id


TASKS: tuple[str, ...] = tuple(sorted(_newest()))


class _Options:
    """The options of a task, for every id that can be made."""

    def __contains__(self, task: object) -> bool:
        return isinstance(task, str) and _entry(task) is not None

    def __getitem__(self, task: str) -> Mapping[str, Option]:
        if _entry(task) is None:
            raise KeyError(task)
        found = {"max_steps": Option(0, 0, 10_000_000)}
        if _facts(task)[0].is_image:
            found |= {"grey": Option(False), "image_size": Option(0, 0, 512), "frame_stack": Option(1, 1, 16)}
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(TASKS)

    def __len__(self) -> int:
        return len(TASKS)


OPTIONS = _Options()


def spec(task: str, **options: Any) -> EnvSpec:
    """Return the spec of one task. Raise UserError where its spaces are not supported or it cannot be made.

    Protocol id: gymnasium and the package that has the environment; spaces; what is done to images; cap.
    """
    seen, given = _facts(task)
    image = _Images.of(seen, options)
    frames = _frames(task)
    parts = [
        f"gymnasium-{version('gymnasium')}/{task}",
        *_package(task),
        image.words if image else seen.words,
        given.words,
        f"cap{_limit(task, options['max_steps']) or '-none'}",
        "autoreset-next-step;raw-rewards",
    ]
    return EnvSpec(
        name=f"gymnasium/{task}",
        observation_shape=image.shape if image else seen.shape,
        observation_dtype=seen.dtype,
        num_actions=given.num_actions,
        action_size=given.size,
        frame_skip=frames,
        frame_stack=image.stack if image and image.is_grey else 1,
        protocol=";".join(parts),
    )


def make(
    task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any
) -> ReplayedEnvs[RegisteredSimulation]:
    """Make `num_envs` environments; `num_threads` is ignored, since they are stepped in a loop."""
    build = partial(RegisteredSimulation, task, options)
    limit = _limit(task, options["max_steps"])
    return ReplayedEnvs(spec(task, **options), build, num_envs, seed, max_steps=limit, repeats=False)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)` by the environment's `render`.

    An environment that cannot render pictures is shown as the agent sees it.
    """
    entry = _entry(task)
    env = _made(task)
    modes = env.metadata.get("render_modes", [])
    env.close()
    if "rgb_array" not in modes or entry is None:
        return observed_camera(spec(task, **options))
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures need no screen, of whose absence pygame would complain
    build = partial(RegisteredSimulation, task, options, render_mode="rgb_array")
    limit = _limit(task, options["max_steps"])
    twin = ReplayedEnvs(spec(task, **options), build, 1, seed, max_steps=limit)

    def draw() -> Array:
        return np.asarray(twin.simulations[0].env.render(), dtype=np.uint8)[None]

    pace = float(env.metadata.get("render_fps") or CELLS_PER_SECOND)
    return twin_camera(twin, draw, "what the environment renders", pace)


def own_terms(task: str, **options: Any) -> OwnTerms:
    """Return how the environment that `gymnasium.make(task)` makes is observed and acted in."""
    seen, given = _facts(task)
    image = _Images.of(seen, options)

    def encode(observation: Any) -> Array | None:
        if not seen.holds(observation):
            return None
        if image and image.stack > 1:
            raise UserError(
                f"observation is one image, and the policy takes {image.stack} (option frame_stack of "
                f"'gymnasium/{task}'); allowed: observations of `policy.environment(...)`, which stacks them"
            )
        encoded = seen.encode(observation)
        return image.prepared(encoded) if image else encoded

    return OwnTerms(encode, given.decode)


def recipe(task: str, **options: Any) -> Mapping[str, Any]:
    """Return how the drivers of other libraries make a task. Raise UserError for spaces that they do not have."""
    env = _made(task)
    spaces = (env.observation_space, env.action_space)
    env.close()
    boxes = [isinstance(space, gymnasium.spaces.Box) for space in spaces]
    if ":" in task or _facts(task)[0].is_image or not (boxes[0] and (boxes[1] or _facts(task)[1].num_actions)):
        raise UserError(
            f"environment 'gymnasium/{task}': drivers of other libraries make gymnasium's own tasks alone, with "
            "numbers as observations and one choice or numbers as actions"
        )
    return {"kind": "gymnasium", "id": task, "max_steps": _limit(task, options["max_steps"]), "arguments": {}}


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    camera=camera,
    own_terms=own_terms,
    recipe=recipe,
)


class RegisteredSimulation:
    """One of gymnasium's environments, as a `replayed.Replayable`."""

    def __init__(self, task: str, options: Mapping[str, Any], **arguments: Any) -> None:
        self.env = _made(task, **arguments)
        seen, given = _facts(task)
        self._decode = given.decode
        self._encode = seen.encode
        self._images = _Images.of(seen, options)
        self._stack: deque[Array] = deque(maxlen=self._images.stack if self._images else 1)

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation."""
        observation = self._seen(self.env.reset(seed=seed % _SEEDS)[0])
        self._stack.extend([observation] * (self._stack.maxlen or 1))
        return self._stacked()

    def step(self, action: Any) -> Stepped:
        """Return observation, reward, terminated, and truncated by the environment itself."""
        observation, reward, terminated, truncated, _ = self.env.step(self._decode(action))
        self._stack.append(self._seen(observation))
        return self._stacked(), float(reward), bool(terminated), bool(truncated)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _seen(self, observation: Any) -> Array:
        encoded = self._encode(observation)
        return self._images.prepared(encoded) if self._images else encoded

    def _stacked(self) -> Array:
        """Return the newest observations, the oldest first along the first axis, in memory that no step changes."""
        return self._stack[0].copy() if len(self._stack) == 1 else np.concatenate(self._stack)


class _Images:
    """What is done to images [C, H, W] before an agent sees them."""

    def __init__(self, shape: tuple[int, ...], options: Mapping[str, Any]) -> None:
        channels, *sides = shape
        self.is_grey = bool(options["grey"]) or channels == 1
        self.size, self.stack = int(options["image_size"]), int(options["frame_stack"])
        self._reduces = bool(options["grey"]) and channels > 1
        height, width = (self.size, self.size) if self.size else sides
        self.shape = ((1 if self.is_grey else channels) * self.stack, height, width)
        colour = "grey" if self.is_grey else f"{channels}-channels"
        self.words = f"uint8-image,{colour}{width}x{height},stack{self.stack}"

    @classmethod
    def of(cls, seen: Observed, options: Mapping[str, Any]) -> _Images | None:
        """Return it for observations that are images, None for others."""
        return cls(seen.shape, options) if seen.is_image else None

    def prepared(self, image: Array) -> Array:
        """Return one image as it is stacked: [C, H, W] uint8."""
        if self._reduces:  # ITU-R 601: the luminance that people see
            image = (np.tensordot((0.299, 0.587, 0.114), image[:3], 1) + 0.5).astype(np.uint8)[None]
        if self.size and image.shape[1:] != (self.size, self.size):
            size = (self.size, self.size)
            image = np.stack(
                [np.asarray(Image.fromarray(channel).resize(size, Image.Resampling.BOX)) for channel in image]
            )
        return image


@cache
def _entry(task: str) -> Entry | None:
    """Return the registered entry of an id, None for an unknown one.

    Raise UserError for a module that is not there, cannot be imported, or does not register the id.
    """
    module, _, registered = task.rpartition(":")
    if module:
        _import(module, task)
    try:
        return gymnasium.spec(registered)
    except gymnasium.error.Error:
        if module:
            raise _not_registered(module, registered, task) from None
        return None


def _import(module: str, task: str) -> None:
    """Import the user's own module. Raise UserError where that fails."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        reason = (
            f"there is no module '{module}' in Python's path; install its package beside ddrl, or set PYTHONPATH"
            if is_absent
            else f"the module '{module}' cannot be imported: {_said(error)}"
        )
        raise UserError(f"environment 'gymnasium/{task}': {reason}") from error


def _not_registered(module: str, registered: str, task: str) -> UserError:
    """Return the error of a module that was imported and does not register the id, with the ids that it registers."""
    package = module.partition(".")[0]
    own = sorted(entry.id for entry in gymnasium.registry.values() if _home(entry) == package)
    found = f"its ids: {', '.join(own)}" if own else "it registers nothing"
    return UserError(
        f"environment 'gymnasium/{task}': the module '{module}' was imported but registers no '{registered}' "
        f'({found}); allowed: an id for which it calls gymnasium.register("{registered}", entry_point=...)'
    )


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@cache
def _facts(task: str) -> tuple[Observed, Acted]:
    """Return how a task is observed and acted in."""
    env, name = _made(task), f"gymnasium/{task}"
    try:
        seen, given = observed(env.observation_space, name), acted(env.action_space, name)
    except AttributeError as error:
        raise UserError(f"environment '{name}': has no observation_space or no action_space: {_said(error)}") from error
    finally:
        env.close()
    if seen.flattened_image:
        say(
            f"environment '{name}': its observations look like images ({seen.flattened_image}); they are flattened to "
            f"{seen.shape[0]:,} numbers for a network without convolutions. {IMAGES}"
        )
    return seen, given


def _made(task: str, **arguments: Any) -> Any:
    """Make an environment without its registered limit of steps. Raise UserError where that fails."""
    entry = _entry(task)
    if entry and str(entry.entry_point).startswith("gymnasium.envs.mujoco."):
        _route_simulator_warnings()
    try:
        with warnings.catch_warnings():  # an older version was asked for by its name
            warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
            return gymnasium.make(task, max_episode_steps=-1, disable_env_checker=True, **arguments)
    except Exception as error:  # whatever a stranger's environment raises
        is_absent = isinstance(error, gymnasium.error.DependencyNotInstalled | ImportError)
        said = " ".join(str(error).split()) if is_absent else _said(error)
        raise UserError(f"environment 'gymnasium/{task}': cannot be made here: {said}") from error


def _route_simulator_warnings() -> None:
    """Send MuJoCo's warnings to `logging`, if it is installed: it would write a file into the current folder."""
    with contextlib.suppress(ImportError):
        from ddrl.environments.worlds import physics

        physics.route_warnings()


def _limit(task: str, max_steps: int) -> int | None:
    """Return the number of steps of the longest episode, None without a limit."""
    entry = _entry(task)
    return max_steps or (entry.max_episode_steps if entry else None)


def _frames(task: str) -> int:
    """Return the environment frames of one step: what the id was registered with, where that is a number."""
    entry = _entry(task)
    found = entry.kwargs.get("frameskip", 1) if entry else 1
    return found if isinstance(found, int) else 1


def _package(task: str) -> Iterator[str]:
    """Yield the package that has the environment, with its version, where that is not gymnasium's own."""
    entry = _entry(task)
    module = _home(entry) if entry else ""
    if module in ("", "gymnasium"):
        return
    yield _distribution(module)


@cache
def _distribution(module: str) -> str:
    """Return the package that a module belongs to, with its version; the module's name where none is installed.

    Once a process for each module, since every installed package is read for it.
    """
    for distribution in packages_distributions().get(module, [])[:1]:
        return f"{distribution}-{version(distribution)}"
    return module


def _home(entry: Entry) -> str:
    """Return the top-level module that an environment is in, "" where its entry does not say."""
    point = entry.entry_point
    module = (point if isinstance(point, str) or point is None else point.__module__) or ""
    return module.partition(":")[0].partition(".")[0]
