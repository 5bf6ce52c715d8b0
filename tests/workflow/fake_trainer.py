"""Stands in for `ddrl.cli train` in a copy of the project: writes invented results in the exact format, in no time.

`FAKE_TRAINER` in the environment makes it misbehave: `fail` (exit 1), `hang` (until killed).
"""

import hashlib
import json
import os
import sys
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

METRICS = {
    "episodes": 3.0,
    "episode_length": 800.0,
    "policy_loss": 0.1,
    "value_loss": 0.2,
    "entropy": 1.2,
    "gradient_norm": 20.0,
    "learning_rate": 6e-4,
    "policy_lag_mean": 2.0,
    "policy_lag_max": 4.0,
    "frames_per_second": 5000.0,
}
RECORDS = 8


def curves(config: dict) -> pa.Table:
    """Long table: a rising return, differing by configuration, and the episodes of the final score."""
    rate = zlib.crc32(json.dumps(config, sort_keys=True).encode()) % 100 / 100
    rows = []
    for record in range(1, RECORDS + 1):
        frames = config["env_frames"] * record // RECORDS
        metrics = METRICS | {"episode_return": -1 + (1 + rate) * record / RECORDS}
        rows += [(frames, metric, value) for metric, value in metrics.items()]
    for episode in range(config["evaluation"]["final_episodes"]):
        rows += [(config["env_frames"], "evaluation_return", rate + episode % 2)]
        rows += [(config["env_frames"], "evaluation_length", 700.0)]
    frames, metrics, values = map(list, zip(*rows, strict=True))
    return pa.table(
        {
            "env_frames": pa.array(frames, pa.int64()),
            "agent_steps": pa.array([count // 4 for count in frames], pa.int64()),
            "updates": pa.array([count // 2560 for count in frames], pa.int64()),
            "seconds": pa.array([count / 5000 for count in frames], pa.float64()),
            "metric": pa.array(metrics, pa.string()),
            "value": pa.array(values, pa.float64()),
        }
    )


def manifest(config: dict) -> dict:
    """What `run.json` says."""
    frames = config["env_frames"]
    recording = config["recording"] | {"tensorboard": "tensorboard" in config["tracking"]}  # as digests spell it
    digested = {key: value for key, value in config.items() if key != "tracking"} | {"recording": recording}
    return {
        "config": config,
        "fingerprint": hashlib.sha256(json.dumps(digested, sort_keys=True).encode()).hexdigest()[:16],
        "algorithm_version": 1,
        "protocol": "invented",
        "git_sha": "0" * 40,
        "git_dirty": False,
        "packages": {"python": "3.11", "torch": "0"},
        "hardware": {"cpu": "invented", "cores": 2, "memory_gib": 8.0, "gpu": None},
        "started": "2020-01-01T00:00:00+00:00",
        "finished": "2020-01-01T00:10:00+00:00",
        "seconds": frames / 5000,
        "env_frames": frames,
        "agent_steps": frames // 4,
        "updates": frames // 2560,
        "episodes": 3 * RECORDS,
        "resumes": 0,
        "exit_reason": "budget_reached",
        "peak_memory_mib": 800.0,
        "parameters": 1000,
    }


def main() -> None:
    _, config_path, _, directory = sys.argv[1:5]
    print("threads", os.environ["OMP_NUM_THREADS"])
    behaviour = os.environ.get("FAKE_TRAINER", "")
    run = Path(directory)
    checkpoint = run / "checkpoints" / "newest"
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.write_text("state")
    if behaviour == "fail":
        sys.exit("the trainer failed")
    if behaviour == "hang":
        time.sleep(600)
    config = json.loads(Path(config_path).read_text())
    pq.write_table(curves(config), run / "curves.parquet")
    (run / "run.json").write_text(json.dumps(manifest(config)))


if __name__ == "__main__":
    main()
