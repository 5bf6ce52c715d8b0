"""Human-normalised scores: 0 is random play, 1 is a human tester."""

from __future__ import annotations

import pandas as pd


def human_normalised(scores: pd.Series, random: pd.Series, human: pd.Series) -> pd.Series:
    """Return (score - random) / (human - random); missing if a reference is (Mnih et al. 2015, Methods)."""
    span = human.astype("float64") - random.astype("float64")
    return (scores.astype("float64") - random.astype("float64")) / span.where(span != 0)


def capped(normalised: pd.Series) -> pd.Series:
    """Cap scores at 1 (DMLab-30's measure: Espeholt et al. 2018, Table 3); missing ones stay missing."""
    return normalised.clip(upper=1.0)


def with_references(scores: pd.DataFrame, references: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return `scores` with columns random, human, made_by and human_normalised_score (of `column`), by `environment`.

    `made_by` says how the score in `human` was made: empty where there is none.
    """
    known = references.reindex(columns=["environment", "random", "human", "made_by"])
    joined = scores.merge(known, on="environment", how="left", validate="m:1")
    joined["made_by"] = joined["made_by"].astype("string").fillna("")
    joined["human_normalised_score"] = human_normalised(joined[column], joined["random"], joined["human"])
    return joined
