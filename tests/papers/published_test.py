"""The published cells and references: typed and sourced, and refused where they are not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl.errors import UserError
from ddrl.papers.experiments import papers
from ddrl.papers.paper import load_paper
from ddrl.papers.published import MADE_BY, load_published, load_references, matching, reference_scores
from ddrl.papers.schema import schema

ROOT = Path(__file__).parents[2] / "replications"
IMPALA = ROOT / "impala_2018"
OF = "published,standard"
"""Columns `made_by` and `variant` of an Atari game's reference."""
FOLDERS = sorted(path.parent for path in ROOT.glob("*/published"))
PUBLISHED = {folder.name: load_published(folder) for folder in FOLDERS}


def rows_of(paper: str, **wanted: str) -> pd.DataFrame:
    return matching(PUBLISHED[paper], wanted)


def test_a_folder_is_a_paper_only_with_its_paper_yaml() -> None:
    known = papers(ROOT)
    assert "impala_2018" in known
    assert "references" not in known
    assert [name for name in PUBLISHED if name not in known] == [
        folder.name for folder in FOLDERS if not (folder / "paper.yaml").exists()
    ]


def test_every_atari_game_has_a_random_and_a_human_score() -> None:
    references = load_references(load_paper(IMPALA))
    games = references[references["environment"].str.startswith("atari/")]
    assert len(games) == 57
    assert np.isfinite(games[["random", "human"]].to_numpy()).all()
    assert games.set_index("task").loc["video_pinball", "random"] == 0.0


def test_a_cell_says_which_statistic_it_is() -> None:
    experts = rows_of("impala_2018", item="Table C.1", variant="deep, experts")
    assert set(experts["statistic"]) == {"final"}
    assert set(experts["seeds"]) == {1}
    assert set(experts["budget_frames"]) == {200_000_000}
    table_2 = rows_of("impala_2018", item="Table 2")
    assert set(table_2["statistic"]) == {"mean_of_best_3_of_24"}
    assert table_2["seeds"].isna().all()
    noop = rows_of("apex_2018", item="Appendix, per-game table", variant="no-op starts")
    assert set(zip(noop["statistic"], noop["seeds"], noop["budget_frames"], strict=True)) == {
        ("best_during_training", 1, 22_800_000_000)
    }
    s3 = rows_of("a3c_2016", item="Table S3")
    assert set(zip(s3["statistic"], s3["protocol"], strict=True)) == {("final", "atari_human_starts")}
    assert s3["budget_frames"].isna().all()
    assert s3.groupby("variant")["budget_hours"].unique().map(list).to_dict() == {
        "FF 1 day": [24],
        "FF 4 days": [96],
        "LSTM 4 days": [96],
    }


R2D2_ROWS = [
    ("Table 1", "R2D2", "", "Atari-57", "final", 3, 37_500_000_000),
    ("Table 1", "R2D2", "feed-forward", "Atari-57", "final", 1, None),
    ("Table 1", "Ape-X", "", "Atari-57", "best_during_training", 1, 22_800_000_000),
    ("Table 1", "IMPALA", "deep, experts", "Atari-57", "final", 1, 200_000_000),
    ("Table 1", "IMPALA", "deep, experts", "DMLab-30", "best_per_architecture", None, 333_000_000),
    ("Table 1", "IMPALA", "deep, re-run", "DMLab-30", "final", 1, 10_000_000_000),
    ("Table 1", "R2D2", "", "DMLab-30", "final", 3, 10_000_000_000),
    ("Table 1 of the submission", "R2D2", "", "Atari-57", "unknown", None, None),
    ("Table 3", "IMPALA", "shallow, re-run", "", "final", 1, 10_000_000_000),
    ("Table 3", "R2D2+", "", "", "final", 3, 10_000_000_000),
    ("Table 4", "human", "", "", "reference", None, None),
    ("Table 4", "Reactor", "", "", "final", None, None),
    ("Table 4", "Ape-X", "", "", "best_during_training", 1, 22_800_000_000),
    ("Table 4", "R2D2", "", "", "final", 3, 37_500_000_000),
]


