"""What pages of algorithms and of environments take from the modules themselves."""

from __future__ import annotations

import json
import re

from ddrl import algorithms
from ddrl.algorithms import NAMES
from ddrl.cli import listing
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import load_paper
from docs.sitegen.links import ROOT
from docs.sitegen.markdown import code, plain
from docs.sitegen.markdown import table as markdown_table


def table(place: str = "./") -> str:
    """Return one row per algorithm, with a link to its page; `place` leads from the page to the site's root."""
    rows = []
    folder = "" if place == "./" else f"{place}algorithms/"
    for name in NAMES:
        system = algorithms.load(name).SYSTEM
        rows.append(
            [
                f"[{system.name}]({folder}{name}.md)",
                code(name),
                system.moves,
                system.store,
                ", ".join(map(code, system.schedules)),
            ]
        )
    return markdown_table(["algorithm", "name", "actors send", "through", "schedules"], rows)


def default_page(name: str) -> str:
    """Return the page of an algorithm for which `docs/algorithms/` has none."""
    module = algorithms.load(name)
    return "\n\n".join(
        [
            f"# {module.SYSTEM.name}",
            (module.__doc__ or "").strip(),
            f"## Code by the numbers of its pseudo-code\n\n<!-- generated: steps ddrl/algorithms/{name}.py -->",
            f"## Settings\n\n<!-- generated: settings {name} -->\n\n<!-- generated: task-defaults {name} -->",
            f"## Reference curves\n\n<!-- generated: curves {name} -->",
            f"## Papers\n\n<!-- generated: used-by {name} -->",
        ]
    )


def task_defaults(name: str) -> str:
    """Return the settings that an algorithm takes on tasks for which the defaults of its paper do not fit."""
    module = algorithms.load(name)
    rows = [
        [kind, ", ".join(code(f"{key}: {json.dumps(value)}") for key, value in settings.items())]
        for kind, settings in module.TASK_DEFAULTS.items()
    ]
    text = (ROOT / f"ddrl/algorithms/{name}.py").read_text(encoding="utf-8")
    source = re.search(r'^TASK_DEFAULTS.*?^\}\n"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
    why = f"Source: {' '.join(source[1].split())}" if source else ""
    return (
        f"{markdown_table(['task', 'settings'], rows)}\n\n{why}" if rows else "It has the same settings on every task."
    )


def used_by(name: str) -> str:
    """Return a list of the papers whose experiments train with an algorithm, with links."""
    found = []
    for folder in sorted((ROOT / "replications").glob("*/paper.yaml")):
        experiments = load_experiments(folder.parent)
        used = [
            experiment.title
            for experiment in experiments.values()
            if any(_algorithm(experiment.paper_setting(variant, "")) == name for variant in experiment.variants)
        ]
        if used:
            paper = load_paper(folder.parent)
            found.append(f"- [{plain(paper.citation['short'])}](../papers/{paper.key}.md): {plain('; '.join(used))}")
    return "\n".join(found) or "No experiment of a paper trains with it."


def _algorithm(setting: object) -> object:
    return setting["algorithm"] if isinstance(setting, dict) else None


def environments() -> str:
    """Return one row for each prefix of environments."""
    rows = [
        [code(row["name"]), plain(row.get("what", "")), row["tasks"], row["suites"]]
        for row in listing.rows("environments", None)
    ]
    return markdown_table(["prefix", "what", "tasks", "suites"], rows, right=[2])
