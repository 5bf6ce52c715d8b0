"""What every driver shares: the request that is read, the settings that it maps, and the lines that it writes.

A driver runs in the environment of one library and imports that library, the standard library, numpy, torch and
gymnasium: nothing of `ddrl`. It reads one JSON request (standard input) and writes JSON lines (standard output), each
with a key `kind`:

    {"kind": "started", "pid": 1, "versions": {...}}                  the library is imported
    {"kind": "progress", "steps": 512, "updates": 1, "gradient_steps": 4, "trained_samples": 512, "seconds": 1.2,
     "updated": true, "metrics": {...}, "episodes": [[480, 21.0, 33], ...]}
                                   whether an update has just ended; [agent steps, raw return, agent steps it lasted]
    {"kind": "evaluation", "updates": 9, "episodes": [[21.0, 33], ...]}             [raw return, agent steps]
    {"kind": "finished", "steps": ..., "updates": ..., "gradient_steps": ..., "trained_samples": ..., "seconds": ...,
     "effective": {...}, "unmapped": [{"key", "ours", "theirs", "why"}], "parameters": 10}
    {"kind": "refused", "message": "..."}                             the request cannot be carried out, and why

Whatever else a library prints goes to standard error. Steps are agent steps throughout; an update is what is learned
from one fresh batch. Seconds are of training, without the evaluation at its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

VERSION = 1
PROGRESS_SECONDS = 0.5
UPDATE_SECONDS = 0.1
"""Least time between two lines: of progress, and of updates."""


class Refused(Exception):
    """The library cannot do what the request asks for; the message says what and why."""


DESCRIBED = (
    *("network", "mlp_size", "separate_value_network", "lstm_size", "initialisation", "reward_clipping", "time_limits"),
)
"""Keys of settings that the request's network and task say in full: layers, first weights, and what a step gives."""


OURS_ALONE = {
    "value_epochs": None,
    "kl_excess_cost": 0.0,
    "max_kl": None,
    "feed_last_action_and_reward": False,
    "weighting": "samples",
}
"""Keys of PPO that no library here has -> the values that leave them out."""

LIVE = "its statistics take in each step at once"
"""Why a library with statistics of observations has no warm-up of theirs."""


CLIPPINGS = ("none", "abs_one")
"""Kinds of clipped rewards that `environments.Task` has."""


def check(task: Mapping[str, Any]) -> None:
    """Refuse a task that is not made here: its simulator is missing, or its rewards are clipped in another way."""
    from importlib.util import find_spec

    for package in task.get("packages", ()):
        if find_spec(package) is None:
            raise Refused(f"its environment does not have the package {package}, which the task needs")
    if task["reward_clipping"] not in CLIPPINGS:
        raise Refused(
            f"hyperparameters.reward_clipping: {task['reward_clipping']} is not made for it; "
            f"allowed: {', '.join(CLIPPINGS)}"
        )


class Settings:
    """The settings of a request. Each that a driver reads is mapped; what is left is unmapped."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """`values`: dotted key -> value, in the words of `ddrl`."""
        self._values = dict(values)
        self._taken: set[str] = set()
        self.unmapped: list[dict[str, Any]] = []

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, which has the same meaning on both sides; `default` where ours has no such key."""
        self._taken.add(key)
        return self._values.get(key, default)

    def same(self, key: str, theirs: Any, why: str) -> None:
        """Note a key whose value in the library is fixed, unmapped where ours is another one."""
        ours = self.take(key, theirs)
        if ours != theirs:
            self.differs(key, ours, theirs, why)

    def ours_alone(self) -> None:
        """Note the keys of PPO that no library here has; raise `Refused` if the ratio is not clipped, as all do."""
        for key, theirs in OURS_ALONE.items():
            self.same(key, theirs, "it has no such key")
        if self._values["clip_epsilon"] is None:
            raise Refused("it always clips the ratio")

    def without_effect(self, *keys: str) -> None:
        """Note keys, and all below them, that change nothing here, as the bound of a normalisation that is off."""
        self._taken.update(keys, (one for one in self._values if one.partition(".")[0] in keys))

    def differs(self, key: str, ours: Any, theirs: Any, why: str) -> None:
        """Note a key that the library cannot be given."""
        self._taken.add(key)
        self.unmapped.append({"key": key, "ours": ours, "theirs": theirs, "why": why})

    def left(self) -> list[dict[str, Any]]:
        """Return all that is unmapped, with each key that nothing has read."""
        unread = [
            {"key": key, "ours": value, "theirs": None, "why": "the driver maps no such key"}
            for key, value in sorted(self._values.items())
            if key not in self._taken
        ]
        return [*self.unmapped, *unread]


