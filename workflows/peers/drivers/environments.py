"""Makes the task of a request as a gymnasium environment, with the protocol that `ddrl` has for it.

Works with gymnasium 0.28 to 1.x and ale-py 0.8 to 0.12. Four kinds of task:

    gymnasium   an id, with arguments and a limit of steps; continuous actions are numbers in [-1, 1], cut there and
                scaled to the bounds of the simulator
    atari       ale-py itself, preprocessed as `ddrl`'s protocol says: no-ops, frame skip, grey, maximum of two frames,
                scaled by areas, stacked; a lost life may end an episode for the agent, and nothing is reset then
    catch       the small game `toy/catch` of `ddrl`
    vizdoom     a task of `firstperson/vizdoom_...` (`vizdoom_game`)

Every environment has a method `episodes_over()`, which returns the raw return and the number of agent steps of each
whole episode (of the game, not of a life) since the last call.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Task(gymnasium.Wrapper):
    """An environment as its learner is to see it, which keeps the raw returns of whole episodes."""

    def __init__(self, env: Any, reward_clipping: str, time_limits: str) -> None:
        """`reward_clipping`: none or abs_one; `time_limits`: bootstrap or terminal; as the keys of `ddrl`."""
        super().__init__(env)
        self._clips = {"none": False, "abs_one": True}[reward_clipping]
        self._limits_end = {"bootstrap": False, "terminal": True}[time_limits]
        self._return, self._length = 0.0, 0
        self._over: list[tuple[float, int]] = []

    def episodes_over(self) -> list[tuple[float, int]]:
        """Return (raw return, agent steps) of each episode that has ended since the last call."""
        over, self._over = self._over, []
        return over

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the agent; random numbers go on from the seed that the environment was made with."""
        return self.env.reset()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        reward = float(reward)
        self._return += reward
        self._length += 1
        if info.get("game_over", terminated or truncated):
            self._over.append((self._return, self._length))
            self._return, self._length = 0.0, 0
        if self._clips:
            reward = min(1.0, max(-1.0, reward))
        if truncated and self._limits_end:
            terminated, truncated = True, False
        return observation, reward, bool(terminated), bool(truncated), info


class UnitActions(gymnasium.ActionWrapper):
    """Continuous actions in [-1, 1], cut there and scaled to the simulator's bounds."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        low, high = env.action_space.low, env.action_space.high
        self._centre, self._half = (low + high) / 2, (high - low) / 2
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, low.shape, np.float32)

    def action(self, action: Any) -> Any:
        """Return the action in the simulator's units."""
        return (np.clip(action, -1.0, 1.0) * self._half + self._centre).astype(self.env.action_space.dtype)


