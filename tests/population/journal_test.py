"""The journal of decisions, the ancestry that follows from it, and the curves along the ancestry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ddrl.population.journal import Decision, Journal, Piece, Start, ancestry, as_table
from ddrl.population.results import curves_along
from ddrl.training.records.recorder import COLUMNS

KEPT = Decision(0, 0, "evolve", 100, 25, 5, 10, 0.5, 1, None, False, None, None, {"x": 1.0}, {"x": 1.2}, 1.5)


def kept(member: int, decision: int, env_frames: int) -> Decision:
    """A member decides to copy nobody."""
    return replace(KEPT, member=member, decision=decision, env_frames=env_frames)


def copied(member: int, decision: int, env_frames: int, source: Decision) -> Decision:
    """A member decides to copy what another one was at its decision."""
    return replace(
        kept(member, decision, env_frames),
        compared_with=source.member,
        copied=True,
        source_decision=source.decision,
        source_env_frames=source.env_frames,
    )


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin({"identity": "abc"}, Start("2026-01-01T00:00:00+00:00", None))
    journal.append(KEPT)
    journal.append(replace(KEPT, member=1, fitness=None))
    again = Journal(tmp_path)
    assert (again.identity, again.decisions, len(again.starts)) == ("abc", journal.decisions, 1)
    assert again.newest(1) == journal.decisions[1]
    assert again.newest(2) is None


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_that_a_kill_cut_short_is_cut_off(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    journal.begin({"identity": "abc"}, Start("2026-01-01T00:00:00+00:00", None))
    journal.append(KEPT)
    journal.append(replace(KEPT, decision=1))
    journal.path.write_bytes(journal.path.read_bytes()[:-cut])
    again = Journal(tmp_path)
    assert again.decisions == [KEPT]
    again.append(replace(KEPT, decision=1))
    assert Journal(tmp_path).decisions == journal.decisions


def test_without_copies_the_ancestry_is_the_member() -> None:
    assert ancestry([kept(0, 0, 100), kept(1, 0, 100), kept(0, 1, 200)], 0) == [Piece(0, -1, 200)]


def test_an_ancestry_goes_through_the_decisions_whose_weights_were_copied() -> None:
    """2 begins; 1 copies it at 100; 0 copies 1 at 200; what 1 and 2 did afterwards is no part of it."""
    two = kept(2, 0, 100)
    one = copied(1, 0, 104, two)
    one_later = kept(1, 1, 204)
    decisions = [two, kept(0, 0, 100), one, one_later, copied(0, 1, 208, one_later), copied(2, 1, 200, one_later)]
    decisions += [kept(1, 2, 300), kept(0, 2, 300)]
    assert ancestry(decisions, 0) == [Piece(2, -1, 100), Piece(1, 104, 204), Piece(0, 208, 300)]


def test_a_copy_hands_on_what_the_source_was_before_its_own_copy() -> None:
    """1 decides at 100 to copy 2; 0 copies what 1 was at that decision."""
    two, zero = kept(2, 0, 100), kept(0, 0, 100)
    one = copied(1, 0, 100, two)
    decisions = [two, one, zero, copied(0, 1, 200, one), kept(0, 2, 300)]
    assert ancestry(decisions, 0) == [Piece(1, -1, 100), Piece(0, 200, 300)]


def test_frames_never_run_backwards_where_the_source_was_ahead() -> None:
    ahead = kept(1, 0, 500)
    decisions = [ahead, copied(0, 0, 300, ahead), kept(0, 1, 600)]
    assert ancestry(decisions, 0) == [Piece(1, -1, 300), Piece(0, 300, 600)]


def records(*frames: int, per_frame: float) -> pd.DataFrame:
    """Curves of a member that counts so many steps, updates, seconds and episodes for a frame."""
    rows = [
        [at, int(at * per_frame), int(at * per_frame), at * per_frame, metric, value]
        for at in frames
        for metric, value in (("episodes", at * per_frame), ("loss", float(at)))
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype({"env_frames": "int64", "agent_steps": "int64", "updates": "int64"})


def test_curves_along_an_ancestry_count_on() -> None:
    first, second = records(100, 200, 300, per_frame=1), records(100, 200, 300, 400, per_frame=10)
    table = curves_along([Piece(0, -1, 200), Piece(1, 200, 400)], [first, second])
    loss = table[table.metric == "loss"]
    assert list(loss.env_frames) == [100, 200, 300, 400]
    assert list(loss.agent_steps) == [100, 200, 1200, 2200]
    assert list(loss.seconds) == [100, 200, 1200, 2200]
    assert list(table[table.metric == "episodes"].value) == [100, 200, 1200, 2200]
    assert list(table.dtypes) == list(first.dtypes)


def test_the_table_has_a_row_per_decision_and_values_before_and_after() -> None:
    two = kept(2, 0, 100)
    table = as_table([two, copied(0, 0, 120, two), replace(kept(1, 0, 100), kind="burn_in", compared_with=None)])
    assert list(table.member) == [2, 0, 1]
    assert list(table.copied) == [False, True, False]
    assert table.source_member.isna().tolist() == [True, False, True]
    assert table.loc[1, ["source_member", "source_env_frames", "x_before", "x_after"]].tolist() == [2, 100, 1.0, 1.2]
