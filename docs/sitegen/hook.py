"""The hook of MkDocs (mkdocs.yml): adds generated pages, expands markers in written pages, and orders the pages.

A marker is a comment on a line of its own, such as `<!-- generated: settings impala -->`. `MARKERS` lists all. Nothing
that is generated is written into the checkout.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.sitegen import algorithms, code, commands, evidence, figures, keys, links, pages, peers, pictures

MARKERS: dict[str, Callable[..., str]] = {
    "steps": code.steps,
    "function": code.function,
    "settings": keys.hyperparameters,
    "task-defaults": algorithms.task_defaults,
    "used-by": algorithms.used_by,
    "curves": figures.curves_of,
    "algorithms": algorithms.table,
    "papers": evidence.table_of_papers,
    "deviations": evidence.deviations,
    "claims": evidence.claims,
    "cells": evidence.cells,
    "peer-learning": peers.learning,
    "peer-speed": peers.speeds,
    "figures": figures.figures_of,
    "citation": evidence.citation,
    "run-keys": keys.run_keys,
    "commands": commands.all_commands,
    "environments": algorithms.environments,
}
"""Name of a marker -> what makes the Markdown in its place, from the marker's other words."""
MARKER = re.compile(r"^<!-- generated: (\S+)((?: \S+)*) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the order of the pages, which follows from what there is."""
    config.nav = pages.navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that no file of `docs/` holds."""
    made: list[tuple[str, str | bytes]] = [*pages.generated(), *figures.pictures()]
    for uri, content in made:
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Expand markers, draw diagrams and lead links to the pages of the site."""
    uri = page.file.src_uri
    return pictures.with_diagrams(links.for_site(expanded(markdown), uri))


def on_page_content(html: str, *, page: Page, **_: Any) -> str:
    """Put formulas and local drawings into the page itself, where they take its colours."""
    return pictures.with_drawings(pictures.with_formulas(html))


def expanded(markdown: str) -> str:
    """Return a page with every marker replaced. Raise KeyError for an unknown one."""
    return MARKER.sub(lambda found: MARKERS[found[1]](*found[2].split()), code.with_steps(markdown))
