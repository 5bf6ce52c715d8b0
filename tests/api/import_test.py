"""`import ddrl` is quick, brings nothing heavy, and gives every public name when it is first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ddrl
from ddrl.api import public

PACKAGE = Path(ddrl.__file__).parent
HEAVY = {"torch", "pandas", "matplotlib", "numpy", "ray", "pydantic"}
MOST_SECONDS = 0.3


def printed(code: str) -> str:
    """What a new interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True).stdout.strip()


def test_importing_ddrl_brings_no_heavy_package() -> None:
    assert HEAVY & set(printed("import sys, ddrl; print(*sys.modules)").split()) == set()


def test_importing_ddrl_takes_less_than_a_third_of_a_second_of_the_processor() -> None:
    code = "import time; began = time.process_time(); import ddrl; print(time.process_time() - began)"
    assert min(float(printed(code)) for _ in range(2)) < MOST_SECONDS


def test_an_error_can_be_caught_without_anything_heavy() -> None:
    assert "torch" not in printed("import sys, ddrl; ddrl.UserError; print(*sys.modules)").split()


def test_every_public_name_is_there_and_is_listed() -> None:
    assert [name for name in ddrl.__all__ if vars(public).get(name, ddrl.UserError) is not getattr(ddrl, name)] == []
    assert set(ddrl.__all__) == {*public.__all__, "UserError"}
    assert set(ddrl.__all__) <= set(dir(ddrl))
    assert all(getattr(ddrl, name).__doc__ for name in ddrl.__all__)


def test_a_name_that_is_not_public_is_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        vars(ddrl)["__getattr__"]("trian")


def test_no_module_has_a_public_name_which_it_would_replace() -> None:
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules & set(ddrl.__all__) == set()


def test_type_checkers_read_the_annotations_of_the_package() -> None:
    assert (PACKAGE / "py.typed").is_file()
