"""Atari games on ALE's native vector environment, with the protocol of IMPALA (Espeholt et al. 2018, Table G.1).

What the native environment does, and what is done here:

- No-ops: it draws 0 to `noop_max` - 1 of them; the paper says 1 to 30 (section 5.3.2). So it is given one more than
  the option says, and a start without any no-op is drawn again: uniform on 1 to `noop_max`.
- Seeds: the dead step after an end resets with a seed made of (seed, environment, episode), so that an episode is a
  function of its seed and its actions alone, sticky actions included. A checkpoint is therefore a list of actions.
- Lives: a lost life is `terminated` (no reset, no dead step) as long as lives are left; the frame stack runs on.
- Frames are made grey before the maximum of the last two is taken. A game that ends within the skipped frames keeps
  the frames drawn until then. The cap counts frames after the no-ops.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import ale_py
import numpy as np
import torch
from ale_py.roms import get_all_rom_ids, get_rom_path
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from ddrl.environments.registry import Option
from ddrl.errors import UserError
from ddrl.seeding import seed_for
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

TASKS: tuple[str, ...] = tuple(sorted(get_all_rom_ids()))
EXAMPLES: dict[str, dict[str, Any]] = {"breakout": {}, "pong": {"max_frames": 500}}
_OPTIONS = {
    "frame_skip": Option(4, 1, 60),
    "frame_stack": Option(4, 1, 16),
    "sticky_actions": Option(0.0, 0.0, 1.0),
    "full_action_space": Option(False),
    "noop_max": Option(30, 0, 1000),
    "life_loss_terminates": Option(True),
    "max_frames": Option(108_000, 1, 2**31 - 1),
    "fire_reset": Option(False),
}
OPTIONS = dict.fromkeys(TASKS, _OPTIONS)
_SIZE = 84


@dataclass(frozen=True)
class Options:
    """The adapter's options; the names are the keys of `OPTIONS`."""

    frame_skip: int
    frame_stack: int
    sticky_actions: float
    full_action_space: bool
    noop_max: int
    life_loss_terminates: bool
    max_frames: int
    fire_reset: bool

    def protocol(self, task: str) -> str:
        """Protocol id: version and game; frames; starts; stickiness; action set; lives; cap; autoreset; rewards."""
        return ";".join(
            (
                f"ale-{version('ale-py')}/{task}",
                f"skip{self.frame_skip},max2,gray{_SIZE}x{_SIZE},stack{self.frame_stack}",
                (f"noop1-{self.noop_max}" if self.noop_max else "noop0") + (",fire-reset" if self.fire_reset else ""),
                f"sticky{self.sticky_actions:g}",
                "full-actions" if self.full_action_space else "minimal-actions",
                "life-loss-terminal" if self.life_loss_terminates else "game-over-terminal",
                f"cap{self.max_frames // 1000}k" if self.max_frames % 1000 == 0 else f"cap{self.max_frames}",
                "autoreset-next-step",
                "raw-rewards",
            )
        )


@cache
def _num_actions(task: str, full: bool) -> int:
    if full:
        return 18
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = get_rom_path(task)
    if path is None:
        raise UserError(f"atari/{task}: its ROM is not among those of ale-py")
    ale.loadROM(path)
    return len(ale.getMinimalActionSet())


def spec(task: str, **options: Any) -> EnvSpec:
    """The spec of one game: uint8 observations [frame_stack, 84, 84], the newest frame last."""
    chosen = Options(**options)
    return EnvSpec(
        name=f"atari/{task}",
        observation_shape=(chosen.frame_stack, _SIZE, _SIZE),
        observation_dtype="uint8",
        num_actions=_num_actions(task, chosen.full_action_space),
        frame_skip=chosen.frame_skip,
        protocol=chosen.protocol(task),
    )


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> AtariEnvs:
    """`num_envs` games stepped by `num_threads` native threads (no more than the machine has cores)."""
    return AtariEnvs(task, num_envs, seed, num_threads, Options(**options))


