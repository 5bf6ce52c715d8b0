"""Makes the tables of what the suite holds: a row for every system, and what has been run of every paper.

A system is an algorithm plus a topology. Its row comes from experiments.yaml at scale `paper` and from what the
algorithm's module declares, read from the syntax tree: nothing is imported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.problems import portable
from ddrl.analysis.runs.run_data import env_label
from ddrl.analysis.tables.build import read
from ddrl.errors import UserError
from ddrl.papers.claim_verdicts import CLAIM_VERDICTS
from ddrl.papers.declared import declared, defaults
from ddrl.papers.expansion import expand
from ddrl.papers.experiments import (
    ROOT,
    Experiment,
    PlannedRun,
    Roots,
    each_root,
    folder_of,
    load_experiments,
    papers,
    system_label,
    system_of,
)
from ddrl.papers.published import load_published
from ddrl.papers.table_names import CELL_VERDICTS, REFERENCE, SUITE_NEEDS
from ddrl.system.plugins import ALGORITHMS

PACKAGE = Path(__file__).parents[2]
_TOPOLOGY_NUMBERS = ("num_actors", "envs_per_actor", "learner_threads", "max_policy_lag", "parameter_delay")
MAX_TASKS = 3
"""Number of tasks of one kind of environment that are named; more are counted."""

Tables = Mapping[str, Mapping[str, pd.DataFrame]]
"""Paper -> name -> table, as `python -m ddrl.analysis aggregate` wrote them."""


def algorithm_module(name: str) -> Path:
    """Return the file of an algorithm, of this package or another."""
    return ALGORITHMS.source(name)


def systems(root: Roots = ROOT, only: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row per paper, experiment and distinct algorithm and topology. Raise UserError as `declared`."""
    rows = []
    for paper in only or papers(root):
        groups: dict[tuple[str, str], list[PlannedRun]] = {}
        for run in expand(paper, "paper", root=root):
            key = json.dumps([run.config["algorithm"], _topology(run)], sort_keys=True)
            groups.setdefault((run.experiment, key), []).append(run)
        rows += [_system(paper, experiment, runs) for (experiment, _), runs in groups.items()]
    return pd.DataFrame(rows).astype(dict.fromkeys(_TOPOLOGY_NUMBERS if rows else (), "Int64"))


def _topology(run: PlannedRun) -> dict[str, Any]:
    stated = defaults(PACKAGE / "training" / "config" / "topology.py", "Topology")
    return stated | dict(run.config.get("topology") or {})


def _system(paper: str, experiment: str, runs: Sequence[PlannedRun]) -> dict[str, Any]:
    name, topology = str(runs[0].config["algorithm"]), _topology(runs[0])
    stated = declared(algorithm_module(name), "SYSTEM")
    settings = defaults(algorithm_module(name), "Config")
    hyperparameters = [settings | dict(run.config.get("hyperparameters") or {}) for run in runs]
    environments = list(dict.fromkeys(run.environment for run in runs))
    central = topology["inference"] == "central"
    return {
        "paper": paper,
        "experiment": experiment,
        "system": (central and stated.get("central_name")) or stated["name"],
        "algorithm": name,
        "moves": "observations" if central else stated["moves"],
        "schedule": topology["schedule"],
        "inference": topology["inference"],
        "store": _store(stated | topology, hyperparameters),
        "runtime": topology["runtime"],
        **{key: topology[key] for key in _TOPOLOGY_NUMBERS},
        "networks": ", ".join(dict.fromkeys(_network(item) for item in hyperparameters)),
        "tasks": _tasks(environments),
        "environments": len(environments),
        "variants": ", ".join(dict.fromkeys(run.variant for run in runs)),
    }


def _store(system: Mapping[str, Any], hyperparameters: Sequence[Mapping[str, Any]]) -> str:
    """Return queue, or queue (also 50 % replay) if some variants replay; circular (N 16, K 20): its sizes."""
    kind, sizes = str(system["store"]), dict(system.get("store_sizes", ()))
    if sizes:
        ranges = {symbol: _range({int(item[key]) for item in hyperparameters}) for symbol, key in sizes.items()}
        return f"{kind} ({', '.join(f'{symbol} {values}' for symbol, values in ranges.items())})"
    share = system.get("replay_share", "")
    shares = sorted({float(item.get(share) or 0.0) for item in hyperparameters})
    replayed = [f"{100 * share:g} % replay" for share in shares if share > 0]
    if not replayed:
        return kind
    return f"{kind} ({'also ' if 0.0 in shares else ''}{', '.join(replayed)})"


def _range(values: set[int]) -> str:
    """Return 16; 20 or 32; 1 to 32."""
    ends = dict.fromkeys((min(values), max(values)))
    return (" to " if len(values) > 2 else " or ").join(map(str, ends))


def _network(hyperparameters: Mapping[str, Any]) -> str:
    size = int(hyperparameters.get("lstm_size") or 0)
    return f"{hyperparameters['network']} + LSTM {size}" if size else str(hyperparameters["network"])


def _tasks(environments: Sequence[str]) -> str:
    """Return atari (57), toy (catch)."""
    kinds: dict[str, list[str]] = {}
    for name in environments:
        kind, _, task = name.partition("/")
        kinds.setdefault(kind, []).append(task)
    return "; ".join(
        f"{kind} ({', '.join(tasks) if len(tasks) <= MAX_TASKS else len(tasks)})" for kind, tasks in kinds.items()
    )


