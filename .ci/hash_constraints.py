"""Writes constraints-hashed.txt: what constraints.txt pins, with the SHA-256 of each file that may be installed.

    python .ci/hash_constraints.py                                  after constraints.txt was changed
    python .ci/hash_constraints.py workflows/peers/<name>.txt ...   after a version in such a file was changed

Both ask pip's own index, and install nothing. A peer's file keeps its comments, one of which names its Pythons.

For Linux on x86-64 and the Pythons of continuous integration. Without torch: which build of it pip takes is decided by
the machine's configuration. A package that is published as source alone has the hash of that.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12")
LEFT_OUT = ("torch",)
SOURCE_ALONE = ("rliable", "connection-pool")
"""Packages that are published as source alone."""
HEAD = """\
# Made by .ci/hash_constraints.py from constraints.txt. For `make HASHED=1`, as continuous integration has it: Linux,
# x86-64, Python {pythons}; all but {left_out}, of which the machine decides what build it gets.
"""


def pinned(path: Path) -> dict[str, str]:
    """Return name -> version of a file of constraints, hashed or not."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s\\]+)", path.read_text(), flags=re.MULTILINE))


def hashes(requirements: list[str], *options: str) -> dict[str, set[str]]:
    """Return normalised name -> SHA-256 of the files that pip would take; what it has no file for is left out."""
    with tempfile.TemporaryDirectory() as folder:
        report, wanted = Path(folder, "report.json"), Path(folder, "wanted.txt")
        wanted.write_text("\n".join(requirements))
        plain = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS", "PIP_CONSTRAINT")}
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--ignore-requires-python"]  # of a peer that runs on newer Pythons than it names
        subprocess.run(
            [*command, "--report", str(report), *options, "-r", str(wanted)],
            env=plain | {"PIP_CONFIG_FILE": os.devnull},
            check=True,
        )
        found: dict[str, set[str]] = {}
        for one in json.loads(report.read_text())["install"]:
            name = re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower()
            found.setdefault(name, set()).add(one["download_info"]["archive_info"]["hashes"]["sha256"])
        return found


def hashed(pins: dict[str, str], pythons: Sequence[str], source_alone: Collection[str] = ()) -> str:
    """Return a line for each pin, with the hashes of its files for some Pythons; `source_alone` have no wheels."""
    wheels = [f"{name}=={version}" for name, version in pins.items() if name not in source_alone]
    sources = [f"{name}=={pins[name]}" for name in source_alone]
    found = [hashes(sources)] if sources else []
    with tempfile.TemporaryDirectory() as nowhere:
        for python in pythons:
            binary = ("--only-binary=:all:", "--python-version", python, "--target", nowhere)
            found.append(hashes(wheels, *binary))
    lines = []
    for name, version in pins.items():
        own = sorted(set().union(*(one.get(name, set()) for one in found)))
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in own)]) + "\n")
    return "".join(lines)


def write_constraints() -> None:
    """Write constraints-hashed.txt."""
    pins = {name: version for name, version in pinned(ROOT / "constraints.txt").items() if name not in LEFT_OUT}
    head = HEAD.format(pythons=" and ".join(PYTHONS), left_out=", ".join(LEFT_OUT))
    (ROOT / "constraints-hashed.txt").write_text(head + hashed(pins, PYTHONS, SOURCE_ALONE))


def write_peer(path: Path) -> None:
    """Write the pins of a peer's file again, with their hashes."""
    text = path.read_text()
    comments = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    pythons = re.findall(r"3\.\d+", re.findall("^# Python (.*?),", text, flags=re.MULTILINE)[0])
    path.write_text(comments + hashed(pinned(path), pythons))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_peer(Path(name))
    if not sys.argv[1:]:
        write_constraints()
