"""Writes constraints-hashed.txt: what constraints.txt pins, with the SHA-256 of each file that may be installed.

    python .ci/hash_constraints.py        after constraints.txt was changed; asks pip's own index, and installs nothing

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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12")
LEFT_OUT = ("torch",)
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


def main(source_alone: list[str]) -> None:
    """Write the file; arguments name the packages that are published as source alone."""
    pins = {name: version for name, version in pinned(ROOT / "constraints.txt").items() if name not in LEFT_OUT}
    wheels = [f"{name}=={version}" for name, version in pins.items() if name not in source_alone]
    found = [hashes([f"{name}=={pins[name]}" for name in source_alone])] if source_alone else []
    with tempfile.TemporaryDirectory() as nowhere:
        for python in PYTHONS:
            binary = ("--only-binary=:all:", "--python-version", python, "--target", nowhere)
            found.append(hashes(wheels, *binary))
    lines = [HEAD.format(pythons=" and ".join(PYTHONS), left_out=", ".join(LEFT_OUT))]
    for name, version in pins.items():
        own = sorted(set().union(*(one.get(name, set()) for one in found)))
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in own)]) + "\n")
    (ROOT / "constraints-hashed.txt").write_text("".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:] or ["rliable", "connection-pool"])
