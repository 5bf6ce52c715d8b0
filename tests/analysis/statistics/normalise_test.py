"""Human-normalised scores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.statistics.normalise import capped, human_normalised, with_references


def test_random_play_is_0_and_a_human_is_1() -> None:
    random, human = pd.Series([-20.7, 148.0]), pd.Series([14.6, 1668.7])
    assert list(human_normalised(random, random, human)) == [0.0, 0.0]
    assert list(human_normalised(human, random, human)) == [1.0, 1.0]


def test_a_missing_reference_gives_a_missing_score() -> None:
    assert human_normalised(pd.Series([1.0, 1.0]), pd.Series([0.0, 0.0]), pd.Series([np.nan, 0.0])).isna().all()


def test_a_human_below_random_play_turns_the_scale_round() -> None:
    # As for Video Pinball with human starts: better than random play is then a negative score.
    assert human_normalised(pd.Series([20452.0]), pd.Series([20452.0]), pd.Series([15641.1])).tolist() == [0.0]
    assert human_normalised(pd.Series([30000.0]), pd.Series([20452.0]), pd.Series([15641.1])).iloc[0] < 0


def test_a_capped_score_is_cut_above_and_not_below_and_stays_missing() -> None:
    assert capped(pd.Series([-3.0, 0.5, 1.0, 9.0])).tolist() == [-3.0, 0.5, 1.0, 1.0]
    assert capped(pd.Series([np.nan])).isna().all()


def test_references_are_matched_by_environment_and_keep_every_row() -> None:
    scores = pd.DataFrame({"environment": ["b", "a", "c", "a"], "points": [1.0, 5.0, 7.0, 10.0]})
    references = pd.DataFrame({"environment": ["a", "b"], "random": [0.0, 1.0], "human": [10.0, 2.0]})
    found = with_references(scores, references, "points")
    assert found["human_normalised_score"].tolist()[:2] == [0.0, 0.5]
    assert np.isnan(found["human_normalised_score"].iloc[2])
    assert found["human_normalised_score"].iloc[3] == 1.0


def test_an_environment_with_two_references_is_refused() -> None:
    scores = pd.DataFrame({"environment": ["a"], "points": [1.0]})
    references = pd.DataFrame({"environment": ["a", "a"], "random": [0.0, 1.0], "human": [10.0, 2.0]})
    with pytest.raises(pd.errors.MergeError):
        with_references(scores, references, "points")