class Float32(gymnasium.ObservationWrapper):
    """Flat float32 observations."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        size = int(np.prod(env.observation_space.shape))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, observation: Any) -> Any:
        """Return one observation."""
        return np.asarray(observation, np.float32).reshape(-1)


class AtariGame(gymnasium.Env):
    """One Atari game on ale-py's own interface; observations [stack, size, size] uint8, the newest frame last."""

    def __init__(self, rom: str, options: Mapping[str, Any], seed: int) -> None:
        """`rom`: a file; it is `ddrl`'s own, since older ale-py have none. `options`: those of its prefix `atari`."""
        import ale_py
        import cv2

        cv2.setNumThreads(1)
        self._resize = lambda frame, size: cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA)
        if options["fire_reset"] or not options["life_loss_resets"]:
            raise ValueError("fire_reset and life_loss_resets: false are not made here")
        self._options = options
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", max(1, seed % 2**31))
        self._ale.setFloat("repeat_action_probability", options["sticky_actions"])
        self._ale.loadROM(Path(rom) if ale_py.__version__ < "0.9" else rom)
        full = options["full_action_space"]
        self._actions = self._ale.getLegalActionSet() if full else self._ale.getMinimalActionSet()
        self._random = np.random.default_rng(seed)
        height, width = self._ale.getScreenDims()
        self._frames = [np.zeros((height, width), np.uint8) for _ in range(2)]
        size, stack = options["image_size"], options["frame_stack"]
        self._stack = np.zeros((stack, size, size), np.uint8)
        self._frame_number, self._lives, self._over = 0, 0, True
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = gymnasium.spaces.Box(0, 255, (stack, size, size), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game, or go on after a lost life."""
        if self._over:
            self._ale.reset_game()
            most = self._options["noop_max"]
            for _ in range(int(self._random.integers(1, most + 1)) if most else 0):
                self._ale.act(0)
                if self._ale.game_over():
                    self._ale.reset_game()
            self._frame_number, self._over = 0, False
            self._lives = self._ale.lives()
            self._ale.getScreenGrayscale(self._frames[0])
            self._stack[:] = 0
            self._stack[-1] = self._resize(self._frames[0], self._options["image_size"])
        return self._stack.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action for `frame_skip` frames."""
        skip, chosen, reward = self._options["frame_skip"], self._actions[int(action)], 0.0
        for frame in range(skip):
            reward += self._ale.act(chosen)
            self._frame_number += 1
            if self._ale.game_over():  # the frames drawn until then stay
                break
            if frame >= skip - 2:
                self._ale.getScreenGrayscale(self._frames[frame - skip + 2])
        image = self._resize(np.maximum(*self._frames), self._options["image_size"])
        self._stack = np.concatenate([self._stack[1:], image[None]])
        lives, terminated = self._ale.lives(), self._ale.game_over()
        truncated = not terminated and self._frame_number >= self._options["max_frames"]
        lost = 0 < lives < self._lives and not terminated and self._options["life_loss_terminates"]
        self._lives, self._over = lives, terminated or truncated
        return self._stack.copy(), reward, terminated or lost, truncated, {"game_over": terminated or truncated}


class Catch(gymnasium.Env):
    """`toy/catch`: a ball falls a row a step from a random column, and a paddle moves below it; +1 or -1 at the end."""

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self._rows, self._columns = options["rows"], options["columns"]
        self._random = np.random.default_rng(seed)
        self._row = self._ball = self._paddle = 0
        self.action_space = gymnasium.spaces.Discrete(3)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (self._rows * self._columns,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Drop a ball."""
        self._row, self._ball = 0, int(self._random.integers(self._columns))
        self._paddle = self._columns // 2
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the paddle: 0 left, 1 stay, 2 right."""
        self._paddle = min(self._columns - 1, max(0, self._paddle + int(action) - 1))
        self._row += 1
        over = self._row == self._rows - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if over else 0.0
        return self._seen(), reward, over, False, {}

    def _seen(self) -> Any:
        board = np.zeros((self._rows, self._columns), np.float32)
        board[self._row, self._ball] = board[-1, self._paddle] = 1.0
        return board.reshape(-1)


def make(task: Mapping[str, Any], seed: int, folder: str | None = None) -> Task:
    """Make one environment of a request's task; each environment of a run gets a seed of its own.

    Files of a simulator go to `folder`, or to a temporary one.
    """
    kind = task["kind"]
    if kind == "atari":
        env: Any = AtariGame(task["rom"], task["options"], seed)
    elif kind == "catch":
        env = Catch(task["options"], seed)
    elif kind == "vizdoom":
        from vizdoom_game import VizdoomGame

        env = VizdoomGame(task, seed, folder)
    elif kind == "gymnasium":
        env = gymnasium.make(
            task["id"], max_episode_steps=task["max_steps"], disable_env_checker=True, **task["arguments"]
        )
        env.reset(seed=seed)  # later starts draw from this seed's stream
        env = Float32(env)
        if isinstance(env.action_space, gymnasium.spaces.Box):
            env = UnitActions(env)
    else:
        raise ValueError(f"there is no task of kind '{kind}'")
    return Task(env, task["reward_clipping"], task["time_limits"])


class Logged(gymnasium.Wrapper):
    """A task in another process: its finished episodes are appended to a file, which the driver reads (`Episodes`)."""

    def __init__(self, task: Mapping[str, Any], seed: int, number: int, folder: str) -> None:
        """`number`: of this environment among all of the run."""
        super().__init__(make(task, seed_of(seed, "actor", number), folder))
        self._path = Path(folder, f"{number}.txt")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode; the seed is the task's own."""
        return self.env.reset()

    def step(self, action: Any) -> Any:
        """Apply one action."""
        result = self.env.step(action)
        if over := self.env.episodes_over():
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{episode_return!r} {length}\n" for episode_return, length in over)
        return result


class Episodes:
    """Reads the files of `Logged`."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._read: dict[Path, int] = {}

    def new(self) -> list[tuple[float, int]]:
        """Return the episodes since the last call."""
        found = []
        for path in self._folder.glob("*.txt"):
            with path.open(encoding="utf-8") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
                whole = text[: text.rfind("\n") + 1]
                self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                episode_return, length = line.split()
                found.append((float(episode_return), int(length)))
        return found


def seed_of(seed: int, role: str, index: int) -> int:
    """Return the seed of one environment: different for each run, role and number."""
    entropy = [seed, sum(map(ord, role)), index]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] % (2**31 - 1)) + 1


def evaluate(task: Mapping[str, Any], seed: int, share: int, episodes: int, act: Any) -> list[list[float]]:
    """Play whole episodes one after the other; `act(observation [1, ...]) -> actions [1, ...]`; seeds by `share`."""
    env = make({**task, "reward_clipping": "none"}, seed_of(seed, "evaluation", share))
    played: list[list[float]] = []
    observation, _ = env.reset()
    while len(played) < episodes:
        observation, _, terminated, truncated, _ = env.step(act(np.asarray(observation)[None])[0])
        played += [[episode_return, length] for episode_return, length in env.episodes_over()]
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return played
