"""A paper's figures.py and tables.py are checked before anything is trained, and each fault is one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddrl.errors import UserError
from ddrl.papers.own_code import check_own_code
from ddrl.papers.paper import load_paper
from ddrl.training.config.experiments import main

ROOT = Path(__file__).parents[2]
PAPER = "a3c_2016"
FIGURE = load_paper(ROOT / "replications" / PAPER).figures[0]
TAKES = "def {name}({arguments}):\n    pass\n"
FAULTS = {
    "def broken(:\n": r"figures.py: line 1: SyntaxError: invalid syntax",
    "\nimport pandsa\n": r"figures.py: line 2: ModuleNotFoundError: No module named 'pandsa'",
    "\n\nCOLOURS = colours()\n": r"figures.py: line 3: NameError: name 'colours' is not defined",
    "": rf"figures.py: has no function '{FIGURE.name}', which paper.yaml wants",
    f"{FIGURE.name} = 3\n": rf"figures.py: has no function '{FIGURE.name}'",
    TAKES.format(name=FIGURE.name, arguments="tables"): rf"figures.py: {FIGURE.name}\(tables\): .*argument.*tables",
    TAKES.format(name=FIGURE.name, arguments="**tables, more"): r"figures.py: line 1: SyntaxError",
}


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """Return a copy of a paper, in a folder outside of the checkout."""
    return Path(shutil.copytree(ROOT / "replications" / PAPER, tmp_path / "papers" / PAPER))


@pytest.mark.parametrize("source", FAULTS, ids=str)
def test_a_fault_of_figures_py_is_one_line_with_its_place(paper: Path, source: str) -> None:
    (paper / "figures.py").write_text(source)
    with pytest.raises(UserError, match=FAULTS[source]) as caught:
        check_own_code(load_paper(paper))
    assert "\n" not in str(caught.value) and str(paper / "figures.py") in str(caught.value)


def test_a_fault_of_a_module_that_figures_py_imports_is_found_where_it_is(paper: Path) -> None:
    (paper / "helpers.py").write_text("\n1 / 0\n")
    (paper / "figures.py").write_text(f"from papers.{PAPER}.helpers import figure\n")
    with pytest.raises(UserError, match=r"helpers\.py: line 2: ZeroDivisionError"):
        check_own_code(load_paper(paper))


def test_a_table_that_paper_yaml_does_not_know_is_named(paper: Path) -> None:
    text = (paper / "paper.yaml").read_text()
    wanted = f"tables: [{', '.join(FIGURE.tables)}]"
    assert wanted in text
    (paper / "paper.yaml").write_text(text.replace(wanted, "tables: [curvs]", 1))
    with pytest.raises(UserError, match=rf"figures\.{FIGURE.name}: unknown table 'curvs' \(did you mean 'curves'\?\)"):
        load_paper(paper)


def test_the_command_that_checks_experiments_runs_this_check(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["check", "--paper", PAPER, "--replications", str(paper.parent)]
    assert main(options) == 0
    (paper / "figures.py").write_text("")
    assert main(options) == 2
    assert capsys.readouterr().err.endswith(f"has no function '{FIGURE.name}', which paper.yaml wants\n")
