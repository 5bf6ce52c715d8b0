"""`ddrl new`: a skeleton of a paper, an algorithm or an environment that runs, is tested and is reported at once."""

from __future__ import annotations

import keyword
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import Command, UserError, about
from ddrl.papers.experiments import ROOT, papers
from ddrl.system.files import read_file, write_whole
from ddrl.system.plugins import ALGORITHMS, ENVIRONMENTS, Modules
from ddrl.system.text_files import read_text

SKELETONS = Path(__file__).parent / "skeletons"
PYPROJECT = "pyproject.toml"


@dataclass(frozen=True)
class Made:
    """What was written, and what to type next."""

    files: tuple[Path, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A folder that skeletons are written into: this checkout, or a package of the user's own."""

    root: Path
    package: str
    """The package of its modules; empty in the checkout, where each kind has one."""

    @property
    def is_checkout(self) -> bool:
        """Return whether it is a checkout of ddrl."""
        return not self.package


def new(kind: str, name: str, into: Path | None = None) -> Made:
    """Write the skeleton of a `kind` (`KINDS`) called `name` into the package `into`, or into this checkout.

    Nothing is overwritten: raise `UserError` where a file exists already, and for a name that is not allowed or taken.
    """
    place = _checkout() if into is None else _package(into)
    return KINDS[kind](name, place)


def _checkout() -> Place:
    if not (Path("ddrl/algorithms/__init__.py").is_file() and ROOT.is_dir()):
        with about(Command("ddrl new")):
            raise UserError("this folder is no checkout of ddrl; allowed here: --into DIR, a package of your own")
    return Place(Path(), "")


def _package(folder: Path) -> Place:
    """Return the package that `folder` is, or will be. Raise `UserError` where its pyproject.toml has no name."""
    name = re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower()).strip("_")
    path = folder / PYPROJECT
    if path.exists():
        project = _parsed(path).get("project", {})
        if not isinstance(project, Mapping) or not isinstance(project.get("name"), str):
            raise UserError(f"{path}: key 'project.name' is missing")
        name = re.sub(r"[-.]+", "_", project["name"].lower())
    if not name.isidentifier() or keyword.iskeyword(name) or name == "ddrl":
        raise UserError(f"--into {folder}: '{name}' cannot be the name of a package; allowed: such as my_research")
    return Place(folder, name)


def _paper(name: str, place: Place) -> Made:
    _check_name("paper", name, r"[a-z][a-z0-9_]*_(19|20)[0-9]{2}", "lower-case letters, digits and _, then the year")
    root = place.root / ROOT
    if name in papers(root):
        raise UserError(f"paper '{name}' exists: {root / name}")
    folder = f"tests/replications/{name}" if place.is_checkout else "tests"
    values = {"year": name[-4:], "up": folder.count("/") + 1}
    targets = {
        "paper.yaml": f"{ROOT}/{name}/paper.yaml",
        "experiments.yaml": f"{ROOT}/{name}/experiments.yaml",
        "figures.py": f"{ROOT}/{name}/figures.py",
        "DEVIATIONS.md": f"{ROOT}/{name}/DEVIATIONS.md",
        "results.csv": f"{ROOT}/{name}/published/results.csv",
        "test.py": f"{folder}/{name}_test.py",
    }
    files = _write({place.root / target: _rendered(f"paper/{file}", name, values) for file, target in targets.items()})
    checked = f"python -m ddrl.training.config.experiments check --paper {name}"
    registered = f"ddrl register {name}"
    if place.is_checkout:
        return Made(files, (checked, registered, f"make report PAPER={name}"))
    snakefile = Path(__file__).resolve().parents[2] / "Snakefile"
    options = f"--directory . --cores all --config replications={ROOT} -- {name}"
    made = _typed("python -m snakemake --snakefile", snakefile, options)
    return Made(files, (_typed("cd", place.root), f"{checked} --replications {ROOT}", registered, made))


def _algorithm(name: str, place: Place) -> Made:
    trained = f"ddrl train {name} toy/catch env_frames=50000"
    return _module("algorithm", ALGORITHMS, name, place, trained)


