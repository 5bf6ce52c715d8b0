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
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import ale_py
import numpy as np
from ale_py.roms import get_all_rom_ids, get_rom_path
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from ddrl.environments.base.contract import accepted_actions, check_state, first_step, saved_state
from ddrl.environments.base.registry import Option
from ddrl.environments.tools.camera import EMULATOR_HERTZ, EmulatorCamera
from ddrl.errors import UserError
from ddrl.system.seeding import seed_for
from ddrl.types import Array, EnvSpec, EnvStep

_NAMES = """
alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing breakout
centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby freeway frostbite
gopher gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game
phoenix pitfall pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris space_invaders
star_gunner surround tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon
"""
ATARI_57: tuple[str, ...] = tuple(_NAMES.split())
"""The 57 games of the literature, by ALE's names."""

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
    "image_size": Option(84, 42, 84),
}
OPTIONS = dict.fromkeys(TASKS, _OPTIONS)
RELOAD_STEPS = 20_000
# Games known to run differently after a reset, depending on what was played before it (they read undriven pins).
_REMEMBER = frozenset(
    {"hangman", "haunted_house", "ice_hockey", "sir_lancelot", "surround", "time_pilot", "yars_revenge"}
)


@dataclass(frozen=True)
class Options:
    """The adapter's options; the names are the keys of `OPTIONS`."""

    frame_skip: int
    frame_stack: int
    sticky_actions: float
    full_action_space: bool
    noop_max: int
    life_loss_terminates: bool
    life_loss_resets: bool
    max_frames: int
    fire_reset: bool
    image_size: int
    """Pixels each way: 84 in most papers, 42 in IMPACT's small network."""

    def __post_init__(self) -> None:
        if not (self.life_loss_terminates or self.life_loss_resets):
            raise UserError("environment.life_loss_resets: false is only read where life_loss_terminates is true")

    @property
    def lives(self) -> str:
        """What a lost life is, in the protocol id."""
        if not self.life_loss_terminates:
            return "game-over-terminal"
        return "life-loss-terminal" if self.life_loss_resets else "life-loss-terminal,rolling"

    def protocol(self, task: str) -> str:
        """Protocol id: version and game; frames; starts; stickiness; action set; lives; cap; autoreset; rewards."""
        return ";".join(
            (
                f"ale-{version('ale-py')}/{task}",
                f"skip{self.frame_skip},max2,gray{self.image_size}x{self.image_size},stack{self.frame_stack}",
                (f"noop1-{self.noop_max}" if self.noop_max else "noop0") + (",fire-reset" if self.fire_reset else ""),
                f"sticky{self.sticky_actions:g}",
                "full-actions" if self.full_action_space else "minimal-actions",
                self.lives,
                f"cap{self.max_frames // 1000}k" if self.max_frames % 1000 == 0 else f"cap{self.max_frames}",
                "autoreset-next-step",
                "raw-rewards",
            )
        )


class _Game(NamedTuple):
    legal: tuple[str, ...]  # names of the emulator's actions
    minimal: tuple[str, ...]  # of those that do something in this game
    screen: tuple[int, int]  # height and width

    def actions(self, full: bool) -> tuple[str, ...]:
        return self.legal if full else self.minimal


