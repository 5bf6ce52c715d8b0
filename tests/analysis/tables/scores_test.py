"""The tables of suite statistics: what is compared with what, and which rows they hold."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.statistics import bootstrap
from ddrl.analysis.tables.scores import AGGREGATES, IMPROVEMENT, PROFILES, aggregates, improvement, profiles


def scores(variant: str, games: dict[str, list[float]], *, frames: int = 1000, origin: str = "run") -> pd.DataFrame:
    """Rows of the table `scores`; the return is ten times the normalised score."""
    rows = [(game, seed, value) for game, values in games.items() for seed, value in enumerate(values, start=1)]
    table = pd.DataFrame(rows, columns=["environment", "seed", "human_normalised_score"])
    head = {"origin": origin, "paper": "p", "experiment": "atari", "variant": variant, "env_frames": frames}
    head |= {"random": 0.0, "human": 1.0, "score_error": 0.0, "versions": 1}
    return table.assign(**head, final_return=10 * table["human_normalised_score"])


DEEP = scores("deep", {"a": [0.0, 0.2], "b": [1.0, 1.2, 1.7]})
SHALLOW = scores("shallow", {"a": [-0.1, -0.2], "b": [0.9, 1.1]})


def test_aggregates_name_what_they_are_over() -> None:
    found = aggregates(DEEP, seed=1, resamples=100)
    assert list(found.columns) == AGGREGATES
    assert set(found["metric"]) == {"human_normalised_score"}
    by_statistic = found.set_index("statistic")
    assert by_statistic.loc["mean", "value"] == pytest.approx((0.1 + 1.3) / 2)
    assert by_statistic.loc["median", "value"] == pytest.approx((0.1 + 1.3) / 2)
    assert by_statistic.loc["capped_mean", "value"] == pytest.approx((0.1 + 1.0) / 2)
    assert by_statistic.loc["optimality_gap", "value"] == pytest.approx(0.45)
    assert by_statistic.loc["iqm", "value"] == pytest.approx(bootstrap.value_of(DEEP, "human_normalised_score", "iqm"))
    assert set(found["seeds"]) == {2}
    assert set(found["environments"]) == {2}
    assert (found["ci95_low"] <= found["value"]).all()
    assert (found["value"] <= found["ci95_high"]).all()


def test_intervals_repeat_and_do_not_depend_on_the_other_variants() -> None:
    alone, together = (
        aggregates(table, seed=1, resamples=100).query("variant == 'deep'").reset_index(drop=True)
        for table in (DEEP, pd.concat([SHALLOW, DEEP.assign(variant="another"), DEEP]))
    )
    pd.testing.assert_frame_equal(alone, together)
    three = pd.concat([DEEP, scores("deep", {"a": [0.1]}).assign(seed=3)])
    first, second = (aggregates(three, seed=seed, resamples=100) for seed in (1, 2))
    assert not first.equals(second)
    assert (set(alone["spread"]), set(first["spread"])) == ({"range"}, {"interval"})


def test_an_environment_without_references_is_left_out_of_scores_that_need_them() -> None:
    unknown = scores("deep", {"c": [np.nan, np.nan]})
    both = pd.concat([DEEP, unknown])
    pd.testing.assert_frame_equal(aggregates(both, seed=1, resamples=50), aggregates(DEEP, seed=1, resamples=50))
    pd.testing.assert_frame_equal(profiles(both), profiles(DEEP))


def test_tables_without_rows_keep_columns_and_types() -> None:
    nothing = DEEP.iloc[:0]
    drawn = functools.partial(aggregates, seed=1, resamples=10)
    for maker, columns in ((drawn, AGGREGATES), (profiles, PROFILES), (improvement, IMPROVEMENT)):
        full = maker(pd.concat([DEEP, SHALLOW]))
        empty = maker(nothing)
        assert list(full.columns) == list(empty.columns) == columns
        assert len(full) > 0
        assert empty.empty
        assert empty.dtypes.to_dict() == full.dtypes.to_dict()


def test_a_profile_is_the_part_of_the_runs_above_each_tau() -> None:
    found = profiles(DEEP)
    fractions = found.set_index("tau")["fraction"]
    assert fractions[[0.0, 0.1, 1.1, 5.0]].tolist() == pytest.approx([(1 / 2 + 1) / 2] * 2 + [(0 + 2 / 3) / 2, 0.0])
    assert (found["ci95_low"] <= found["fraction"]).all()
    assert (found["fraction"] <= found["ci95_high"]).all()
    assert len(found) == 81


def test_improvement_names_the_variant_that_wins_more_often_as_better() -> None:
    for table in (pd.concat([DEEP, SHALLOW]), pd.concat([SHALLOW, DEEP])):
        (row,) = improvement(table).to_dict("records")
        assert (row["better"], row["worse"]) == ("deep", "shallow")
        # a: all 4 pairs; b: 5 of 6 pairs.
        assert row["value"] == pytest.approx((1 + 5 / 6) / 2)
        assert row["ci95_low"] <= row["value"] <= row["ci95_high"] <= 1.0
        assert (row["environments"], row["seeds"]) == (2, 2)


def test_improvement_turns_the_interval_round_with_the_value() -> None:
    worse_first = pd.concat([SHALLOW.assign(variant="a"), DEEP.assign(variant="b")])
    (row,) = improvement(worse_first).to_dict("records")
    assert (row["better"], row["worse"]) == ("b", "a")
    assert row["value"] == pytest.approx((1 + 5 / 6) / 2)
    assert row["ci95_low"] <= row["value"] <= row["ci95_high"]


def test_improvement_compares_only_environments_both_have_run_on_for_as_long() -> None:
    longer = scores("shallow", {"b": [9.0, 9.0]}, frames=2000)
    elsewhere = scores("shallow", {"c": [9.0, 9.0]})
    found = improvement(pd.concat([DEEP, SHALLOW.query("environment == 'a'"), longer, elsewhere]))
    assert found["environments"].tolist() == [1]
    assert found["value"].tolist() == [1.0]
    assert improvement(pd.concat([DEEP, longer, elsewhere])).empty


def test_improvement_keeps_origins_apart_and_takes_every_pair() -> None:
    mine = pd.concat([DEEP, SHALLOW, DEEP.assign(variant="third")])
    found = improvement(pd.concat([mine, mine.assign(origin="reference")]))
    assert found.groupby("origin").size().to_dict() == {"reference": 3, "run": 3}
    level = found[(found["better"] == "deep") & (found["worse"] == "third")]
    assert level["value"].tolist() == [0.5, 0.5]


def test_improvement_leaves_the_settings_of_a_sweep_out() -> None:
    both = pd.concat([DEEP, SHALLOW])
    settings = pd.concat([DEEP.assign(variant=f"deep__s{number}") for number in range(3)])
    alone = improvement(both)
    pd.testing.assert_frame_equal(improvement(pd.concat([both, settings])), alone)