def read_papers(root: Roots, folder: Path, only: Sequence[str] | None = None) -> tuple[Tables, list[dict[str, Any]]]:
    """Read the tables of every paper in `folder/<paper>/tables`, and make a row of table `problems` for each without.

    Raise UserError if no paper has tables.
    """
    found, problems = {}, []
    for paper in only or papers(root):
        try:
            found[paper] = read(folder / paper / "tables", SUITE_NEEDS)
        except UserError as error:
            file, _, detail = str(error).partition(": ")
            what = "missing" if not Path(file).exists() else "damaged"
            row = {"origin": "tables", "paper": paper, "file": portable(Path(file), folder.parent)}
            problems.append(row | {"what": what, "detail": detail})
    if not found:
        raise UserError(f"{folder}: no paper has tables; run 'python -m ddrl.analysis aggregate' first")
    return found, problems


def matrix(root: Roots, scale: str, tables: Tables) -> pd.DataFrame:
    """Return every paper x experiment x variant x environment: seeds planned at this scale, done, left out, reference.

    The settings of a sweep count together, under the name of their system.
    status: done (every planned seed), partly, missing (none of them), reference (only committed runs), not_planned.
    """
    rows = []
    for paper in tables:
        runs, problems = tables[paper]["runs"], tables[paper]["problems"]
        counts = {
            "planned": _counted(() if scale == REFERENCE else expand(paper, scale, root=root)),
            "done": _counted(runs[runs["origin"] == "run"].itertuples()),
            "left_out": _counted(problems[problems["origin"] == "run"].itertuples()),
            "reference": _counted(runs[runs["origin"] == "reference"].itertuples()),
        }
        with_runs = {place for name in ("planned", "done", "reference") for place in counts[name]}
        experiments = load_experiments(folder_of(paper, root))
        for place, (variant_label, environment_label) in _places(experiments, with_runs).items():
            own = {name: count[place] for name, count in counts.items()}
            rows.append(
                {
                    "paper": paper,
                    "experiment": place[0],
                    "variant": place[1],
                    "variant_label": variant_label,
                    "environment": place[2],
                    "env_label": environment_label,
                    **own,
                    "status": _status(**own),
                }
            )
    return pd.DataFrame(rows)


Place = tuple[str, str, str]
"""Experiment, variant (or the system of a sweep's settings), environment."""


def _counted(runs: Iterable[Any]) -> Counter[Place]:
    return Counter((run.experiment, system_of(run.variant), run.environment) for run in runs)


def _places(experiments: Mapping[str, Experiment], with_runs: set[Place]) -> dict[Place, tuple[str, str]]:
    """Return every place of experiments.yaml, and others with runs -> labels of variant and environment."""
    found, labels = {}, {}
    for name, entry in experiments.items():
        for variant in entry.variants:
            system = system_of(variant)
            labels[name, system] = system_label(variant, entry.labels[variant])
            for environment in entry.every_environment:
                if entry.has(variant, environment):
                    found[name, system, environment] = (labels[name, system], env_label(environment))
    others = sorted(with_runs - set(found))
    return found | {place: (labels[place[:2]], env_label(place[2])) for place in others}


def _status(planned: int, done: int, left_out: int, reference: int) -> str:
    if planned + done + left_out == 0:
        return "reference" if reference else "not_planned"
    if done == 0:
        return "missing"
    return "done" if done >= planned and not left_out else "partly"


def coverage(root: Roots, tables: Tables, grid: pd.DataFrame, subject: str) -> pd.DataFrame:
    """Return one row per paper and experiment of `grid` (`matrix`), and of those that only cells or claims name.

    Columns paper, experiment, title, status, planned, done, left_out, reference (runs), cells, cells_<verdict>, claims,
    claims_<verdict>: verdicts on the runs of the origin `subject`.
    """
    rows = []
    for paper, own in tables.items():
        experiments = load_experiments(folder_of(paper, root))
        named = dict.fromkeys([*experiments, *own["cells"]["experiment"], *own["claims"]["experiment"]])
        for name in named:
            part = grid[(grid["paper"] == paper) & (grid["experiment"] == name)]
            counts = {key: int(part[key].sum()) for key in ("planned", "done", "left_out", "reference")}
            status = _status(*counts.values()) if name in experiments else "not_run"
            rows.append(
                {
                    "paper": paper,
                    "experiment": name,
                    "title": experiments[name].title if name in experiments else "",
                    "status": status,
                    **counts,
                    **_verdicts(own["cells"], "cell", name, subject, CELL_VERDICTS),
                    **_verdicts(own["claims"], "claim", name, subject, CLAIM_VERDICTS),
                }
            )
    return pd.DataFrame(rows)


def published_only(root: Roots = ROOT) -> pd.DataFrame:
    """Return papers with published numbers but no paper.yaml: paper, cells (how many), items."""
    rows = []
    for folder in sorted({path.parents[1] for one in each_root(root) for path in one.glob("*/published/*.csv")}):
        if not (folder / "paper.yaml").exists():
            published = load_published(folder)
            items = "; ".join(sorted(set(published["item"])))
            rows.append({"paper": folder.name, "cells": len(published), "items": items})
    return pd.DataFrame(rows, columns=["paper", "cells", "items"])


def _verdicts(table: pd.DataFrame, kind: str, experiment: str, subject: str, verdicts: Sequence[str]) -> dict[str, int]:
    """Return the numbers of an experiment's cells or claims, by verdict on the subject (none: `not_run`)."""
    own = table[table["experiment"] == experiment]
    total = int(own[kind].nunique())
    counts = own["verdict"][own["origin"] == subject].value_counts()
    found = {f"{kind}s": total} | {f"{kind}s_{verdict}": int(counts.get(verdict, 0)) for verdict in verdicts}
    found[f"{kind}s_not_run"] += total - int(counts.sum())
    return found
