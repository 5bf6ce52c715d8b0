"""Atari games on ALE's native vector environment, with the protocol of IMPALA (Espeholt et al. 2018, Table G.1).

What the native environment does, and what is done here:

- No-ops: it draws 0 to `noop_max` - 1 of them; the paper says 1 to 30 (section 5.3.2). So it is given one more than
  the option says, and a start without any no-op is drawn again: uniform on 1 to `noop_max`.
- Seeds: a seed takes effect by loading the ROM anew, which costs as much as three hundred steps. So an environment is
  loaded with a seed of its own (seed, environment, how many loads before) at the first start of an episode after
  `RELOAD_STEPS` steps. All that follows a load is a function of its seed and the actions, sticky actions included;
  a checkpoint is therefore the list of actions since then.
- Lives: a lost life is `terminated` (no reset, no dead step) as long as lives are left; the frame stack runs on. With
  `life_loss_resets` it begins an episode for the agent (`start`); without, recurrent state and sequences go on.
- Frames are made grey before the maximum of the last two is taken. A game that ends within the skipped frames keeps
  the frames drawn until then. The cap counts frames after the no-ops.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import ale_py
import numpy as np
from ale_py.roms import get_all_rom_ids, get_rom_path
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.contract import accepted_actions, check_state, first_step, saved_state
from ddrl.environments.tools.camera import EMULATOR_HERTZ, Camera, emulator_camera
from ddrl.errors import UserError
from ddrl.system.seeding import seed_for
from ddrl.types import Array, EnvSpec, EnvStep

_MULTI_PLAYER = frozenset({"combat", "joust", "maze_craze", "warlords"})  # ALE ends the process on loading one alone
TASKS: tuple[str, ...] = tuple(sorted(set(get_all_rom_ids()) - _MULTI_PLAYER))
EXAMPLES: dict[str, dict[str, Any]] = {"breakout": {}, "pong": {"max_frames": 500}}
_OPTIONS = {
    "frame_skip": Option(4, 1, 60),
    "frame_stack": Option(4, 1, 16),
    "sticky_actions": Option(0.0, 0.0, 1.0),
    "full_action_space": Option(False),
    "noop_max": Option(30, 0, 1000),
    "life_loss_terminates": Option(True),
    "life_loss_resets": Option(True),
    "max_frames": Option(108_000, 1, 2**31 - 1),
    "fire_reset": Option(False),
    "image_size": Option(84, 42, 84),  # pixels each way: 84 in most papers, 42 in IMPACT's small network
}
OPTIONS = dict.fromkeys(TASKS, _OPTIONS)
RELOAD_STEPS = 20_000
# Games known to run differently after a reset, depending on what was played before it (they read undriven pins).
_REMEMBER = frozenset(
    {"hangman", "haunted_house", "ice_hockey", "sir_lancelot", "surround", "time_pilot", "yars_revenge"}
)


class _Game(NamedTuple):
    actions: dict[bool, tuple[str, ...]]  # names: True: of all actions, False: of those that do something in this game
    screen: tuple[int, int]  # height and width


@cache
def _game(task: str) -> _Game:
    """Read from the game's program its actions and the size of its screen."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = get_rom_path(task)
    if path is None:
        raise UserError(f"atari/{task}: its ROM is not among those of ale-py")
    ale.loadROM(path)
    sets = {True: ale.getLegalActionSet(), False: ale.getMinimalActionSet()}
    return _Game({full: tuple(action.name for action in found) for full, found in sets.items()}, ale.getScreenDims())


