"""`ddrl watch`: films episodes of a trained agent, as an MP4 file or as a GIF.

The pictures come in the order and at the speed of the emulator; a strip below them shows episode, step, action and
score. The same run, seed and machine give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.api.evaluation import chosen_tasks
from ddrl.api.trained import Trained, load_trained
from ddrl.cli.film import Shot, check_output, write_film
from ddrl.cli.run_folders import the_run
from ddrl.environments.tools.camera import camera_for
from ddrl.environments.tools.named import make_env
from ddrl.system.seeding import seed_for
from ddrl.system.wording import counted


class PlayedEpisode(NamedTuple):
    """One episode: raw return, agent steps, and whether it was cut at the limit of steps."""

    episode_return: float
    length: int
    cut: bool


@dataclass(frozen=True)
class Film:
    """A video: its episodes, the kind of its pictures, their number, speed and size in pixels."""

    episodes: tuple[PlayedEpisode, ...]
    shows: str
    frames: int
    frames_per_second: float
    size: tuple[int, int]
    """Width and height."""
    env_frames: int
    """The frames that the parameters were trained for."""

    def describe(self) -> str:
        """Return all of it in one line."""
        episodes = counted(len(self.episodes), "episode")
        returns = ", ".join(f"{episode.episode_return:g}" for episode in self.episodes)
        num_cut = sum(episode.cut for episode in self.episodes)
        cut = f" ({num_cut} cut at the limit of steps)" if num_cut else ""
        width, height = self.size
        return (
            f"{episodes}{cut}, raw return {returns}, after {self.env_frames:,} frames of training; {self.shows}: "
            f"{self.frames:,} pictures of {width}x{height} at {self.frames_per_second:g} per second"
        )


def watch(
    run: Path,
    output: Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    task: str | None = None,
    environment: Mapping[str, Any] | None = None,
    where: str = "environment",
    max_steps: int | None = None,
    greedy: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Film:
    """Film `episodes` episodes with a run's newest parameters, each of at most `max_steps` agent steps, into `output`.

    On a suite the episodes take its tasks in turn, or all play `task`. `environment` has options in which the
    environment is to differ from the one trained on; errors call them `where`. Raise UserError for a
    suffix other than .mp4 and .gif, a folder that does not exist, a run without a policy, an unknown task, or without
    the encoder.
    """
    check_output(output)
    trained = load_trained(the_run(run))
    played: list[PlayedEpisode] = []
    chosen = trained.trained_on(environment, where=where)
    tasks = chosen_tasks(chosen.pop("name"), task)
    plan = [tasks[index % len(tasks)] for index in range(episodes)]
    shots = _shots(trained, chosen, played, plan, seed, max_steps, greedy, progress)
    first = next(shots)
    written = write_film(output, first, shots)
    rate, shows = written.frames_per_second, first.camera.shows
    return Film(tuple(played), shows, written.frames, rate, written.size, trained.env_frames)


def _shots(
    trained: Trained,
    settings: Mapping[str, Any],
    played: list[PlayedEpisode],
    tasks: Sequence[str],
    seed: int,
    max_steps: int | None,
    greedy: bool,
    progress: Callable[[str], None],
) -> Iterator[Shot]:
    """Play an episode of each task with the environment's options `settings`; append each to `played`."""
    episodes = len(tasks)
    for index, name in enumerate(tasks):
        env_seed = seed_for(seed, "watch-environment", index)
        described = f"film of episode {index + 1}, environment {name}, environment seed {env_seed}"
        env = make_env({**settings, "name": name}, 1, env_seed, num_threads=1, name=described)
        camera = camera_for(name, env_seed, settings)
        policy = trained.policy(1, seed, "watch-policy", index, greedy=greedy)
        step, total, length = env.reset(), 0.0, 0
        yield Shot(camera.reset(step), _words(index, episodes, 0, "", 0.0), camera)
        while not step.ended[0] and length != max_steps:
            chosen = policy.act(step).action.numpy()
            step, action = env.step(chosen), chosen[0]
            total, length = total + float(step.reward[0]), length + 1
            if action.ndim:  # continuous actions [A] have no names
                name_of_action = ""
            else:
                name_of_action = camera.actions[int(action)] if camera.actions else f"action {action}"
            words = _words(index, episodes, length, name_of_action, total)
            progress("   ".join(words))
            yield Shot(camera.step(action, step), words, camera)
        played.append(PlayedEpisode(total, length, cut=not step.ended[0]))
        camera.close()
        env.close()


def _words(index: int, episodes: int, length: int, action: str, score: float) -> tuple[str, ...]:
    which = (f"episode {index + 1} of {episodes}",) if episodes > 1 else ()
    return (*which, f"step {length:,}", f"score {score:g}", action)
