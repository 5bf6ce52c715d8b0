"""The curves of a run, which survive a crash.

During a run every record is a line of `curves.jsonl`, flushed at once. At the end the lines become `curves.parquet`
(long: one row per value). A resumed run truncates the lines to its checkpoint's offset, so nothing is counted twice;
the lines up to there are on the disk before the checkpoint is. Trackers (`ddrl.training.records.trackers`) are shown
each record, too.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl.errors import NonFiniteError, UserError, using
from ddrl.system.files import append, read_file, write_atomically
from ddrl.system.json_lines import aside_of, rewrite, split
from ddrl.system.notes import say
from ddrl.training.records import thread_cpu
from ddrl.training.records.task_scores import TaskScores, means, metric_of
from ddrl.training.records.trackers import Trackers
from ddrl.types import Episode, Metrics

if TYPE_CHECKING:
    import pandas as pd

    from ddrl.training.config.run_config import RunConfig

COUNTS = ("env_frames", "agent_steps", "updates")
COLUMNS = [*COUNTS, "seconds", "metric", "value"]
TIMING_METRICS = (
    "frames_per_second",
    "cpu_seconds",
    "learner_utilisation",
    "environment_wait_fraction",
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
    *thread_cpu.METRICS,
)
"""Metrics in which (as in the column `seconds`) two runs with the same bits may differ."""
OF_LOSSES = ("entropy", "kl", "td_error", "gradient_norm", "clip_fraction", "explained_variance")
"""Metrics of the learner's losses whose names do not say so."""


@dataclass(frozen=True)
class Counts:
    """The counts at which a record is made."""

    env_frames: int
    agent_steps: int
    updates: int