@pytest.mark.parametrize(("item", "system", "variant", "task", "statistic", "seeds", "frames"), R2D2_ROWS)
def test_a_cell_of_r2d2_says_which_statistic_it_is(
    item: str, system: str, variant: str, task: str, statistic: str, seeds: int | None, frames: int | None
) -> None:
    rows = rows_of("r2d2_2019", item=item, system=system, variant=variant, **({"task": task} if task else {}))
    assert len(rows) == {"Table 3": 30, "Table 4": 57}.get(item, 2)
    assert set(rows["statistic"]) == {statistic}
    for column, value in (("seeds", seeds), ("budget_frames", frames)):
        assert rows[column].isna().all() if value is None else set(rows[column]) == {value}


@pytest.mark.parametrize("paper", PUBLISHED)
def test_every_cell_of_every_paper_is_typed_and_sourced(paper: str) -> None:
    table = PUBLISHED[paper]
    assert list(table.columns) == [name for name in schema("published")["cells"] if name != "run"]
    assert (table["source"].str.len() > 5).all()
    assert table["value"].map(np.isfinite).all()
    assert (table.loc[table["digitised"], "notes"].str.len() > 0).all()
    percents = table["metric"].str.contains("human_normalised_score")
    assert set(table.loc[percents, "unit"]) <= {"percent"}


def test_columns_may_come_in_any_order(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ROOT / "apex_2018", tmp_path / "apex_2018"))
    path = copy / "published" / "text.csv"
    shuffled = pd.read_csv(path, dtype=str, keep_default_na=False).sample(frac=1.0, axis=1, random_state=1)
    shuffled.to_csv(path, index=False)
    pd.testing.assert_frame_equal(load_published(copy), PUBLISHED["apex_2018"], check_like=True)


def test_runs_of_one_protocol_are_one_cell_with_their_number_mean_and_deviation() -> None:
    """RLlib's six IMPALA runs on Breakout were six cells of one seed each."""
    logs = rows_of("impact_2020", item="RLlib log 2020-05")
    assert list(zip(logs["task"], logs["budget_frames"] // 10**6, logs["seeds"], strict=True)) == [
        (task, millions, 6) for task in ("breakout", "space_invaders") for millions in (20, 40, 80)
    ]
    printed = np.array([457.14, 443.24, 414.23, 364.42, 409.22, 389.19])  # Breakout at 80 million frames
    found = logs.iloc[2]
    assert (found["value"], found["deviation"]) == pytest.approx((printed.mean(), printed.std(ddof=1)))
    drawn = rows_of("seed_rl_2020", cell="repo.r2d2.cleanrl_plot.median").iloc[0]
    assert (drawn["value"], drawn["seeds"]) == (pytest.approx((1160 + 1164 + 1178 + 1139) / 4), 4)
    noisynet = rows_of("a3c_2016", cell="noisynet.a3c.alien").iloc[0]
    assert (noisynet["value"], noisynet["deviation"], noisynet["seeds"]) == (2027, 92, 3)


@pytest.mark.parametrize("paper", PUBLISHED)
def test_no_two_cells_differ_in_their_value_alone_unless_they_are_ends_of_one_range(paper: str) -> None:
    """Cells of one protocol are one cell. What is left names different things in `notes`."""
    table = PUBLISHED[paper]
    same = [name for name in table.columns if name not in ("cell", "value", "notes", "source", "variant")]
    numbered = table.assign(variant=table["variant"].str.replace(r"(run|seed|curve)[ _]*[0-9]+", "", regex=True))
    repeated = numbered[numbered.duplicated([*same, "variant"], keep=False)]
    ends = repeated["cell"].str.contains(r"_(?:end|mode)$|mean$|peak$|[0-9]+_workers$")
    assert list(repeated["cell"][~ends]) == []
    assert not repeated["cell"].str.contains("deviation|_run$").any()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("01_IMPALA (tf)", "00_IMPALA (tf)", "run '00_IMPALA (tf)' is given twice"),
        ("01_IMPALA (tf),1,20000000", "01_IMPALA (tf),1,30000000", "its runs differ in column 'budget_frames'"),
        ("01_IMPALA (tf),1,", "01_IMPALA (tf),2,", "its runs differ in column 'seeds'"),
    ],
)
def test_runs_of_a_cell_that_are_not_of_one_protocol_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    copy = Path(shutil.copytree(ROOT / "impact_2020", tmp_path / "impact_2020"))
    path = copy / "published" / "rllib_logs.csv"
    damage(path, old, new)
    assert said in refusal(lambda: load_published(copy), path)


