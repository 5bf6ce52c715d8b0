"""The plan of the house: which file imports which, how many floors that makes, and whether imports go in circles.

    python -m tests.house           floors, circles, and the files at the root of `ddrl/`
    python -m tests.house --picture     the rooms and their arrows, as docs/architecture.md has them
    python -m tests.house --walk ddrl.algorithms.impala ...     every file that is reached from these

A room is a folder of `ddrl/` or a file at its root. A room stands one floor above the highest that any of its files
imports. Imports inside functions count; those for type checkers alone do not.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
Graph = Mapping[str, set[str]]


class Imports(NamedTuple):
    """What one file imports."""

    inside: set[str]
    """Modules of this package."""
    outside: set[str]
    """Top-level names of other packages."""


def module_of(path: Path, root: Path = ROOT) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(root: Path = ROOT) -> dict[str, str]:
    """Dotted name -> source, of every file of `ddrl/`."""
    return {module_of(path, root): path.read_text(encoding="utf-8") for path in sorted((root / "ddrl").rglob("*.py"))}


def read_imports(texts: Mapping[str, str], *, at_import: bool = False) -> dict[str, Imports]:
    """What each file imports; with `at_import` what it imports as it is imported itself: nothing inside functions."""
    return {name: _imports(name, text, texts, at_import) for name, text in texts.items()}


def _imports(name: str, text: str, known: Iterable[str], at_import: bool) -> Imports:
    inside: set[str] = set()
    outside: set[str] = set()
    for node in _import_statements(text, at_import):
        if isinstance(node, ast.Import):
            found = {alias.name for alias in node.names}
        else:
            module = node.module or ""
            found = {one if (one := f"{module}.{alias.name}") in known else module for alias in node.names}
        own = {one for one in found if one.partition(".")[0] == "ddrl"}
        inside |= {_existing(one, known) for one in own}
        outside |= {one.partition(".")[0] for one in found - own}
    return Imports(inside - {name, "ddrl"}, outside)


def _existing(name: str, known: Iterable[str]) -> str:
    while name not in known:
        name = name.rpartition(".")[0]
    return name


@cache
def _import_statements(text: str, at_import: bool) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Those of a source, which is read once."""
    found = _statements(ast.parse(text), at_import)
    return tuple(node for node in found if isinstance(node, ast.Import | ast.ImportFrom))


def _statements(tree: ast.AST, at_import: bool) -> Iterator[ast.AST]:
    """All nodes but those for type checkers; with `at_import` but those of functions, too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield from (other, *_statements(other, at_import))
            continue
        if at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        yield from _statements(node, at_import)


def with_packages(graph: Graph) -> dict[str, set[str]]:
    """Importing a file imports the packages that it is in, which Python does by itself."""
    return {
        name: found | {package for one in found for package in _above(one) if package in graph and package != name}
        for name, found in graph.items()
    }


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(2, len(parts))]


def room_of(name: str, packages: Iterable[str], depth: int) -> str:
    """The folder of a file, at most so many deep, or its own name where it stands at the root.

    `ddrl/__main__.py` only enters the command line, so it counts as a file of `ddrl/cli/`.
    """
    parts = name.split(".")[1:]
    if parts == ["__main__"]:
        return "cli"
    folder = parts if name in packages else parts[:-1]
    return "/".join(folder[:depth]) or (parts[0] if parts else "ddrl")


def rooms(graph: Graph, depth: int = 1) -> dict[str, set[str]]:
    """The rooms, and which import which."""
    packages = {name for name in graph if any(other.startswith(f"{name}.") for other in graph)}
    found: dict[str, set[str]] = {}
    for name, imported in graph.items():
        room = room_of(name, packages, depth)
        found.setdefault(room, set()).update({room_of(one, packages, depth) for one in imported} - {room})
    return found


def reached(graph: Graph, start: Iterable[str]) -> set[str]:
    """Whatever is imported from `start`, also through others; `start` itself is part of it."""
    found, left = set(start), list(start)
    while left:
        for one in graph[left.pop()] - found:
            found.add(one)
            left.append(one)
    return found


def _peeled(graph: Graph) -> dict[str, set[str]]:
    """Without what imports nothing that is left, again and again: in no circle is such a one."""
    left = {name: set(found) for name, found in graph.items()}
    while bare := {name for name, found in left.items() if not found}:
        left = {name: found - bare for name, found in left.items() if name not in bare}
    return left


def circles(graph: Graph) -> list[list[str]]:
    """Groups that import each other, directly or not; those that import none of a group are peeled off first."""
    graph = _peeled(graph)
    reaches = {name: reached(graph, graph[name]) if graph[name] else set() for name in graph}
    inner = [name for name in graph if name in reaches[name]]
    found = {tuple(sorted(one for one in reaches[name] if name in reaches[one])) for name in inner}
    return [list(group) for group in sorted(found)]


def floors(graph: Graph) -> dict[str, int]:
    """The floor of each, from 1. Raises ValueError where imports go in circles."""
    if found := circles(graph):
        raise ValueError(f"imports go in circles: {found}")
    heights: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in heights:
            heights[name] = 1 + max((height(one) for one in graph[name]), default=0)
        return heights[name]

    return {name: height(name) for name in graph}


def describe(graph: Graph) -> Iterator[str]:
    """What the script prints."""
    for title, part in (("rooms", rooms(graph)), ("folders within folders", rooms(graph, 2)), ("files", graph)):
        arrows = sum(map(len, part.values()))
        groups = circles(part)
        standing = "" if groups else f", {max(floors(part).values())} floors"
        yield f"{title}: {len(part)}, {arrows} arrows, {len(groups)} circles{standing}"
        yield from (f"  circle: {', '.join(group)}" for group in groups)
    folders = {one.rpartition(".")[0] for one in graph}
    root = sorted(name for name in graph if name.count(".") == 1 and name not in folders)
    yield f"files at the root: {len(root) + 1}: __init__, {', '.join(name.removeprefix('ddrl.') for name in root)}"
    heights = {} if circles(rooms(graph)) else floors(rooms(graph))  # in a circle, none is above another
    for floor in sorted(set(heights.values()), reverse=True):
        yield f"  {floor}  {', '.join(sorted(name for name, height in heights.items() if height == floor))}"


def picture(graph: Graph) -> Iterator[str]:
    """The rooms as a Mermaid flowchart; an arrow that follows from others is left out."""
    part = rooms(graph)
    yield "flowchart TD"
    for room in sorted(part, key=lambda one: (-floors(part)[one], one)):
        others = {one: reached(part, part[one]) for one in part[room]}
        direct = [one for one in part[room] if not any(one in far for other, far in others.items() if other != one)]
        yield from (f"    {room} --> {one}" for one in sorted(direct))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walk", nargs="+", metavar="MODULE", default=[])
    parser.add_argument("--picture", action="store_true")
    chosen = parser.parse_args()
    graph = {name: found.inside for name, found in read_imports(sources()).items()}
    lines = (
        picture(graph) if chosen.picture else sorted(reached(graph, chosen.walk)) if chosen.walk else describe(graph)
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
