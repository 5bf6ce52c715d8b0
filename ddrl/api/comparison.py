"""Groups of runs side by side (`ddrl.compare`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddrl.analysis.statistics.bootstrap import bootstrap
from ddrl.api import arguments
from ddrl.api.runs import AnyRun, Run, directory_of
from ddrl.errors import UserError, about
from ddrl.system.config_differences import check_seeds, compared, flatten, spelled
from ddrl.system.seeding import numpy_generator
from ddrl.training.config.run_config import to_json

if TYPE_CHECKING:
    import pandas as pd

NAMED = ("algorithm", "environment.name", "env_frames")
"""Keys that have columns of their own."""
RESAMPLES = 2000
Settings = Mapping[str, Any]
"""The flat configuration of a group, without the seed."""


@arguments.one_line()
def compare(runs: Iterable[AnyRun]) -> pd.DataFrame:
    """Compare the final scores of groups of runs. Runs that differ only in their seed are one group.

    The score of a run is the mean raw return of its final evaluation.

    Args:
        runs: finished runs, or their directories.

    Returns:
        One row per group, the best first within a task, with the columns `algorithm`, `environment`, `env_frames`,
        `runs` (number of seeds), `iqm` (interquartile mean of the scores), `low` and `high`, and `spread`, which says
        what these two are: "interval" (95 %, studentised, over seeds), "range" (lowest and highest of two seeds), or
        "" (a single seed has neither). Where groups of the same algorithm and task differ in other keys, a column
        `settings` says in which.

    Raises:
        UserError: a run has not finished, there is none, or a group has a seed twice.
    """
    import pandas as pd

    if isinstance(runs, str | os.PathLike | Run) or not isinstance(runs, Iterable):
        raise arguments.refused("ddrl.compare: runs", "a list of runs or of their directories", runs)
    groups: dict[str, list[Run]] = {}
    for run in (Run(directory_of(one, "ddrl.compare: each of runs")) for one in runs):
        groups.setdefault(json.dumps(_settings(run), sort_keys=True), []).append(run)
    if not groups:
        raise UserError("ddrl.compare: there are no runs to compare")
    described = {name: json.loads(name) for name in groups}
    rows = [_row(found, described[name], list(described.values())) for name, found in groups.items()]
    table = pd.DataFrame(rows)
    if not table["settings"].any():
        table = table.drop(columns="settings")
    return table.sort_values(["environment", "iqm"], ascending=[True, False], kind="stable", ignore_index=True)


def _settings(run: Run) -> Settings:
    flat = flatten(to_json(run.config))
    return {key: value for key, value in flat.items() if key != "seed" and compared(key)}


def _row(runs: Sequence[Run], own: Settings, all_settings: Sequence[Settings]) -> dict[str, Any]:
    """Return the row of one group."""
    import pandas as pd

    seeds = [run.config.seed for run in runs]
    with about("ddrl.compare"):
        check_seeds([(run.config.seed, run.directory) for run in runs])
    scores = pd.DataFrame({"environment": "", "seed": seeds, "score": [run.final_return for run in runs]})
    generator = numpy_generator(0, "comparison")
    iqm = bootstrap(scores, "score", "iqm", generator=generator, resamples=RESAMPLES)
    return {
        **{key.partition(".")[0]: own[key] for key in NAMED},
        "settings": _differences(own, all_settings),
        "runs": len(runs),
        "iqm": iqm.value,
        "low": iqm.low,
        "high": iqm.high,
        "spread": iqm.spread,
    }


def _differences(own: Settings, others: Sequence[Settings]) -> str:
    """Return the keys, with their values, in which groups of the same algorithm and task differ."""
    alike = [one for one in others if all(one[key] == own[key] for key in NAMED[:2])]
    keys = sorted({key for one in alike for key in one} - set(NAMED))
    absent = object()
    differing = [key for key in keys if any(one.get(key, absent) != own.get(key, absent) for one in alike)]
    return spelled([f"{key.rpartition('.')[2]}={json.dumps(own.get(key))}" for key in differing])