def test_table_1_of_seed_rl_agrees_with_the_ratios_of_its_text() -> None:
    table = rows_of("seed_rl_2020", item="Table 1", variant="V-trace").set_index("cell")["value"]
    text = PUBLISHED["seed_rl_2020"].set_index("cell")["value"]
    base = table["t1.impala.p100.throughput"]
    for name in ("seed.p100", "seed.2_tpu_cores", "seed.8_tpu_cores", "seed.64_tpu_cores"):
        assert table[f"t1.{name}.throughput"] / base == pytest.approx(table[f"t1.{name}.speed_up"], rel=0.02)
    assert 1 / table["t1.seed.p100.speed_up"] == pytest.approx(text["s4.seed.p100.slow_down"], rel=0.01)
    assert table["t1.seed.64_tpu_cores.throughput"] == text["blog.seed.64_tpu_cores.throughput"]


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """A copy of a replication's data that a test may damage."""
    shutil.copytree(ROOT / "references", tmp_path / "references")
    shutil.copytree(IMPALA, tmp_path / "impala_2018", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "impala_2018"


def damage(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def refusal(call: Any, path: Path) -> str:
    """The one line of the `UserError`, which names the file."""
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


REQUIRED = [name for name, column in schema("published")["cells"].items() if column.get("required")]


@pytest.mark.parametrize("column", REQUIRED)
def test_a_cell_without_what_it_needs_is_refused(paper: Path, column: str) -> None:
    path = paper / "published" / "table_3.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table.loc[2, column] = ""
    table.to_csv(path, index=False)
    assert f"row 4, column '{column}': must not be empty" in refusal(lambda: load_published(paper), path)


def test_a_source_of_blanks_is_none(paper: Path) -> None:
    assert "source" in REQUIRED
    path = paper / "published" / "table_3.csv"
    damage(path, '"arXiv:1802.01561, Table 3"', '"  "')
    assert "row 2, column 'source': must not be empty" in refusal(lambda: load_published(paper), path)


NEEDED = [name for name, column in schema("published")["cells"].items() if not column.get("may_be_left_out")]


@pytest.mark.parametrize("column", NEEDED)
def test_a_file_without_one_of_the_columns_is_refused(paper: Path, column: str) -> None:
    path = paper / "published" / "table_3.csv"
    pd.read_csv(path, dtype=str, keep_default_na=False).drop(columns=column).to_csv(path, index=False)
    assert "columns must be exactly cell, item, system" in refusal(lambda: load_published(paper), path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",23.8,", ",abc,", "row 2, column 'value': 'abc' is not a number"),
        (",23.8,", ",nan,", "row 2, column 'value': 'nan' is not a number"),
        (",23.8,", ",1e999,", "row 2, column 'value': '1e999' is too large"),
        ("metric,value", "metrics,value", "unknown column 'metrics' (did you mean 'metric'?)"),
        ("metric,value", "value,value", "columns must be exactly cell, item, system"),
        (",percent,", ",percents,", "column 'unit': unknown value 'percents' (did you mean 'percent'?)"),
        (",best_per_architecture,", ",best,", "column 'statistic': unknown value 'best'"),
        (",10000000000,", ",-1,", "column 'budget_frames': '-1' is not a whole number above 0"),
        (",10000000000,,", ",10000000000,1.5,", "column 'budget_hours': '1.5' is not a whole number above 0"),
        (",false,", ",no,", "column 'digitised': unknown value 'no'"),
        ("t3.a3c.deep.", "T3 A3C.", "is not a name"),
        (",false,", ",false,more,", "row 2: 18 values; allowed: 17"),
    ],
)
def test_a_damaged_cell_is_refused_with_file_row_and_column(paper: Path, old: str, new: str, message: str) -> None:
    path = paper / "published" / "table_3.csv"
    damage(path, old, new)
    assert message in refusal(lambda: load_published(paper), path)


