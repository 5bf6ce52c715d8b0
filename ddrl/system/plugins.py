"""Algorithms and environments by name: modules of this package, and modules that other installed packages offer.

Another package offers a module as an entry point: the group is `ddrl.algorithms` or `ddrl.environments`, the name is
the one that configurations use, and the value is the module. A file of this package's own folder counts if it assigns
the first of the names that such a module must have. So helper modules may stand beside the others.

Nothing is imported before it is asked for, and a package whose module is broken disturbs nobody else.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ddrl.errors import UserError, unknown_name
from ddrl.system.files import read_file

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True)
class Modules:
    """All modules of one kind."""

    kind: str
    """The word for one of them in errors."""
    folder: str
    """The folder of `ddrl/`; `ddrl.<folder>` is the group of entry points."""
    exports: tuple[str, ...]
    """The names that a module must have."""

    @property
    def group(self) -> str:
        """The package of the built-in modules, and the group of the entry points of others."""
        return f"ddrl.{self.folder}"

    def built_in(self) -> tuple[str, ...]:
        """Return the names of this package's own modules, sorted."""
        return _built_in(self.folder, self.exports[0])

    def outside(self) -> tuple[str, ...]:
        """Return the names that other installed packages offer, sorted."""
        return tuple(sorted(_offered(self.group)))

    def __iter__(self) -> Iterator[str]:
        """Yield all names, sorted."""
        return iter(sorted({*self.built_in(), *self.outside()}))

    def __contains__(self, name: object) -> bool:
        """Return whether there is a module of this name; metadata of packages is read only if it is not built in."""
        return isinstance(name, str) and (name in self.built_in() or name in _offered(self.group))

    def module(self, name: str, *, where: str = "") -> str:
        """Return the dotted name of a module, without importing it.

        Raise UserError, which begins with `where`, for an unknown name and for one that two packages have.
        """
        offers = list(_offered(self.group).get(name, ()))
        owners = ["ddrl"] * (name in self.built_in()) + [_package(offer) for offer in offers]
        if not owners:
            raise unknown_name(self.kind, name, self, where=where)
        if len(owners) > 1:
            place = f"{where}: " if where else ""
            raise UserError(f"{place}{self.kind} '{name}' is in several packages: {', '.join(owners)}; allowed: one")
        return offers[0].value.strip() if offers else f"{self.group}.{name}"

    def source(self, name: str) -> Path:
        """Return the file of a module, without importing it. Raise UserError as `module`, and where there is none."""
        dotted = self.module(name)
        spec = _spec(dotted)
        if spec is None or not spec.has_location or spec.origin is None:
            raise UserError(f"{self._described(name)}: there is no module {dotted}")
        return Path(spec.origin)

    def load(self, name: str, *, where: str = "") -> ModuleType:
        """Import a module and return it.

        Raise UserError as `module`, and for a module of another package that cannot be imported or is incomplete.
        """
        dotted = self.module(name, where=where)
        if name in self.built_in():
            return importlib.import_module(dotted)
        try:
            found = importlib.import_module(dotted)
        except Exception as error:  # whatever a stranger's module raises
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"{self._described(name)}: {dotted} cannot be imported: {said}") from error
        missing = [export for export in self.exports if export not in vars(found)]
        if missing:
            raise UserError(f"{self._described(name)}: {dotted} has no {', '.join(missing)}")
        return found

    def _described(self, name: str) -> str:
        return f"{self.kind} '{name}' of the package {_package(_offered(self.group)[name][0])}"


ALGORITHMS = Modules(
    "algorithm",
    "algorithms",
    ("SYSTEM", "VERSION", "TASK_DEFAULTS", "Config", "check", "make_network", "make_sampler", "Actor", "Learner"),
)
ENVIRONMENTS = Modules("environment prefix", "environments", ("ADAPTER",))


def offering_packages() -> tuple[str, ...]:
    """Return the names of the installed packages that offer algorithms or environments, sorted."""
    offers = chain(*_offered(ALGORITHMS.group).values(), *_offered(ENVIRONMENTS.group).values())
    return tuple(sorted({_package(offer) for offer in offers}))


@cache
def _built_in(folder: str, mark: str) -> tuple[str, ...]:
    """Return the names of the files of a folder of `ddrl/` that assign `mark` at their top level."""
    assigns = re.compile(rf"^{mark}\b[^=\n]*=".encode(), re.MULTILINE)
    files = sorted((FOLDER / folder).glob("[a-z]*.py"))
    return tuple(path.stem for path in files if assigns.search(read_file(path)))


@cache
def _offered(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return name -> entry points, from the metadata of all installed packages."""
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for offer in entry_points(group=group):
        same = found.setdefault(offer.name, ())
        if (offer.value, _package(offer)) not in [(other.value, _package(other)) for other in same]:
            found[offer.name] = (*same, offer)  # a package that is found twice on the path counts once
    return found


def _package(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist else offer.value


def _spec(dotted: str) -> ModuleSpec | None:
    """Return where a module is; unlike `importlib.util.find_spec`, import none of the packages that it is in."""
    first, *rest = dotted.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:  # a module that was made by hand
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec
