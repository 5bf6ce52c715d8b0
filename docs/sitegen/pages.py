"""The order of the pages, and those pages that no file of `docs/` holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddrl.algorithms import NAMES
from docs.sitegen import algorithms, evidence
from docs.sitegen.links import FROM_ROOT, ROOT

DOCS = ROOT / "docs"
GUIDE = ("training", "replications", "reading_reports", "reliability", "regression", "speed")
"""Guides in the order of reading; others follow by name."""
PUBLIC = ("ddrl.types", "ddrl.interfaces", "ddrl.losses.vtrace", "ddrl.losses.advantages", "ddrl.losses.returns",
          "ddrl.losses.actor_critic", "ddrl.losses.surrogate", "ddrl.losses.q_learning")  # fmt: skip
"""Modules whose functions the API reference lists beside `ddrl.api`."""


def navigation() -> list[Any]:
    """Return the pages in order, as the key `nav` of mkdocs.yml has them."""
    guides = sorted((path.stem for path in (DOCS / "guide").glob("*.md")), key=_guide_order)
    return [
        {"Home": ["index.md", "tutorial.md", "concepts.md", "troubleshooting.md", "glossary.md"]},
        {"Guides": [*(f"guide/{name}.md" for name in guides), "central_inference.md", "cluster.md", "dmlab.md"]},
        {"Algorithms": ["algorithms/index.md", *(f"algorithms/{name}.md" for name in NAMES)]},
        {"Papers": ["papers/index.md", *(f"papers/{key}.md" for key in evidence.keys_of_papers())]},
        {"Reference": [f"reference/{name}.md" for name in ("configuration", "commands", "environments", "api")]},
        {"Project": ["architecture.md", *FROM_ROOT]},
    ]


def _guide_order(name: str) -> tuple[int, str]:
    return (GUIDE.index(name) if name in GUIDE else len(GUIDE), name)


def generated() -> Iterator[tuple[str, str]]:
    """Yield (path in the site, Markdown) of every page that has no file of its own."""
    for name in FROM_ROOT:
        yield name, (ROOT / name).read_text(encoding="utf-8")
    yield "reference/api.md", _api()
    pages = {f"algorithms/{name}.md": algorithms.default_page(name) for name in NAMES}
    pages |= {f"papers/{key}.md": _paper_page(key) for key in evidence.keys_of_papers()}
    yield from ((uri, text) for uri, text in pages.items() if not (DOCS / uri).exists())


def _paper_page(key: str) -> str:
    """Return the page of a paper for which `docs/papers/` has none."""
    sections = [
        f"# {evidence.title(key)}",
        f"<!-- generated: citation {key} -->",
        f"## Claims\n\n<!-- generated: claims {key} -->",
        f"## Figures\n\n<!-- generated: figures {key} -->",
        f"## Published numbers beside ours\n\n<!-- generated: cells {key} -->",
        f"## Deviations\n\n<!-- generated: deviations {key} -->",
    ]
    return "\n\n".join(sections)


def _api() -> str:
    """Return the API reference: what `import ddrl` gives, then the types and the mathematics."""
    own = ["## `ddrl`", "::: ddrl.api.public"] if (ROOT / "ddrl" / "api" / "public.py").exists() else []
    parts = [
        f"## `{name}`\n\n::: {name}\n    options: {{show_root_heading: false, show_root_toc_entry: false}}"
        for name in PUBLIC
    ]
    text = "What Python code may import. Every function states its shapes, units and errors."
    return "\n\n".join(["# Python API", text, *own, *parts])
