"""The published cells: typed, sourced, and consistent with the aggregates the paper prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.normalise import human_normalised
from ddrl.analysis.paper import load_paper
from ddrl.analysis.published import load_published, load_references, matching
from ddrl.errors import UserError

IMPALA = Path(__file__).parents[2] / "replications" / "impala_2018"
PUBLISHED = load_published(IMPALA)


def percent(variant: str, video_pinball_random: float = 0.0) -> pd.Series:
    """Human-normalised scores of Table C.1 in percent, by game."""
    rows = matching(PUBLISHED, {"item": "Table C.1", "system": "IMPALA", "variant": variant})
    references = load_references(load_paper(IMPALA)).set_index("task")
    references.loc["video_pinball", "random"] = video_pinball_random
    chosen = references.loc[list(rows["task"])]
    scores = pd.Series(rows["value"].to_numpy(), index=chosen.index)
    return 100 * human_normalised(scores, chosen["random"], chosen["human"])


def test_table_4_is_recomputed_from_table_c1_for_the_deep_experts() -> None:
    deep = percent("deep, experts")
    assert len(deep) == 57
    assert deep.median() == pytest.approx(191.8, abs=0.05)
    assert deep.mean() == pytest.approx(957.6, abs=0.5)


def test_table_4_is_recomputed_from_table_c1_for_the_shallow_experts_and_the_multi_task_agent() -> None:
    shallow, multi_task = percent("shallow, experts"), percent("deep, multi-task")
    assert shallow.mean() == pytest.approx(466.4, abs=0.5)
    assert shallow.median() == pytest.approx(93.2, abs=0.05)
    assert multi_task.mean() == pytest.approx(176.9, abs=0.5)
    assert multi_task.median() == pytest.approx(59.7, abs=0.05)


def test_the_printed_means_need_a_random_score_of_zero_on_video_pinball() -> None:
    assert percent("deep, experts", 16256.9).mean() == pytest.approx(1592.5, abs=0.5)
    assert percent("deep, experts", 16256.9).median() == pytest.approx(191.8, abs=0.05)


@pytest.mark.parametrize(
    ("system", "variant", "printed"), [("IMPALA-Experts", "deep", 44.5), ("IMPALA", "deep, PBT (multi-task)", 49.4)]
)
def test_dmlab_30_is_recomputed_from_table_b1_with_its_own_references(
    system: str, variant: str, printed: float
) -> None:
    wanted = {"item": "Table B.1", "metric": "episode_return"}
    rows = matching(PUBLISHED, wanted | {"system": system, "variant": variant}).set_index("task")["value"]
    random = matching(PUBLISHED, wanted | {"system": "random"}).set_index("task")["value"]
    human = matching(PUBLISHED, wanted | {"system": "human"}).set_index("task")["value"]
    capped = human_normalised(rows, random[rows.index], human[rows.index]).clip(upper=1.0)
    assert len(capped) == 30
    assert 100 * capped.mean() == pytest.approx(printed, abs=0.1)


def test_the_code_swaps_the_lasertag_references_of_table_b1() -> None:
    table = pd.read_csv(IMPALA / "published" / "references_dmlab30.csv").set_index(["variant", "task"])
    for opponents in ("one_opponent", "three_opponents"):
        printed = table.loc[("table_b1", f"lasertag_{opponents}_small"), "human"]
        assert table.loc[("open_source", f"lasertag_{opponents}_large"), "human"] == pytest.approx(printed, abs=0.1)


def test_every_atari_game_has_a_random_and_a_human_score() -> None:
    references = load_references(load_paper(IMPALA))
    atari = references[references["environment"].str.startswith("atari/")]
    assert len(atari) == 57
    assert np.isfinite(atari[["random", "human"]].to_numpy()).all()


def test_the_experts_are_final_scores_of_one_seed_and_table_2_is_a_best_of_24() -> None:
    experts = matching(PUBLISHED, {"item": "Table C.1", "variant": "deep, experts"})
    assert set(experts["statistic"]) == {"final"}
    assert set(experts["seeds"]) == {1}
    assert set(experts["budget_frames"]) == {200_000_000}
    table_2 = matching(PUBLISHED, {"item": "Table 2"})
    assert set(table_2["statistic"]) == {"mean_of_best_3_of_24"}
    assert table_2["seeds"].isna().all()


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """A copy of the replication that a test may damage."""
    shutil.copytree(IMPALA, tmp_path / "impala_2018", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "impala_2018"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"arXiv:1802.01561, Table 3"', '""', "row 2, column 'source': must not be empty"),
        (",23.8,", ",abc,", "row 2, column 'value': 'abc' is not a number"),
        (",23.8,", ",nan,", "row 2, column 'value': 'nan' is not a number"),
        (",23.8,", ",1e999,", "row 2, column 'value': '1e999' is too large"),
        ("metric,value", "metrics,value", "unknown column 'metrics' (did you mean 'metric'?)"),
        (",percent,", ",percents,", "column 'unit': unknown value 'percents' (did you mean 'percent'?)"),
        (",10000000000,", ",-1,", "column 'budget_frames': '-1' is not a whole number above 0"),
        (",false,", ",no,", "column 'digitised': unknown value 'no'"),
        ("t3.a3c.deep.", "T3 A3C.", "is not a name"),
        (",false,", ",false,more,", "row 2: 17 values; allowed: 16"),
    ],
)
def test_a_damaged_cell_is_refused_with_file_row_and_column(paper: Path, old: str, new: str, message: str) -> None:
    path = paper / "published" / "table_3.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        load_published(paper)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cell_given_twice_is_refused(paper: Path) -> None:
    path = paper / "published" / "table_3.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(UserError, match="is given twice"):
        load_published(paper)
