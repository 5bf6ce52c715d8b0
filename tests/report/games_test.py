"""Tables of scores over several tasks: what their intervals are, and how well the scores behind them are known."""

from __future__ import annotations

import pytest

from ddrl.analysis.statistics.bootstrap import INTERVAL, RANGE
from ddrl.report.sections.document import Row, Table
from ddrl.report.sections.games import over_games

KEYS = {"origin": "run", "experiment": "atari", "variant": "deep", "ci95_low": "0.1", "ci95_high": "0.9"}
COUNTS = {"environments": "5", "seeds": "3", "versions": "1"}
AGGREGATE = KEYS | COUNTS | {"metric": "human_normalised_score", "statistic": "iqm", "value": "0.5"}


def made(spread: str, versions: str = "1") -> tuple[Table, ...]:
    """The three tables of one variant."""
    rows: dict[str, list[Row]] = {
        "runs": [KEYS | {"variant_label": "Deep"}],
        "aggregates": [AGGREGATE | {"spread": spread}, AGGREGATE | {"spread": spread, "versions": versions}],
        "profiles": [KEYS | {"spread": spread, "tau": str(tau), "fraction": "0.5"} for tau in (0.1, 0.5, 1.0)],
        "improvement": [KEYS | COUNTS | {"spread": spread, "better": "deep", "worse": "deep", "value": "0.7"}],
    }
    return over_games(rows, {"atari": {"title": "Atari"}})


@pytest.mark.parametrize(("place", "method"), list(enumerate(["studentised", "Wilson’s", "Newcombe’s"])))
def test_the_note_of_each_table_names_the_method_of_its_intervals(place: int, method: str) -> None:
    note = made(INTERVAL)[place].note
    assert f"Intervals: over seeds, {method}, from 3 seeds a task on." in note
    assert "Ranges" not in note
    assert "Ranges of 2 seeds: with the lowest and with the highest seed" in made(RANGE)[place].note


def test_a_range_is_called_one_beside_its_value() -> None:
    def shown(spread: str) -> str:
        return str(made(spread)[0].groups)

    assert "range [10" in shown(RANGE)
    assert "range" not in shown(INTERVAL)


def test_a_note_says_where_scores_are_of_one_version() -> None:
    assert "All scores are of one version of the parameters" in made(INTERVAL)[0].note
    assert "Some scores are of one version" in made(INTERVAL, versions="5")[0].note