class Recorder:
    """Collects metrics from the roles and writes a record every `period_frames`."""

    def __init__(
        self, directory: Path, *, period_frames: int, trackers: Trackers | None = None, tasks: Sequence[str] = ()
    ) -> None:
        """`tasks`: of the suite that is trained on, recorded task by task too."""
        self._directory = directory
        self._path = directory / "curves.jsonl"
        with using(self._path):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        self._period = period_frames
        self._next = period_frames
        self._updates: list[Metrics] = []
        self._episodes: list[Episode] = []
        self._scores = TaskScores(tasks)
        self._lock = threading.Lock()
        self._started, self._cpu_started = time.monotonic(), time.process_time()
        self._last = (0, 0.0)
        self.episodes = 0
        self._has_returns = False
        """Whether a record has the return of an episode."""
        self.lost_bytes = 0
        """Bytes of records from before a checkpoint that were missing when the run was resumed from it."""
        self.gauges: list[Callable[[], Metrics]] = []
        """Called for each record; each returns what was measured since the last one."""
        self.latest: Metrics = {}
        """The newest value of every metric, for the progress display."""
        self._trackers = trackers or Trackers()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of training, over all resumes."""
        return time.monotonic() - self._started

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of this process, all threads, over all resumes."""
        return time.process_time() - self._cpu_started

    def begin(self) -> None:
        """Begin what shows the curves; called when it is known where the run is resumed."""
        self._trackers.begin()

    def episode(self, episode: Episode, env_frames: int = 0) -> bool:
        """Add a training episode that has ended; return whether it is the first return that is seen.

        A record may be far off. Until there is one with a return, `latest` has the mean so far, and trackers are shown
        the first return at `env_frames`. The curves are not changed by this.
        """
        with self._lock:
            self._episodes.append(episode)
            self.episodes += not episode.abandoned
            if episode.abandoned or self._has_returns:
                return False
            before, is_first = self.latest.get("episode_return", 0.0), self.episodes == 1
            self.latest["episode_return"] = before + (episode.episode_return - before) / self.episodes
        if is_first:
            self._show(env_frames, {"episode_return": [episode.episode_return]})
        return is_first

    def update(self, counts: Counts, metrics: Metrics) -> None:
        """Add the metrics of an update, and write a record if one is due.

        Raise NonFiniteError for NaN or infinity, which otherwise would be in the next checkpoint and end every resume.
        """
        _check_finite(counts, {name: [value] for name, value in metrics.items()})
        self._updates.append(metrics)
        if counts.env_frames >= self._next:
            self.flush(counts)
            self._next = (counts.env_frames // self._period + 1) * self._period

    def flush(self, counts: Counts) -> None:
        """Write a record: the means since the last one, and the maxima of `*_max`.

        A metric's mean is over the updates that have it: one that had nothing to learn from has no loss.
        """
        if not self._updates:
            return
        with self._lock:
            episodes, self._episodes = self._episodes, []
        record: Metrics = {}
        for name in dict.fromkeys(chain.from_iterable(self._updates)):
            values = [metrics[name] for metrics in self._updates if name in metrics]
            record[name] = max(values) if name.endswith("_max") else float(np.mean(values))
        record |= means(episodes) | self._scores.take(episodes)
        for gauge in self.gauges:
            record |= gauge()
        self._has_returns |= "episode_return" in record
        record["episodes"] = float(self.episodes)
        frames, seconds = self._last
        record["frames_per_second"] = (counts.env_frames - frames) / max(self.seconds - seconds, 1e-9)
        record["cpu_seconds"] = self.cpu_seconds
        self._last = (counts.env_frames, self.seconds)
        self._updates = []
        self.latest |= record
        self._write(counts, {name: [value] for name, value in record.items()})

    def evaluation(self, counts: Counts, played: Sequence[tuple[Episode, int]], *, by_task: bool = False) -> None:
        """Record the episodes of one evaluation, one row each, as a metric of its task where `by_task`.

        Each stands with the number of updates behind its parameters: `evaluation_updates`, recorded if they differ.
        """
        values: dict[str, list[float]] = {}
        several = len({updates for _, updates in played}) > 1
        for episode, updates in played:
            row = {"return": episode.episode_return, "length": float(episode.length)}
            for name, value in (row | ({"updates": float(updates)} if several else {})).items():
                metric = f"evaluation_{name}"
                values.setdefault(metric_of(metric, episode.task) if by_task else metric, []).append(value)
        self.latest |= {name: float(np.mean(each)) for name, each in values.items()}
        self._write(counts, values)

    def _write(self, counts: Counts, values: dict[str, list[float]]) -> None:
        _check_finite(counts, values)
        line = {**counts.__dict__, "seconds": round(self.seconds, 3), "metrics": values}
        with self._lock, using(self._path):
            append(self._path, self._file, (json.dumps(line, allow_nan=False) + "\n").encode())
        self._show(counts.env_frames, values)

    def _show(self, env_frames: int, values: Mapping[str, Sequence[float]], *, again: bool = False) -> None:
        shown = {tag_of(name): float(np.mean(several)) for name, several in values.items()}
        self._trackers.log(env_frames, shown, again=again)

    def state_dict(self) -> dict[str, Any]:
        """Return the offset in the file, flushed to disk up to there, and what was not written yet."""
        with self._lock:
            return {
                "offset": self._on_the_disk(),
                "lost_bytes": self.lost_bytes,
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

    def _on_the_disk(self) -> int:
        """Flush the file to disk, and return its length."""
        with using(self._path):
            os.fsync(self._file.fileno())
            if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                raise UserError(f"{self._path}: was replaced while the run went on")
            return self._path.stat().st_size

    def load_state_dict(self, state: dict[str, Any], reached: int | None = None) -> str:
        """Restore `state`, taken at `reached` env_frames; as the last step truncate the file to its offset.

        If the file is damaged before the offset, keep its good lines and set the damaged ones aside; return a line
        about that, else "".
        """
        lost_bytes, offset = int(state.get("lost_bytes", 0)), int(state["offset"])
        self._next = state["next"]
        if reached is not None and state.get("period", self._period) != self._period:
            self._next = (reached // self._period + 1) * self._period
        self._updates = list(state["updates"])
        self._episodes = [Episode(*episode) for episode in state["episodes"]]
        self._scores.load_state_dict(state["task_scores"])
        self.episodes = state["num_episodes"]
        self._has_returns = self.episodes > sum(not episode.abandoned for episode in self._episodes)
        self.latest |= means(self._episodes)
        self._started = time.monotonic() - state["seconds"]
        self._cpu_started = time.process_time() - state["cpu_seconds"]
        self._last = (state["last"][0], state["last"][1])
        with using(self._path):
            told = self._cut_back(state, offset)
        if reached is not None:
            self._show_again(reached)
        self.lost_bytes += lost_bytes
        return told

    def _cut_back(self, state: dict[str, Any], offset: int) -> str:
        """Truncate the file to the lines written before a checkpoint; return a line about damage, else ""."""
        content = read_file(self._path)
        before = split(content[:offset], _is_record)
        intact = before.content == content[:offset] and len(content) >= offset
        if intact and all(_is_before(record, state) for _, record in before.kept):
            self._file.truncate(offset)
            return ""
        found = split(content, _is_record)  # lines were added or removed, so the offset means nothing
        kept = [line for line, record in found.kept if _is_before(record, state)]
        self._file.close()
        rewrite(self._path, kept, [line for _, line in found.damaged])
        self._file = self._path.open("ab", buffering=0)
        self.lost_bytes = max(0, offset - sum(map(len, kept)))
        aside = f", now in {aside_of(self._path).name}" if found.damaged else ""
        parts = [f"{found.describe()}{aside}"] if found.describe() else []
        if self.lost_bytes:
            parts.append(
                f"{self.lost_bytes:,} bytes from before the checkpoint are lost; the curves have a gap there, and "
                "run.json will say so"
            )
        return f"{self._path}: {'; '.join(parts)}" if parts else ""

    def _show_again(self, reached: int) -> None:
        """Make trackers forget what came from `reached` on, and show them again what is from before the checkpoint."""
        self._trackers.go_back(reached)
        for record in read_records(self._path):
            if record["env_frames"] >= reached:
                self._show(record["env_frames"], record["metrics"], again=True)

    def begin_anew(self, aside: Path) -> Path | None:
        """Move all records so far to the folder `aside`; return the new path of the curves, None if there are none."""
        if not self._path.stat().st_size:
            return None
        aside.mkdir(parents=True, exist_ok=True)
        self.close()
        moved = self._path.rename(aside / self._path.name)
        self._trackers.begin_anew(aside)
        self._file = self._path.open("ab", buffering=0)
        return moved

    def close(self) -> None:
        """Flush and close the files."""
        self._file.close()
        self._trackers.close()


def _check_finite(counts: Counts, values: Mapping[str, Iterable[float]]) -> None:
    """Raise NonFiniteError that names every metric with NaN or infinity, which JSON cannot hold."""
    broken = {name: value for name, several in values.items() for value in several if not math.isfinite(value)}
    if broken:
        named = ", ".join(f"metric {name} is {value}" for name, value in broken.items())
        raise NonFiniteError(f"update {counts.updates}: {named}")


def read_curves(path: Path) -> pd.DataFrame:
    """Read `curves.jsonl` as the long table, sorted by env_frames, without an incomplete last line.

    Sorting moves an evaluation, written when it ends, to where its parameters were taken. Raise `UserError` naming
    damaged lines.
    """
    import pandas as pd  # here, since it is slow to import and only the first process of a run needs it

    rows = []
    for record in read_records(path):
        head = [record[name] for name in COUNTS] + [record["seconds"]]
        rows += [[*head, name, value] for name, values in record["metrics"].items() for value in values]
    table = pd.DataFrame(rows, columns=COLUMNS)
    table = table.astype(dict.fromkeys(COUNTS, "int64") | {"seconds": "float64", "value": "float64"})
    return table.sort_values("env_frames", kind="stable", ignore_index=True)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of `curves.jsonl`. Raise `UserError` naming damaged ones."""
    with using(path):
        lines = split(read_file(path), _is_record)
    if lines.damaged:
        raise UserError(f"{path}: {lines.describe()}; the same command again sets them aside")
    return [record for _, record in lines.kept]


def _is_record(record: dict[str, Any]) -> bool:
    """Return whether a line's mapping has the form of a record."""
    metrics = record.get("metrics")
    return (
        all(isinstance(record.get(name), int) for name in COUNTS)
        and isinstance(record.get("seconds"), (int, float))
        and isinstance(metrics, dict)
        and all(isinstance(values, list) for values in metrics.values())
        and all(isinstance(value, (int, float)) for values in metrics.values() for value in values)
    )


def _is_before(record: dict[str, Any], state: dict[str, Any]) -> bool:
    """Return whether a record was written before a recorder's state was taken."""
    if record["seconds"] > round(state["seconds"], 3):
        return False
    return "episodes" not in record["metrics"] or bool(record["env_frames"] <= state["last"][0])


def write_curves(directory: Path) -> None:
    """Write `curves.parquet` from `curves.jsonl`."""
    write_table(directory / "curves.parquet", read_curves(directory / "curves.jsonl"))


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as Parquet, atomically."""
    with using(path):
        write_atomically(path, lambda file: table.to_parquet(file, index=False, write_page_checksum=True))


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON, atomically."""
    with using(path):
        write_atomically(path, lambda file: file.write((json.dumps(data, indent=1) + "\n").encode()))


def tag_of(metric: str) -> str:
    """Return a metric's tag in trackers, in one of the groups `train/`, `loss/`, `time/` and `evaluation/`.

    `evaluation_return/toy/catch`, of one task of a suite, becomes `evaluation/return/toy/catch`.
    """
    name = metric.partition("/")[0]
    if name.startswith("evaluation_"):
        return f"evaluation/{metric.removeprefix('evaluation_')}"
    if name in TIMING_METRICS:
        return f"time/{metric}"
    return f"loss/{metric}" if name.endswith("loss") or name in OF_LOSSES else f"train/{metric}"


def make_recorder(
    config: RunConfig, directory: Path, tasks: Sequence[str], tell: Callable[[str], None] = say
) -> Recorder:
    """Return the recorder of a run that trains on `tasks`; `tell` is given a line about a tracker that fails."""
    values = json.loads(json.dumps(asdict(config)))
    trackers = Trackers(config.tracking, directory, values, tell)
    return Recorder(directory, period_frames=config.recording.period_frames, trackers=trackers, tasks=tasks)
