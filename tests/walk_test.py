"""Following IMPALA on Atari takes few files: docs/architecture.md lists them, and a traced run enters no others."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ddrl.api.launch import train
from ddrl.training.config.run_config import load_run_config
from ddrl.training.records.recorder import write_json

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
MOST = 25
"""Files that a reader opens."""
CONFIG = {
    "algorithm": "impala",
    "environment": {"name": "atari/pong", "max_frames": 400},
    "seed": 1,
    "env_frames": 640,
    "topology": {"runtime": "threads", "num_actors": 2},
    "hyperparameters": {"batch_size": 4},
    "evaluation": {"final_episodes": 1},
}


def section(title: str) -> str:
    """Return the text of a section of the page."""
    return PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def walk() -> list[str]:
    """Return the files of the walk, in its order."""
    return re.findall(r"^\d+\. `(ddrl/\S+\.py)`", section("Following IMPALA on Atari"), re.MULTILINE)


def support() -> list[str]:
    """Return the files, and the folders with all that is in them, that a reader need not open."""
    lines = re.findall(r"^- ([^:]*):", section("Following IMPALA on Atari"), re.MULTILINE)
    return [name for line in lines for name in re.findall(r"`(ddrl/\S+)`", line)]


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the files of `ddrl/` with a function that is called while IMPALA trains on Atari in threads."""
    directory = tmp_path_factory.mktemp("walk")
    write_json(directory / "config.json", CONFIG)
    files: set[str] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function, not a module or the body of a class
            files.add(frame.f_code.co_filename)

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        assert train(load_run_config(directory / "config.json"), directory / "run", quiet=True) == "budget_reached"
    finally:
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type]  # the library's own way to end it
    inside = [Path(file) for file in files if Path(file).is_relative_to(ROOT / "ddrl")]
    return {file.relative_to(ROOT).as_posix() for file in inside}


def test_the_walk_has_no_more_files_than_a_reader_wants_to_open() -> None:
    assert 0 < len(walk()) <= MOST
    assert len(set(walk())) == len(walk())


def without_functions(path: str) -> bool:
    """Return whether a file has types alone: there is nothing in it to enter."""
    return not any(isinstance(node, ast.FunctionDef) for node in ast.parse((ROOT / path).read_text()).body)


def test_the_run_enters_every_file_of_the_walk_that_has_a_function(entered: set[str]) -> None:
    assert {path for path in set(walk()) - entered if not without_functions(path)} == set()


def test_the_run_imports_every_file_of_the_walk(entered: set[str]) -> None:
    modules = {path.removesuffix(".py").replace("/", ".") for path in walk()}
    assert modules - set(sys.modules) == set()


def test_the_run_enters_nothing_that_the_page_does_not_name(entered: set[str]) -> None:
    known = support()
    others = {
        file for file in entered - set(walk()) if not any(f"{file}/".startswith(f"{one.rstrip('/')}/") for one in known)
    }
    assert others == set()


def test_what_need_not_be_opened_is_there_and_not_part_of_the_walk() -> None:
    for name in support():
        assert (ROOT / name).exists()
        assert not any(f"{file}/".startswith(f"{name.rstrip('/')}/") for file in walk())
