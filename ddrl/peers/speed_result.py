"""The file of a measurement of speeds: all repeats, and where they come from. Reports read it.

`results/reference/peers/*.json` are committed, and `make peers SCALE=...` writes `results/<scale>/peers/*.json`
(`ddrl.analysis.tables.peer_speed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ddrl.errors import Command, UserError, about
from ddrl.peers.catalogue import peers
from ddrl.peers.speed import OURS, Speed
from ddrl.training.config.run_config import RunConfig, to_json
from ddrl.training.records import manifest

OF_SYSTEM = ("system", "threads", "versions")
"""Fields of a measurement that all repeats of a system share."""


def speed_result(config: RunConfig, speeds: Sequence[Speed], *, seconds: float, command: str) -> dict[str, Any]:
    """Return the measurements of a configuration as plain data, a list of repeats for each system and its threads.

    Raise `UserError` where there is none.
    """
    if not speeds:
        with about(Command("ddrl peers speed")):
            raise UserError("nothing was measured")
    provenance = manifest.provenance()
    known = peers()
    groups: dict[tuple[str, int], list[Speed]] = {}
    for one in speeds:
        groups.setdefault((one.system, one.threads), []).append(one)
    return {
        "command": command,
        "date": manifest.now(),
        **{name: provenance[name] for name in ("git_sha", "git_dirty", "hardware", "packages")},
        "seconds": seconds,
        "config": to_json(config),
        "measurements": [
            {
                "system": system,
                "title": OURS if system == OURS else known[system].title,
                "threads": threads,
                "versions": group[0].versions,
                "repeats": [
                    {key: value for key, value in asdict(one).items() if key not in OF_SYSTEM} for one in group
                ],
            }
            for (system, threads), group in groups.items()
        ],
    }
