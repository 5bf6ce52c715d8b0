"""The section of a report about other libraries: a line per comparison, and a group per measurement of speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddrl.analysis.tables.peer_speed import peer_speed
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.peer_learning import peer_learning
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_references
from ddrl.report.paper import budget
from ddrl.report.sections.document import Row, Table, Tables
from ddrl.report.sections.peers import learning, peers, shown_learning, speeds
from ddrl.system.csv_cells import read_rows, table_as_csv
from tests.analysis.tables.peer_speed_test import write_speeds
from tests.analysis.verdicts.peer_learning_test import BESIDE, side

EXPERIMENTS = {"beside": {"title": "Beside others"}}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Both tables, as a report reads them: RLlib has runs, SB3 has none."""
    folder = tmp_path_factory.mktemp("tables")
    paper = load_paper(Path(__file__).parents[2] / "replications/controls_2026")
    runs = [*side("ours", 300.0), *side("rllib", 301.0)]
    write_speeds(folder)
    made = {
        "peer_learning": peer_learning(paper, {"beside": BESIDE}, scores(runs, load_references(paper)), runs),
        "peer_speed": peer_speed(paper.key, folder, "workstation")[0],
    }
    for name, table in made.items():
        (folder / f"{name}.csv").write_text(table_as_csv(table))
    return {name: read_rows(folder / f"{name}.csv") for name in made}


def text(table: Table) -> list[list[str]]:
    """Return the cells of all lines."""
    return [
        [" ".join(span.text for span in cell.spans) for cell in line] for group in table.groups for line in group.rows
    ]


def test_a_pair_has_a_line_for_each_return_and_cells_for_what_both_share(tables: Tables) -> None:
    rows = text(learning(tables["peer_learning"], EXPERIMENTS, "run"))
    place = next(place for place, row in enumerate(rows) if "RLlib 2.60.0" in row[0])
    first, second = rows[place : place + 2]
    assert first[0].split() == ["RLlib", "2.60.0", "CartPole-v1"]
    assert first[1:4] == ["over all frames", "300", "301"]
    assert first[4].startswith("1.00  [0.9")
    assert first[5:7] == ["5\u202f/\u202f5", "1\u202fk"]
    assert first[7:] == ["bootstrap", "equivalent"]
    assert second[0] == "at the end"
    assert second[-1] == "equivalent"


def test_the_note_has_the_margin(tables: Tables) -> None:
    assert "Margin: 10\u202f%." in learning(tables["peer_learning"], EXPERIMENTS, "run").note


def test_what_has_not_run_has_one_line_that_says_so(tables: Tables) -> None:
    rows = text(learning(tables["peer_learning"], EXPERIMENTS, "run"))
    (waiting,) = [row for row in rows if row[-1].startswith("not run")]
    assert waiting[0].split() == ["SB3", "CartPole-v1"]
    assert waiting[1] == "both"
    assert "no run of SB3" in waiting[-1]


def test_committed_runs_stand_where_this_scale_has_none(tables: Tables) -> None:
    rows: list[Row] = [row for row in tables["peer_learning"] if row["peer_variant"] == "rllib"]
    both = [row | {"origin": "reference"} for row in rows] + [row | {"verdict": "not_run"} for row in rows]
    assert {row["origin"] for row in shown_learning(both, "run")} == {"reference"}
    assert text(learning(both, EXPERIMENTS, "run"))[0][0].endswith("CartPole-v1 (reference)")


def test_a_measurement_says_where_it_was_made(tables: Tables) -> None:
    (group,) = speeds(tables["peer_speed"]).groups
    assert group.title == "PPO on mujoco/HalfCheetah-v5, reference"
    for part in ("a processor, 2 cores", "2026-11-27", "commit ffffffff", "ddrl peers speed ppo mujoco/HalfCheetah-v5"):
        assert part in group.note
    rows = text(speeds(tables["peer_speed"]))
    assert rows[0][2] == "2\u202f200  [2\u202f000, 2\u202f400]"
    assert rows[0][7] == "2  [2, 2]"


def test_a_paper_without_peers_has_no_such_section() -> None:
    assert peers([], [], EXPERIMENTS, "run") == []


def test_runs_beside_other_libraries_have_no_budget_of_the_paper() -> None:
    row = {"experiment": "beside", "env_label": "CartPole", "env_frames": "61440", "paper_frames": "61440"}
    assert budget([row], {"beside": {"peers": True}}) == "61.4\u202fk on CartPole, beside other libraries"
    assert budget([row], {"beside": {"peers": False}}) == "61.4\u202fk of the paper’s 61.4\u202fk (100\u202f%)"