def spec(
    task: str,
    frame_skip: int,
    frame_stack: int,
    sticky_actions: float,
    full_action_space: bool,
    noop_max: int,
    life_loss_terminates: bool,
    life_loss_resets: bool,
    max_frames: int,
    fire_reset: bool,
    image_size: int,
) -> EnvSpec:
    """Return the spec of one game: uint8 observations [frame_stack, image_size, image_size], the newest frame last.

    Protocol id: version, game; frames; starts; stickiness; action set; lives; cap; autoreset; rewards.
    Raise UserError for options that exclude each other.
    """
    if not (life_loss_terminates or life_loss_resets):
        raise UserError("environment.life_loss_resets: false is only read where life_loss_terminates is true")
    lives = "life-loss-terminal" if life_loss_terminates else "game-over-terminal"
    parts = (
        f"ale-{version('ale-py')}/{task}",
        f"skip{frame_skip},max2,gray{image_size}x{image_size},stack{frame_stack}",
        (f"noop1-{noop_max}" if noop_max else "noop0") + (",fire-reset" if fire_reset else ""),
        f"sticky{sticky_actions:g}",
        "full-actions" if full_action_space else "minimal-actions",
        lives if life_loss_resets else f"{lives},rolling",
        f"cap{max_frames // 1000}k" if max_frames % 1000 == 0 else f"cap{max_frames}",
        "autoreset-next-step",
        "raw-rewards",
    )
    return EnvSpec(
        name=f"atari/{task}",
        observation_shape=(frame_stack, image_size, image_size),
        observation_dtype="uint8",
        num_actions=len(_game(task).actions[full_action_space]),
        frame_skip=frame_skip,
        protocol=";".join(parts),
        frame_stack=frame_stack,
    )


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> AtariEnvs:
    """Make `num_envs` games, stepped by `num_threads` native threads (no more than the machine has cores)."""
    return AtariEnvs(task, num_envs, seed, num_threads, options)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)`: all frames, in colour."""
    frame_by_frame = options | {"frame_skip": 1, "frame_stack": 1, "max_frames": 2**31 - 1}
    twin = AtariEnvs(task, 1, seed, 1, frame_by_frame, screen=True)
    actions = _game(task).actions[options["full_action_space"]]
    return emulator_camera(twin, options["frame_skip"], EMULATOR_HERTZ, actions)


def recipe(task: str, **options: Any) -> Mapping[str, Any]:
    """Return how the drivers of other libraries make a game. Raise UserError for options that they do not have."""
    if options["fire_reset"] or not options["life_loss_resets"]:
        raise UserError(
            f"environment 'atari/{task}': drivers of other libraries make it with fire_reset: false and "
            "life_loss_resets: true alone"
        )
    return {"kind": "atari", "rom": str(get_rom_path(task)), "options": options}


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    reference_scores="atari57.csv",
    camera=camera,
    recipe=recipe,
)


class AtariEnvs:
    """B games of ALE's native vector environment, as a `ddrl.types.VectorEnv`."""

    _loads: Array  # [B] int64: how often each environment was loaded with a seed
    _starts: Array  # [B] int64: episodes started since then, without the first
    _lives: Array  # [B] int32
    _ended: Array  # [B] bool: the next step is dead
    _observation: Array  # [B, stack, image_size, image_size] uint8
    _tape: _ActionTape

    def __init__(
        self, task: str, num_envs: int, seed: int, num_threads: int, options: dict[str, Any], *, screen: bool = False
    ) -> None:
        """`screen`: observations are the emulator's own colour frames [B, stack, height, width, 3]."""
        size = options["image_size"]
        height, width = _game(task).screen if screen else (size, size)
        self.spec = spec(task, **options)
        self.num_envs = num_envs
        self._seed = seed
        self._life_loss_terminates = options["life_loss_terminates"]
        self._life_loss_resets = options["life_loss_resets"]
        self._forgets_play = task not in _REMEMBER and options["sticky_actions"] == 0
        # The native no-op count excludes its bound; where FIRE opens the game, FIRE itself counts as the first.
        self._needs_noop = options["noop_max"] > 0 and not options["fire_reset"]
        self._native = AtariVectorEnv(
            task,
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=options["max_frames"],
            repeat_action_probability=options["sticky_actions"],
            full_action_space=options["full_action_space"],
            autoreset_mode=AutoresetMode.NEXT_STEP,
            img_height=height,
            img_width=width,
            grayscale=not screen,
            stack_num=options["frame_stack"],
            frameskip=options["frame_skip"],
            maxpool=not screen,
            noop_max=options["noop_max"] + 1 if options["noop_max"] else 0,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
            use_fire_reset=options["fire_reset"],
        )
        if self._native.metadata["autoreset_mode"] != AutoresetMode.NEXT_STEP:
            raise RuntimeError("ALE's vector environment does not reset at the next step")
        self._forget()

    def reset(self) -> EnvStep:
        """Load every environment anew and start an episode."""
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        self._start(everywhere, load=everywhere)
        return first_step(self._observation)

    def step(self, actions: Array) -> EnvStep:
        """Apply `actions` [B], indices into the game's action set.

        Raise ValueError for actions of another shape or outside the action set, RuntimeError before `reset`.
        """
        actions = accepted_actions(actions, self.spec, self.num_envs)
        if not self._loads[0]:
            raise RuntimeError("step was called before reset")
        dead = self._ended
        observation, reward, terminated, truncated, info = self._native.step(actions)
        self._tape.append(actions)
        lives, ended = info["lives"], terminated | truncated
        lost = (lives < self._lives) & (lives > 0) & ~ended & self._life_loss_terminates
        start = (lost & self._life_loss_resets) | dead
        self._observation, self._lives, self._ended = observation, lives, ended
        if dead.any():
            self._start(dead, load=dead & (self._tape.counts() >= RELOAD_STEPS), info=info)
        return EnvStep(
            observation=self._observation,
            reward=reward.astype(np.float32),
            terminated=terminated | lost,
            truncated=truncated,
            ended=ended,
            start=start,
            valid=~dead,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return each environment's actions since its load, where its episode starts, and a checksum of its state."""
        arrays = {"loads": self._loads, "starts": self._starts} | self._tape.contents()
        return saved_state(self.spec, self._seed, arrays) | {"checksums": self._checksums()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the current episodes again, or all since the load where those before may matter.

        Raise UserError for a state of another protocol, seed, number of environments or version of this file, or if
        the games played again differ from the recorded ones.
        """
        keys = {"loads", "starts", "counts", "skipped", "actions"}
        check_state(state, keys | {"checksums"}, self.spec, self._seed, self.num_envs)
        arrays = {key: state[key].numpy() for key in keys}
        self._forget()
        if not arrays["loads"][0]:
            return
        only_episode = (arrays["skipped"], arrays["starts"])
        whole = (np.zeros_like(arrays["skipped"]), np.zeros_like(arrays["starts"]))
        for skipped, starts in (only_episode, whole) if self._forgets_play else (whole,):
            self._replay(arrays, skipped, starts)
            if self._checksums() == state["checksums"]:
                break
        else:
            raise UserError("environment state: the games played again differ from the recorded ones")
        self._loads, self._starts = arrays["loads"].copy(), arrays["starts"].copy()
        self._tape.fill(arrays["counts"], arrays["skipped"], arrays["actions"])

    def close(self) -> None:
        """End the native threads and free the games. No other method may be called afterwards."""
        self._native.close()
        vars(self._native).pop("ale", None)

    def _forget(self) -> None:
        """Return to the state before the first reset."""
        self._loads = np.zeros(self.num_envs, dtype=np.int64)
        self._starts = np.zeros(self.num_envs, dtype=np.int64)
        self._lives = np.zeros(self.num_envs, dtype=np.int32)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._observation = np.zeros((self.num_envs, *self.spec.observation_shape), dtype=np.uint8)
        self._tape = _ActionTape(self.num_envs)

    def _start(self, mask: Array, *, load: Array, info: dict[str, Array] | None = None) -> None:
        """Start an episode in the environments in `mask` [B], after loading those in `load` [B].

        `info` is what the native environment returned when it reset them itself; without it they are reset here.
        """
        resets = mask & ~load if info is None else np.zeros_like(mask)
        if load.any():
            (rows,) = np.nonzero(load)
            # ALE takes a random seed below 1 for "from the clock".
            seeds = [max(1, seed_for(self._seed, f"atari/{row}", int(self._loads[row]))) for row in rows]
            self._observation, info = self._native.reset(seed=np.array(seeds), options={"reset_mask": load})
        while True:
            if resets.any():
                self._observation, info = self._native.reset(options={"reset_mask": resets})
            assert info is not None, "nothing was started"
            resets = mask & (info["episode_frame_number"] == 0) & self._needs_noop
            if not resets.any():
                break
        self._lives = info["lives"]
        self._ended = self._ended & ~mask
        self._loads, self._starts = self._loads + load, np.where(load, 0, self._starts + mask)
        self._tape.start(mask, load)

    def _replay(self, state: dict[str, Array], skipped: Array, starts: Array) -> None:
        """Load each environment, start `starts` [B] episodes and play all but the `skipped` [B] first actions.

        Environment i, with n_i actions, is loaded before step N - n_i of N = max n: all are done after N steps.
        """
        counts = state["counts"] - skipped
        length = int(counts.max())
        played = np.zeros((length, self.num_envs), dtype=np.int64)
        for index, part in enumerate(np.split(state["actions"], np.cumsum(state["counts"])[:-1])):
            played[length - counts[index] :, index] = part[skipped[index] :]
        self._forget()
        self._native.reset()
        self._loads += 1
        for moment in range(length + 1):
            arrived = counts == length - moment
            if arrived.any():
                # These played until now only because all are stepped together.
                self._loads = np.where(arrived, state["loads"] - 1, self._loads)
                self._start(arrived, load=arrived)
                for start in range(int(starts[arrived].max())):
                    again = arrived & (starts > start)
                    self._start(again, load=np.zeros_like(again))
            if moment < length:
                self.step(played[moment])

    def _checksums(self) -> list[int]:
        flags = zip(self._observation, self._lives.tolist(), self._ended.tolist(), strict=True)
        return [zlib.crc32(seen.tobytes() + f"{lives}{ended}".encode()) for seen, lives, ended in flags]


class _ActionTape:
    """The actions since each environment was loaded, and how many of them came before its episode."""

    def __init__(self, num_envs: int) -> None:
        self._actions = [bytearray() for _ in range(num_envs)]
        self._skipped = np.zeros(num_envs, dtype=np.int64)

    def append(self, actions: Array) -> None:
        """Add one action of each environment."""
        for tape, action in zip(self._actions, actions.tolist(), strict=True):
            tape.append(action)

    def start(self, mask: Array, load: Array) -> None:
        """Mark the start of an episode in the environments in `mask`, and forget all before it in those in `load`."""
        for index in np.flatnonzero(load):
            self._actions[index].clear()
        self._skipped = np.where(mask, self.counts(), self._skipped)

    def counts(self) -> Array:
        """Return the number of actions since the load [B]."""
        return np.array([len(tape) for tape in self._actions], dtype=np.int64)

    def contents(self) -> dict[str, Array]:
        """Return the number of actions [B], how many precede the episode [B], and all actions, row by row (uint8)."""
        actions = np.frombuffer(b"".join(self._actions), dtype=np.uint8)
        return {"counts": self.counts(), "skipped": self._skipped, "actions": actions}

    def fill(self, counts: Array, skipped: Array, actions: Array) -> None:
        """Replace the contents by what `contents` returned."""
        self._actions = [bytearray(part) for part in np.split(actions, np.cumsum(counts)[:-1])]
        self._skipped = skipped.copy()
