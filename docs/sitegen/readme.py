"""Writes the table of papers into README.md, between its markers: `python -m docs.sitegen.readme`."""

from __future__ import annotations

import re

from docs.sitegen.evidence import table_of_papers
from docs.sitegen.links import ROOT

BEGIN, END = "<!-- papers: begin -->", "<!-- papers: end -->"
README = ROOT / "README.md"


def with_table(text: str) -> str:
    """Return a text with the present table of papers between its markers."""
    return re.sub(f"{BEGIN}.*?{END}", f"{BEGIN}\n{table_of_papers('docs/papers/')}\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
