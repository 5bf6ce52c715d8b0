"""Links between pages: files outside `docs/` that are pages of the site, and those that are not."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FROM_ROOT = ("DECISIONS.md", "CHANGELOG.md", "CONTRIBUTING.md")
"""Documents at the root of the checkout that are pages of the site too."""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def for_site(markdown: str, uri: str) -> str:
    """Return a page whose links lead to pages of the site; a link to any other file of the checkout becomes its path.

    `uri` is the page's path within `docs/`. Links to other hosts, and links within code, stay as they are.
    """
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    place = posixpath.dirname("" if uri in FROM_ROOT else f"docs/{uri}")

    def new(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(place, target))
        inside = path.removeprefix("docs/") if path.startswith("docs/") else path if path in FROM_ROOT else None
        if inside is not None:
            return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(uri) or '.')}{anchor})"
        if not (ROOT / path).exists():
            return link[0]  # MkDocs names it
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return "".join(part if part.startswith("```") else _LINK.sub(new, part) for part in parts)
