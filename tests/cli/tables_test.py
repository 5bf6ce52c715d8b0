"""`ddrl claims` and `ddrl cells` of a paper without tables: the command that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddrl.cli.new import new
from ddrl.cli.tables import load
from ddrl.errors import UserError

OWN = Path("replications")


@pytest.mark.parametrize(("scale", "trained"), [(None, "smoke"), ("paper", "paper"), ("reference", "smoke")])
def test_without_a_run_the_command_is_one_that_trains(scale: str | None, trained: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"has finished yet; train them: make report PAPER=a3c_2016 SCALE={trained}$"):
        load("claims", OWN, tmp_path, "a3c_2016", scale, None)


def test_outside_of_the_checkout_it_is_the_workflow(tmp_path: Path) -> None:
    new("paper", "doe_2020", tmp_path)
    roots = (OWN, tmp_path / OWN)
    says = rf"train them: python -m snakemake --snakefile \S+ .* replications={tmp_path / OWN} scale=smoke -- doe_2020$"
    with pytest.raises(UserError, match=says):
        load("cells", roots, tmp_path, "doe_2020", None, None)


def test_with_runs_but_without_tables_it_is_the_report(tmp_path: Path) -> None:
    run = tmp_path / "smoke/a3c_2016/some/variant/toy-catch/seed1"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(UserError, match=r"smoke/a3c_2016/tables: no tables; make them: ddrl report a3c_2016 --scale s"):
        load("cells", OWN, tmp_path, "a3c_2016", "smoke", None)
