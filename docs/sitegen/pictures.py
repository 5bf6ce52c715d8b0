"""Formulas, drawings and diagrams as SVG within the page, in the colour of its text."""

from __future__ import annotations

import html as html_text
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_DRAWING = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*(pictures/[\w.]+\.svg)" ?/?>')
_DIAGRAM = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def with_formulas(html: str) -> str:
    """Return a page whose formulas (LaTeX, as matplotlib's mathtext knows it) are drawings."""
    return _FORMULA.sub(lambda found: _formula(html_text.unescape(found[3]).strip(), found[2] == "["), html)


@cache
def _formula(latex: str, displayed: bool) -> str:
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import MathTextParser
    from matplotlib.textpath import TextPath

    text, size = f"${' '.join(latex.split())}$", 100.0
    font = FontProperties(size=size, math_fontfamily="stix")
    width, height, depth, *_ = MathTextParser("path").parse(text, dpi=72, prop=font)
    drawn = []
    for points, kind in TextPath((0, 0), text, prop=font).iter_segments(simplify=False):
        letter = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}[int(kind)]
        pairs = zip(points[0::2], points[1::2], strict=True)
        drawn.append(letter + ("" if letter == "Z" else " ".join(f"{x:.0f} {-y:.0f}" for x, y in pairs)))
    box = f"0 {-height:.0f} {width:.0f} {height + depth:.0f}"
    style = f"width:{width / size:.2f}em;height:{(height + depth) / size:.2f}em;vertical-align:{-depth / size:.2f}em"
    label = html_text.escape(latex, quote=True)
    svg = (
        f'<svg class="formula" role="img" aria-label="{label}" viewBox="{box}" style="{style}">'
        f'<path d="{"".join(drawn)}" fill="currentColor"/></svg>'
    )
    return f'<div class="formula-line">{svg}</div>' if displayed else svg


def with_drawings(html: str) -> str:
    """Return a page with the drawings of `docs/pictures/` in it, in place of links to them."""

    def drawing(found: re.Match[str]) -> str:
        svg = (ROOT / "docs" / found[2]).read_text(encoding="utf-8")
        return svg.replace("<svg ", f'<svg role="img" aria-label="{found[1]}" class="drawing" ', 1)

    return _DRAWING.sub(drawing, html)


def with_diagrams(markdown: str) -> str:
    """Return a page whose Mermaid flow charts (`a --> b` on each line) are drawn here: its script would be fetched."""
    return _DIAGRAM.sub(lambda found: layered(re.findall(r"(\S+) --> (\S+)", found[1])), markdown)


def layered(edges: list[tuple[str, str]]) -> str:
    """Return a drawing of a graph without circles: each node stands above all that it leads to."""
    nodes = sorted({node for edge in edges for node in edge})
    height = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for start, end in edges:
            height[start] = max(height[start], height[end] + 1)
    floors: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for node in nodes:
        floors[height[node]].append(node)
    wide, step, box = 760, 64, 104
    place = {
        node: (wide * (number + 0.5) / len(floor), step * (len(floors) - 1 - level) + 20)
        for level, floor in enumerate(floors)
        for number, node in enumerate(floor)
    }
    arrows = [
        f'<path d="M{place[a][0]:.0f} {place[a][1] + 15:.0f}L{place[b][0]:.0f} {place[b][1] - 17:.0f}"/>'
        for a, b in edges
    ]
    boxes = [
        f'<rect x="{x - box / 2:.0f}" y="{y - 15:.0f}" width="{box}" height="30" rx="5"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}">{node}</text>'
        for node, (x, y) in place.items()
    ]
    label = html_text.escape("; ".join(f"{a} imports {b}" for a, b in edges), quote=True)
    return (
        f'<svg class="drawing diagram" role="img" aria-label="{label}" viewBox="0 0 {wide} {step * len(floors) - 12}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>'
        f'<g class="arrows">{"".join(arrows)}</g>{"".join(boxes)}</svg>'
    )