@cache
def _game(task: str) -> _Game:
    """What only the game's program tells."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = get_rom_path(task)
    if path is None:
        raise UserError(f"atari/{task}: its ROM is not among those of ale-py")
    ale.loadROM(path)
    legal = tuple(action.name for action in ale.getLegalActionSet())
    return _Game(legal, tuple(action.name for action in ale.getMinimalActionSet()), ale.getScreenDims())


def spec(task: str, **options: Any) -> EnvSpec:
    """The spec of one game: uint8 observations [frame_stack, image_size, image_size], the newest frame last."""
    chosen = Options(**options)
    return EnvSpec(
        name=f"atari/{task}",
        observation_shape=(chosen.frame_stack, chosen.image_size, chosen.image_size),
        observation_dtype="uint8",
        num_actions=len(_game(task).actions(chosen.full_action_space)),
        frame_skip=chosen.frame_skip,
        protocol=chosen.protocol(task),
        frame_stack=chosen.frame_stack,
    )


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> AtariEnvs:
    """`num_envs` games stepped by `num_threads` native threads (no more than the machine has cores)."""
    return AtariEnvs(task, num_envs, seed, num_threads, Options(**options))


def camera(task: str, seed: int, **options: Any) -> EmulatorCamera:
    """Films the first episode of `make(task, 1, seed, **options)`: all emulator frames, in colour."""
    chosen = Options(**options)
    frame_by_frame = replace(chosen, frame_skip=1, frame_stack=1, max_frames=2**31 - 1)
    twin = AtariEnvs(task, 1, seed, 1, frame_by_frame, screen=True)
    return EmulatorCamera(twin, chosen.frame_skip, EMULATOR_HERTZ, _game(task).actions(chosen.full_action_space))


class AtariEnvs:
    """B games of ALE's native vector environment, as a `ddrl.types.VectorEnv`."""

    _loads: Array  # [B] int64: times this environment was loaded with a seed
    _starts: Array  # [B] int64: episodes started since then, without the first
    _lives: Array  # [B] int32
    _ended: Array  # [B] bool: the next step is dead
    _observation: Array  # [B, stack, image_size, image_size] uint8
    _tape: _ActionTape

    def __init__(
        self, task: str, num_envs: int, seed: int, num_threads: int, options: Options, *, screen: bool = False
    ) -> None:
        """`screen`: observations are the emulator's own colour frames [B, stack, height, width, 3]."""
        size = options.image_size
        height, width = _game(task).screen if screen else (size, size)
        self.spec = spec(task, **vars(options))
        self.num_envs = num_envs
        self._seed = seed
        self._life_loss_terminates = options.life_loss_terminates
        self._life_loss_resets = options.life_loss_resets
        # The native no-op count excludes its bound; where FIRE opens the game, FIRE itself counts as the first.
        self._forgets_play = task not in _REMEMBER and options.sticky_actions == 0
        self._needs_noop = options.noop_max > 0 and not options.fire_reset
        self._native = AtariVectorEnv(
            task,
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=options.max_frames,
            repeat_action_probability=options.sticky_actions,
            full_action_space=options.full_action_space,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            img_height=height,
            img_width=width,
            grayscale=not screen,
            stack_num=options.frame_stack,
            frameskip=options.frame_skip,
            maxpool=not screen,
            noop_max=options.noop_max + 1 if options.noop_max else 0,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
            use_fire_reset=options.fire_reset,
        )
        if self._native.metadata["autoreset_mode"] != AutoresetMode.NEXT_STEP:
            raise RuntimeError("ALE's vector environment does not reset at the next step")
        self._forget()

    def reset(self) -> EnvStep:
        """Loads every environment anew and starts an episode."""
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        self._start(everywhere, load=everywhere)
        return first_step(self._observation)

    def step(self, actions: Array) -> EnvStep:
        """Applies `actions` [B], indices into the game's action set.

        Raises: ValueError for actions of another shape or outside the action set; RuntimeError before `reset`.
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
        """Per environment: the actions since it was loaded, where its episode starts, a checksum of where it stands."""
        counts, skipped, actions = self._tape.contents()
        arrays = {
            "loads": self._loads,
            "starts": self._starts,
            "counts": counts,
            "skipped": skipped,
            "actions": actions,
        }
        return saved_state(self.spec, self._seed, arrays) | {"checksums": self._checksums()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Plays the current episodes again, or all since the load where those before may matter.

        Raises: UserError for a state of another protocol, seed, number of environments or version of this file, or if
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
        self._tape = _ActionTape(self.num_envs)
        self._tape.fill(arrays["counts"], arrays["skipped"], arrays["actions"])

    def close(self) -> None:
        """Ends the native threads and frees the games; nothing else may follow."""
        self._native.close()
        vars(self._native).pop("ale", None)

    def _forget(self) -> None:
        """As before the first reset."""
        self._loads = np.zeros(self.num_envs, dtype=np.int64)
        self._starts = np.zeros(self.num_envs, dtype=np.int64)
        self._lives = np.zeros(self.num_envs, dtype=np.int32)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._observation = np.zeros((self.num_envs, *self.spec.observation_shape), dtype=np.uint8)
        self._tape = _ActionTape(self.num_envs)

    def _start(self, mask: Array, *, load: Array, info: dict[str, Array] | None = None) -> None:
        """Starts an episode in the environments in `mask` [B], after loading those in `load` [B].

        `info` is what the native environment told when it reset them by itself; without it they are reset here.
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
        """Loads each environment, starts `starts` [B] episodes and plays all but the `skipped` [B] first actions.

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
                # Whatever these did until now was only to keep the others company.
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
    """The actions since each environment was loaded: rows [B] in a buffer that forgets what no environment needs."""

    def __init__(self, num_envs: int, capacity: int = 4096) -> None:
        self._rows = np.zeros((capacity, num_envs), dtype=np.uint8)
        self._length = 0
        self._loaded = np.zeros(num_envs, dtype=np.int64)
        self._started = np.zeros(num_envs, dtype=np.int64)

    def append(self, actions: Array) -> None:
        """Adds one row."""
        if self._length == len(self._rows):
            self._make_room()
        self._rows[self._length] = actions
        self._length += 1

    def start(self, mask: Array, load: Array) -> None:
        """Marks the start of an episode, and forgets all before it in the environments in `load`."""
        self._started[mask] = self._length
        self._loaded[load] = self._length

    def counts(self) -> Array:
        """Number of actions since the load [B]."""
        return self._length - self._loaded

    def contents(self) -> tuple[Array, Array, Array]:
        """Number of actions [B], those of them before the current episode [B], all actions one environment after the
        other (uint8)."""
        parts = [self._rows[loaded : self._length, index] for index, loaded in enumerate(self._loaded)]
        return self.counts(), self._started - self._loaded, np.concatenate(parts)

    def fill(self, counts: Array, skipped: Array, actions: Array) -> None:
        """Takes over what `contents` gave."""
        self._length = int(counts.max())
        self._rows = np.zeros((max(len(self._rows), 2 * self._length), len(counts)), dtype=np.uint8)
        self._loaded = self._length - counts
        self._started = self._loaded + skipped
        for index, part in enumerate(np.split(actions, np.cumsum(counts)[:-1])):
            self._rows[self._loaded[index] : self._length, index] = part

    def _make_room(self) -> None:
        first = int(self._loaded.min())
        kept = self._rows[first : self._length]
        capacity = len(self._rows) * (2 if len(kept) > len(self._rows) // 2 else 1)
        rows = np.zeros((capacity, self._rows.shape[1]), dtype=np.uint8)
        rows[: len(kept)] = kept
        self._rows, self._length = rows, len(kept)
        self._loaded, self._started = self._loaded - first, self._started - first
