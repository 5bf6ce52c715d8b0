"""The results of a finished run, and the checks that keep another run from overwriting them.

The checks are made before anything is written into the run's directory.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddrl.errors import UserError, using
from ddrl.papers.plans import PLANS
from ddrl.system.config_differences import differing, spelled
from ddrl.system.files import read_file
from ddrl.system.locks import locked
from ddrl.system.notes import say
from ddrl.system.parquet import read_table
from ddrl.training.config.run_config import RunConfig, fingerprint, to_json
from ddrl.training.records import checkpoint, manifest, trackers
from ddrl.training.records.checkpoint_layout import migrated
from ddrl.training.records.identity import as_now, identity_of, read_mapping
from ddrl.training.records.recorder import write_curves, write_json

if TYPE_CHECKING:
    from ddrl.training.builder import Builder
    from ddrl.training.run import Run
    from ddrl.training.run_records import RunRecords

ELSEWHERE = "train in another directory, or remove what is there with --overwrite (in Python: overwrite=True)"
OF_A_RUN = (
    *("checkpoints", "final_evaluation", "members", "finished-*", *trackers.FILES, "*.jsonl", "config.json", PLANS),
    *("curves.parquet", "lineage.parquet", "run.json"),
)
"""The files and folders that a run writes into its directory."""
DECISIONS = "lineage.jsonl"
"""The file of a population's decisions, beside its members."""


def write(run: Run, records: RunRecords) -> None:
    """Write `run.json` and `curves.parquet` of a run that has reached its budget."""
    recorder = records.recorder
    counts = run.counts.__dict__ | {"episodes": recorder.episodes}
    counts |= {"resumes": records.resumes, "actor_restarts": run.actor_restarts}
    record = common_record(run.builder, records.provenance, records.history, recorder.seconds, counts)
    record["hardware"] = most_used(records.history, counts["env_frames"]) or record["hardware"]
    record["parameters"] = run.node.parameter_count
    if recorder.lost_bytes:
        record["records_lost_bytes"] = recorder.lost_bytes
    write_json(run.directory / "run.json", record)
    write_curves(run.directory)  # last, since this file marks a run as complete


def most_used(history: list[dict[str, Any]], env_frames: int) -> dict[str, Any] | None:
    """Return the hardware of the parts that trained the most frames; None if they are of before parts recorded it."""
    ends = [*(part["env_frames"] for part in history[1:]), env_frames]
    machines = [part.get("hardware") for part in history]
    trained = [0] * len(machines)
    for part, machine, end in zip(history, machines, ends, strict=True):
        trained[machines.index(machine)] += end - part["env_frames"]
    return machines[trained.index(max(trained))]


def common_record(
    builder: Builder, provenance: dict[str, Any], history: list[dict[str, Any]], seconds: float, counts: dict[str, int]
) -> dict[str, Any]:
    """Return the entries of `run.json` that a run and a population share; `history` has an entry per start."""
    tasks = list(builder.evaluated_tasks)
    return {
        "config": to_json(builder.config),
        "fingerprint": fingerprint(builder.config),
        "algorithm_version": builder.algorithm.VERSION,
        "protocol": builder.spec.protocol,
        "evaluated_tasks": tasks if len(tasks) > 1 else [],
        **provenance,
        "started": history[0]["started"],
        "finished": manifest.now(),
        "seconds": round(seconds, 1),
        **counts,
        "history": history,
        "exit_reason": "budget_reached",
        "peak_memory_mib": manifest.peak_memory_mib(),
    } | ({"plans": history[0]["plans"]} if "plans" in history[0] else {})


def record_of(directory: Path) -> dict[str, Any] | None:
    """Return `run.json` of a run that has reached its budget; None without one, or without `curves.parquet`."""
    record = read_mapping(directory / "run.json")
    if record.get("exit_reason") != "budget_reached" or not isinstance(record.get("config"), dict):
        return None
    return record if (directory / "curves.parquet").exists() else None


def _is_readable(path: Path) -> bool:
    """Return whether a Parquet file is complete."""
    import pyarrow as pa

    try:
        read_table(read_file(path))
    except (OSError, ValueError, pa.ArrowException):
        return False
    return True