def test_a_digitised_value_without_its_error_is_refused(paper: Path) -> None:
    path = paper / "published" / "table_3.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table.loc[1, ["digitised", "notes"]] = ["true", ""]
    table.to_csv(path, index=False)
    assert "row 3, column 'notes': a digitised value must say" in refusal(lambda: load_published(paper), path)


def test_a_cell_given_twice_is_refused(paper: Path) -> None:
    path = paper / "published" / "table_3.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    assert "is given twice" in refusal(lambda: load_published(paper), paper / "published")


def test_a_folder_without_cells_and_an_empty_file_are_refused(paper: Path) -> None:
    empty = paper / "published" / "empty.csv"
    empty.write_text("")
    assert "is empty" in refusal(lambda: load_published(paper), empty)
    shutil.rmtree(paper / "published")
    assert "holds no published cells" in refusal(lambda: load_published(paper), paper / "published")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f",7127.7,{OF},google-deepmind/dqn_zoo: dqn_zoo/atari_data.py,", f",7127.7,{OF},,", "column 'source'"),
        (
            f"amidar,5.8,1719.5,{OF}",
            f"alien,5.8,1719.5,{OF}",
            "task 'alien' is given twice as variant 'standard'",
        ),
        (f"amidar,5.8,1719.5,{OF}", f"amidar,5.8,5.8,{OF}", "'amidar', variant 'standard': random and human"),
        (f"amidar,5.8,1719.5,{OF}", f"amidar,,1719.5,{OF}", "row 3, column 'random': must not be empty"),
        (f"1719.5,{OF}", "1719.5,,standard", "'amidar', variant 'standard': columns 'human' and 'made_by' go together"),
        (f"1719.5,{OF}", f",{OF}", "'amidar', variant 'standard': columns 'human' and 'made_by' go together"),
        (f"1719.5,{OF}", "1719.5,luck,standard", "row 3, column 'made_by': unknown value 'luck'"),
        (
            f"1719.5,{OF}",
            "1719.5,rule_of_the_task,standard",
            "100 % has 2 definitions (column 'made_by'): published, rule_of_the_task; allowed: one",
        ),
        (",published_means,", ",means,", "unknown variant 'published_means'"),
    ],
)
def test_a_damaged_reference_is_refused(paper: Path, old: str, new: str, message: str) -> None:
    path = paper.parent / "references" / "atari57.csv"
    damage(path, old, new)
    assert message in refusal(lambda: load_references(load_paper(paper)), path)


@pytest.mark.parametrize("paper", [name for name in PUBLISHED if (ROOT / name / "paper.yaml").exists()])
def test_a_score_of_100_percent_has_one_definition_in_each_set_of_a_paper(paper: str) -> None:
    """First-person tasks had five means, twelve bests, four rules and one published score in one set."""
    references = load_references(load_paper(ROOT / paper))
    references["prefix"] = references["environment"].str.partition("/")[0]
    made = references[references["human"].notna()].groupby("prefix")["made_by"].agg(lambda found: sorted(set(found)))
    assert all(len(found) == 1 and found[0] in MADE_BY for found in made)
    assert made.get("firstperson", ["best_of_40_oracle_episodes"]) == ["best_of_40_oracle_episodes"]
    assert references.loc[references["human"].isna(), "made_by"].eq("").all()


def test_a_set_of_oracles_bests_is_whole_and_that_of_their_means_lies_below_it() -> None:
    path = ROOT / "references" / "firstperson.csv"
    best, mean = (reference_scores(path, [name]).set_index("task") for name in ("oracle_best", "oracle_mean"))
    assert (len(best), len(mean)) == (30, 29)
    assert (best.loc[mean.index, "human"] >= mean["human"]).all()
    with pytest.raises(UserError, match="100 % has 2 definitions"):
        reference_scores(path, ["oracle_best", "rule"])


def test_missing_references_are_named(paper: Path) -> None:
    path = paper.parent / "references" / "toy.csv"
    path.unlink()
    assert "no such file" in refusal(lambda: load_references(load_paper(paper)), path)
