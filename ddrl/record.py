"""Crash-safe curves, and the manifest of a run.

While a run goes on, every record is one line of `curves.jsonl`, flushed at once: what was recorded before a kill is
readable. At the end the lines become `curves.parquet` (long: one row per value). A resumed run cuts the lines back to
its checkpoint's offset, so nothing is counted twice. The lines up to there are on the disk before the checkpoint is.
TensorBoard is told to forget what was shown after that moment.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl.files import write_atomically
from ddrl.task_scores import TaskScores, metric_of
from ddrl.types import Episode, Metrics

if TYPE_CHECKING:
    import pandas as pd

    from ddrl.config import RunConfig

COUNTS = ("env_frames", "agent_steps", "updates")
COLUMNS = [*COUNTS, "seconds", "metric", "value"]
TIMING_METRICS = (
    "frames_per_second",
    "cpu_seconds",
    "learner_utilisation",
    "inference_columns_mean",
    "inference_batch_ms_mean",
    "inference_call_ms_p50",
    "inference_call_ms_p99",
    "round_trip_ms_p50",
    "round_trip_ms_p99",
    "worker_cpu_seconds",
    "wire_bytes_per_frame_to_learner",
    "wire_bytes_per_frame_from_learner",
    "wire_bytes_per_frame_to_replay",
    "actor_thread_cpu_seconds",
    "inference_thread_cpu_seconds",
    "learner_thread_cpu_seconds",
    "environment_thread_cpu_seconds",
    "other_thread_cpu_seconds",
)
"""Metrics (beside the column `seconds`) that two runs with the same bits may differ in."""


@dataclass(frozen=True)
class Counts:
    """Where on the x axis a record stands."""

    env_frames: int
    agent_steps: int
    updates: int


class Recorder:
    """Collects metrics from the roles and writes a record every `period_frames`."""

    def __init__(self, directory: Path, *, period_frames: int, tensorboard: bool, tasks: Sequence[str] = ()) -> None:
        """`tasks`: of the suite that is trained on, whose episodes are recorded one by one too."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._path = directory / "curves.jsonl"
        self._file = self._path.open("a", buffering=1)
        self._period = period_frames
        self._next = period_frames
        self._updates: list[Metrics] = []
        self._episodes: list[Episode] = []
        self._scores = TaskScores(tasks)
        self._lock = threading.Lock()
        self._seconds_before, self._cpu_seconds_before = 0.0, 0.0
        self._started, self._cpu_started = time.monotonic(), time.process_time()
        self._last = (0, 0.0)
        self.episodes = 0
        self.gauges: list[Callable[[], Metrics]] = []
        """Read when a record is written: each says what was measured since the last one."""
        self.latest: Metrics = {}
        """The newest value of every metric, for the progress display."""
        self._tensorboard = tensorboard
        self._writer: Any = None
        """Of TensorBoard's events; made with the first of them, when it is known where the run goes on."""
        self._forget_from: int | None = None

    @property
    def seconds(self) -> float:
        """Training wall-clock, over all resumes."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def cpu_seconds(self) -> float:
        """CPU time of this process, all threads, over all resumes: unlike wall-clock the same on a busy machine."""
        return self._cpu_seconds_before + time.process_time() - self._cpu_started

    def episode(self, episode: Episode) -> None:
        """A training episode is over."""
        with self._lock:
            self._episodes.append(episode)
            self.episodes += not episode.abandoned

    def update(self, counts: Counts, metrics: Metrics) -> None:
        """The learner made an update; writes a record when one is due."""
        self._updates.append(metrics)
        if counts.env_frames >= self._next:
            self.flush(counts)
            self._next = (counts.env_frames // self._period + 1) * self._period

    def flush(self, counts: Counts) -> None:
        """Writes the means since the last record (the maximum of `*_max`)."""
        if not self._updates:
            return
        with self._lock:
            episodes, self._episodes = self._episodes, []
        record: Metrics = {}
        for name in self._updates[0]:
            values = [metrics[name] for metrics in self._updates]
            record[name] = max(values) if name.endswith("_max") else float(np.mean(values))
        if whole := [episode for episode in episodes if not episode.abandoned]:
            record["episode_return"] = float(np.mean([episode.episode_return for episode in whole]))
            record["episode_length"] = float(np.mean([episode.length for episode in whole]))
        record |= self._scores.take(episodes)
        for gauge in self.gauges:
            record |= gauge()
        record["episodes"] = float(self.episodes)
        frames, seconds = self._last
        record["frames_per_second"] = (counts.env_frames - frames) / max(self.seconds - seconds, 1e-9)
        record["cpu_seconds"] = self.cpu_seconds
        self._last = (counts.env_frames, self.seconds)
        self._updates = []
        self.latest |= record
        self._write(counts, {name: [value] for name, value in record.items()})

    def evaluation(self, counts: Counts, played: Iterable[Episode], *, by_task: bool = False) -> None:
        """The episodes of one evaluation, one row each; `by_task`: as metrics of their own tasks."""
        values: dict[str, list[float]] = {}
        for episode in played:
            for name, value in (("return", episode.episode_return), ("length", float(episode.length))):
                metric = f"evaluation_{name}"
                values.setdefault(metric_of(metric, episode.task) if by_task else metric, []).append(value)
        self.latest |= {name: float(np.mean(several)) for name, several in values.items()}
        self._write(counts, values)

    def _write(self, counts: Counts, values: dict[str, list[float]]) -> None:
        line = {**counts.__dict__, "seconds": round(self.seconds, 3), "metrics": values}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
        self._show(counts.env_frames, values)

    def _show(self, env_frames: int, values: dict[str, list[float]]) -> None:
        if not self._tensorboard:
            return
        self._writer = self._writer or _tensorboard_writer(self._directory / "tensorboard", self._forget_from)
        for name, several in values.items():
            self._writer.add_scalar(name, float(np.mean(several)), env_frames)

    def state_dict(self) -> dict[str, Any]:
        """Offset in the file, which is on the disk up to there, and what was not written yet."""
        with self._lock:
            self._file.flush()
            os.fsync(self._file.fileno())
            return {
                "offset": self._path.stat().st_size,
                "next": self._next,
                "period": self._period,
                "updates": list(self._updates),
                "episodes": [list(episode) for episode in self._episodes],
                "task_scores": self._scores.state_dict(),
                "num_episodes": self.episodes,
                "seconds": self.seconds,
                "cpu_seconds": self.cpu_seconds,
                "last": list(self._last),
            }

    def load_state_dict(self, state: dict[str, Any], reached: int | None = None) -> str:
        """Cuts the file back to where `state` was taken, which is the last thing it does, and continues from there.

        Where the file does not reach that far, it keeps its whole lines; returns a line about the loss, else none ("").
        `reached`: env_frames at which `state` was taken.
        """
        offset = int(state["offset"])
        self._next = state["next"]
        if reached is not None and state.get("period", self._period) != self._period:
            self._next = (reached // self._period + 1) * self._period
        self._updates = list(state["updates"])
        self._episodes = [Episode(*episode) for episode in state["episodes"]]
        self._scores.load_state_dict(state["task_scores"])
        self.episodes = state["num_episodes"]
        self._seconds_before, self._cpu_seconds_before = state["seconds"], state["cpu_seconds"]
        self._started, self._cpu_started = time.monotonic(), time.process_time()
        self._last = (state["last"][0], state["last"][1])
        kept = offset
        if self._path.stat().st_size < offset:  # cut there, the file would grow by zeros, which are no line
            kept = self._path.read_bytes().rfind(b"\n") + 1
        self._file.truncate(kept)
        if reached is not None and self._tensorboard:
            self._show_again(reached)
        lost = f"{self._path}: {offset - kept:,} bytes from before the checkpoint are lost; the curves have a gap there"
        return lost if kept < offset else ""

    def _show_again(self, reached: int) -> None:
        """TensorBoard forgets whole steps: what was recorded at that of the checkpoint, before it, is shown anew."""
        self._forget_from = reached
        for line in self._path.read_text().splitlines():
            record = json.loads(line)
            if record["env_frames"] >= reached:
                self._show(record["env_frames"], record["metrics"])

    def begin_anew(self, aside: Path) -> Path | None:
        """Puts what was recorded before into a folder; returns where the curves went, None where there are none.

        Nothing is dropped: lines of a run that was killed before its first checkpoint are kept there too.
        """
        if not self._path.stat().st_size:
            return None
        aside.mkdir(parents=True, exist_ok=True)
        self.close()
        moved = self._path.rename(aside / self._path.name)
        if (self._directory / "tensorboard").exists():
            (self._directory / "tensorboard").rename(aside / "tensorboard")
        self._file, self._writer = self._path.open("a", buffering=1), None
        return moved

    def close(self) -> None:
        """Flushes and closes the files."""
        self._file.close()
        if self._writer:
            self._writer.close()


def read_curves(path: Path) -> pd.DataFrame:
    """`curves.jsonl` as the long table, by env_frames; a last line that a kill cut short is left out.

    An evaluation beside the training is written when it ends, and belongs where its parameters were taken.
    """
    import pandas as pd  # slow to import, and no process of a run but the first needs it

    rows = []
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        record = json.loads(line)
        head = [record[name] for name in COUNTS] + [record["seconds"]]
        rows += [[*head, name, value] for name, values in record["metrics"].items() for value in values]
    table = pd.DataFrame(rows, columns=COLUMNS)
    table = table.astype(dict.fromkeys(COUNTS, "int64") | {"seconds": "float64", "value": "float64"})
    return table.sort_values("env_frames", kind="stable", ignore_index=True)


def write_curves(directory: Path) -> None:
    """`curves.jsonl` -> `curves.parquet`, atomically."""
    table = read_curves(directory / "curves.jsonl")
    write_atomically(
        directory / "curves.parquet", lambda file: table.to_parquet(file, index=False, write_page_checksum=True)
    )


def write_json(path: Path, data: Any) -> None:
    """Pretty JSON, atomically."""
    write_atomically(path, lambda file: file.write((json.dumps(data, indent=1) + "\n").encode()))


def make_recorder(config: RunConfig, directory: Path, tasks: Sequence[str]) -> Recorder:
    """Of a run in its directory; `tasks`: what it trains on."""
    recording = config.recording
    return Recorder(directory, period_frames=recording.period_frames, tensorboard=recording.tensorboard, tasks=tasks)


def _tensorboard_writer(directory: Path, forget_from: int | None) -> Any:
    """Where it shows nothing of before at `forget_from` and later."""
    from torch.utils.tensorboard import SummaryWriter  # slow to import, so only where it is wanted

    return SummaryWriter(str(directory), purge_step=forget_from)