def _environment(name: str, place: Place) -> Made:
    trained = f"ddrl train a2c {name}/corridor env_frames=50000"
    return _module("environment", ENVIRONMENTS, name, place, trained)


def _module(kind: str, modules: Modules, name: str, place: Place, trained: str) -> Made:
    """Write a module, its test and, outside of the checkout, what makes it a package with an entry point."""
    _check_name(kind, name, r"[a-z][a-z0-9_]*", "lower-case letters, digits and _, from a letter on")
    if name in modules:
        raise UserError(f"{kind} '{name}' exists: {modules.source(name)}")
    package = place.package or modules.group
    module, test = f"{package.replace('.', '/')}/{name}.py", f"tests/{modules.folder}/{name}_test.py"
    values = {"package": package, "project": place.package}
    if not place.is_checkout:
        test = f"tests/{name}_test.py"
    texts = {module: _rendered(f"{kind}/module.py", name, values), test: _rendered(f"{kind}/test.py", name, values)}
    if place.is_checkout:
        return Made(_write({Path(file): text for file, text in texts.items()}), (f"python -m pytest {test}", trained))
    _refuse_existing(place.root / file for file in texts)
    texts |= {
        file: _rendered(f"package/{skeleton}", name, values)
        for skeleton, file in (("pyproject.toml", PYPROJECT), ("init.py", f"{package}/__init__.py"))
        if not (place.root / file).exists()
    }
    project = texts.pop(PYPROJECT, None) or read_text(place.root / PYPROJECT)
    project = _with_entry_point(project, modules.group, name, f"{package}.{name}", place.root / PYPROJECT)
    files = _write({place.root / file: text for file, text in texts.items()})
    write_whole(place.root / PYPROJECT, project.encode())  # last, so that it names what is there
    commands = (_typed("python -m pip install --editable", place.root), _typed("python -m pytest", place.root / test))
    return Made((*files, place.root / PYPROJECT), (*commands, trained))


def _typed(command: str, path: Path, more: str = "") -> str:
    """Return a command as it is typed, also where the path has spaces."""
    return f"{command} {shlex.quote(str(path))} {more}".rstrip()


def _with_entry_point(text: str, group: str, name: str, module: str, path: Path) -> str:
    """Return a pyproject.toml with one more entry point; everything else stays as it is."""
    header, line = f'[project.entry-points."{group}"]', f'{name} = "{module}"'
    if header not in text:
        text = f"{text.rstrip()}\n\n{header}\n"
    text = text.replace(header, f"{header}\n{line}", 1)
    try:
        found = tomllib.loads(text)["project"]["entry-points"][group][name]
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        found = None
    if found != module:
        raise UserError(f"{path}: has entry points in another form; add there: {header}, and below it: {line}")
    return text


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_file(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def _check_name(kind: str, name: str, pattern: str, allowed: str) -> None:
    with about(Command(f"ddrl new {kind}")):
        if keyword.iskeyword(name):
            raise UserError(f"'{name}' is no good name: it is a word of Python itself; allowed: any other")
        if not re.fullmatch(pattern, name):
            raise UserError(f"'{name}' is no good name; allowed: {allowed}")


def _rendered(skeleton: str, name: str, values: Mapping[str, Any]) -> str:
    """Return the text of a skeleton for `name`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(SKELETONS)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    title = name.replace("_", " ").capitalize()
    return environment.get_template(f"{skeleton}.j2").render({"name": name, "title": title, **values})


def _write(texts: Mapping[Path, str]) -> tuple[Path, ...]:
    """Write new files. Raise `UserError`, before any is written, where one exists."""
    _refuse_existing(texts)
    for path, text in texts.items():
        write_whole(path, text.encode())
    return tuple(texts)


def _refuse_existing(paths: Iterable[Path]) -> None:
    if existing := next((path for path in paths if path.exists()), None):
        raise UserError(f"{existing}: exists; nothing was written")


KINDS: Mapping[str, Callable[[str, Place], Made]] = {
    "paper": _paper,
    "algorithm": _algorithm,
    "environment": _environment,
}
