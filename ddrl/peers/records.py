"""The records of a run that another library carries out: the files that our own runs write, and who made them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddrl.peers.catalogue import Peer
from ddrl.system.files import append
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records import finished, manifest
from ddrl.training.records.recorder import Counts, tag_of, write_curves, write_json
from ddrl.training.records.task_scores import means
from ddrl.training.records.trackers import Trackers
from ddrl.types import Episode, Metrics

CURVES = "curves.jsonl"
LAGS = ("policy_lag_mean", "policy_lag_max")
"""Metrics of every run; 0 for a driver that reports none, since it waits for each update."""
PLACE = re.compile(r"(?<![\w.])/\w[\w.-]*/\w|\b[A-Z]:\\")
"""An absolute path, which means something on one machine alone."""


class PeerRecords:
    """Turns a driver's lines into the curves and the manifest of a run."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        peer: Peer,
        versions: Mapping[str, str],
        complain: Callable[[str], None],
    ) -> None:
        """`versions`: of the library and of what it uses; `complain` is given a line about a tracker that fails."""
        self._config, self._directory, self._peer, self._versions = config, directory, peer, versions
        self._builder = Builder(config, torch.device("cpu"))
        self._skip = self._builder.spec.frame_skip
        self._provenance = manifest.provenance()
        self._started = manifest.now()
        (directory / CURVES).unlink(missing_ok=True)  # of an attempt that failed: a driver always begins anew
        self._file = (directory / CURVES).open("ab", buffering=0)
        values = json.loads(json.dumps(asdict(config)))
        self._trackers = Trackers(config.tracking, directory, values, complain)
        self._trackers.begin()
        self._period = self._next = config.recording.period_frames
        self._episodes: list[Episode] = []
        self._number = 0
        self._last = (0, 0.0)
        self._cpu_before = 0.0
        self._evaluated: list[tuple[int, list[list[float]]]] = []
        self.counts = Counts(0, 0, 0)
        self.latest: Metrics = {}
        """The newest value of every metric, for the progress display."""

    def progress(self, message: Mapping[str, Any], cpu_seconds: float) -> None:
        """Add a line of progress, at which the processes had used `cpu_seconds`."""
        if not message["steps"]:
            self._cpu_before = cpu_seconds
        self._count(message)
        task = str(self._config.environment["name"])
        for _, episode_return, length in message["episodes"]:
            self._episodes.append(Episode(task, float(episode_return), int(length)))
            self._number += 1
        if self._episodes:
            self.latest["episode_return"] = means(self._episodes[-100:])["episode_return"]
        if self.counts.env_frames >= self._next:
            self._record(message, cpu_seconds)
            self._next = (self.counts.env_frames // self._period + 1) * self._period

    def evaluation(self, message: Mapping[str, Any]) -> None:
        """Keep the final episodes of one version of the parameters."""
        self._evaluated.append((int(message["updates"]), message["episodes"]))

    def finish(self, message: Mapping[str, Any], last: Mapping[str, Any], cpu_seconds: float, peak_mib: float) -> None:
        """Write the results of a run that is over; `last` is its last line of progress."""
        self._count(message)
        if self.counts.env_frames > self._last[0]:
            self._record({**last, **{key: message[key] for key in ("steps", "updates", "seconds")}}, cpu_seconds)
        self._record_evaluation(float(message["seconds"]))
        self.close()
        counts = asdict(self.counts) | {"episodes": self._number, "resumes": 0, "actor_restarts": 0}
        history = [{"git_sha": self._provenance["git_sha"], "started": self._started, "env_frames": 0}]
        seconds = float(message["seconds"])
        record = finished.common_record(self._builder, self._provenance, history, seconds, counts)
        record |= {"peak_memory_mib": round(peak_mib, 1), "parameters": int(message["parameters"])}
        record["peer"] = {
            "name": self._peer.name,
            "title": self._peer.title,
            "versions": dict(self._versions),
            "effective": {key: value for key, value in message["effective"].items() if not PLACE.search(str(value))},
            "unmapped": message["unmapped"],
            "gradient_steps": message["gradient_steps"],
            "trained_samples": message["trained_samples"],
            "cpu_seconds": round(cpu_seconds - self._cpu_before, 1),
        }
        write_json(self._directory / "run.json", record)
        write_curves(self._directory)  # last, since this file marks a run as complete

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._trackers.close()

    def _count(self, message: Mapping[str, Any]) -> None:
        steps = int(message["steps"])
        self.counts = Counts(steps * self._skip, steps, int(message["updates"]))

    def _record(self, message: Mapping[str, Any], cpu_seconds: float) -> None:
        """Write a record: the means of the episodes since the last one, and the driver's newest metrics."""
        episodes, self._episodes = self._episodes, []
        frames, seconds = self._last
        record: Metrics = dict.fromkeys(LAGS, 0.0) | {key: float(v) for key, v in message["metrics"].items()}
        record |= means(episodes)
        record["episodes"] = float(self._number)
        record["frames_per_second"] = (self.counts.env_frames - frames) / max(message["seconds"] - seconds, 1e-9)
        record["cpu_seconds"] = max(0.0, cpu_seconds - self._cpu_before)
        record["gradient_steps"] = float(message["gradient_steps"])
        self._last = (self.counts.env_frames, float(message["seconds"]))
        self.latest |= record
        self._write(float(message["seconds"]), {name: [value] for name, value in record.items()})

    def _record_evaluation(self, seconds: float) -> None:
        """Record the final episodes, one row each; with the updates behind their version where there are several."""
        values: dict[str, list[float]] = {}
        for updates, episodes in self._evaluated:
            for episode_return, length in episodes:
                row = {"return": episode_return, "length": length}
                row |= {"updates": updates} if len(self._evaluated) > 1 else {}
                for name, value in row.items():
                    values.setdefault(f"evaluation_{name}", []).append(float(value))
        if values:
            self.latest["evaluation_return"] = float(np.mean(values["evaluation_return"]))
            self._write(seconds, values)

    def _write(self, seconds: float, values: Mapping[str, list[float]]) -> None:
        line = {**asdict(self.counts), "seconds": round(seconds, 3), "metrics": values}
        append(self._directory / CURVES, self._file, (json.dumps(line, allow_nan=False) + "\n").encode())
        shown = {tag_of(name): float(np.mean(several)) for name, several in values.items()}
        self._trackers.log(self.counts.env_frames, shown)
