"""Keeps the tables of a paper between calls, in `<results>/.cache`, under a digest of all that they are made from.

The digest covers the contents of the runs' files, of the paper's folder and the reference scores, of the source files
that make tables, and the versions of the packages that compute them. A file counts by its content, since a new clone
has new times. What is kept lies below `results`, which is ignored by git, belongs to one checkout, and is removed with
the runs. A file is named after the digest of its own content, so a damaged one is made anew; every file is written
whole, so two processes at once do no harm. Where nothing can be written, the tables are made at each call.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ddrl.analysis.tables.peer_speed import speed_files
from ddrl.papers.experiments import PlannedRun
from ddrl.papers.plan_dates import dated
from ddrl.papers.reference_numbers import references_of
from ddrl.papers.schema import SCHEMAS
from ddrl.papers.table_names import REFERENCE, TABLES
from ddrl.system.files import read_file, write_whole
from ddrl.system.parquet import read_frame

if TYPE_CHECKING:
    from ddrl.analysis.tables.build import PaperTables

PACKAGE = Path(__file__).parents[2]
SOURCES = ("analysis", "papers", "system", "errors.py")
"""Folders and files of the package that everything which makes a table is in."""
PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "jsonschema", "PyYAML")
RUN_FILES = ("run.json", "curves.parquet", "lineage.parquet")
FOLDER = ".cache"


def build(
    paper_dir: Path, scale: str, planned: Sequence[PlannedRun], results: Path, *, allow_missing: bool = False
) -> PaperTables:
    """Return what `ddrl.analysis.tables.build.build` makes, from the cache where it is up to date."""
    from ddrl.analysis.tables.build import with_facts

    found = tables(TABLES, paper_dir, scale, planned, results, allow_missing=allow_missing)
    return with_facts(found, paper_dir, scale, results)


def tables(
    names: Sequence[str],
    paper_dir: Path,
    scale: str,
    planned: Sequence[PlannedRun],
    results: Path,
    *,
    allow_missing: bool = False,
) -> dict[str, pd.DataFrame]:
    """Return the named tables of a paper, from the cache where they are up to date. Raise UserError as `make`."""
    place = results / FOLDER / f"{paper_dir.name}-{scale}"
    folder = place / _digest(_inputs(paper_dir, scale, planned, results, allow_missing))
    found = {name: table for name in names if (table := _read(folder, name)) is not None}
    missing = [name for name in names if name not in found]
    if missing:
        from ddrl.analysis.tables.build import make  # takes a second to import

        made = make(missing, paper_dir, scale, planned, results, allow_missing=allow_missing)
        with suppress(OSError):
            for name, table in made.items():
                _write(folder, name, table)
            for old in place.iterdir():
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
        found |= made
    return {name: found[name] for name in names}


def _read(folder: Path, name: str) -> pd.DataFrame | None:
    """Return a table of the cache; None where there is none, or it is damaged."""
    for path in folder.glob(f"{name}.*.parquet"):
        with suppress(OSError):
            content = read_file(path)
            if path.name == _file_name(name, content):
                return read_frame(content)
    return None


def _write(folder: Path, name: str, table: pd.DataFrame) -> None:
    content = table.to_parquet(index=False)
    write_whole(folder / _file_name(name, content), content)


def _file_name(name: str, content: bytes) -> str:
    return f"{name}.{hashlib.sha256(content).hexdigest()[:16]}.parquet"


def _digest(parts: Iterable[bytes]) -> str:
    """Return the digest of parts, each with its length, so that parts cannot run into each other."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:32]


def _inputs(
    paper_dir: Path, scale: str, planned: Sequence[PlannedRun], results: Path, allow_missing: bool
) -> Iterator[bytes]:
    """Yield everything that the tables depend on."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    yield json.dumps([versions, scale, allow_missing, results.resolve().name], sort_keys=True).encode()
    yield json.dumps([[run.key, run.config] for run in planned], sort_keys=True).encode()
    for name in SOURCES:
        path = PACKAGE / name
        yield from _files(PACKAGE, sorted(path.rglob("*.py")) if path.is_dir() else [path])
    yield from _files(SCHEMAS, sorted(SCHEMAS.glob("*.yaml")))
    of_paper = [path for path in sorted(paper_dir.rglob("*")) if path.suffix in (".yaml", ".csv", ".md")]
    yield from _files(paper_dir, of_paper)
    yield json.dumps([row.date for row in dated(paper_dir)]).encode()  # a row counts from its commit on
    references = references_of(paper_dir)
    yield from _files(references, sorted(references.glob("*.csv")))
    yield from _files(results, speed_files(results, scale))
    committed = sorted((results / REFERENCE / paper_dir.name).glob("*/*/*/seed*"))
    for run in (*committed, *(run.directory(results) for run in planned)):
        yield run.relative_to(results).as_posix().encode()
        yield from _files(run, [path for name in RUN_FILES if (path := run / name).exists()])


def _files(root: Path, paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield name and content of files; a file that cannot be read is told from an empty one."""
    for path in paths:
        yield path.relative_to(root).as_posix().encode()
        try:
            yield read_file(path)
        except OSError as error:
            yield f"cannot be read: {error.errno}".encode()