class Reporter:
    """Writes the lines of the protocol, and counts what the library does."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._episodes: list[list[float]] = []
        self._metrics: dict[str, float] = {}
        self._last = 0.0
        self.started: float | None = None
        self.steps = 0
        self.updates = 0
        self.gradient_steps = 0
        self.trained_samples = 0

    def line(self, kind: str, **values: Any) -> None:
        """Write one line."""
        self._write(json.dumps({"kind": kind, **values}) + "\n")

    def episode(self, steps: int, episode_return: float, length: int) -> None:
        """Add a training episode that ended at this many agent steps, with its raw return."""
        self._episodes.append([int(steps), float(episode_return), int(length)])

    def metric(self, name: str, value: float) -> None:
        """Keep the newest value of a metric for the next line."""
        value = float(value)
        if value == value and abs(value) != float("inf"):
            self._metrics[name] = value

    def progress(self, steps: int | None = None, *, force: bool = False, updated: bool = False) -> None:
        """Write a line if one is due; `updated`: an update has just ended."""
        if steps is not None:
            self.steps = int(steps)
        now = time.monotonic()
        if self.started is None:
            self.started = self._last = now
        if not force and now - self._last < PROGRESS_SECONDS:
            return
        self._last = now
        episodes, self._episodes = self._episodes, []
        self.line("progress", **self.counts(), updated=updated, metrics=self._metrics, episodes=episodes)

    def updated(self) -> None:
        """Count an update, and write a line unless there was one just now: speeds are measured between updates."""
        self.updates += 1
        self.progress(force=time.monotonic() - self._last >= UPDATE_SECONDS, updated=True)

    def counts(self) -> dict[str, float]:
        """Return how far the training is."""
        names = ("steps", "updates", "gradient_steps", "trained_samples")
        seconds = 0.0 if self.started is None else time.monotonic() - self.started
        return {name: getattr(self, name) for name in names} | {"seconds": round(seconds, 3)}

    def evaluation(self, updates: int, episodes: Sequence[Sequence[float]]) -> None:
        """Report the episodes of one version of the parameters."""
        self.line("evaluation", updates=updates, episodes=episodes)

    def count_optimizer_steps(self) -> None:
        """Count every step of every torch optimizer of this process from now on."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def count(*_: Any) -> None:
            self.gradient_steps += 1

        register_optimizer_step_post_hook(count)


class Versions:
    """The versions of the parameters that share the final episodes, as the keys `evaluation.*` of `ddrl` say."""

    def __init__(self, request: Mapping[str, Any], snapshot: Callable[[], Any]) -> None:
        """`snapshot` returns a copy of the newest parameters."""
        setting, budget = request["evaluation"], request["agent_steps"]
        count, window = setting["versions"], setting["window_fraction"] * budget
        self._due = [budget - window * (count - 1 - index) / (count - 1) for index in range(count - 1)]
        self._snapshot = snapshot
        self._episodes = setting["episodes"]
        self._kept: list[tuple[int, Any]] = []

    def keep(self, reporter: Reporter) -> None:
        """Keep a version if one is due; called after every update."""
        if self._due and reporter.steps >= self._due[0]:
            self._due = [steps for steps in self._due if steps > reporter.steps]
            self._kept.append((reporter.updates, self._snapshot()))

    def play(self, reporter: Reporter, play: Callable[[Any, int, int], Sequence[Sequence[float]]]) -> None:
        """Play the final episodes in equal shares: `play(parameters, number of the share, episodes)`."""
        if not self._episodes:
            return
        kept = [*(one for one in self._kept if one[0] < reporter.updates), (reporter.updates, self._snapshot())]
        shares = [self._episodes // len(kept) + (index < self._episodes % len(kept)) for index in range(len(kept))]
        for number, ((updates, parameters), share) in enumerate(zip(kept, shares)):  # noqa: B905
            reporter.evaluation(updates, play(parameters, number, share))


Driver = Callable[[Mapping[str, Any], Settings, Reporter], Mapping[str, Any]]
"""(request, settings, reporter) -> counts, effective settings and number of parameters; progress is reported by it."""


def run(train: Driver, versions: Callable[[], Mapping[str, str]], other: Mapping[str, Callable[..., Any]]) -> None:
    """Carry out the request of standard input, or a mode named in the arguments (`--one-update IN OUT`).

    `--check` does nothing but import the library.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints, in this and in its processes
    sys.stdout = sys.stderr
    if len(sys.argv) > 1:
        ({"--check": lambda: None} | dict(other))[sys.argv[1]](*sys.argv[2:])
        return
    request = json.load(sys.stdin)
    reporter = Reporter(out.write)
    settings = Settings(request["settings"])
    try:
        if request["protocol"] != VERSION:
            raise Refused(f"the request has version {request['protocol']} of the protocol, and the driver {VERSION}")
        check(request["task"])
        reporter.line("started", pid=os.getpid(), versions=dict(versions()))
        result = train(request, settings, reporter)
    except Refused as error:
        reporter.line("refused", message=str(error))
        out.flush()
        os._exit(3)
    reporter.line("finished", **result, unmapped=settings.left())
    out.flush()


def linear_decay(decay_steps: float | None, total_steps: int) -> Callable[[float], float]:
    """Return (fraction of the budget that is left) -> share of the learning rate that falls to 0 over `decay_steps`."""

    def share(left: float) -> float:
        return 1.0 if not decay_steps else max(0.0, 1.0 - (1.0 - left) * total_steps / decay_steps)

    return share


def installed(*names: str) -> dict[str, str]:
    """Return name -> version of packages of this environment, with that of Python."""
    from importlib.metadata import PackageNotFoundError, version
    from platform import python_version

    found = {"python": python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
