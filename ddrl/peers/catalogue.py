"""The libraries that can carry out a configuration of ours, and where their environments are.

`workflows/peers/peers.yaml` lists them, `workflows/peers/<name>.txt` pins what they need, and
`workflows/peers/drivers/<name>_driver.py` runs them. `make peers` installs each into `.peers/<name>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import PlannedRun
from ddrl.system.text_files import read_yaml

PLACE = Path("workflows/peers")
INSTALLED = Path(".peers")
READY = ".ready"
"""The file that marks an environment as complete."""
ENTRIES = {"title", "algorithms", "variables"}
"""Keys of a peer in the list."""


@dataclass(frozen=True)
class Peer:
    """One library."""

    name: str
    title: str
    algorithms: tuple[str, ...]
    """Our names of the algorithms that its driver runs."""
    variables: Mapping[str, str]
    """Environment variables of its processes."""
    root: Path
    """The checkout that has its driver and its environment."""

    @property
    def driver(self) -> Path:
        """The script that runs it."""
        return self.root / PLACE / "drivers" / f"{self.name}_driver.py"

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.root / INSTALLED / self.name / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        """True where its environment is complete."""
        return (self.root / INSTALLED / self.name / READY).exists() and self.python.exists()

    def check(self, algorithm: str) -> None:
        """Raise `UserError` where it is not installed, or has no such algorithm."""
        if algorithm not in self.algorithms:
            raise UserError(f"peer '{self.name}': runs no {algorithm}; allowed: {', '.join(self.algorithms)}")
        if not self.is_installed:
            place = INSTALLED / self.name
            raise UserError(f"peer '{self.name}': {self.title} is not installed ({place} is missing); type: make peers")


def root() -> Path:
    """Return the checkout: the working directory, where that has peers, else the one that this package is in."""
    here = Path.cwd()
    return here if (here / PLACE / "peers.yaml").is_file() else Path(__file__).parents[2]


def peers() -> dict[str, Peer]:
    """Return name -> peer. Raise `UserError` where there is no list of them, or it holds something not allowed."""
    place = root()
    path = place / PLACE / "peers.yaml"
    listed = read_yaml(path)
    found = {}
    for name, entry in (listed if isinstance(listed, Mapping) else {}).items():
        if not isinstance(entry, Mapping) or {"title", "algorithms"} - set(entry) or set(entry) - ENTRIES:
            raise UserError(f"{path}: key '{name}': needs title and algorithms; allowed: {', '.join(sorted(ENTRIES))}")
        variables = {key: str(value) for key, value in (entry.get("variables") or {}).items()}
        found[name] = Peer(name, str(entry["title"]), tuple(entry["algorithms"]), variables, place)
    return found


def peer(name: str, where: str = "") -> Peer:
    """Return one peer. Raise `UserError`, which begins with `where`, for an unknown name."""
    found = peers()
    if name not in found:
        raise unknown_name("peer", name, found, where=where)
    return found[name]


def known_peers(place: Path, runs: Iterable[PlannedRun]) -> list[str]:
    """Return the peers whose needs are pinned in the checkout `place`, in order.

    Raise `UserError`, which names the run, for a run of another one.
    """
    pinned = sorted(path.stem for path in (place / PLACE).glob("*.txt"))
    for run in runs:
        if run.config.get("peer") not in (None, *pinned):
            raise unknown_name("peer", str(run.config["peer"]), pinned, where=run.key)
    return pinned