def told(config: RunConfig, directory: Path) -> bool:
    """Return whether the directory holds this run, finished, so that nothing is to be done, and tell the user so.

    Raise `UserError` if the run that has finished there is another one, longer, or cannot be made longer.
    """
    record = record_of(directory)
    if record is None:
        return False
    identity, budget = identity_of(config, directory), config.env_frames
    trained = as_now(record["config"])
    if keys := differing(identity.values, trained):
        raise UserError(
            f"{directory}: a run of another configuration has finished there, which differs in {spelled(keys)}; "
            f"{ELSEWHERE}"
        )
    if record.get("algorithm_version") != identity.version:
        raise UserError(
            f"{directory}: a run has finished there with version {record.get('algorithm_version')} of "
            f"{config.algorithm}, which is {identity.version} now; {ELSEWHERE}"
        )
    reached = int(trained["env_frames"])
    if budget == reached and (damaged := _damaged_table(config, directory)):
        with using(damaged):
            if damaged.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a folder", str(damaged))
        if _can_go_on(config, directory):
            return False
        raise _lost(damaged)
    if budget == reached:
        say(f"{directory}: already finished, {record['env_frames']:,} frames; nothing to do")
        return True
    if budget < reached:
        raise UserError(
            f"{directory}: a run has finished there after {reached:,} frames, more than env_frames: {budget:,}; "
            f"{ELSEWHERE}"
        )
    if not _can_go_on(config, directory):
        raise UserError(
            f"{directory}: a run has finished there after {reached:,} frames, and without a checkpoint of it, it "
            f"cannot go on to {budget:,}; put its checkpoints back, or {ELSEWHERE}"
        )
    return False


def set_aside(config: RunConfig, directory: Path) -> None:
    """Move the results of a finished run that is to become longer into a folder of their own.

    Otherwise they would not match `config.json` of the longer run until that ends. `run.json` is moved last, so that
    moving continues after a kill. If the run is not to become longer but has a damaged table, tell the user.
    """
    record = read_mapping(directory / "run.json")
    try:
        budget = int(record["config"]["env_frames"])
    except (ValueError, KeyError, TypeError):
        return
    if budget >= config.env_frames:
        if record_of(directory) and (damaged := _damaged_table(config, directory)):
            say(f"{damaged}: is damaged; it is made anew, from the newest checkpoint")
        return
    aside = directory / f"finished-{budget}"
    aside.mkdir(exist_ok=True)
    write_json(aside / "config.json", record["config"])
    for name in ("curves.parquet", "lineage.parquet", "run.json"):
        with suppress(FileNotFoundError):
            (directory / name).rename(aside / name)
    say(f"{directory}: the results after {record['env_frames']:,} frames are in {aside.name}/ now")


def remove(config: RunConfig, directory: Path) -> None:
    """Remove what another run that has finished has left in the directory; leave this one and unfinished runs alone.

    Only names that runs write are removed. The run's records go last, so that a kill leaves a run to be removed.
    """
    record = record_of(directory)
    if record is None:
        return
    identity, trained = identity_of(config, directory), as_now(record["config"])
    same = not differing(identity.values, trained) and record.get("algorithm_version") == identity.version
    if same and config.env_frames >= int(trained["env_frames"]):
        return
    with locked(directory):
        for pattern in OF_A_RUN:
            for path in sorted(directory.glob(pattern)):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
    say(f"{directory}: the finished run that was there is removed")


def _damaged_table(config: RunConfig, directory: Path) -> Path | None:
    """Return the first table of a finished run that cannot be read, or None."""
    tables = [directory / "curves.parquet", *([directory / "lineage.parquet"] if config.population else [])]
    return next((path for path in tables if not _is_readable(path)), None)


def _lost(path: Path) -> UserError:
    return UserError(
        f"{path}: is damaged, and no checkpoint of the run there can be continued; "
        f"put it back, remove it to begin anew, or {ELSEWHERE}"
    )


def _can_go_on(config: RunConfig, directory: Path) -> bool:
    """Return whether the run can be continued: from a checkpoint, or as a population from its decisions."""
    if config.population:
        return (directory / DECISIONS).is_file()
    identity = identity_of(config, directory)
    for _, state in checkpoint.whole(directory / "checkpoints", lambda line: None):
        try:
            return identity.agree(migrated(state))
        except ValueError:
            continue
    return False


def kept(directory: Path) -> UserError | None:
    """Return the error that keeps a finished run from being trained anew; None if no run has finished."""
    if record_of(directory) is None:
        if not (directory / "run.json").exists() or not (directory / "curves.parquet").exists():
            return None
        return _lost(directory / "run.json")
    return UserError(
        f"{directory}: a run has finished there, and none of its checkpoints can be continued; {ELSEWHERE}"
    )