class AtariEnvs:
    """B games of ALE's native vector environment, as a `ddrl.types.VectorEnv`."""

    _episode: Array  # [B] int64: episodes started before the current one; -1 before the first reset
    _lives: Array  # [B] int32
    _ended: Array  # [B] bool: the next step is dead
    _observation: Array  # [B, stack, 84, 84] uint8
    _tape: _ActionTape

    def __init__(self, task: str, num_envs: int, seed: int, num_threads: int, options: Options) -> None:
        self.spec = spec(task, **vars(options))
        self.num_envs = num_envs
        self._seed = seed
        self._life_loss_terminates = options.life_loss_terminates
        # The native no-op count excludes its bound; where FIRE opens the game, FIRE itself counts as the first.
        self._needs_noop = options.noop_max > 0 and not options.fire_reset
        self._native = AtariVectorEnv(
            task,
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=options.max_frames,
            repeat_action_probability=options.sticky_actions,
            full_action_space=options.full_action_space,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            img_height=_SIZE,
            img_width=_SIZE,
            grayscale=True,
            stack_num=options.frame_stack,
            frameskip=options.frame_skip,
            maxpool=True,
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
        """Starts every environment's next episode."""
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        nowhere = np.zeros(self.num_envs, dtype=np.bool_)
        self._start_episodes(everywhere)
        self._ended = nowhere
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        return EnvStep(self._observation, rewards, nowhere, nowhere, nowhere, everywhere, everywhere)

    def step(self, actions: Array) -> EnvStep:
        """Applies `actions` [B], indices into the game's action set.

        Raises: ValueError for actions of another shape or outside the action set; RuntimeError before `reset`.
        """
        actions = _checked(actions, self.num_envs, self.spec.num_actions)
        if self._episode[0] < 0:
            raise RuntimeError("step was called before reset")
        dead = self._ended
        observation, reward, terminated, truncated, info = self._native.step(actions)
        lives = info["lives"]
        self._tape.append(actions)
        ended = terminated | truncated
        start = lost = (lives < self._lives) & (lives > 0) & ~ended & self._life_loss_terminates
        self._observation, self._lives, self._ended = observation, lives, ended
        if dead.any():
            start = lost | dead
            self._start_episodes(dead)
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
        """Per environment: its episode and the actions taken in it; a checksum of what that leads to."""
        counts, actions = self._tape.since_start()
        return {
            "protocol": self.spec.protocol,
            "seed": self._seed,
            "episode": torch.from_numpy(self._episode.copy()),
            "counts": torch.from_numpy(counts),
            "actions": torch.from_numpy(actions),
            "checksum": self._checksum(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Plays the current episodes again, all environments arriving at the same moment.

        Raises: UserError for a state of another protocol, seed or number of environments, or if the replayed games
        differ from the recorded ones.
        """
        for key, own in (("protocol", self.spec.protocol), ("seed", self._seed)):
            if state[key] != own:
                raise UserError(f"environment state: {key} is '{state[key]}', but this run has '{own}'")
        if len(state["episode"]) != self.num_envs:
            raise UserError(f"environment state: {len(state['episode'])} environments; allowed: {self.num_envs}")
        episode = state["episode"].numpy().copy()
        self._forget()
        if episode[0] >= 0:
            self._replay(episode, state["counts"].numpy(), state["actions"].numpy())
        if self._checksum() != state["checksum"]:
            raise UserError("environment state: the replayed games differ from the recorded ones")

    def close(self) -> None:
        """Frees the native environments."""
        self._native.close()

    def _forget(self) -> None:
        """As before the first reset."""
        self._episode = np.full(self.num_envs, -1, dtype=np.int64)
        self._lives = np.zeros(self.num_envs, dtype=np.int32)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._observation = np.zeros((self.num_envs, *self.spec.observation_shape), dtype=np.uint8)
        self._tape = _ActionTape(self.num_envs)

    def _replay(self, episode: Array, counts: Array, actions: Array) -> None:
        """Environment i starts at step N - n_i of N = max n, so that all are done after N steps."""
        length = int(counts.max())
        played = np.zeros((length, self.num_envs), dtype=np.int64)
        for index, part in enumerate(np.split(actions, np.cumsum(counts)[:-1])):
            played[length - len(part) :, index] = part
        self._episode = episode - 1
        self._start_episodes(np.ones(self.num_envs, dtype=np.bool_))
        terminated = truncated = np.zeros(self.num_envs, dtype=np.bool_)
        for moment in range(length + 1):
            late = (counts == length - moment) & (counts < length)
            if late.any():
                self._episode[late] -= 1
                self._start_episodes(late)
                # A reset reports no ends: whatever this environment did before its start is void.
                terminated, truncated = terminated & ~late, truncated & ~late
            if moment < length:
                self._observation, _, terminated, truncated, info = self._native.step(played[moment])
                self._lives = info["lives"]
                self._tape.append(played[moment])
        self._ended = terminated | truncated

    def _start_episodes(self, mask: Array) -> None:
        """Starts the next episode of the environments in `mask` [B]."""
        self._episode = self._episode + mask
        missing, attempt = mask.copy(), 0
        while missing.any():
            (rows,) = np.nonzero(missing)
            # ALE takes a random seed below 1 for "from the clock".
            seeds = np.array(
                [max(1, seed_for(self._seed, f"atari/{row}/{self._episode[row]}", attempt)) for row in rows]
            )
            self._observation, info = self._native.reset(seed=seeds, options={"reset_mask": missing})
            self._lives = info["lives"]
            missing &= (info["episode_frame_number"] == 0) & self._needs_noop
            attempt += 1
        self._tape.start(mask)

    def _checksum(self) -> int:
        parts = (self._observation, self._lives, self._ended)
        return zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))


class _ActionTape:
    """The actions since each environment's start: rows [B] in a buffer that forgets what no environment needs."""

    def __init__(self, num_envs: int, capacity: int = 4096) -> None:
        self._rows = np.zeros((capacity, num_envs), dtype=np.uint8)
        self._length = 0
        self._begin = np.zeros(num_envs, dtype=np.int64)

    def append(self, actions: Array) -> None:
        """Adds one row."""
        if self._length == len(self._rows):
            self._make_room()
        self._rows[self._length] = actions
        self._length += 1

    def start(self, mask: Array) -> None:
        """Forgets the past of the environments in `mask`."""
        self._begin[mask] = self._length

    def since_start(self) -> tuple[Array, Array]:
        """Number of actions of each environment [B] int64, and all their actions one after the other, uint8."""
        parts = [self._rows[begin : self._length, index] for index, begin in enumerate(self._begin)]
        return self._length - self._begin, np.concatenate(parts)

    def _make_room(self) -> None:
        first = int(self._begin.min())
        kept = self._rows[first : self._length]
        capacity = len(self._rows) * (2 if len(kept) > len(self._rows) // 2 else 1)
        rows = np.zeros((capacity, self._rows.shape[1]), dtype=np.uint8)
        rows[: len(kept)] = kept
        self._rows, self._length, self._begin = rows, len(kept), self._begin - first


def _checked(actions: Array, num_envs: int, num_actions: int) -> Array:
    """`actions` as int64 [B]; an action the native environment does not know would leave its threads waiting."""
    if actions.shape != (num_envs,) or actions.dtype.kind not in "iu":
        raise ValueError(f"actions must be integers of shape ({num_envs},), not {actions.dtype} {actions.shape}")
    if int(actions.min()) < 0 or int(actions.max()) >= num_actions:
        raise ValueError(f"actions must lie in 0..{num_actions - 1}, got {actions.min()}..{actions.max()}")
    return actions.astype(np.int64, copy=False)
