"""Trains a configuration with another library, and writes the records of our own runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.peers.catalogue import peer
from ddrl.peers.process import driver
from ddrl.peers.process_tree import ProcessTree
from ddrl.peers.records import PeerRecords
from ddrl.peers.request import request_of
from ddrl.system.notes import say
from ddrl.system.signals import stopping
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.progress import Progress

LOG = "peer.log"
"""The file, in the run's directory, with what the library prints."""
THREADS = 1
"""Threads of torch in the peer, as our learners have unless a configuration says otherwise."""


def train_peer(
    config: RunConfig, directory: Path, *, quiet: bool = False, accepted: Callable[[], None] = lambda: None
) -> str:
    """Train in `directory`; return the exit reason, `budget_reached` or `interrupted`.

    A peer saves no checkpoints: a run that was interrupted or failed begins anew. `accepted` is called when nothing
    refuses the run any more. Raise `UserError` where the peer is not installed or cannot do what is asked, and
    `UserError` where its driver fails; then the directory holds no results.
    """
    assert config.peer
    chosen = peer(config.peer, where="key 'peer'")
    chosen.check(config.algorithm)
    _check_evaluation(config)
    request = request_of(config, threads=THREADS)
    progress = Progress(config.env_frames, quiet=quiet)
    log, name = directory / LOG, f"peer '{chosen.name}'"
    variables = {"OMP_NUM_THREADS": str(THREADS), **chosen.variables}
    is_over = False
    with (
        driver([chosen.python, chosen.driver], request, log, name=name, variables=variables) as running,
        stopping(running.stop),
        progress,
    ):
        messages = running.messages()
        started, first = next(messages, {}), next(messages, {})
        if first:  # it has built all that the request asks for
            accepted()
            with closing(PeerRecords(config, directory, chosen, started["versions"], progress.complain)) as records:
                is_over = _follow(chain([first], messages), running.tree, records, progress)
    if not is_over:
        say(f"ddrl: stopped; a peer saves no checkpoint, so the same command begins anew ({directory})")
        return "interrupted"
    return "budget_reached"


def _check_evaluation(config: RunConfig) -> None:
    """Raise `UserError` for an evaluation that no driver carries out."""
    if config.evaluation.deterministic:
        raise UserError("key 'evaluation.deterministic': a peer is evaluated as it acts in training; allowed: false")
    if config.evaluation.period_frames:
        raise UserError("key 'evaluation.period_frames': a peer is evaluated at its end alone; allowed: null")


def _follow(messages: Iterable[dict[str, Any]], tree: ProcessTree, records: PeerRecords, progress: Progress) -> bool:
    """Record what a driver reports; return whether it has finished, False if it was stopped before."""
    last: dict[str, Any] = {}
    for message in messages:
        kind = message["kind"]
        if kind == "progress":
            last = message
            records.progress(message, tree.cpu_seconds())
            progress.show(records.counts, records.latest)
        elif kind == "evaluation":
            records.evaluation(message)
        elif not last:
            raise UserError("the driver finished without a line of progress")
        else:
            records.finish(message, last, tree.cpu_seconds(), tree.peak_mib)
            _tell(message, progress, records)
            return True
    return False


def _tell(message: dict[str, Any], progress: Progress, records: PeerRecords) -> None:
    """Show the last line of the run, and what the peer could not be given."""
    progress.done(records.counts, records.latest)
    for entry in message["unmapped"]:
        theirs = "" if entry["theirs"] is None else f", theirs {entry['theirs']}"
        progress.note(f"not mapped: {entry['key']}: ours {entry['ours']}{theirs} ({entry['why']})")
